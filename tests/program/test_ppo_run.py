"""The whole program with PPO itself: resumed equals uninterrupted, bit for bit, whatever ended the process."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxppo.cli import main
from jaxppo.program import checkpoint
from jaxppo.program.metrics_table import read_table

FLAGS = ["--env", "jaxppo/cartpole", "--preset", "none", "--num-envs", "8", "--num-steps", "8", "--minibatches", "2"]
FLAGS += ["--network.hidden", "8", "--normalise-observation", "--normalise-reward", "--learning-rate", "1e-2:0"]
FLAGS += ["--env-parameters", "time_limit", "20", "--evaluate-every", "20000", "--episodes", "4", "--seed", "5"]
FLAGS += ["--total-steps", "300000"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "straight"
    assert main(["train", *FLAGS, "--run", str(path)]) == 0
    return path


def saved(run):
    """The steps of the checkpoints that are there."""
    return [int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*")]


def final(run):
    return checkpoint.load_arrays(checkpoint.find(run / "checkpoints")[-1])


def assert_same_run(a, b):
    left, right = final(a), final(b)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name
    left, right = read_table(a / "metrics.csv"), read_table(b / "metrics.csv")
    for name in left.keys() - {"seconds"}:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_killed_and_resumed_equals_uninterrupted(straight, tmp_path):
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "jaxppo.cli", "train", *FLAGS, "--run", str(run), "--quiet"]
    with subprocess.Popen(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}) as process:
        deadline = time.monotonic() + 200
        while not any(steps > 1000 for steps in saved(run)) and time.monotonic() < deadline:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert 1000 < max(saved(run)) < 300_000
    assert main(["resume", str(run), "--quiet"]) == 0
    assert_same_run(straight, run)


def test_a_branch_with_more_environments_keeps_what_was_learned(straight, tmp_path, capsys):
    branch = tmp_path / "branch"
    changes = ["num_envs=16", "total_steps=301000", "learning_rate=0", "env_parameters.gravity=9", "optimiser=sgd"]
    assert main(["branch", str(straight), "--set", *changes, "--run", str(branch), "--quiet"]) == 0
    old, new = final(straight), final(branch)
    for name in old:
        if name.startswith("parameters"):
            np.testing.assert_array_equal(old[name], new[name])
    assert new["reward_statistics.moments.count"] > old["reward_statistics.moments.count"]
    assert new["env.gravity"] == 9 and new["carry.episode_return"].shape == (16,)
    capsys.readouterr()
    assert main(["eval", str(branch), "--episodes", "4", "--json", "--checkpoint", "best"]) == 0
    assert max(json.loads(capsys.readouterr().out)["episode_length"]) <= 20


def test_the_first_nan_of_an_environment_is_located(tmp_path, capsys):
    flags = ["--env", "jaxppo/nan", "--num-envs", "2", "--num-steps", "4", "--minibatches", "1", "--epochs", "1"]
    flags += ["--network.hidden", "4", "--total-steps", "4000", "--debug-nans", "--quiet"]
    assert main(["train", *flags, "--run", str(tmp_path / "nan")]) == 2
    said = capsys.readouterr().err
    assert "the first NaN of update" in said and "nan.py" in said and said.count("\n") == 1
