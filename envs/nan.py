"""An environment that breaks: now and then a reward or an observation is NaN, as in a simulator that blows up.

The observation is (t / time_limit, 1), the reward 1; truncated at `time_limit`. A NaN appears in the outcome of step
number `at` of every episode (counted from 1; 0 for never), and in every other one with probability `probability`. It is
in what the step gives, not in the state, so that the next step is sound again. With `where` = "reset" every step is
sound, and the first observation of an episode is NaN with probability `probability`.

Known answer: with `at` = k and probability 0, one NaN in each episode, at its k-th step; parameters that learn from it
must stay finite and the NaN must be counted.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete


@environment
class NaN:
    at: int = 5
    probability: float = 0.0
    where: Literal["reward", "observation", "reset"] = static_field(default="reward")
    time_limit: int = static_field(default=10)

    def __post_init__(self):
        if self.where not in ("reward", "observation", "reset"):
            raise UserError(f"where={self.where!r} of jaxppo/nan must be 'reward', 'observation' or 'reset'")

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("jaxppo/nan", Box((2,), 0.0, 1.0), Discrete(2), time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[Array, Array]:
        probability = self.probability if self.where == "reset" else 0.0
        return jnp.int32(0), self._observe(jnp.int32(0)) + _nan(jax.random.bernoulli(key, probability))

    def step(self, key: Array, state: Array, action: Array) -> tuple[Array, Step]:
        t = state + 1
        broken = (t == self.at) | jax.random.bernoulli(key, self.probability)
        observation, reward = self._observe(t), jnp.float32(1.0)
        if self.where == "reward":
            reward = reward + _nan(broken)
        elif self.where == "observation":
            observation = observation + _nan(broken)
        return t, Step(observation, reward, jnp.bool_(False), t >= self.time_limit)

    def _observe(self, t: Array) -> Array:
        return jnp.stack([t.astype(jnp.float32) / self.time_limit, jnp.float32(1.0)])


def _nan(broken: Array) -> Array:
    return jax.lax.select(broken, jnp.float32(jnp.nan), jnp.float32(0.0))
