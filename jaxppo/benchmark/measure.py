"""Timing: compiled once, then in turns, so that whatever else the machine does falls on all alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.benchmark.kernels import count_kernels
from jaxppo.benchmark.parts import make_parts
from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.memory import allocated, plan
from jaxppo.types import Algorithm


@dataclass(frozen=True)
class Loop:
    """The whole loop, in medians over the rounds."""

    steps_per_second: float
    """Environment steps a second."""
    efficiency: float
    """Seconds of the parts ÷ seconds of the whole."""
    efficiency_range: tuple[float, float]
    """Least and largest of the rounds."""
    compile_seconds: float
    """Tracing, lowering and compiling one update."""
    peak_bytes: int
    """What XLA allocates: state, temporaries, outputs."""
    predicted_bytes: int
    """The same, predicted before anything compiled (`jaxppo.memory.plan`)."""


@dataclass(frozen=True)
class Benchmark:
    """What `benchmark` measured."""

    environment: str
    num_envs: int
    num_steps: int
    epochs: int
    minibatch_size: int
    full: Loop
    """Everything on: bootstrapped time limits, statistics of observations and rewards, metrics."""
    bare: Loop
    """None of it."""
    floor: float
    """Environment steps a second if an update took no longer than its parts by themselves (those of the bare loop)."""
    parts: dict[str, float]
    """Seconds of each part for one update: their sum is the floor's."""
    kernels: dict[str, int]
    """Kernels of one environment step or one gradient step of each part, as compiled for this platform."""
    rounds: int
    platform: str
    versions: dict[str, str]


def bare_config(config: PPOConfig) -> PPOConfig:
    """`config` without what costs beside the algorithm: statistics of observations and rewards, bootstrapped limits."""
    return replace(config, normalise_observation=False, normalise_reward=False, truncation="terminate")


def full_config(config: PPOConfig) -> PPOConfig:
    """`config` with all of it."""
    return replace(config, normalise_observation=True, normalise_reward=True, truncation="bootstrap")


class _Whole:
    """One update after another, compiled; `run()` takes the next."""

    def __init__(self, algorithm: Algorithm, state: Any, hyper: Hyperparameters | None, *, metrics: bool):
        def update(state):
            state, found = algorithm.update(state)
            return state, found if metrics else ()

        start = time.perf_counter()
        self._compiled = jax.jit(update, donate_argnums=0).lower(state).compile()
        self.compile_seconds = time.perf_counter() - start
        self.peak_bytes = allocated(self._compiled)
        self.predicted_bytes = plan(algorithm, hyper).total
        self._state = jax.tree.map(jnp.copy, state)  # donated at each turn

    def run(self) -> None:
        self._state, _ = jax.block_until_ready(self._compiled(self._state))


def benchmark(
    recipe: Callable[[PPOConfig, Any], Algorithm],
    config: PPOConfig,
    env: Any,
    hyper: Hyperparameters | None = None,
    *,
    rounds: int = 5,
    seconds: float = 1.0,
) -> Benchmark:
    """Time the whole loop, bare and with everything on, and its parts, in turns.

    seconds: how long each program runs in each of the `rounds`, about.
    """
    runs: dict[str, Callable[[], Any]] = {}
    wholes: dict[str, _Whole] = {}
    for name, changed in {"full": full_config(config), "bare": bare_config(config)}.items():
        algorithm = recipe(changed, env)
        state = jax.jit(lambda key, algorithm=algorithm: algorithm.init(key, hyper))(jax.random.key(0))
        wholes[name] = _Whole(algorithm, state, hyper, metrics=name == "full")
        runs[name] = wholes[name].run
    kernels = {}
    for name, part in make_parts(algorithm, state).items():
        compiled = jax.jit(part.run).lower(*part.arguments[0]).compile()
        runs[name] = lambda run=compiled, given=part.arguments[0]: jax.block_until_ready(run(*given))
        kernels[name] = count_kernels(jax.jit(part.once).lower(*part.arguments[1]).compile().as_text() or "")

    counts = {name: _calibrate(run, seconds) for name, run in runs.items()}
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_time(run, counts[name]))
    parts = {name: statistics.median(times[name]) for name in kernels}
    floors = [sum(times[name][i] for name in parts) for i in range(rounds)]
    size = config.steps_per_update

    def loop(name: str) -> Loop:
        ratios = [floor / whole for floor, whole in zip(floors, times[name], strict=True)]
        whole = wholes[name]
        return Loop(
            size / statistics.median(times[name]),
            statistics.median(ratios),
            (min(ratios), max(ratios)),
            whole.compile_seconds,
            whole.peak_bytes,
            whole.predicted_bytes,
        )

    return Benchmark(
        environment=env.spec.name,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        epochs=config.epochs,
        minibatch_size=size // config.minibatches,
        full=loop("full"),
        bare=loop("bare"),
        floor=size / statistics.median(floors),
        parts=parts,
        kernels=kernels,
        rounds=rounds,
        platform=jax.devices()[0].device_kind,
        versions={name: version(name) for name in ("jaxppo", "jax", "jaxlib", "flax", "optax")},
    )


def _time(run: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def _calibrate(run: Callable[[], Any], seconds: float) -> int:
    """Turns that take about `seconds`; warms up on the way."""
    run()
    return max(1, min(1000, round(seconds / max(_time(run, 1), 1e-9))))
