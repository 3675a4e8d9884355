"""The peers beside ours: the same settings, the same steps, in virtual environments that this script makes.

    python -m experiments.bench_peers setup                     # .venv-peers/rejax and .venv-peers/brax
    python -m experiments.bench_peers learn [TASK ...]          # all seeds into experiments/results/peers.csv, resumable
    python -m experiments.bench_peers speed [--num-envs 512 4096]

Peers run in processes of their own: they pin other versions than ours (`peers/*.txt`) and must not see our packages.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from experiments import results
from experiments.tasks import TASKS, Task, settings_hash
from jaxppo.errors import UserError, unknown

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "peers"
PEERS = ("rejax", "brax")


def python_of(peer: str) -> Path:
    return ROOT / ".venv-peers" / peer / "bin" / "python"


def setup(peer: str) -> None:
    """Make the peer's virtual environment from its pins, unless they are installed already."""
    pins = SCRIPTS / f"{peer}.txt"
    folder = python_of(peer).parents[1]
    stamp = folder / "pins.sha256"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    print(f"{peer}: installing {pins.relative_to(ROOT)} into {folder.relative_to(ROOT)}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([python_of(peer), "-m", "pip", "install", "--quiet", "--no-deps", "-r", pins], check=True)
    stamp.write_text(digest)


def learn(task: Task, seeds: list[int]) -> Iterator[results.Result]:
    """Train the task's peer on each of `seeds`; a result comes as soon as its seed is finished."""
    assert task.peer is not None
    process = _start(task.peer, f"learn_{task.peer}.py", {"task": dataclasses.asdict(task), "seeds": seeds})
    with process:
        for line in process.stdout:
            run = json.loads(line)
            last_tenth = [point for point in run["curve"][-2:] if not math.isnan(point)]
            yield results.Result(
                task=task.name,
                environment=task.environment,
                algorithm="ppo",
                implementation=task.peer,
                seed=run["seed"],
                steps=run["steps"],
                evaluation_return=run["evaluation_return"],
                sampled_return=run["sampled_return"],
                training_return=statistics.fmean(last_tenth) if last_tenth else math.nan,
                curve=tuple(run["curve"]),
                wall_seconds=run["wall_seconds"],
                compile_seconds=run["compile_seconds"],
                versions=", ".join(f"{name} {number}" for name, number in run["versions"].items()),
                commit=results.commit(),
                settings=settings_hash(task),
            )
    if process.returncode:
        raise UserError(
            f"{task.peer} failed on task {task.name} (exit status {process.returncode}); see its output above"
        )


def _start(peer: str, script: str, request: dict) -> subprocess.Popen:
    """Start a script of `peers/` (under our own Python where there is no such peer) and give it its request."""
    python = python_of(peer) if peer in PEERS else sys.executable
    if not Path(python).exists():
        raise UserError(f"the virtual environment of {peer} is missing; run: python -m experiments.bench_peers setup")
    process = subprocess.Popen(
        [python, "-W", "ignore", SCRIPTS / script],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
            "JAX_ENABLE_COMPILATION_CACHE": "0",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _tell(process, request)
    return process


def _tell(process: subprocess.Popen, message: dict) -> None:
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def _learn_all(names: list[str], peers: list[str], seeds: int | None, table: Path) -> None:
    if wrong := [name for name in names if name not in TASKS]:
        raise unknown("task", wrong[0], TASKS)
    if alone := [name for name in names if TASKS[name].peer is None]:
        raise UserError(f"task {alone[0]} has no peer")
    for task in TASKS.values():
        if task.peer not in peers or (names and task.name not in names):
            continue
        finished = results.done(table, task=task.name, implementation=task.peer, settings=settings_hash(task))
        missing = [seed for seed in range(task.seeds if seeds is None else seeds) if seed not in finished]
        if not missing:
            print(f"{task.name}: finished", flush=True)
            continue
        print(f"{task.name}: {task.peer}, seeds {missing}, {task.total_steps:,} steps each", flush=True)
        for result in learn(task, missing):
            results.append(table, result)
            print(
                f"  seed {result.seed}: {result.evaluation_return:.4g} (mode), {result.sampled_return:.4g} (sampled), "
                f"{result.wall_seconds:.0f} s + {result.compile_seconds:.0f} s compilation",
                flush=True,
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("setup", help="make the virtual environments")
    command.add_argument("peers", nargs="*", metavar="PEER", help="rejax, brax; default both")
    command = commands.add_parser("learn", help="train the peers on the tasks of experiments/tasks.py")
    command.add_argument("tasks", nargs="*", metavar="TASK", help="default: every task that has a peer")
    command.add_argument("--peer", choices=PEERS, action="append", help="only tasks of this peer")
    command.add_argument("--seeds", type=int, help="seeds 0 … SEEDS − 1 instead of the task's own number")
    command.add_argument("--table", type=Path, default=results.FOLDER / "peers.csv")
    options = parser.parse_args(arguments)
    try:
        if options.command == "setup":
            for peer in options.peers or PEERS:
                if peer not in PEERS:
                    raise unknown("peer", peer, PEERS)
                setup(peer)
        elif options.command == "learn":
            _learn_all(options.tasks, options.peer or list(PEERS), options.seeds, options.table)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
