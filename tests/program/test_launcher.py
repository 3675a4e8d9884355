"""The launcher with children that are no trainers: whatever ends one of them, it is said in one line and none is left.

What they do with JAX is in test_processes.py.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxppo.config import PPOConfig
from jaxppo.errors import UserError
from jaxppo.program import crew, launcher
from jaxppo.program.signals import Interrupted

START = """
import os, pathlib, signal, sys, time
rank = int(os.environ["JAXPPO_PROCESS"])
pathlib.Path(sys.argv[1], f"{rank}").write_text(str(os.getpid()))
"""
LISTEN = """
def leave(number, frame):
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
pathlib.Path(sys.argv[1], f"{rank}-listens").touch()
"""


@pytest.fixture
def run(tmp_path):
    """run(program): two processes run it, as (rank, how it should go on) say; afterwards none of them is there."""

    def start(program):
        command = [sys.executable, "-c", START + program, str(tmp_path)]
        started = time.monotonic()
        try:
            launcher._run(command, [{}, {}], lambda: "; this is how it goes on")
        finally:
            assert time.monotonic() - started < 15
            for pid in pids(tmp_path):
                assert not alive(pid)

    return start


def pids(directory):
    return [int(path.read_text()) for path in directory.iterdir() if path.name.isdecimal()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_all_end_well(run):
    assert run("time.sleep(0.3 * rank)") is None


@pytest.mark.parametrize("victim", [0, 1])
def test_one_is_killed_and_the_other_is_ended(run, victim):
    with pytest.raises(UserError) as raised:
        run(f"os.kill(os.getpid(), 9) if rank == {victim} else time.sleep(60)")
    said = f"process {victim} of 2 was killed by SIGKILL, and the others were ended; this is how it goes on"
    assert str(raised.value) == said


def test_who_dies_because_the_leader_did_is_not_blamed(run, tmp_path):
    wait = "pid = pathlib.Path(sys.argv[1], '0')\nwhile not pid.exists(): time.sleep(0.01)\npid = int(pid.read_text())"
    follow = f"{wait}\nwhile os.getppid() and open(f'/proc/{{pid}}/stat').read().split()[2] != 'Z': pass\nos.abort()"
    with pytest.raises(UserError, match=r"process 0 of 2 was killed by SIGKILL"):
        run(f"if rank == 0:\n  time.sleep(0.5); os.kill(os.getpid(), 9)\n{follow}")


def test_an_error_that_all_have_is_said_once_by_the_leader(run, capfd):
    with pytest.raises(SystemExit) as raised:
        run("time.sleep(0.5 * (1 - rank)); print('jaxppo: error: x', file=sys.stderr); sys.exit(2)")
    assert raised.value.code == 2
    assert capfd.readouterr().err == "jaxppo: error: x\n"


def test_an_error_that_one_has_alone_is_said_for_it(run):
    with pytest.raises(UserError, match=r"^process 1 of 2 ended with exit code 2 \(no run here\), and the others"):
        run("print('jaxppo: error: process 1: no run here'); sys.exit(2) if rank else time.sleep(60)")


def test_a_longer_output_is_kept(run):
    with pytest.raises(UserError, match=r"ended with exit code 1 \(KeyError: 'x'\)") as raised:
        run("{}['x'] if rank else time.sleep(60)")
    (path,) = re.findall(r"its output: (\S+)\)", str(raised.value))
    with open(path) as file:
        assert file.readline().startswith("Traceback")
    os.unlink(path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_passed_on(run, tmp_path, number, code):
    def send():
        wait_for(lambda: (tmp_path / "0-listens").exists() and (tmp_path / "1-listens").exists())
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(SystemExit) as raised:
        run(f"{LISTEN}\ntime.sleep(60)")
    sender.join()
    assert raised.value.code == code


def test_a_signal_before_anyone_listens_ends_all(run, tmp_path):
    def send():
        wait_for(lambda: len(pids(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(Interrupted, match="before the training began") as raised:
        run("time.sleep(60)")
    sender.join()
    assert raised.value.code == 143


def test_no_process_outlives_the_launcher(tmp_path):
    program = f"{START}\nfrom jaxppo.program import crew\ncrew._follow_launcher()\n{LISTEN}\ntime.sleep(60)"
    script = f"""
import sys
from jaxppo.program import launcher
launcher._run([sys.executable, "-c", {program!r}, {str(tmp_path)!r}], [{{}}, {{}}], str)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        wait_for(lambda: (tmp_path / "0-listens").exists() and (tmp_path / "1-listens").exists(), 60)
        process.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.parametrize(
    ("count", "envs", "blocks", "message"),
    [
        (0, 8, None, "processes=0 must be at least 1"),
        (-2, 8, None, "processes=-2 must be at least 1"),
        (3, 9, 1, r"1 blocks .* do not divide over 3 processes; set blocks=3, or use 1 process$"),
        (2, 9, None, r"\(9 environments\) do not divide over 2 processes; take num_envs a multiple of 2, or use 1"),
        (6, 64, 8, "take num_envs a multiple of 6, or use 4 processes$"),
        (4096, 4096, 4096, "processes=4096 are more than this machine's"),
    ],
)
def test_a_number_of_processes_that_cannot_be(monkeypatch, count, envs, blocks, message):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(UserError, match=message):
        launcher.check(count, PPOConfig(num_envs=envs, blocks=blocks))


def test_each_process_gets_its_share_of_the_devices(monkeypatch):
    monkeypatch.setattr(launcher, "_devices", lambda: ["0", "1", "2", "3"])
    name = "CUDA_VISIBLE_DEVICES"
    assert launcher.shares(2, {}) == [{name: "0,1"}, {name: "2,3"}]
    assert launcher.shares(2, {name: "5,GPU-7"}) == [{name: "5"}, {name: "GPU-7"}]
    with pytest.raises(UserError, match=r"4 GPUs do not divide over 3 processes; .*JAX_PLATFORMS=cpu"):
        launcher.shares(3, {})
    assert launcher.shares(2, {"JAX_PLATFORMS": "cpu"}) == launcher.shares(2, {name: ""}) == [{}, {}]


GIVEN = {crew.COORDINATOR: "node1:1234", crew.PROCESSES: "4", crew.PROCESS: "3"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({crew.PROCESS: None}, "JAXPPO_PROCESS is not set, and JAXPPO_COORDINATOR, JAXPPO_PROCESSES is; set all"),
        ({crew.PROCESS: "4"}, "JAXPPO_PROCESS=4 must be between 0 and 3, as JAXPPO_PROCESSES=4"),
        ({crew.PROCESSES: "many"}, "JAXPPO_PROCESSES=many must be a whole number"),
        ({crew.COORDINATOR: "node1"}, "JAXPPO_COORDINATOR=node1 must be HOST:PORT"),
    ],
)
def test_a_place_that_is_not_well_given(changes, message):
    environment = {name: value for name, value in (GIVEN | changes).items() if value is not None}
    with pytest.raises(UserError, match=message):
        crew._place(environment)


def test_the_place_of_a_process_comes_from_the_environment():
    place = crew._place(GIVEN)
    assert (place["coordinator_address"], place["num_processes"], place["process_id"]) == ("node1:1234", 4, 3)
    assert crew._place({}) == {}
