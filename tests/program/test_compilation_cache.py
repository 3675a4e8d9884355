"""A second process finds what the first one compiled; nothing is written where it is switched off."""

import os
import subprocess
import sys

import pytest

from jaxppo.program import compilation_cache

PROGRAM = ["--env", "jaxppo/cartpole", "--num-envs", "8", "--num-steps", "8", "--total-steps", "128", "--quiet"]


def train(tmp_path, name, **environment):
    command = [sys.executable, "-m", "jaxppo.cli", "train", *PROGRAM, "--run", str(tmp_path / name)]
    unwanted = ("JAXPPO_COMPILATION_CACHE", "JAX_COMPILATION_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(command, env={**kept, **settings, **environment}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.timeout(400)
def test_the_second_run_compiles_nothing_and_learns_the_same(tmp_path):
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    train(tmp_path, "first", **home)
    (folder,) = (tmp_path / "cache" / "jaxppo").iterdir()
    files = {path: path.stat().st_size for path in folder.iterdir()}
    assert len(files) >= 2
    said = train(tmp_path, "second", **home)
    assert {path: path.stat().st_size for path in folder.iterdir() if not path.name.endswith("atime")} == {
        path: size for path, size in files.items() if not path.name.endswith("atime")
    }
    assert "feature" not in said  # what XLA has to say about loading does not reach the screen

    def learned(name):
        rows = [line.split(",") for line in (tmp_path / name / "metrics.csv").read_text().splitlines()]
        assert rows[0][2] == "seconds"
        return [row[:2] + row[3:] for row in rows]

    assert learned("first") == learned("second")


def test_off_and_a_directory_of_ones_own(tmp_path, monkeypatch):
    import jax

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert compilation_cache.enable() is None  # the suite switches it off
    assert not (tmp_path / "user").exists()
    try:
        monkeypatch.setenv(compilation_cache.SWITCH, str(tmp_path / "mine"))
        found = compilation_cache.enable()
        assert found and found.parent == tmp_path / "mine" and found.is_dir()
        assert compilation_cache.enable() is None  # JAX has one already
        jax.config.update("jax_compilation_cache_dir", None)
        monkeypatch.setenv(compilation_cache.SWITCH, "")
        found = compilation_cache.enable()
        assert found and found.is_relative_to(tmp_path / "user" / "jaxppo")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
