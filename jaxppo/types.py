"""The pytrees that travel through the loop, and nothing else.

Axes, one letter each: T time, N environments, M agents, D draws or steps per action, H value heads. Time-major.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any


class Mean(NamedTuple):
    """A masked sum and its count, so that averages over steps, devices and seeds stay exact.

    "No episode finished" is a count of 0, never a 0 or a NaN.
    """

    total: Array
    count: Array

    @classmethod
    def of(cls, values: Array, weight: Array | None = None) -> "Mean":
        """Sum and count of `values` [...], of those where `weight` (same shape) is not 0, weighted by it."""
        values = jnp.asarray(values, jnp.float32)
        if weight is None:
            return cls(values.sum(), jnp.float32(values.size))
        weight = jnp.broadcast_to(weight, values.shape).astype(jnp.float32)
        return cls(jnp.where(weight != 0, values * weight, 0.0).sum(), weight.sum())

    @property
    def value(self) -> Array:
        """The average; 0 where nothing was counted (look at `count` before you believe it)."""
        return self.total / jnp.maximum(self.count, 1e-8)


Metrics = dict[str, Mean]


class Final(NamedTuple):
    """Final observations of truncated episodes, in slots [K, N, ...], K = ceil(T / time limit).

    The k-th truncation of an environment in this rollout fills its slot k: kept are only the observations that no later
    step repeats.

    observation: the true last observation of the episode; None where time limits are not bootstrapped.
    memory: the policy's memory at that observation.
    taken: bool [T, N], this step filled the next slot.
    """

    observation: PyTree
    memory: PyTree
    taken: Array


class Rollout(NamedTuple):
    """What N environments lived through in T steps. Observations once, never next observations.

    observation: [T, N, ...], raw (not normalised), in the type the environment gives.
    action: [T, N, ...], as the policy scores it (before squashing and clipping).
    log_prob: [T, N, (M,) D], of the behaviour policy.
    value: [T, N, (M,) (H)], the critic's outputs while acting.
    reward: [T, N, (M)].
    continuation: [T, N, (M)] = 1 − terminated. Float, may be fractional.
    trace: [T, N, (M)] = 1 − (terminated | truncated).
    weight: [T, N, (M)], 0 where the sample must not count (the environment gave a NaN, or the group's episode is over).
    reset: bool [T, N], the *previous* step ended an episode: memory starts anew before this step.
    distribution: the behaviour policy's distribution, or None where no surrogate asks for it.
    memory: the policy's memory before the first step [N, ...].
    last_observation, last_memory, last_reset: after the last step [N, ...] (a new episode's where that ended one).
    final: see `Final`; None for an environment that never truncates.
    extras: [T, N, ...], the environment's named arrays that the recipe asked for.
    """

    observation: PyTree
    action: PyTree
    log_prob: Array
    value: Array
    reward: Array
    continuation: Array
    trace: Array
    weight: Array
    reset: Array
    distribution: PyTree
    memory: PyTree
    last_observation: PyTree
    last_memory: PyTree
    last_reset: Array
    final: Final | None
    extras: dict[str, Array]


class CriticOutputs(NamedTuple):
    """What an advantage estimator knows beside the rollout.

    value: [T, N, ...] = v(s_t).
    next_value: [T, N, ...] = v(s_{t+1}) of the *true* next state: the slot's value where the episode was truncated.
    log_ratio: [T, N, ...] = log π(a|s) − log μ(a|s), current against behaviour policy; 0 before the first update.
    """

    value: Array
    next_value: Array
    log_ratio: Array


class Advantages(NamedTuple):
    """What an estimator returns: all [T, N, ...]; `weight` multiplies the per-sample loss."""

    advantage: Array
    target: Array
    weight: Array


class Counter(NamedTuple):
    """An exact non-negative count up to 2^64 without 64-bit arithmetic (which is off by default in JAX).

    2^20 environments of 128 steps pass 2^31 after 16 updates, and float32 stops counting at 2^24.
    """

    low: Array
    high: Array

    @classmethod
    def zero(cls) -> "Counter":
        return cls(jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32))

    def add(self, amount: int) -> "Counter":
        """This count plus a static `amount` < 2^63."""
        low = self.low + jnp.uint32(amount & 0xFFFFFFFF)
        carried = (low < self.low).astype(jnp.uint32)
        return Counter(low, self.high + jnp.uint32(amount >> 32) + carried)

    def fraction_of(self, whole: Any) -> Array:
        """This count over `whole`, float32, for schedules."""
        return (self.high.astype(jnp.float32) * 2.0**32 + self.low.astype(jnp.float32)) / whole

    def __int__(self) -> int:
        return (int(self.high) << 32) | int(self.low)


class Parts(NamedTuple):
    """The stages of an update, each a pure function: what `jaxppo bench` times and the memory plan measures.

    act: (state, key) -> (carry, rollout, metrics).
    dataset: (state, rollout, key) -> samples [T, N, ...], advantages included.
    terms: (state, parameters, samples [B], summary) -> (loss terms, diagnostics).
    summary: minibatch -> what `terms` must know of the whole minibatch.
    """

    act: Callable[..., Any]
    dataset: Callable[..., Any]
    terms: Callable[..., Any]
    summary: Callable[..., Any]


class Algorithm(NamedTuple):
    """An algorithm is two pure functions over one state pytree. `train` is a scan of `update`.

    init: (key, hyper) -> state. Parameters, optimiser, statistics, environment states, keys, counters, hyperparameters.
    update: state -> (state, metrics).
    evaluate: (state, key, mode) -> Evaluation; changes nothing.
    policy: the policy's pure functions (`jaxppo.policies.Policy`).
    config: the static configuration.
    axes: state -> the same pytree of ints: which axis of a leaf is over environments, -1 where none is.
    parts: the stages of `update`.
    """

    init: Callable[..., Any]
    update: Callable[[Any], tuple[Any, Metrics]]
    evaluate: Callable[..., Any]
    policy: Any
    config: Any
    axes: Callable[[Any], Any]
    parts: Parts
