"""Whatever is asked for wrongly: one clear line, exit code 2, nothing lost and nothing half-written."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from jaxppo.cli import main
from jaxppo.program import checkpoint, files, run_directory, runner

CARTPOLE = ["train", "--env", "jaxppo/cartpole"]


def snapshot(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing may be written outside the test's own directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["trian"], ["unknown command 'trian'", "did you mean train"]),
        (["train"], ["which environment?"]),
        (["train", "--env", "jaxppo/cartpol"], ["unknown environment 'jaxppo/cartpol'", "jaxppo/cartpole"]),
        (["train", "--env", "nonsense"], ["unknown environment 'nonsense'"]),
        (["train", "--preset", "cartpol"], ["unknown preset 'cartpol'", "cartpole"]),
        (["train", "--preset", "cartpole", "--env", "jaxppo/lqr"], ["preset cartpole is for jaxppo/cartpole"]),
        ([*CARTPOLE, "--nun-envs", "4"], ["unknown flag '--nun-envs'", "did you mean --num-envs"]),
        ([*CARTPOLE, "--network.hiden", "4"], ["unknown flag '--network.hiden'", "--network.hidden"]),
        ([*CARTPOLE, "--num-envs", "many"], ["--num-envs", "'many'"]),
        ([*CARTPOLE, "--num-envs"], ["--num-envs"]),
        ([*CARTPOLE, "--num-envs", "4.5"], ["--num-envs"]),
        ([*CARTPOLE, "--optimiser", "adm"], ["--optimiser", "'adm'", "adam"]),
        ([*CARTPOLE, "stray"], ["stray"]),
        ([*CARTPOLE, "--num-envs", "0"], ["num_envs=0 must be a whole number of at least 1"]),
        ([*CARTPOLE, "--num-envs", "-8"], ["num_envs=-8"]),
        ([*CARTPOLE, "--num-envs", "100", "--blocks", "8"], ["does not divide into 8 blocks", "96 or 104"]),
        ([*CARTPOLE, "--minibatches", "7"], ["minibatches=7 does not divide"]),
        ([*CARTPOLE, "--total-steps", "0"], ["total_steps=0"]),
        ([*CARTPOLE, "--learning-rate", "-1"], ["learning_rate=-1.0"]),
        ([*CARTPOLE, "--learning-rate", "nan"], ["learning_rate=nan"]),
        ([*CARTPOLE, "--learning-rate", "1e-3:-1"], ["learning_rate=-1.0"]),
        ([*CARTPOLE, "--learning-rate", "fast"], ["learning_rate='fast' is not a number"]),
        ([*CARTPOLE, "--learning-rate", "1:2:3:4"], ["learning_rate='1:2:3:4' is not a number"]),
        ([*CARTPOLE, "--gamma", "1.5"], ["gamma=1.5 must be between 0 and 1"]),
        ([*CARTPOLE, "--surrogate-numbers", "epsilon", "nan"], ["epsilon=nan"]),
        ([*CARTPOLE, "--surrogate-numbers", "epsilon"], ["'epsilon' has no value"]),
        ([*CARTPOLE, "--surrogate-numbers", "epsilom", "0.1"], ["no number 'epsilom'", "epsilon"]),
        ([*CARTPOLE, "--surrogate", "ppo_klip"], ["unknown surrogate 'ppo_klip'", "ppo_clip"]),
        ([*CARTPOLE, "--advantage", "gea"], ["unknown advantage 'gea'", "gae"]),
        ([*CARTPOLE, "--distribution", "gaussian"], ["gaussian", "Discrete"]),
        (
            [*CARTPOLE, "--network.torso", "cnn"],
            ["network.torso=cnn needs an observation of three axes", "(4,); use mlp"],
        ),
        ([*CARTPOLE, "--distribution", "gausian"], ["gausian", "gaussian"]),
        ([*CARTPOLE, "--env-parameters", "gravitty", "9"], ["gravitty", "gravity"]),
        ([*CARTPOLE, "--env-parameters", "time_limit", "0"], ["time_limit=0", "at least 1"]),
        ([*CARTPOLE, "--env-parameters", "gravity", "heavy"], ["gravity", "heavy"]),
        (
            [*CARTPOLE, "--env-parameters", "gravity", "1,2"],
            ["gravity=[1, 2] of jaxppo/cartpole", "one number, now 9.8"],
        ),
        ([*CARTPOLE, "--env-parameters", "gravity", "none"], ["gravity=None of jaxppo/cartpole", "one number"]),
        ([*CARTPOLE, "--env-parameters", "name", "x"], ["jaxppo/cartpole has no parameter 'name'"]),
        ([*CARTPOLE, "--env-parameters", "physics", "5"], ["jaxppo/cartpole has no parameter 'physics'"]),
        ([*CARTPOLE, "--env-parameters", "flatten", "no"], ["flatten='no'", "true or false"]),
        ([*CARTPOLE, "--seed", "-1"], ["seed=-1"]),
        ([*CARTPOLE, "--episodes", "0"], ["episodes=0"]),
        ([*CARTPOLE, "--evaluate-every", "-5"], ["evaluate_every=-5"]),
        ([*CARTPOLE, "--checkpoint-every", "nan"], ["checkpoint_every=nan"]),
        (["resume", "nowhere"], ["there is no run nowhere"]),
        (["resume"], ["required"]),
        (["eval", "nowhere"], ["there is no run nowhere"]),
        (["plot", "nowhere"], ["there is no run nowhere"]),
        (["list", "enfs"], ["unknown list 'enfs'", "envs"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_one_line_and_leaves_nothing(refused, tmp_path, arguments, messages):
    said = refused(*arguments)
    for message in messages:
        assert message in said
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("physics", "5", "physics=5 of brax/reacher must name what to set, as in physics.gravity 0,0,-9.81"),
        ("physics.gravty", "5", "unknown physics of brax/reacher 'gravty'; did you mean gravity"),
        ("physics.gravity", "-5", "physics.gravity=-5 of brax/reacher does not fit: it takes 3 numbers, now 0,0,-9.81"),
        ("physics.gravity", "-1,0", "physics.gravity=[-1, 0]"),
        ("physics.opt.timestep", "0.1,0.2", "it takes one number"),
        ("n_frames", "1,2", "n_frames=(1, 2) of brax/reacher must be a whole number"),
        ("backend", "spring,mjx", "unknown brax backend"),
        ("name", "x", "brax/reacher has no parameter 'name'"),
    ],
)
def test_wrong_physics_is_one_line_and_leaves_nothing(refused, tmp_path, name, value, message):
    pytest.importorskip("brax")
    assert message in refused("train", "--env", "brax/reacher", "--env-parameters", name, value)
    assert not list((tmp_path / "here").iterdir())


def test_a_run_is_not_overwritten(train, refused):
    run = train("run")
    before = snapshot(run)
    said = refused("train", "--env", "tiny/walk", "--run", run)
    assert f"{run} exists already" in said and "jaxppo resume" in said and "--run" in said
    assert snapshot(run) == before


def test_other_files_are_not_overwritten(refused, fake, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert "exists already" in refused("train", "--env", "tiny/walk", "--run", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_in_use_is_left_alone(train, refused):
    run = train("run")
    holder = (
        "import fcntl, os, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); f.write(str(os.getpid()))"
    )
    holder += "; f.flush(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        before = snapshot(run)
        assert f"in use by process {process.pid}" in refused("resume", run)
        assert snapshot(run) == before
        process.stdin.close()


def test_a_finished_run_says_how_to_train_longer(train, refused):
    run = train("run")
    assert f"jaxppo branch {run} --set total_steps=" in refused("resume", run)


def test_resuming_under_another_configuration_points_to_branch(train, refused):
    run = train("run")
    assert "jaxppo branch RUN --set num_envs=VALUE" in refused("resume", run, "--num-envs", "8")
    config = json.loads((run / "config.json").read_text())
    config["config"]["num_envs"] = 8
    (run / "config.json").write_text(json.dumps(config))
    said = refused("resume", run)
    assert "num_envs=8" in said and "trained with 4" in said and f"jaxppo branch {run} --set num_envs=8" in said


def test_a_branch_that_cannot_be(train, refused, tmp_path):
    run = train("run")
    for change, message in {
        "network.hidden=16": "cannot change network.hidden",
        "distribution=gaussian": "cannot change distribution",
        "env=jaxppo/lqr": "cannot change env",
        "num_envz=8": "did you mean num_envs",
        "num_envs=none": "num_envs=None is not a whole number",
        "num_envs=0": "num_envs=0 must be",
        "surrogate=ppo_klip": "unknown surrogate 'ppo_klip'",
        "surrogate_numbers.epsilon=none": "surrogate_numbers.epsilon=none takes away what is not set",
        "learning_rate=-1": "learning_rate=-1.0",
        "learning_rate": "--set takes NAME=VALUE",
        "epochs=2": "add --set total_steps=",
    }.items():
        assert message in refused("branch", run, "--set", change, "--run", tmp_path / "branch")
        assert not (tmp_path / "branch").exists()


def damage(name):
    """What happens to a run directory, and what is said about it."""

    def shorten(path):
        path.write_bytes(path.read_bytes()[:-20])

    def flip(path):
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])

    return {
        "config cut": ("config.json", shorten),
        "config missing": ("config.json", os.remove),
        "versions cut": ("versions.json", shorten),
        "versions of another program": ("versions.json", lambda path: path.write_text('{"formats": 1}')),
        "versions nonsense": (
            "versions.json",
            lambda path: path.write_text('{"formats": {"config": "1"}, "packages": {}}'),
        ),
        "config of another program": ("config.json", lambda path: path.write_text("{}")),
        "manifest cut": ("manifest.json", shorten),
        "manifest changed": ("manifest.json", flip),
        "manifest missing": ("manifest.json", os.remove),
        "array cut": ("manifest.ocdbt", shorten),
        "array changed": ("manifest.ocdbt", flip),
        "array missing": ("manifest.ocdbt", os.remove),
        "metrics cut": ("metrics.csv", lambda path: path.write_bytes(path.read_bytes()[:100])),
        "metrics changed": ("metrics.csv", lambda path: path.write_text(path.read_text().replace("1,8192", "1,8193"))),
        "metrics missing": ("metrics.csv", os.remove),
        "checkpoints missing": ("checkpoints", lambda path: [shutil.rmtree(p) for p in path.iterdir()]),
    }[name]


DAMAGES = [
    "config cut",
    "config missing",
    "versions cut",
    "versions of another program",
    "versions nonsense",
    "config of another program",
    "manifest cut",
    "manifest changed",
    "manifest missing",
    "array cut",
    "array changed",
    "array missing",
    "metrics cut",
    "metrics changed",
    "metrics missing",
    "checkpoints missing",
]


@pytest.fixture
def unfinished(tmp_path, fake, monkeypatch):
    """A run that was stopped by a signal after its first update."""
    original, run = runner.Runner._rows, tmp_path / "run"

    def rows(*arguments):
        os.kill(os.getpid(), 15)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runner.Runner, "_rows", rows)
        assert main(["train", "--env", "tiny/walk", "--run", str(run), "--quiet", "--network.hidden", "8"]) == 143
    return run


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_named_and_left_alone(unfinished, refused, name):
    file, change = damage(name)
    path = next(path for path in unfinished.rglob(file) if path.parent.name != "ocdbt.process_0")
    change(path)
    before = {path: content for path, content in snapshot(unfinished).items() if path.name != "lock"}
    said = refused("resume", unfinished)
    assert str(path) in said
    assert {path: content for path, content in snapshot(unfinished).items() if path.name != "lock"} == before


@pytest.mark.parametrize("command", ["eval", "resume", "branch", "plot"])
@pytest.mark.parametrize("name", ["config", "checkpoint", "metrics"])
def test_a_run_of_a_newer_format_is_refused_by_its_name(unfinished, refused, command, name, tmp_path):
    path = unfinished / "versions.json"
    content = json.loads(path.read_text())
    content["formats"][name] = 99
    content["packages"]["jaxppo"] = "7.1"
    path.write_text(json.dumps(content))
    before = snapshot(unfinished)
    flags = {"branch": ["--run", tmp_path / "branch"], "plot": ["--output", tmp_path / "x.png"]}.get(command, [])
    said = refused(command, unfinished, *flags)
    assert f"{unfinished} has its {name} in format version 99, this jaxppo reads up to 1 ({path})" in said
    assert "written by jaxppo 7.1, install that or a newer one" in said
    assert snapshot(unfinished) == before
    assert not (tmp_path / "branch").exists() and not (tmp_path / "x.png").exists()


def test_formats_that_this_version_does_not_know_and_a_missing_record_are_no_obstacle(unfinished):
    path = unfinished / "versions.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "formats": {"new kind of file": 3}, "new": 1}))
    assert main(["eval", str(unfinished)]) == 0
    path.unlink()
    assert main(["eval", str(unfinished)]) == 0


@pytest.mark.parametrize("command", ["eval", "branch"])
def test_a_damaged_checkpoint_is_not_played_or_branched_off(unfinished, refused, command, tmp_path):
    path = next(unfinished.rglob("manifest.ocdbt"))
    path.write_bytes(path.read_bytes()[:-1])
    flags = ["--run", tmp_path / "branch"] if command == "branch" else []
    assert str(path) in refused(command, unfinished, *flags) and not (tmp_path / "branch").exists()


def test_a_garbled_table_is_not_drawn(unfinished, refused, tmp_path):
    (unfinished / "metrics.csv").write_text("garbage\n1,2\n")
    assert "metrics.csv is damaged" in refused("plot", unfinished, "--output", tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_a_picture_of_no_known_format(unfinished, refused, tmp_path):
    assert ".png" in refused("plot", unfinished, "--output", tmp_path / "x.doc")


NO_SPACE = OSError(28, "No space left on device")


def test_a_full_disk_at_the_start_leaves_nothing(fake, refused, tmp_path, monkeypatch):
    def full(path, content):
        raise NO_SPACE

    monkeypatch.setattr(run_directory, "write_json", full)
    assert "No space left on device" in refused("train", "--env", "tiny/walk", "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_in_the_middle_loses_nothing(fake, refused, tmp_path, monkeypatch):
    original, calls, run = checkpoint.write_json, [], tmp_path / "run"

    def full_at_the_third(path, content):
        calls.append(path)
        if len(calls) == 3:
            raise NO_SPACE
        original(path, content)

    monkeypatch.setattr(runner, "LONGEST_CHUNK", 2)
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(runner, "SAVE_SHARE", 1e9)
    flags = ["--num-envs", "4", "--num-steps", "8", "--minibatches", "2", "--network.hidden", "8", "--quiet"]
    flags += ["--env", "tiny/walk", "--total-steps", "320"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", full_at_the_third)
        said = refused("train", *flags, "--run", run)
    assert "No space left on device" in said and f"jaxppo resume {run}" in said
    assert not list(run.rglob(".*"))
    assert main(["resume", str(run), "--quiet"]) == 0  # once there is space again
    assert checkpoint.find(run / "checkpoints")[-1].steps == 320


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    files.write_json(path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(NO_SPACE))
        with pytest.raises(OSError, match="No space"):
            files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and [p.name for p in tmp_path.iterdir() if p.is_file()] == [
        path.name
    ]


def test_a_place_that_cannot_be_written(fake, refused, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    assert "Not a directory" in refused("train", "--env", "tiny/walk", "--run", tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "x"
    assert refused("train", "--env", "tiny/walk", "--run", "/proc/run")

    def forbidden(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(run_directory.Path, "mkdir", forbidden)
        said = refused("train", "--env", "tiny/walk", "--run", tmp_path / "run")
    assert f"{tmp_path / 'run'}: Permission denied" in said and not (tmp_path / "run").exists()


def test_help_documents_every_setting(capsys):
    assert main(["train", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in (
        "Step size of the optimiser.",
        "Widths of the dense layers.",
        "Environment steps in all",
        "--debug-nans",
    ):
        assert text in said
    for command in ("resume", "branch", "eval", "plot", "list"):
        assert main([command, "--help"]) == 0
        assert f"usage: jaxppo {command}" in capsys.readouterr().out
    assert main(["--help"]) == 0 and "branch" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["envs", "presets", "surrogates", "advantages", "distributions"])
def test_lists(capsys, kind):
    assert main(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len({row["name"] for row in rows}) == len(rows) > 1
    assert main(["list", kind]) == 0
    assert rows[0]["name"] in capsys.readouterr().out
