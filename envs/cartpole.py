"""CartPole: a pole on a cart, pushed left or right; the dynamics and limits of Gym's CartPole-v1.

With m = masscart + masspole and l half the pole's length,

    f  = (±force + masspole·l·θ̇²·sin θ) / m
    θ̈  = (g·sin θ − f·cos θ) / (l·(4/3 − masspole·cos²θ / m))
    ẍ  = f − masspole·l·θ̈·cos θ / m

and (x, ẋ, θ, θ̇) moves by one explicit Euler step of `tau` seconds, positions with the old velocities. Reward 1 a step;
terminated beyond |x| = 2.4 or |θ| = 12°; truncated at `time_limit` = 500 steps. Every component starts in ±0.05.

Known answer: `balance` never drops the pole, so its return is `time_limit`.
(Barto, Sutton and Anderson, 1983; constants from Gym.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.spaces import Box, Discrete


class State(NamedTuple):
    """physics: (x, ẋ, θ, θ̇), float32 [4]; t: steps taken, int32 []."""

    physics: Array
    t: Array


@environment
class CartPole:
    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5  # half of the pole's
    force: float = 10.0
    tau: float = 0.02
    angle_limit: float = 12 * np.pi / 180
    position_limit: float = 2.4
    time_limit: int = static_field(default=500)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("jaxppo/cartpole", Box((4,)), Discrete(2), time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[State, Array]:
        physics = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return State(physics, jnp.int32(0)), physics

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        _x, x_dot, theta, theta_dot = state.physics
        force = jnp.where(action == 1, self.force, -self.force)
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        mass, moment = self.masscart + self.masspole, self.masspole * self.length
        push = (force + moment * theta_dot**2 * sin) / mass
        theta_acc = (self.gravity * sin - push * cos) / (self.length * (4.0 / 3.0 - self.masspole * cos**2 / mass))
        x_acc = push - moment * theta_acc * cos / mass
        velocity = jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
        physics = (state.physics + self.tau * velocity).astype(jnp.float32)
        t = state.t + 1
        terminated = (jnp.abs(physics[0]) > self.position_limit) | (jnp.abs(physics[2]) > self.angle_limit)
        truncated = (t >= self.time_limit) & ~terminated
        return State(physics, t), Step(physics, jnp.float32(1.0), terminated, truncated)


def balance(observation: Array) -> Array:
    """int32 []: pushes towards where the pole falls, leaning so that the cart comes back to the middle."""
    return (observation @ jnp.array([0.05, 0.1, 1.0, 0.3]) > 0).astype(jnp.int32)
