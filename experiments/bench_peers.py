"""The peers beside ours: the same settings, the same steps, in virtual environments that this script makes.

    python -m experiments.bench_peers setup              # .venv-peers/rejax and .venv-peers/brax
    python -m experiments.bench_peers learn [TASK ...]   # the seeds that experiments/results/peers.csv lacks
    python -m experiments.bench_peers speed [--num-envs 512 4096]

Peers run in processes of their own: they pin other versions than ours (`peers/*.txt`) and must not see our packages.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from experiments import results
from experiments.tasks import TASKS, Task, settings, settings_hash
from jaxppo.errors import UserError, unknown

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "peers"
PEERS = ("rejax", "brax")
SPEED_STEPS = 128
SPEED = TASKS["cartpole"].changed(num_steps=SPEED_STEPS, epochs=4, minibatches=4)
"""The work of `speed`; what docs/results call the whole loop."""


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
    process = _start(task.peer, f"learn_{task.peer}.py", {"task": settings(task), "seeds": seeds})
    with process:
        for run in _messages(process):
            yield results.Result(
                task=task.name,
                environment=task.environment,
                algorithm="ppo",
                implementation=task.peer,
                seed=run["seed"],
                steps=run["steps"],
                evaluation_return=run["evaluation_return"],
                sampled_return=run["sampled_return"],
                training_return=run["training_return"],
                curve=tuple(run["curve"]),
                wall_seconds=run["wall_seconds"],
                compile_seconds=run["compile_seconds"],
                versions=_join(run["versions"]),
                commit=results.commit(),
                settings=settings_hash(task),
            )
    if process.returncode:
        raise UserError(f"{task.peer} failed on {task.name}, exit status {process.returncode}: see its output above")


def speed(task: Task, repeats: int, microbatches: int = 1) -> Iterator[dict[str, dict]]:
    """Time the whole loop of rejax and of ours on `task`, one after the other, `repeats` times each.

    Both compile first and then wait for their turn, so that neither runs beside the other. Each round gives
    {implementation: reply}; a reply has `seconds`, `steps`, `sampled_return` after them, `compile_seconds`, `versions`.
    """
    request = {"task": {**settings(task), "microbatches": microbatches}, "seeds": list(range(repeats))}
    contestants = {"rejax": ("rejax", "speed_rejax.py"), "jaxppo": ("", "speed_ours.py")}
    processes = {}
    try:
        for name, (peer, script) in contestants.items():
            processes[name] = _start(peer, script, request)
            _hear(name, processes[name])
        for _ in range(repeats):
            yield {name: _turn(name, process) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _turn(name: str, process: subprocess.Popen) -> dict:
    _tell(process, {"go": True})
    return _hear(name, process)


def _hear(name: str, process: subprocess.Popen) -> dict:
    for message in _messages(process):
        return message
    raise UserError(f"{name} stopped with exit status {process.wait()}: see its output above")


def _messages(process: subprocess.Popen) -> Iterator[dict]:
    """The JSON lines of its stdout. What else a library prints there, brax for example when imported, is passed on."""
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
        else:
            print(line, end="", file=sys.stderr)


def _join(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _start(peer: str, script: str, request: dict) -> subprocess.Popen:
    """Start a script of `peers/` (under our own Python where there is no such peer) and give it its request."""
    python = python_of(peer) if peer in PEERS else sys.executable
    if not Path(python).exists():
        raise UserError(f"the virtual environment of {peer} is missing; run: python -m experiments.bench_peers setup")
    process = subprocess.Popen(
        [python, "-W", "ignore", SCRIPTS / script],
        cwd=ROOT,
        env={"JAX_PLATFORMS": "cpu", **os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"},
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


def _compare(sizes: list[int], repeats: int, min_steps: int, microbatch: int, as_json: bool) -> None:
    """Print the ratio for each number of environments: the median of the rounds' ratios, with the range."""
    for num_envs in sizes:
        samples = num_envs * SPEED_STEPS
        task = SPEED.changed(num_envs=num_envs, total_steps=max(2, -(-min_steps // samples)) * samples)
        minibatch = samples // task.preset.settings()[0].minibatches
        microbatches = max(1, minibatch // microbatch) if microbatch else 1
        rounds = list(speed(task, repeats, microbatches))
        rates = {name: [r[name]["steps"] / r[name]["seconds"] for r in rounds] for name in rounds[0]}
        ratios = [ours / peer for ours, peer in zip(rates["jaxppo"], rates["rejax"], strict=True)]
        report = {
            "num_envs": num_envs,
            "steps": rounds[0]["jaxppo"]["steps"],
            "microbatches": microbatches,
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "steps_per_second": {name: statistics.median(rate) for name, rate in rates.items()},
            "compile_seconds": {name: reply["compile_seconds"] for name, reply in rounds[0].items()},
            "sampled_return": {name: statistics.fmean(r[name]["sampled_return"] for r in rounds) for name in rates},
            "versions": {name: _join(reply["versions"]) for name, reply in rounds[0].items()},
        }
        if as_json:
            print(json.dumps(report), flush=True)
            continue
        print(
            f"{num_envs} environments × {SPEED_STEPS} steps: ours is {report['ratio']:.2f} times as fast "
            f"({min(ratios):.2f} … {max(ratios):.2f} in {repeats} rounds of {report['steps']:,} steps; minibatches in "
            f"{microbatches} parts)"
        )
        for name in rates:
            print(
                f"  {name:7} {report['steps_per_second'][name]:>9,.0f} steps/s, compiled in "
                f"{report['compile_seconds'][name]:.1f} s, return {report['sampled_return'][name]:.4g} afterwards "
                f"({report['versions'][name]})",
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
    command = commands.add_parser("speed", help="whole loop on CartPole, alternating with ours")
    command.add_argument("--num-envs", type=int, nargs="+", default=[512, 4096])
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--min-steps", type=int, default=2_000_000, help="steps in a round, at least")
    command.add_argument(
        "--microbatch", type=int, default=4096, help="most samples of ours whose gradient is taken at once; 0 for all"
    )
    command.add_argument("--json", action="store_true", help="one JSON object for each number of environments")
    options = parser.parse_args(arguments)
    try:
        if options.command == "setup":
            for peer in options.peers or PEERS:
                if peer not in PEERS:
                    raise unknown("peer", peer, PEERS)
                setup(peer)
        elif options.command == "learn":
            _learn_all(options.tasks, options.peer or list(PEERS), options.seeds, options.table)
        else:
            _compare(options.num_envs, options.repeats, options.min_steps, options.microbatch, options.json)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
