"""Running statistics of observations and of discounted returns. Pure, in the train state, frozen during an update."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import EnvironmentSpec
from jaxppo.networks import observation_spaces
from jaxppo.spaces import Box
from jaxppo.types import Array, PyTree


class Moments(NamedTuple):
    """count [], mean and m2 (sum of squared deviations) of one array.

    The count is float32: from 2^24 batches on it stops growing, and each further batch counts as that share.
    """

    count: Array
    mean: Array
    m2: Array

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> "Moments":
        return cls(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))

    def merge(self, batch: Array, axes: tuple[int, ...]) -> "Moments":
        """These moments and those of `batch` over `axes`. (Chan et al., 1979.)"""
        batch = batch.astype(jnp.float32)
        size = math.prod(batch.shape[axis] for axis in axes)
        mean = batch.mean(axes)
        m2 = jnp.square(batch - jnp.expand_dims(mean, axes)).sum(axes)
        total = self.count + size
        delta = mean - self.mean
        return Moments(
            total, self.mean + delta * (size / total), self.m2 + m2 + jnp.square(delta) * (self.count * size / total)
        )

    @property
    def std(self) -> Array:
        """Deviation; 1 before anything was seen."""
        variance = self.m2 / jnp.maximum(self.count, 1.0)
        return jnp.where(self.count > 0, jnp.sqrt(jnp.maximum(variance, 1e-8)), 1.0)


ObservationStatistics = tuple[Moments | None, ...]


def init_observation_statistics(spec: EnvironmentSpec, enabled: bool) -> ObservationStatistics:
    """One `Moments` for each array of the view; None for discrete leaves, and for all if not enabled."""
    return tuple(
        Moments.zero(space.shape) if enabled and isinstance(space, Box) else None
        for space in observation_spaces(spec.observation)
    )


def normalise_observation(statistics: ObservationStatistics, view: PyTree, clip: float = 10.0) -> PyTree:
    """(x − mean) / std, clipped, for every leaf that has statistics. Leading axes are free."""
    leaves, structure = jax.tree.flatten(view)

    def normalise(moments, x):
        if moments is None:
            return x
        return jnp.clip((x.astype(jnp.float32) - moments.mean) / moments.std, -clip, clip)

    return jax.tree.unflatten(structure, [normalise(m, x) for m, x in zip(statistics, leaves, strict=True)])


def update_observation_statistics(statistics: ObservationStatistics, view: PyTree) -> ObservationStatistics:
    """The statistics with a whole rollout's view [T, N, ...] merged in."""

    def merge(moments, x):
        axes = tuple(range(x.ndim - moments.mean.ndim))
        if x.dtype.itemsize == 4:
            return moments.merge(x, axes)
        # Narrow images are not turned into floats all at once: they would be four times as large.
        inner = tuple(axis - 1 for axis in axes[1:])
        return jax.lax.scan(lambda m, step: (m.merge(step, inner), None), moments, x)[0]

    pairs = zip(statistics, jax.tree.leaves(view), strict=True)
    return tuple(None if moments is None else merge(moments, x) for moments, x in pairs)


class RewardStatistics(NamedTuple):
    """discounted: [N, ...], each environment's running discounted return; moments: of all of them so far."""

    discounted: Array
    moments: Moments


def init_reward_statistics(shape: tuple[int, ...]) -> RewardStatistics:
    """shape: of one step's rewards, [N] or [N, M]."""
    return RewardStatistics(jnp.zeros(shape), Moments.zero())


def scale_reward(
    statistics: RewardStatistics, reward: Array, trace: Array, gamma: Any, clip: Any = jnp.inf
) -> tuple[Array, RewardStatistics]:
    """Rewards [T, N, ...] over the running deviation of the discounted return, this rollout's included.

    The mean is not subtracted (that would change what is optimal), and the accumulator starts anew with each episode
    (`trace` 0). Only the learner sees the result. `clip` is off by default, unlike elsewhere: where the rare reward is
    the whole task (100 at the goal against costs of .1 a step) a clip at 10 deviations takes most of it away.
    """

    def accumulate(discounted, inputs):
        r, t = inputs
        discounted = discounted * gamma + r
        return discounted * t, discounted

    last, returns = jax.lax.scan(accumulate, statistics.discounted, (reward, trace))
    moments = statistics.moments.merge(returns, tuple(range(returns.ndim)))
    return jnp.clip(reward / moments.std, -clip, clip), RewardStatistics(last, moments)
