"""What only an accelerator can show, in one go: agreement with the CPU, a million environments, learning, speed.

    python experiments/gpu_check.py                    # in less than six minutes; results to runs/gpu_check
    python experiments/gpu_check.py --seconds 500      # more of the speed table
    python experiments/gpu_check.py --list             # its steps; name some of them to run only those
    python experiments/gpu_check.py --small            # all of it at small sizes, to see that it runs

It runs from a checkout, installed or not, and needs Python 3.11 with jax, flax, optax and chex; gymnax and brax join
the speed table where they are installed. Each step writes its result to OUT/results.json as soon as it is there. A
second call does what is missing: first the steps that were never tried, then those that failed. The steps run in a
process beside this one, so that one which hangs, crashes or takes too long costs its own time and not the others.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1
ENOUGH = 475.0
"""Least evaluation return of a policy that balances the pole; 500 is the most."""
FAST = 1e7
"""Steps a second that PPO is to make on CartPole."""
TOLERANCE = 1e-3
"""Largest difference of a parameter between two devices."""
OTHERS = {
    ("gymnax",): (("gymnax-cartpole", 14), ("breakout-mlp", 14)),
    ("brax", "distrax"): (("ant", 12),),
}
"""Presets that join the speed table where their libraries are installed, with the exponents of their sizes."""
HORIZON = {11: 128, 12: 64, 14: 64, 17: 32, 20: 16}
"""Steps between two updates, by exponent of the number of environments."""


# ---- the checkout as a package -----------------------------------------------------------------------------------


class Checkout(importlib.metadata.DistributionFinder):
    """`envs/` as `jaxppo.envs`, and a version where none is installed, as setuptools maps them."""

    class Package(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return "Metadata-Version: 2.1\nName: jaxppo\nVersion: 0+checkout\n" if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Path:
            return ROOT / path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "jaxppo.envs":
            return None
        folder = ROOT / "envs"
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        if context is not None and context.name == "jaxppo":
            yield self.Package()


def use_checkout() -> None:
    """Import jaxppo from beside this file, whatever else is installed."""
    sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() not in (ROOT, ROOT / "experiments"))]
    sys.meta_path.append(Checkout())


# ---- steps -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """seconds: after which it is given up. run: () -> (result, what is printed of it); runs in the worker."""

    name: str
    seconds: float
    run: Callable[[], tuple[dict[str, Any], str]]


def all_steps(small: bool) -> list[Step]:
    """In the order of what one wants to know first."""

    def step(name: str, seconds: float, run: Callable[..., Any], *arguments: Any) -> Step:
        return Step(name, seconds, lambda: run(*arguments, small=small))

    steps = [step(f"agreement {name}", 60, agreement, name) for name in ("cartpole", "orchard")]
    if small:
        steps.append(step("memory 2^9", 60, memory, 9, 16, 14 * 2**20))
        steps.append(step("learning", 60, learning))
        return [*steps, step("speed cartpole 2^6", 90, speed, "cartpole", 6)]
    steps.append(step("memory 2^20 in 12 GiB", 75, memory, 20, 16, 12 * 2**30))
    steps.append(step("learning", 90, learning))
    steps.append(step("memory 2^20", 90, memory, 20, 128, None))
    # The sizes that say most come first: there may not be time for all of them.
    sizes = [(name, exponent) for exponent in (14, 17, 20, 11) for name in ("cartpole", "orchard")]
    sizes += [size for libraries, more in OTHERS.items() if all(map(importable, libraries)) for size in more]
    return [*steps, *(step(f"speed {name} 2^{exponent}", 90, speed, name, exponent) for name, exponent in sizes)]


def importable(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:
        return False


def task(name: str, **changes: Any) -> tuple[Any, Any, Any]:
    """(configuration with everything on, numbers, environment) of a preset."""
    from jaxppo.envs import make
    from jaxppo.presets import PRESETS

    preset = PRESETS[name]
    config, hyper = preset.settings()
    config = dataclasses.replace(config, normalise_observation=True, normalise_reward=True, **changes)
    return config, hyper, make(preset.env, **preset.env_parameters)


def agreement(name: str, *, small: bool) -> tuple[dict[str, Any], str]:
    """The same two updates here and on the CPU; where there is only a CPU, whole and in parts."""
    import jax
    import numpy as np

    from jaxppo.algorithms.ppo import ppo

    def updates(device, **changes):
        """(parameters after two updates, how far they moved, finished episodes, largest deviation of a first ratio)."""
        with jax.default_device(device), jax.default_matmul_precision("highest"):
            size = {"num_envs": 64 if small else 512, "num_steps": 32}
            config, hyper, env = task(name, total_steps=10**6, minibatches=4, **size, **changes)
            algorithm = ppo(config, env)

            def run(key):
                first = algorithm.init(key, hyper)
                last, metrics = jax.lax.scan(lambda state, _: algorithm.update(state), first, None, length=2)
                episodes, ratio = metrics["episode_length"].count.sum(), metrics["first_ratio_deviation"].total.max()
                return first.parameters, last.parameters, episodes, ratio

            before, after, episodes, ratio = jax.device_get(jax.jit(run)(jax.random.key(0)))
        flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (before, after)]
        return flat[1], float(np.abs(flat[1] - flat[0]).max()), int(episodes), float(ratio)

    here = jax.devices()[0]
    other, way = None, "this device and the CPU"
    if here.platform != "cpu":
        try:
            other = updates(jax.devices("cpu")[0])
        except RuntimeError:  # JAX was told to leave the CPU alone
            other = None
    if other is None:
        other, way = updates(here, chunks=4, microbatches=2), "whole and in chunks and microbatches, on one device"
    one = updates(here)
    difference = float(np.abs(one[0] - other[0]).max())
    result = {
        "compared": way,
        "difference": difference,
        "moved": one[1],
        "episodes": [one[2], other[2]],
        "first_ratio_deviation": [one[3], other[3]],
        "agrees": bool(difference <= TOLERANCE and one[2] == other[2]),
    }
    line = f"parameters differ by {difference:.1e} after moving {one[1]:.1e}, episodes {one[2]} and {other[2]} ({way})"
    return result, ("agrees: " if result["agrees"] else "DISAGREES: ") + line


def fit(config: Any, env: Any, hyper: Any, available: int | None = None) -> tuple[Any, Any]:
    """(configuration, memory plan) with the fewest chunks and microbatches that fit. Raises UserError if none do."""
    from jaxppo.algorithms.ppo import ppo
    from jaxppo.errors import UserError
    from jaxppo.memory import check_memory

    problem = None
    for parts in (2**i for i in range(13)):
        for chunks in sorted({1, parts}):
            changed = dataclasses.replace(config, chunks=chunks, microbatches=parts)
            try:
                return changed, check_memory(ppo(changed, env), hyper, available=available)
            except UserError as error:
                problem = problem or error
    assert problem is not None
    raise problem


def peak() -> int | None:
    """Most bytes that this process has held on the device, where the device counts them."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def memory(exponent: int, num_steps: int, available: int | None, *, small: bool) -> tuple[dict[str, Any], str]:
    """One update of the orchard on 2^exponent environments, in the parts that `available` bytes ask for."""
    import jax

    from jaxppo.algorithms.ppo import ppo
    from jaxppo.memory import allocated, gib

    config, hyper, env = task("orchard", num_envs=2**exponent, num_steps=num_steps, minibatches=4, total_steps=10**12)
    config, plan = fit(config, env, hyper, available)
    algorithm = ppo(config, env)
    before, begun = peak(), time.perf_counter()
    state = jax.jit(algorithm.init)(jax.random.key(0), hyper)
    update = jax.jit(algorithm.update, donate_argnums=0).lower(state).compile()
    compile_seconds, begun = time.perf_counter() - begun, time.perf_counter()
    state, metrics = jax.block_until_ready(update(state))
    seconds = time.perf_counter() - begun
    size = allocated(update)
    result = {
        "num_envs": config.num_envs,
        "num_steps": num_steps,
        "chunks": config.chunks,
        "microbatches": config.microbatches,
        "limit_bytes": available,
        "predicted_bytes": plan.total,
        "allocated_bytes": size,
        "process_peak_bytes": [before, peak()],
        "compile_seconds": compile_seconds,
        "update_seconds": seconds,
        "episodes": float(metrics["episode_length"].count),
        "finite": bool(all(jax.numpy.isfinite(leaf).all() for leaf in jax.tree.leaves(state.parameters))),
        "skipped_updates": float(metrics["skipped_updates"].total),
    }
    result["fits"] = bool(result["finite"] and (available is None or size <= available))
    line = (
        f"one update of 2^{exponent} × {num_steps} in {config.chunks} chunks and {config.microbatches} microbatches: "
        f"{gib(size)} (predicted {gib(plan.total)}"
        f"{'' if available is None else f', allowed {gib(available)}'}), {seconds:.1f} s"
    )
    return result, line


def learning(*, small: bool) -> tuple[dict[str, Any], str]:
    """PPO on CartPole with many environments: its curve, its speed, and how well it plays in the end."""
    import jax
    import numpy as np

    from jaxppo.algorithms.ppo import ppo
    from jaxppo.schedules import Schedule
    from jaxppo.training import make_chunk

    num_envs, updates, length = (64, 4, 2) if small else (2**16, 60, 5)
    config, hyper, env = task("cartpole", num_envs=num_envs, num_steps=32, minibatches=8)
    config = dataclasses.replace(config, total_steps=updates * config.steps_per_update)
    hyper = hyper.replace(learning_rate=Schedule(2e-3, 0.0), entropy_coefficient=0.0)
    algorithm = ppo(config, env)
    state = jax.jit(algorithm.init)(jax.random.key(0), hyper)
    begun = time.perf_counter()
    chunk = make_chunk(algorithm, length).lower(state, length).compile()
    compile_seconds = time.perf_counter() - begun
    curve, seconds, ratio = [], [], 0.0
    for _ in range(0, updates, length):
        begun = time.perf_counter()
        state, metrics = jax.block_until_ready(chunk(state, length))
        seconds.append(time.perf_counter() - begun)
        totals, counts = (np.asarray(x) for x in metrics["episode_return"])
        curve += [float(t / c) if c else None for t, c in zip(totals, counts, strict=True)]
        ratio = max(ratio, float(metrics["first_ratio_deviation"].total.max()))
        if sum(seconds) > 60:
            break
    evaluate = jax.jit(algorithm.evaluate, static_argnames=("mode", "episodes"))
    score = float(evaluate(state, jax.random.key(1), mode=True, episodes=32 if small else 256).episode_return.mean())
    samples = config.steps_per_update * len(curve)
    result = {
        "num_envs": num_envs,
        "num_steps": config.num_steps,
        "epochs": config.epochs,
        "minibatches": config.minibatches,
        "updates": len(curve),
        "steps": samples,
        "curve": curve,
        "updates_to_enough": next((i + 1 for i, x in enumerate(curve) if x is not None and x >= ENOUGH), None),
        "evaluation_return": score,
        "learned": score >= ENOUGH,
        "steps_per_second": samples / sum(seconds),
        "chunk_seconds": seconds,
        "compile_seconds": compile_seconds,
        "first_ratio_deviation": ratio,
    }
    rate = f"{result['steps_per_second'] / 1e6:.2f}M steps/s"
    return result, f"{score:.1f} of 500 after {samples:,} steps in {sum(seconds):.1f} s, {rate}"


def speed(name: str, exponent: int, *, small: bool) -> tuple[dict[str, Any], str]:
    """The whole loop, its parts and its floor at 2^exponent environments."""
    from jaxppo.algorithms.ppo import ppo
    from jaxppo.benchmark import benchmark
    from jaxppo.memory import gib

    steps = HORIZON.get(exponent, 16)
    config, hyper, env = task(name, num_envs=2**exponent, num_steps=steps, epochs=4, minibatches=4, total_steps=10**12)
    config, _ = fit(config, env, hyper)
    found = benchmark(ppo, config, env, hyper, rounds=1 if small else 3, seconds=0.01 if small else 0.3)
    result = {
        **dataclasses.asdict(found),
        "chunks": config.chunks,
        "microbatches": config.microbatches,
        "process_peak_bytes": peak(),
    }
    full = found.full
    line = (
        f"{full.steps_per_second / 1e6:.2f}M steps/s × {steps}, bare {found.bare.steps_per_second / 1e6:.2f}M, floor "
        f"{found.floor / 1e6:.2f}M (efficiency {found.bare.efficiency:.2f}), {sum(found.kernels.values())} kernels, "
        f"compiled in {full.compile_seconds:.1f} s, {gib(full.peak_bytes)} (predicted {gib(full.predicted_bytes)})"
    )
    return result, line


def goals(done: dict[str, Any]) -> dict[str, bool | None]:
    """What is wanted of the steps at full size, and whether it is so; None where it was not measured."""
    agreed = [result["agrees"] for name, result in done.items() if name.startswith("agreement")]
    many = [result["fits"] for name, result in done.items() if name.startswith("memory 2^20")]
    learned = done.get("learning")
    fast = learned and learned["steps_per_second"] >= FAST and learned["learned"]
    return {
        "two devices agree": all(agreed) if agreed else None,
        "10 million PPO steps a second on CartPole, learning intact": fast,
        "2^20 environments of the orchard in memory": any(many) if many else None,
    }


# ---- results -----------------------------------------------------------------------------------------------------


class Results:
    """OUT/results.json: replaced whole after each step, so that it is complete whenever it is read."""

    def __init__(self, out: Path):
        self.path = out / "results.json"
        self.data: dict[str, Any] = {"schema": SCHEMA, "machine": None, "steps": {}, "failed": {}, "running": None}
        if self.path.exists():
            self.data = json.loads(self.path.read_text())
            if self.data.get("schema") != SCHEMA:
                raise SystemExit(f"{self.path} is of another version of this script; choose another --out")

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        with open(beside, "w") as file:
            json.dump(self.data, file, indent=1, default=float)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)

    def fail(self, name: str, why: str) -> None:
        self.data["failed"][name] = why
        self.data["running"] = None
        self.save()
        print(f"{name}: FAILED, {why}", flush=True)


def work(steps: list[Step], results: Results, end: float, machine: dict[str, Any]) -> int:
    """In the worker: the steps one after another, as long as there is time for the next."""
    use_checkout()
    import jax

    from experiments.results import commit, versions

    device = jax.devices()[0]
    machine |= {"platform": device.platform, "device": device.device_kind, "jax": jax.__version__}
    if results.data["machine"] not in (None, machine):
        print(f"{results.path} holds results of {results.data['machine']}, and this is {machine}: choose another --out")
        return 2
    results.data |= {"machine": machine, "versions": versions("jax", "jaxlib", "flax", "optax", "chex")}
    results.data["commit"] = commit()
    longest: dict[str, float] = {}
    for step in steps:
        kind = step.name.split()[0]
        left = end - time.time()
        if left < longest.get(kind, 0.0):
            print(f"{step.name}: {left:.0f} s are left, and the last took {longest[kind]:.0f} s; not begun", flush=True)
            continue
        begun = time.time()
        results.data["running"] = {"name": step.name, "until": min(begun + step.seconds, end)}
        results.save()
        try:
            result, line = step.run()
        except Exception as error:  # one that does not fit in memory must not cost the others
            results.fail(step.name, f"{type(error).__name__}: {str(error)[:500]}")
            continue
        longest[kind] = time.time() - begun
        results.data["running"] = None
        results.data["failed"].pop(step.name, None)
        results.data["steps"][step.name] = {**result, "seconds": longest[kind]}
        results.data["goals"] = {} if machine["small"] else goals(results.data["steps"])
        results.save()
        print(f"{step.name}: {line} [{longest[kind]:.0f} s]", flush=True)
    return 0


def supervise(names: list[str], out: Path, end: float, arguments: list[str]) -> int:
    """Workers, one after another, until the steps are done or the time is over. Returns 2 for a wrong OUT."""
    while names and time.time() < end:
        worker = subprocess.Popen([sys.executable, __file__, *names, *arguments, "--until", str(end)])
        late = None
        while worker.poll() is None:
            time.sleep(0.2)
            running = Results(out).data["running"]
            if time.time() > (running["until"] if running else end):
                late = running
                worker.kill()
                worker.wait()
        if worker.returncode in (0, 2):
            return worker.returncode
        results = Results(out)
        running = late or results.data["running"]
        if not running:
            return worker.returncode
        results.fail(running["name"], "took too long" if late else f"ended with exit status {worker.returncode}")
        names = names[names.index(running["name"]) + 1 :]
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help="names of steps; default all")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu_check", help="folder of results.json")
    parser.add_argument("--seconds", type=float, default=345.0, help="for everything together")
    parser.add_argument("--small", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--list", action="store_true", help="show the steps and stop")
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)  # the worker's
    options = parser.parse_args()
    steps = {step.name: step for step in all_steps(options.small)}
    if options.list:
        print("\n".join(steps))
        return 0
    for name in options.steps:
        if name not in steps:
            parser.error(f"no step {name!r}; there are {', '.join(steps)}")
    wanted = options.steps or list(steps)
    results = Results(options.out)
    if options.until is not None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
        return work([steps[name] for name in wanted], results, options.until, {"small": options.small})

    end = time.time() + options.seconds
    if results.data["running"]:
        results.fail(results.data["running"]["name"], "an earlier call was stopped in the middle of it")
    for name in wanted:
        if name in results.data["steps"]:
            print(f"{name}: done before")
    missing = [name for name in wanted if name not in results.data["steps"]]
    missing.sort(key=lambda name: name in results.data["failed"])
    arguments = ["--out", str(options.out), *(["--small"] if options.small else [])]
    status = supervise(missing, options.out, end, arguments)
    results = Results(options.out)
    if status == 2:
        return 2
    for goal, met in results.data.get("goals", {}).items():
        print(f"{goal}: {'not measured' if met is None else 'PASS' if met else 'FAIL'}")
    missing = [name for name in wanted if name not in results.data["steps"]]
    print(f"{results.path}; " + (f"missing: {', '.join(missing)}; run it again" if missing else "complete"))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
