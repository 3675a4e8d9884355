"""Runs that older versions wrote (tests/fixtures, made by make_run.py) are played, continued, drawn and branched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxppo.cli import main
from jaxppo.program import checkpoint
from jaxppo.program.metrics_table import read_table

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = [path.name for path in sorted(FIXTURES.glob("run_*"))]


@pytest.fixture(params=NAMES)
def run(request, tmp_path):
    """A copy of an old run: 320 of 640 steps, episodes of at most 50."""
    return shutil.copytree(FIXTURES / request.param, tmp_path / request.param)


def test_there_are_old_runs_and_they_are_small():
    assert "run_schema_1" in NAMES
    for name in NAMES:
        assert sum(path.stat().st_size for path in (FIXTURES / name).rglob("*")) < 150_000


@pytest.mark.parametrize("which", ["last", "best"])
def test_an_old_run_is_played(run, which, capsys):
    assert main(["eval", str(run), "--episodes", "6", "--json", "--checkpoint", which]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 320 and all(result["finished"])
    assert result["episode_return"] == result["episode_length"] and 0 < max(result["episode_length"]) <= 50


def test_an_old_run_is_continued_and_drawn(run, tmp_path):
    config, before = (run / "config.json").read_bytes(), (run / "metrics.csv").read_bytes()
    assert main(["resume", str(run), "--quiet"]) == 0
    assert (run / "config.json").read_bytes() == config
    assert (run / "metrics.csv").read_bytes().startswith(before)
    table = read_table(run / "metrics.csv")
    np.testing.assert_array_equal(table["steps"], 64 * np.arange(1, 11))
    np.testing.assert_allclose(table["learning_rate"], 0.01 * (1 - np.arange(10) / 10), rtol=1e-5)
    assert np.isfinite(table["policy_loss"]).all() and not table["skipped_updates"].any()
    assert table["weighted_samples"].all() and np.isfinite(table["evaluation_return"][[1, 3, 5, 7, 9]]).all()
    assert checkpoint.find(run / "checkpoints")[-1].steps == 640
    assert main(["plot", str(run), "--output", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_an_old_run_is_drawn_as_it_is(run, tmp_path):
    assert main(["plot", str(run), "--output", str(tmp_path / "curve.svg")]) == 0
    assert (tmp_path / "curve.svg").read_bytes().startswith(b"<?xml")


def test_an_old_run_is_branched(run, tmp_path, capsys):
    """With another surrogate, which leaves the number of the old one, and another estimator's number taken away."""
    old = checkpoint.load_arrays(checkpoint.find(run / "checkpoints")[-1])
    changes = ["surrogate=spo", "advantage_numbers.lam=none", "learning_rate=0", "total_steps=384"]
    assert main(["branch", str(run), "--set", *changes, "--run", str(tmp_path / "branch")]) == 0
    assert "surrogate_numbers.epsilon" in capsys.readouterr().err
    config = json.loads((tmp_path / "branch" / "config.json").read_text())
    assert config["hyper"]["surrogate"] == config["hyper"]["advantage"] == {}
    new = checkpoint.load_arrays(checkpoint.find(tmp_path / "branch" / "checkpoints")[-1])
    for name in old:
        if name.startswith("parameters"):
            np.testing.assert_array_equal(old[name], new[name], err_msg=name)
