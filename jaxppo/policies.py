"""A policy: the pure functions that the loop asks for, whatever lies behind them.

The recipe never looks inside. Memory travels as an explicit pytree (`()` without any), and `reset` says where it starts
anew, so that a recurrent policy is another `Policy`, not another loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from jaxppo.config import NetworkConfig
from jaxppo.distributions import make_head
from jaxppo.environment import EnvironmentSpec
from jaxppo.networks import ActorCritic, dummy_observation, observation_spaces
from jaxppo.types import Array, PyTree


class Output(NamedTuple):
    """distribution over actions, value [...], and the memory after this step."""

    distribution: Any
    value: Array
    memory: PyTree


class Policy(NamedTuple):
    """init: key -> parameters.
    initial_memory: batch shape -> memory.
    apply: (parameters, view, action mask or None, memory, reset [...] or None) -> Output, for one step of a batch;
        `view` is the observation without the mask, standardised if configured.
    to_environment: action as stored and scored -> action as the environment takes it.
    """

    init: Callable[[Array], PyTree]
    initial_memory: Callable[[tuple[int, ...]], PyTree]
    apply: Callable[..., Output]
    to_environment: Callable[[Array], Array]


def feed_forward(config: NetworkConfig, distribution: str, spec: EnvironmentSpec) -> Policy:
    """Actor and critic without memory. Raises UserError where the distribution does not fit the actions."""
    head = make_head(distribution, spec.action)
    network = ActorCritic(config, observation_spaces(spec.observation), head.size, head.free)

    def init(key):
        return network.init(key, dummy_observation(spec.observation))

    def apply(parameters, view, mask, memory, reset):
        del reset  # nothing to forget
        outputs, value = cast(tuple[Array, Array], network.apply(parameters, view))
        return Output(head.build(outputs.astype(jnp.float32), mask), value, memory)

    return Policy(init, lambda batch: (), apply, head.to_environment)
