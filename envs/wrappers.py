"""Wrappers: environments around an environment, themselves pytrees, each with the spec that follows from the wrapped.

Action masks pass through untouched: stacking and flattening concern what the networks see (`Masked.view`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.environment import (
    Array,
    Environment,
    EnvironmentSpec,
    Masked,
    Step,
    environment,
    episode_end,
    static_field,
)
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete, MultiDiscrete, Space

PyTree = Any


class Timed(NamedTuple):
    """inner: the wrapped environment's state; t: steps taken, int32 []."""

    inner: PyTree
    t: Array


class Stacked(NamedTuple):
    """inner: the wrapped environment's state; frames: the views, every leaf with a first axis, oldest first."""

    inner: PyTree
    frames: PyTree


@environment
class TimeLimit:
    """Truncates after `time_limit` steps. An environment with a shorter limit of its own keeps it."""

    env: Environment
    time_limit: int = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        own = self.env.spec.time_limit
        return replace(self.env.spec, time_limit=self.time_limit if own is None else min(own, self.time_limit))

    def reset(self, key: Array) -> tuple[Timed, PyTree]:
        state, observation = self.env.reset(key)
        return Timed(state, jnp.int32(0)), observation

    def step(self, key: Array, state: Timed, action: Array) -> tuple[Timed, Step]:
        inner, step = self.env.step(key, state.inner, action)
        t = state.t + 1
        over = t >= self.time_limit
        truncated = step.truncated | (over & ~step.terminated.all())
        end = None if step.episode_end is None else step.episode_end | over
        return Timed(inner, t), step._replace(truncated=truncated, episode_end=end)


@environment
class ActionRepeat:
    """Takes each action up to `repeat` times; sums the rewards and stops at the end of the episode.

    A time limit of L steps becomes ⌈L / repeat⌉ of the agent's. Extras are those of the last step taken, except costs,
    which are summed like rewards. Repeats draw from keys of their own, split from the step's.
    """

    env: Environment
    repeat: int = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        limit = self.env.spec.time_limit
        return replace(self.env.spec, time_limit=None if limit is None else -(-limit // self.repeat))

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        return self.env.reset(key)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        costs = self.env.spec.cost_fields
        keys = jax.random.split(key, self.repeat)

        def again(carry, key):
            state, step = carry
            over = episode_end(step)
            next_state, next_step = self.env.step(key, state, action)
            sums = {name: step.extras[name] + next_step.extras[name] for name in costs}
            next_step = next_step._replace(reward=step.reward + next_step.reward, extras={**next_step.extras, **sums})
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), carry, (next_state, next_step)), None

        first = self.env.step(keys[0], state, action)
        return jax.lax.scan(again, first, keys[1:])[0]


@environment
class RescaleAction:
    """Takes actions in [−1, 1], clipped to it, and maps them onto the bounds of the wrapped environment."""

    env: Environment

    def __post_init__(self):
        spec = getattr(self.env, "spec", None)  # absent where jax rebuilds the pytree around something else
        if spec is not None and not (isinstance(spec.action, Box) and spec.action.bounded):
            raise UserError(
                f"rescale_action needs a continuous action with finite bounds; {spec.name} has {spec.action}"
            )

    @property
    def spec(self) -> EnvironmentSpec:
        return replace(self.env.spec, action=replace(self.env.spec.action, low=-1.0, high=1.0))

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        return self.env.reset(key)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        space = self.env.spec.action
        assert isinstance(space, Box)
        low, high = space.bounds()
        share = (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0
        return self.env.step(key, state, jnp.asarray(low + share * (high - low)))


@environment
class FrameStack:
    """The observation is the last `frames` ones, concatenated along the last axis, the newest at the end.

    An image [height, width, channels] gets frames·channels channels, a scalar becomes a vector. The first observation
    of an episode is repeated to fill the stack.
    """

    env: Environment
    frames: int = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        stacked = jax.tree.map(lambda space: _stack_space(space, self.frames), self.env.spec.observation)
        return replace(self.env.spec, observation=stacked)

    def reset(self, key: Array) -> tuple[Stacked, PyTree]:
        state, observation = self.env.reset(key)
        view = observation.view if isinstance(observation, Masked) else observation
        frames = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], self.frames, axis=0), view)
        return Stacked(state, frames), _on_view(lambda _: _join(frames), observation)

    def step(self, key: Array, state: Stacked, action: Array) -> tuple[Stacked, Step]:
        inner, step = self.env.step(key, state.inner, action)
        view = step.observation.view if isinstance(step.observation, Masked) else step.observation
        frames = jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), state.frames, view)
        observation = _on_view(lambda _: _join(frames), step.observation)
        return Stacked(inner, frames), step._replace(observation=observation)


@environment
class FlattenObservation:
    """The whole observation as one float32 vector: arrays row-major, choices one-hot, in the order of the pytree."""

    env: Environment

    @property
    def spec(self) -> EnvironmentSpec:
        low, high = zip(*(_flat_bounds(space) for space in jax.tree.leaves(self.env.spec.observation)), strict=True)
        low, high = (_compact(np.concatenate(bounds)) for bounds in (low, high))
        size = sum(_flat_size(space) for space in jax.tree.leaves(self.env.spec.observation))
        return replace(self.env.spec, observation=Box((size,), low, high))

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        state, observation = self.env.reset(key)
        return state, _on_view(self._flatten, observation)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        state, step = self.env.step(key, state, action)
        return state, step._replace(observation=_on_view(self._flatten, step.observation))

    def _flatten(self, view: PyTree) -> Array:
        flat = jax.tree.map(_flatten, self.env.spec.observation, view)
        return jnp.concatenate(jax.tree.leaves(flat))


def _on_view(function: Callable[[PyTree], PyTree], observation: PyTree) -> PyTree:
    if isinstance(observation, Masked):
        return observation._replace(view=function(observation.view))
    return function(observation)


def _join(frames: PyTree) -> PyTree:
    """[frames, ..., channels] to [..., frames * channels], frame by frame."""

    def join(leaf):
        return leaf if leaf.ndim == 1 else jnp.concatenate(list(leaf), axis=-1)

    return jax.tree.map(join, frames)


def _stack_space(space: Space, frames: int) -> Space:
    if isinstance(space, Discrete):
        return MultiDiscrete((space.n,) * frames)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(space.nvec * frames)
    shape = (*space.shape[:-1], frames * space.shape[-1]) if space.shape else (frames,)
    low, high = (_compact(np.concatenate([np.atleast_1d(b)] * frames, axis=-1)) for b in space.bounds())
    return replace(space, shape=shape, low=low, high=high)


def _flat_size(space: Space) -> int:
    return int(np.prod(space.shape)) if isinstance(space, Box) else space.num_logits


def _flat_bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, Box):
        low, high = space.bounds()
        return low.ravel(), high.ravel()
    return np.zeros(space.num_logits, np.float32), np.ones(space.num_logits, np.float32)


def _flatten(space: Space, leaf: Array) -> Array:
    if isinstance(space, Discrete):
        return jax.nn.one_hot(leaf, space.n)
    if isinstance(space, MultiDiscrete):
        return jnp.concatenate([jax.nn.one_hot(leaf[i], n) for i, n in enumerate(space.nvec)])
    return jnp.ravel(leaf).astype(jnp.float32)


def _compact(bound: np.ndarray) -> float | tuple[float, ...]:
    """One number where all are equal, else one an entry: a spec of a big image stays small."""
    flat = bound.ravel()
    return float(flat[0]) if (flat == flat[0]).all() else tuple(map(float, flat))
