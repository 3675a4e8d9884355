"""One run trained by several processes: the numbers of one process, and nothing lost whatever ends them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxppo.cli import main
from jaxppo.errors import UserError
from jaxppo.program import checkpoint, runner
from jaxppo.program.commands import session
from jaxppo.program.configuration import RunConfig
from jaxppo.program.crew import Crew
from jaxppo.program.metrics_table import read_table
from jaxppo.program.run_directory import RunDirectory

SMALL = ["--env", "jaxppo/cartpole", "--preset", "none", "--minibatches", "2", "--network.hidden", "8"]
SMALL += ["--num-steps", "8", "--seed", "5", "--env-parameters", "time_limit", "20"]
FLAGS = [*SMALL, "--num-envs", "1024", "--epochs", "2", "--normalise-observation", "--normalise-reward"]
FLAGS += ["--evaluate-every", "49152", "--episodes", "4", "--total-steps", "98304", "--quiet"]  # 12 updates
ENDLESS = [*SMALL, "--num-envs", "8", "--epochs", "1", "--total-steps", "1000000000"]

pytestmark = pytest.mark.timeout(400)


def command(*words):
    return [sys.executable, "-m", "jaxppo.cli", *map(str, words)]


def environment(devices=1):
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def done(*words, devices=1):
    """Standard output of a command that must go well."""
    process = subprocess.run(command(*words), env=environment(devices), capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def half(run, place):
    """A copy of a run as if it had been ended before its last checkpoint."""
    copy = shutil.copytree(run, place)
    shutil.rmtree(checkpoint.find(copy / "checkpoints")[-1].path)
    return copy


def updates(run):
    """Of the checkpoints that are there."""
    return [entry.updates for entry in checkpoint.find(run / "checkpoints")]


def assert_same_run(a, b):
    """The same samples; parameters and metrics to 1e-5."""
    left, right = (checkpoint.load_arrays(checkpoint.find(run / "checkpoints")[-1]) for run in (a, b))
    assert left.keys() == right.keys()
    for name in left:
        if left[name].dtype.kind in "iub":  # counts, keys, lengths of episodes
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
        rtol = 0 if name.startswith("parameters") else 1e-5
        np.testing.assert_allclose(left[name], right[name], atol=1e-5, rtol=rtol, err_msg=name)
    left, right = read_table(a / "metrics.csv"), read_table(b / "metrics.csv")
    for name in left.keys() - {"seconds"}:
        np.testing.assert_allclose(left[name], right[name], atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Trained by one process on one device; there are checkpoints of updates 6 and 12."""
    path = tmp_path_factory.mktemp("runs") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.Runner, "_paced", lambda *_: 6)
        assert main(["train", *FLAGS, "--run", str(path)]) == 0
    assert updates(path) == [6, 12]
    return path


@pytest.fixture(scope="module")
def continued(one, tmp_path_factory):
    """The same up to update 6, the rest by two processes of one device each."""
    path = half(one, tmp_path_factory.mktemp("runs") / "continued")
    said = done("resume", path, "--processes", 2)
    assert said.startswith("done: 98,304 steps") and said.count("\n") == 1  # one of them speaks
    return path


def test_two_processes_go_on_where_one_has_stopped(one, continued):
    assert_same_run(one, continued)
    assert {path.name for path in continued.iterdir()} == {path.name for path in one.iterdir()}
    assert np.isfinite(read_table(continued / "metrics.csv")["evaluation_return"][[5, 11]]).all()


def test_one_process_goes_on_where_two_have_stopped(one, continued, tmp_path):
    run = half(continued, tmp_path / "run")
    assert 6 < updates(run)[-1] < 12  # written by the two
    assert main(["resume", str(run), "--quiet"]) == 0
    assert_same_run(one, run)


@pytest.mark.slow
def test_two_processes_train_what_one_does_on_one_or_two_devices(one, tmp_path):
    assert done("train", *FLAGS, "--run", tmp_path / "processes", "--processes", 2) == ""
    done("train", *FLAGS, "--run", tmp_path / "devices", devices=2)
    assert_same_run(one, tmp_path / "processes")
    assert_same_run(one, tmp_path / "devices")


@pytest.mark.slow
def test_two_processes_branch_off_a_run_of_one(one, tmp_path):
    changes = ["--set", "total_steps=114688", "learning_rate=0", "num_envs=512", "--run", tmp_path / "branch"]
    said = done("branch", one, *changes, "--processes", 2)
    assert said.startswith("done: 114,688 steps")
    old, new = (checkpoint.load_arrays(checkpoint.find(run / "checkpoints")[-1]) for run in (one, tmp_path / "branch"))
    for name in old:
        if name.startswith("parameters"):
            np.testing.assert_array_equal(old[name], new[name])


class Launched:
    """A command with `--processes 2` that runs until it is stopped. cache: for compiled programs."""

    def __init__(self, *words, cache="off"):
        self._words, self._environment = command(*words, "--processes", 2), environment()
        self._environment["JAXPPO_COMPILATION_CACHE"] = str(cache)

    def __enter__(self):
        self.process = subprocess.Popen(self._words, env=self._environment, stderr=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()

    def children(self):
        """Process ids by rank."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [int(v.partition(b"=")[2]) for v in variables if v.startswith(b"JAXPPO_PROCESS=")]
            if parent == self.process.pid and ranks:
                found[ranks[0]] = int(path.name)
        return found

    def wait_for_checkpoint(self, run, after):
        deadline = time.monotonic() + 200
        while not any(int(path.name.removeprefix("step-")) > after for path in run.glob("checkpoints/step-*")):
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self, seconds):
        """(exit code, standard error) after the end, which has to come within that time and to leave no process."""
        children = self.children()
        assert self.process.wait(seconds) is not None
        assert not [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]
        return self.process.returncode, self.process.stderr.read()


def test_stopped_by_a_signal_and_killed(tmp_path, monkeypatch):
    run, cache = tmp_path / "run", tmp_path / "cache"
    with Launched("train", *ENDLESS, "--run", run, cache=cache) as launched:
        launched.wait_for_checkpoint(run, 0)
        launched.process.send_signal(signal.SIGTERM)
        code, said = launched.end(60)
    assert code == 143
    *shown, last = said.splitlines()
    assert f"saved; `jaxppo resume {run}` goes on" in last and len(shown) == len(set(shown))
    steps = checkpoint.find(run / "checkpoints")[-1].steps
    assert read_table(run / "metrics.csv")["steps"][-1] == steps > 0  # nothing done was lost

    with Launched("resume", run, "--quiet", cache=cache) as launched:
        launched.wait_for_checkpoint(run, steps)
        os.kill(launched.children()[1], signal.SIGKILL)
        code, said = launched.end(15)
    assert code == 2
    assert said == (
        "jaxppo: error: process 1 of 2 was killed by SIGKILL, and the others were ended; the run is whole up to its "
        f"last checkpoint: `jaxppo resume {run}` goes on\n"
    )

    original, reached = runner.Runner._rows, checkpoint.find(run / "checkpoints")[-1]
    assert reached.steps > steps

    def rows(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    monkeypatch.setattr(runner.Runner, "_rows", rows)
    assert main(["resume", str(run), "--quiet"]) == 143
    assert checkpoint.find(run / "checkpoints")[-1].steps == reached.steps + 64


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_that_reaches_one_process_stops_all(tmp_path, victim):
    run = tmp_path / "run"
    with Launched("train", *ENDLESS, "--run", run, "--quiet") as launched:
        launched.wait_for_checkpoint(run, 0)
        os.kill(launched.children()[victim], signal.SIGINT)
        code, said = launched.end(60)
    assert code == 130 and said.count("\n") == 1 and "saved; `jaxppo resume" in said


@pytest.mark.slow
def test_a_killed_leader(tmp_path):
    run = tmp_path / "run"
    with Launched("train", *ENDLESS, "--run", run, "--quiet") as launched:
        launched.wait_for_checkpoint(run, 0)
        os.kill(launched.children()[0], signal.SIGKILL)
        code, said = launched.end(15)
    assert (
        code == 2 and said.startswith("jaxppo: error: process 0 of 2 was killed by SIGKILL,") and said.count("\n") == 1
    )


class Second(Crew):
    """Process 1 of 2 on one machine, where process 0 says 7 to everything."""

    def everyone(self, value):
        return [7, value]

    def neighbours(self):
        return 2


def test_another_checkpoint_than_the_leader_has(tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(UserError, match=r"holds update -1 here and update 7 for process 0; .* all processes share"):
        session.check_shared(Second(1, 2), directory, None)


def test_processes_of_one_machine_share_its_memory(fake, monkeypatch):
    monkeypatch.setattr(session, "available_bytes", lambda: 1000)
    asked = []
    monkeypatch.setattr(session, "check_memory", lambda *_, available, devices: asked.append(available))
    for crew in (Crew(), Second(1, 2)):
        session.prepare(RunConfig("tiny/walk"), runner.Switches(), crew)
    assert asked == [1000, 500]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--processes", "0"], "processes=0 must be at least 1"),
        (["--processes", "3"], "8 blocks of environments (64 environments) do not divide over 3 processes"),
        (["--processes", "two"], "--processes"),
        (["--processes", "2", "--debug-nans"], "--debug-nans looks into one process"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(refused, tmp_path, monkeypatch, words, message):
    def never(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    run = tmp_path / "run"
    assert message in refused("train", "--env", "jaxppo/cartpole", "--num-envs", "64", "--run", run, *words)
    assert not run.exists()


@pytest.mark.slow
def test_an_error_of_all_processes_is_said_once(tmp_path):
    words = ["train", "--env", "jaxppo/nowhere", "--run", tmp_path / "run", "--processes", 2]
    process = subprocess.run(command(*words), env=environment(), capture_output=True, text=True, timeout=200)
    assert process.returncode == 2
    assert process.stderr.startswith("jaxppo: error: unknown environment 'jaxppo/nowhere'")
    assert process.stderr.count("\n") == 1 and not (tmp_path / "run").exists()
