"""Runs with the tiny algorithm: resumed equals uninterrupted, watching changes nothing, a branch follows its rules."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from jaxppo.cli import main
from jaxppo.program import checkpoint, runner
from jaxppo.program.metrics_table import read_table
from jaxppo.program.signals import Signals


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Chunks of at most 3 updates, and a checkpoint after each."""
    monkeypatch.setattr(runner, "LONGEST_CHUNK", 3)
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(runner, "SAVE_SHARE", 1e9)
    monkeypatch.setattr(runner.Runner, "_paced", lambda self, count, elapsed: 3)


@pytest.fixture
def at_chunk(monkeypatch):
    """at_chunk(k, action): in the next run, `action` happens before the rows of its k-th chunk are written."""

    def arm(k, action):
        original, left = runner.Runner._rows, [k]

        def rows(self, *arguments):
            left[0] -= 1
            if left[0] == 0:
                action()
            return original(self, *arguments)

        monkeypatch.setattr(runner.Runner, "_rows", rows)

    return arm


class Killed(BaseException):
    """Stands for kill -9: nobody catches it and nothing is saved after it."""


def kill():
    raise Killed


def arrays(run, which=-1):
    return checkpoint.load_arrays(checkpoint.find(run / "checkpoints")[which])


def assert_same(a, b):
    """Two dicts of arrays agree bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name


def rows(run, without=("seconds",)):
    return {name: column for name, column in read_table(run / "metrics.csv").items() if name not in without}


def test_a_run_directory_holds_what_is_promised(train):
    run = train("run", "--seed", "3", "--learning-rate", "1e-2:0")
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "versions.json", "metrics.csv", "checkpoints", "learning_curve.png"} <= names
    config = json.loads((run / "config.json").read_text())
    assert config["schema"] == 1 and config["seed"] == 3 and config["hyper"]["learning_rate"] == "0.01:0.0"
    versions = json.loads((run / "versions.json").read_text())
    assert versions["packages"]["jax"] and versions["device"]["platform"] and versions["formats"]["metrics"] == 1
    table = read_table(run / "metrics.csv")
    np.testing.assert_array_equal(table["update"], np.arange(1, 21))
    np.testing.assert_array_equal(table["steps"], 32 * np.arange(1, 21))
    assert np.isnan(table["episode_return"][2]) and not np.isnan(table["episode_return"][3])
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flags", [(), ("--evaluate-every", "128", "--episodes", "3")])
def test_killed_and_resumed_equals_uninterrupted(train, at_chunk, flags, tmp_path):
    straight = train("straight", *flags)
    at_chunk(4, kill)
    with pytest.raises(Killed):
        train("killed", *flags)
    at_chunk(0, kill)
    killed = tmp_path / "killed"
    reached = checkpoint.find(killed / "checkpoints")[-1].updates
    assert 0 < reached < 20
    with open(killed / "metrics.csv", "ab") as file:
        file.write(b"17,torn")
    assert main(["resume", str(killed), "--quiet"]) == 0
    assert_same(arrays(straight), arrays(killed))
    assert_same(rows(straight), rows(killed))


def test_killed_before_the_first_checkpoint_it_starts_anew(train, tmp_path, monkeypatch):
    straight = train("straight")
    with monkeypatch.context() as patch:
        patch.setattr(runner.Runner, "_save", lambda self, state: kill())
        with pytest.raises(Killed):
            train("killed")
    assert main(["resume", str(tmp_path / "killed"), "--quiet"]) == 0
    assert_same(rows(straight), rows(tmp_path / "killed"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(train, at_chunk, tmp_path, capsys, fake, number, code):
    straight = train("straight")
    at_chunk(3, lambda: os.kill(os.getpid(), number))
    flags = ["--env", "tiny/walk", "--total-steps", "640", "--num-envs", "4", "--num-steps", "8", "--minibatches", "2"]
    run = tmp_path / "stopped"
    capsys.readouterr()
    assert main(["train", *flags, "--network.hidden", "8", "--quiet", "--run", str(run)]) == code
    said = capsys.readouterr().err
    assert f"jaxppo resume {run}" in said and said.count("\n") == 1
    reached = read_table(run / "metrics.csv")["update"][-1]
    assert checkpoint.find(run / "checkpoints")[-1].updates == reached < 20  # nothing done was lost
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    at_chunk(0, kill)
    assert main(["resume", str(run), "--quiet"]) == 0
    assert_same(arrays(straight), arrays(run))
    assert_same(rows(straight), rows(run))


def test_watching_changes_no_training_number(train):
    plain = train("plain")
    watched = train("watched", "--evaluate-every", "96", "--episodes", "5", "--checkpoint-every", "100", "--profile")
    assert_same(arrays(plain), arrays(watched))
    evaluation = [name for name in rows(plain) if name.startswith("evaluation")]
    assert_same(rows(plain, ["seconds", *evaluation]), rows(watched, ["seconds", *evaluation]))
    evaluated = np.flatnonzero(np.isfinite(read_table(watched / "metrics.csv")["evaluation_return"]))
    np.testing.assert_array_equal(evaluated + 1, [3, 6, 9, 12, 15, 18, 20])
    assert list((watched / "profile").rglob("*.xplane.pb"))


def test_the_best_evaluated_checkpoint_is_kept(train):
    run = train("run", "--evaluate-every", "32", "--episodes", "4", "--learning-rate", "0.5")
    found = checkpoint.find(run / "checkpoints")
    table = read_table(run / "metrics.csv")
    best = checkpoint.best(found)
    assert best.updates == 1 + np.argmax(table["evaluation_return"])
    assert best.score == pytest.approx(table["evaluation_return"].max(), rel=1e-6)


def test_a_branch_keeps_what_its_rules_say(train, tmp_path):
    source = train("source")
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    branch = tmp_path / "branch"
    changes = [
        "--set",
        "num_envs=8",
        "learning_rate=0",
        "optimiser=sgd",
        "total_steps=1280",
        "env_parameters.gravity=2",
    ]
    assert main(["branch", str(source), *changes, "--run", str(branch), "--quiet"]) == 0
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    old, new = arrays(source), arrays(branch)
    np.testing.assert_array_equal(old["parameters.kernel"], new["parameters.kernel"])  # learning rate 0
    assert new["carry.position"].shape == (8, 2) and new["env.gravity"] == 2 and new["hyper.learning_rate"] == 0
    table = read_table(branch / "metrics.csv")
    np.testing.assert_array_equal(table["update"], np.arange(21, 31))
    np.testing.assert_array_equal(table["steps"], 640 + 64 * np.arange(1, 11))
    config = json.loads((branch / "config.json").read_text())
    assert config["parent"]["run"] == str(source) and config["parent"]["steps"] == 640
    assert config["parent"]["set"]["num_envs"] == "8" and "optimiser" in config["parent"]["restarted"]
    assert config["config"]["num_envs"] == 8


def test_a_branch_with_another_surrogate_says_which_numbers_it_left(train, tmp_path, capsys):
    source = train("source", "--surrogate-numbers", "epsilon", "0.3", "--advantage-numbers", "lam", "0.9")
    capsys.readouterr()
    flags = ["branch", str(source), "--set", "total_steps=1280", "surrogate=spo", "--run"]
    assert main([*flags, str(tmp_path / "branch")]) == 0
    assert "not taken over, as they belong to what was replaced: surrogate_numbers.epsilon\n" in capsys.readouterr().err
    config = json.loads((tmp_path / "branch" / "config.json").read_text())
    assert config["hyper"]["surrogate"] == {} and config["hyper"]["advantage"] == {"lam": 0.9}
    assert config["parent"]["cleared"] == ["surrogate_numbers.epsilon"]
    assert "surrogate_state" in config["parent"]["restarted"]


def test_a_branch_can_be_killed_and_resumed(train, at_chunk, tmp_path):
    source = train("source")
    flags = ["branch", str(source), "--set", "total_steps=1280", "learning_rate=1e-3", "--quiet", "--run"]
    assert main([*flags, str(tmp_path / "straight")]) == 0
    at_chunk(2, kill)
    with pytest.raises(Killed):
        main([*flags, str(tmp_path / "killed")])
    at_chunk(0, kill)
    assert main(["resume", str(tmp_path / "killed"), "--quiet"]) == 0
    assert_same(arrays(tmp_path / "straight"), arrays(tmp_path / "killed"))
    assert_same(rows(tmp_path / "straight"), rows(tmp_path / "killed"))


def test_eval_and_plot(train, tmp_path, capsys):
    run = train("run")
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "6", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["episode_return"]) == 6 and result["steps"] == 640 and all(result["finished"])
    assert main(["eval", str(run), "--episodes", "6", "--stochastic", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(np.subtract(other["episode_return"], result["episode_return"]), 1.0, atol=1e-5)
    assert main(["eval", str(run)]) == 0
    assert "64 of 64 episodes finished" in capsys.readouterr().out
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        picture = tmp_path / f"both{ending}"
        assert main(["plot", str(run), str(copy), "--output", str(picture)]) == 0
        assert picture.read_bytes().startswith(start)


def test_the_first_nan_is_located(train, tmp_path, capsys, fake):
    flags = ["--env", "tiny/walk", "--total-steps", "640", "--num-envs", "4", "--num-steps", "8", "--minibatches", "2"]
    run = tmp_path / "nan"
    flags += ["--network.hidden", "8", "--quiet", "--run", str(run), "--env-parameters", "nan_at", "5", "--debug-nans"]
    assert main(["train", *flags]) == 2
    said = capsys.readouterr().err
    assert "update 6 (after 160 steps)" in said and "encountered in log" in said and said.count("\n") == 1
    assert "conftest.py" in said and "jnp.log(jnp.where(bad" in said


def test_flags_override_the_preset(tmp_path, fake):
    run = tmp_path / "run"
    flags = ["--preset", "demo", "--total-steps", "4096", "--learning-rate", "0.5", "--advantage-numbers", "lam", "0.9"]
    assert main(["train", *flags, "--network.hidden", "8", "--quiet", "--run", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["env"] == "jaxppo/cartpole" and config["config"]["num_envs"] == 32  # the preset's
    assert config["config"]["total_steps"] == 4096 and config["hyper"]["learning_rate"] == 0.5
    assert config["hyper"]["advantage"] == {"lam": 0.9} and config["hyper"]["entropy_coefficient"] == 0.01


def test_a_second_interrupt_stops_at_once():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
