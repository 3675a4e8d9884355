"""An environment that counts, to see whether every tensor of a rollout stands where it belongs.

The observation is (episode, t): a number drawn at the reset, an integer below 2²⁰ that float32 holds exactly, and the
steps taken since. The reward of the action taken at (episode, t) is t. An episode with an odd number is terminated
after `life` steps, one with an even number is truncated after `time_limit`. Actions do nothing.

Known answer: reward = observation[1] in every row; t + 1 follows t until an end, and 0 follows the end; the last t is
`life` − 1 or `time_limit` − 1 as the number is odd or even; returns are life·(life − 1)/2 or limit·(limit − 1)/2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.spaces import Box, Discrete

EPISODES = 2**20


class State(NamedTuple):
    """episode, t: int32 []."""

    episode: Array
    t: Array


@environment
class Counting:
    life: int = 7
    time_limit: int = static_field(default=10)

    @property
    def spec(self) -> EnvironmentSpec:
        high = (float(EPISODES), float(self.time_limit))
        return EnvironmentSpec("jaxppo/counting", Box((2,), 0.0, high), Discrete(2), time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[State, Array]:
        state = State(jax.random.randint(key, (), 0, EPISODES, jnp.int32), jnp.int32(0))
        return state, _observe(state)

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        reward = state.t.astype(jnp.float32)
        state = State(state.episode, state.t + 1)
        terminated = (state.episode % 2 == 1) & (state.t >= self.life)
        truncated = (state.t >= self.time_limit) & ~terminated
        return state, Step(_observe(state), reward, terminated, truncated)


def _observe(state: State) -> Array:
    return jnp.stack([state.episode, state.t]).astype(jnp.float32)
