"""The part of `bench_peers` that needs no peer."""

import importlib.util
import json
import math

import numpy as np
import pytest

from experiments import bench_peers, results
from experiments.tasks import TASKS, settings, settings_hash

spec = importlib.util.spec_from_file_location("protocol", bench_peers.SCRIPTS / "protocol.py")
protocol = importlib.util.module_from_spec(spec)
spec.loader.exec_module(protocol)

REPLY = dict(
    seed=0,
    steps=501_760,
    evaluation_return=500.0,
    sampled_return=490.0,
    training_return=480.0,
    curve=[20.0, math.nan],
    wall_seconds=3.0,
    compile_seconds=4.0,
    versions={"jax": "0.9.2", "rejax": "0.1.3"},
)


def test_training_returns_weigh_every_episode_once():
    totals, counts = np.arange(100.0), np.ones(100, int)
    counts[7], totals[7] = 0, 0.0
    training = protocol.training(totals, counts)
    assert len(training["curve"]) == protocol.POINTS
    assert training["training_return"] == pytest.approx(94.5)
    assert training["curve"][1] == pytest.approx((5 + 6 + 8 + 9) / 4)


def test_no_finished_episode_is_no_return():
    training = protocol.training(np.zeros(40), np.zeros(40, int))
    assert math.isnan(training["training_return"]) and all(map(math.isnan, training["curve"]))


def test_only_missing_seeds_are_run(tmp_path, monkeypatch, capsys):
    """The peer is replaced by a script that answers at once for the seeds that it is asked for."""
    asked = []

    def start(peer, script, request):
        asked.append((peer, script, request["seeds"]))
        lines = "a library says hello\n" + "".join(
            json.dumps(REPLY | {"seed": seed}) + "\n" for seed in request["seeds"]
        )
        return bench_peers.subprocess.Popen(["echo", "-n", lines], stdout=bench_peers.subprocess.PIPE, text=True)

    monkeypatch.setattr(bench_peers, "_start", start)
    table = tmp_path / "peers.csv"
    for seeds in ("2", "4", "4"):
        bench_peers.main(["learn", "cartpole", "--seeds", seeds, "--table", str(table)])
    assert asked == [("rejax", "learn_rejax.py", [0, 1]), ("rejax", "learn_rejax.py", [2, 3])]
    assert "cartpole: finished" in capsys.readouterr().out
    rows = results.load(table)
    assert [row.seed for row in rows] == [0, 1, 2, 3]
    assert rows[0].versions == "jax 0.9.2, rejax 0.1.3"
    assert rows[0].settings == settings_hash(TASKS["cartpole"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["learn", "cartpol"], "unknown task 'cartpol'; did you mean cartpole?"),
        (["learn", "snake"], "task snake has no peer"),
        (["setup", "rejx"], "unknown peer 'rejx'; did you mean rejax"),
    ],
)
def test_bad_requests_are_one_line(arguments, message, tmp_path, capsys):
    table = ["--table", str(tmp_path / "peers.csv")] if arguments[0] == "learn" else []
    with pytest.raises(SystemExit) as exit_:
        bench_peers.main([*arguments, *table])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_environment_names_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_peers, "ROOT", tmp_path)
    with pytest.raises(SystemExit):
        bench_peers.main(["learn", "cartpole", "--table", str(tmp_path / "peers.csv")])
    assert "bench_peers setup" in capsys.readouterr().err


def test_a_peer_that_fails_is_named(monkeypatch, tmp_path, capsys):
    popen = bench_peers.subprocess.Popen
    monkeypatch.setattr(
        bench_peers, "_start", lambda *_: popen(["false"], stdout=bench_peers.subprocess.PIPE, text=True)
    )
    with pytest.raises(SystemExit):
        bench_peers.main(["learn", "cartpole", "--table", str(tmp_path / "peers.csv")])
    assert "rejax failed on cartpole, exit status 1" in capsys.readouterr().err


def test_what_is_timed_is_the_same_work_for_any_size():
    for num_envs in (512, 4096):
        work = settings(bench_peers.SPEED.changed(num_envs=num_envs))
        names = ("num_envs", "num_steps", "epochs", "minibatches", "hidden")
        assert [work[name] for name in names] == [num_envs, 128, 4, 4, (64, 64)]
