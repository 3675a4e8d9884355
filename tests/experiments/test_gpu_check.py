"""The check for accelerators, at small sizes, in a bare environment: from a checkout, with nothing but jax and flax."""

import json
import os
import subprocess
import sys

import pytest

from experiments import gpu_check

MISSING = ("gymnax", "brax", "jumanji", "distrax", "orbax", "tyro", "matplotlib", "pyarrow")
BARE = f"""
import importlib.metadata, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {MISSING}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path[:] = [Refuse(), *(finder for finder in sys.meta_path if "editable" not in repr(finder))]

class Hidden(importlib.metadata.MetadataPathFinder):
    @classmethod
    def find_distributions(cls, context=importlib.metadata.DistributionFinder.Context()):
        return [] if context.name == "jaxppo" else super().find_distributions(context)

importlib.metadata.MetadataPathFinder = Hidden
"""


@pytest.fixture
def run(tmp_path):
    """run(*arguments) -> the finished process, in an environment without jaxppo and the libraries of `MISSING`."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BARE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "bare"), "JAX_PLATFORMS": "cpu"}

    def call(*arguments, program=(gpu_check.__file__,), timeout=280):
        command = [sys.executable, *program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout)

    return call


def check(run, out, *steps):
    """Runs the steps twice. Returns their results."""
    first = run("--small", "--out", str(out), *steps)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [file.name for file in out.iterdir()] == ["results.json"]
    text = (out / "results.json").read_text()
    again = run("--small", "--out", str(out), *steps, timeout=60)
    assert again.returncode == 0 and again.stdout.count(": done before") == len(json.loads(text)["steps"])
    assert (out / "results.json").read_text() == text, "nothing was run a second time"
    found = json.loads(text)
    assert found["failed"] == {} and found["running"] is None
    assert found["machine"]["platform"] == "cpu" and "flax" in found["versions"]
    for name, result in found["steps"].items():
        assert f"{name}: " in first.stdout and result["seconds"] > 0
    return found["steps"]


def check_memory(result):
    assert result["chunks"] * result["microbatches"] > 1 and result["fits"] and result["skipped_updates"] == 0
    assert 0.5 < result["predicted_bytes"] / result["allocated_bytes"] < 2


def check_speed(result):
    for name in ("full", "bare"):
        assert result[name]["steps_per_second"] > 1000 and result[name]["compile_seconds"] > 0
    assert result["floor"] > 1000 and len(result["parts"]) == len(result["kernels"]) >= 6


def test_the_environment_is_bare(run):
    for name in ("tyro", "jaxppo"):
        assert run("-c", f"import {name}", program=()).returncode == 1
    version = run("-c", "from importlib.metadata import version; version('jaxppo')", program=())
    assert "PackageNotFoundError" in version.stderr


@pytest.mark.timeout(400)
def test_memory_and_speed_without_anything_else(run, tmp_path):
    results = check(run, tmp_path / "out", "memory 2^9", "speed cartpole 2^6")
    check_memory(results["memory 2^9"])
    check_speed(results["speed cartpole 2^6"])


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_all_of_it(run, tmp_path):
    results = check(run, tmp_path / "out")
    assert set(results) == {step.name for step in gpu_check.all_steps(small=True)}
    for name in ("agreement cartpole", "agreement orchard"):
        assert results[name]["agrees"] and "on one device" in results[name]["compared"]
        assert results[name]["difference"] < 1e-5 < results[name]["moved"]
    check_memory(results["memory 2^9"])
    check_speed(results["speed cartpole 2^6"])
    learned = results["learning"]
    assert len(learned["curve"]) == learned["updates"] == 4 and learned["steps"] == 4 * 64 * 32
    assert 0 < learned["evaluation_return"] < 500 and learned["steps_per_second"] > 1000


def test_what_was_stopped_is_tried_again_last(run, tmp_path):
    out = tmp_path / "out"
    results = gpu_check.Results(out)
    results.data["running"] = {"name": "learning", "until": 0.0}
    results.save()
    done = run("--small", "--out", str(out), "--seconds", "0", timeout=60)
    assert done.returncode == 1 and "run it again" in done.stdout
    assert set(gpu_check.Results(out).data["failed"]) == {"learning"}


def test_time_that_is_over_ends_a_step(run, tmp_path):
    done = run("--small", "--out", str(tmp_path / "out"), "learning", "--seconds", "8", timeout=60)
    assert done.returncode == 1 and "missing: learning" in done.stdout


def test_unknown_steps_are_refused(run):
    done = run("--small", "speed ant 2^12", timeout=60)
    assert done.returncode == 2 and "memory 2^9" in done.stderr


@pytest.mark.parametrize("rate, learned, met", [(2e7, True, True), (2e7, False, False), (9e6, True, False)])
def test_goals(rate, learned, met):
    done = {"learning": {"steps_per_second": rate, "learned": learned}, "agreement cartpole": {"agrees": True}}
    assert list(gpu_check.goals(done).values()) == [True, met, None]
    assert list(gpu_check.goals({"memory 2^20 in 12 GiB": {"fits": True}}).values()) == [None, None, True]
    assert list(gpu_check.goals({}).values()) == [None, None, None]


def test_full_size_leaves_out_what_is_not_there(monkeypatch):
    monkeypatch.setattr(gpu_check, "importable", lambda library: library in ("brax", "distrax"))
    names = [step.name for step in gpu_check.all_steps(small=False)]
    assert "speed ant 2^12" in names and "speed gymnax-cartpole 2^14" not in names
    assert sum(name.startswith("speed") for name in names) == 9
