"""An environment that only a time limit ends: reward 1 a step, nothing to see and nothing to decide.

Known answer: the limit is not a part of the task, so the value of its only observation is Σ γᵗ = 1 / (1 − γ) for every
policy. A learner that takes truncation for termination finds less, at most (1 − γ^limit) / (1 − γ).
(Pardo et al., Time Limits in Reinforcement Learning, 2018.)
"""

import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.spaces import Box, Discrete


@environment
class TimeLimitOnly:
    reward: float = 1.0
    time_limit: int = static_field(default=10)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("jaxppo/time_limit", Box((1,), 0.0, 1.0), Discrete(2), time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[Array, Array]:
        return jnp.int32(0), jnp.ones(1, jnp.float32)

    def step(self, key: Array, state: Array, action: Array) -> tuple[Array, Step]:
        t = state + 1
        reward = jnp.asarray(self.reward, jnp.float32)
        return t, Step(jnp.ones(1, jnp.float32), reward, jnp.bool_(False), t >= self.time_limit)

    def value(self, gamma: float) -> Array:
        """reward / (1 − γ)."""
        return jnp.asarray(self.reward) / (1.0 - gamma)


def any_action(observation: Array) -> Array:
    """int32 []: every policy attains the known answer; this one takes action 0."""
    return jnp.int32(0)
