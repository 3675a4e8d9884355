"""The environment protocol. Everything that the learner knows about a simulator is in this file.

An environment is a pytree whose leaves are its parameters, so that they can be traced, swept and randomised; what fixes
shapes or choices is static (`static_field`). It knows one episode: `step` never resets, and the observation that it
returns is the true next one. Resets belong to the learner (`jaxppo.resets`), as do batching and episode statistics.

    state, observation = env.reset(key)
    state, step = env.step(key, state, action)

Randomness comes only from the key that is passed in: a library whose state carries a key of its own gets this one
written into the state first, otherwise two environments dealt the same pooled state would stay identical for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct

from jaxppo.spaces import Space

PyTree = Any
Array = jax.Array

environment = struct.dataclass  # the decorator for environments: a frozen dataclass that is a pytree


def static_field(**kwargs: Any) -> Any:
    """A field of an environment that is part of its structure (sizes, choices, time limit), not a leaf."""
    return struct.field(pytree_node=False, **kwargs)


class Masked(NamedTuple):
    """An observation that comes with an action mask.

    view: what the networks see, any pytree.
    action_mask: bool [num_logits of the action space], True where the action is allowed.
    """

    view: PyTree
    action_mask: Array


class Step(NamedTuple):
    """What one transition gives.

    observation: the true next observation, also where the episode ends.
    reward: float32 []; with agents [M].
    terminated: bool []; with agents [M]. Nothing follows: the value of what would is 0.
    truncated: bool []. Cut off by a limit: the value of `observation` still counts. Where both are set,
        termination wins.
    extras: static keys; named arrays for costs, achieved goals, and what an algorithm asks for.
    episode_end: bool [], only needed where it is not `terminated.all() | truncated`.
    """

    observation: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    extras: Mapping[str, Array] = {}
    episode_end: Array | None = None


@dataclass(frozen=True)
class EnvironmentSpec:
    """The static facts of an environment.

    name: as passed to `jaxppo.envs.make`.
    observation: a pytree of spaces in the structure of the observation (of `Masked.view` where `masked`).
    action: the action space of one agent.
    masked: observations are `Masked`.
    time_limit: steps after which an episode is truncated, or None. An environment truncates only there, so in T steps
        at most ceil(T / time_limit) times.
    num_agents: M; 0 for an environment without an agent axis.
    reset: the reset strategy measured to be best, `fresh`, `pool` or `optimistic`.
    cost_fields, goal_fields: names in `Step.extras`.
    """

    name: str
    observation: PyTree
    action: Space
    masked: bool = False
    time_limit: int | None = None
    num_agents: int = 0
    reset: str = "fresh"
    cost_fields: tuple[str, ...] = ()
    goal_fields: tuple[str, ...] = field(default=())


@runtime_checkable
class Environment(Protocol):
    """See the module's docstring. `key` is one key; the learner vmaps over keys, states and actions."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    def reset(self, key: Array) -> tuple[PyTree, PyTree]: ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step]: ...


def split_mask(spec: EnvironmentSpec, observation: PyTree) -> tuple[PyTree, Array | None]:
    """(view, action mask or None) of an observation."""
    return (observation.view, observation.action_mask) if spec.masked else (observation, None)


def finite(tree: PyTree) -> Array:
    """bool [N]: every float in the leaves [N, ...] is finite. Needs at least one leaf."""
    leaves = jax.tree.leaves(tree)
    sound = jnp.ones(leaves[0].shape[:1], bool)
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            sound &= jnp.isfinite(leaf).reshape(sound.shape[0], -1).all(axis=1)
    return sound


def episode_end(step: Step) -> Array:
    """bool []: the episode is over, whoever of the agents is still alive in a truncated one."""
    if step.episode_end is not None:
        return step.episode_end
    terminated = step.terminated
    return (terminated.all(-1) if terminated.ndim > step.truncated.ndim else terminated) | step.truncated


def strongly_typed(tree: PyTree) -> PyTree:
    """Every leaf as an array of its own and of a definite type.

    A weak type would make a scan's carry change type and recompile; two leaves in one buffer (a state that is also the
    observation) cannot be donated.
    """

    def strong(leaf):
        leaf = jnp.copy(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strong, tree)
