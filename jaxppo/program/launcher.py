"""`--processes N`: starts N processes of this program on this machine and watches over them until the run's end.

The first one leads and speaks; what the others say is kept aside, for the case that one of them fails. When one dies,
the rest would wait for it a long time: they are ended here at once. None outlives this process.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxppo.config import PPOConfig
from jaxppo.errors import UserError
from jaxppo.program import crew
from jaxppo.program.signals import Interrupted, Signals

GRACE = 2.0  # seconds for the leader to report the error that another process has met, or for all to heed a signal
LINGER = 15.0  # seconds for the others to end after the leader
LOOK = 0.1  # seconds between two looks at the processes
IN_ORDER = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes that all processes leave with together


@dataclass(frozen=True)
class Child:
    """rank: its place in the crew. log: where its output goes; None where that is this process's own."""

    rank: int
    process: subprocess.Popen
    log: Path | None

    @property
    def failed(self) -> bool:
        return self.process.poll() not in (None, *IN_ORDER)

    def last_words(self) -> str:
        """The last line of its output; nothing where that is not kept."""
        text = self.log.read_text(errors="replace") if self.log else ""
        return text.strip().rpartition("\n")[2].removeprefix("jaxppo: error: ").removeprefix(f"process {self.rank}: ")


def check(count: int, config: PPOConfig) -> None:
    """Refuses a number of processes that cannot train under `config`, or not on this machine. Raises UserError."""
    blocks, envs = config.num_blocks, config.num_envs
    if count < 1:
        raise UserError(f"processes={count} must be at least 1")
    if blocks % count:
        fits = max(k for k in range(1, count) if blocks % k == 0)
        more = f"set blocks={count}" if envs % count == 0 else f"take num_envs a multiple of {count}"
        raise UserError(
            f"{blocks} blocks of environments ({envs} environments) do not divide over {count} processes; "
            f"{more}, or use {fits} process{'es' if fits > 1 else ''}"
        )
    shares(count, os.environ)


def shares(count: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """The environment variables that give each of `count` processes its part of this machine's NVIDIA devices.

    Raises UserError where they do not divide, or where there are fewer processor cores than processes.
    """
    if not environment.get("JAX_PLATFORMS", "").startswith("cpu"):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        devices = _devices() if visible is None else [name for name in visible.split(",") if name.strip()]
        if devices:
            if len(devices) % count:
                raise UserError(
                    f"{len(devices)} GPUs do not divide over {count} processes; take a number that divides, or set "
                    f"JAX_PLATFORMS=cpu to train on the processor"
                )
            each = len(devices) // count
            parts = [devices[i * each : (i + 1) * each] for i in range(count)]
            return [{"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count > max(2, cores):  # two can always be tried
        raise UserError(f"processes={count} are more than this machine's {cores} cores; use at most {max(2, cores)}")
    return [{} for _ in range(count)]


def _devices() -> list[str]:
    """The NVIDIA devices that the driver knows, by number."""
    try:
        return [str(i) for i, _ in enumerate(os.listdir("/proc/driver/nvidia/gpus"))]
    except OSError:
        return []


def launch(words: Sequence[str], count: int, run: Path) -> None:
    """Runs `jaxppo WORDS` in `count` processes to its end. run: the run's directory.

    Raises UserError where one of them dies, Interrupted where a signal came before they could heed it, and SystemExit
    where the leader has said itself why the run has ended.
    """
    _run([sys.executable, "-m", "jaxppo.cli", *words], shares(count, os.environ), lambda: _advice(run))


def _advice(run: Path) -> str:
    """How it goes on after a failure; nothing where there is no run yet."""
    if not (run / "config.json").exists():
        return ""
    whole = "the run is whole up to its last checkpoint: " if any(run.glob("checkpoints/step-*")) else ""
    return f"; {whole}`jaxppo resume {run}` goes on"


def _run(command: Sequence[str], environments: Sequence[Mapping[str, str]], advice: Callable[[], str]) -> None:
    with Signals() as signals, _started(command, environments) as children:
        leader, passed_on = children[0].process, None
        while leader.poll() not in IN_ORDER:
            if signals.received and not passed_on:
                passed_on = signals.received
                for child in children:
                    child.process.send_signal(passed_on)
            if any(child.failed for child in children):
                raise _failure(children, passed_on, advice)
            time.sleep(LOOK)
        _end_within(LINGER, children)
        if leader.returncode:
            raise SystemExit(leader.returncode)


def _failure(children: Sequence[Child], signalled: int | None, advice: Callable[[], str]) -> BaseException:
    """What is to be raised for the process that has failed."""
    # Where the leader died others may have followed it in the meantime; and an error that all have it tells itself.
    heeding = signalled is not None or any(child.process.poll() == 2 for child in children)
    _end_within(GRACE if heeding else LOOK, children[:1])
    first = next(child for child in children if child.failed)
    code = first.process.returncode
    if code == 2 and first.log is None:
        return SystemExit(2)
    if sys.stderr.isatty():
        print("\x1b[?25h", file=sys.stderr)  # the cursor, which the leader's progress bar has hidden
    if signalled is not None and code == -signalled:
        return Interrupted(signalled, f"stopped by {signal.Signals(signalled).name} before the training began")
    how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
    words = first.last_words()
    return UserError(
        f"process {first.rank} of {len(children)} {how}{f' ({words})' if words else ''}, and the others were ended"
        f"{_kept(first)}{advice()}"
    )


def _kept(child: Child) -> str:
    """Where the output of a process is, if it is more than a line."""
    if child.log is None or child.log.read_bytes().strip().count(b"\n") == 0:
        return ""
    file, path = tempfile.mkstemp(prefix=f"jaxppo-process-{child.rank}-", suffix=".log")
    os.close(file)
    shutil.copyfile(child.log, path)
    return f" (its output: {path})"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_within(seconds: float, children: Sequence[Child]) -> bool:
    """Whether all `children` end within that time."""
    deadline = time.monotonic() + seconds
    while any(child.process.poll() is None for child in children):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK / 4)
    return True


@contextmanager
def _started(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> Iterator[list[Child]]:
    """The running processes; whatever happens, none is left behind."""
    lifeline, held = os.pipe()
    children: list[Child] = []
    with tempfile.TemporaryDirectory(prefix="jaxppo-") as logs:
        try:
            address = f"127.0.0.1:{_free_port()}"
            for rank, share in enumerate(environments):
                log = Path(logs) / f"process-{rank}.log" if rank else None
                children.append(_start(command, rank, len(environments), address, lifeline, share, log))
            yield children
        finally:
            for child in children:
                child.process.kill()
            for child in children:
                child.process.wait()
            os.close(lifeline)
            os.close(held)


def _start(
    command: Sequence[str],
    rank: int,
    count: int,
    address: str,
    lifeline: int,
    share: Mapping[str, str],
    log: Path | None,
) -> Child:
    place = {crew.COORDINATOR: address, crew.PROCESSES: str(count), crew.PROCESS: str(rank)}
    # Nobody from outside may listen in, and no proxy stands between two processes of one machine.
    local = {"JAX_COORDINATOR_BIND_ADDRESS": address, "no_grpc_proxy": "127.0.0.1"}
    output = open(log, "wb") if log else None
    process = subprocess.Popen(
        command,
        env={**os.environ, **place, **local, **share, crew.LIFELINE: str(lifeline)},
        pass_fds=(lifeline,),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # a terminal's Ctrl-C comes to the launcher alone, which passes it on
    )
    if output:
        output.close()
    return Child(rank, process, log)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
