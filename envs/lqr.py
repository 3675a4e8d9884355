"""The linear-quadratic regulator with process noise: two inverted pendulums, linearised, joined by a spring.

State x = (θ₁, θ̇₁, θ₂, θ̇₂), input u = (u₁, u₂), a step of `dt` seconds:

    θ̈ᵢ = growth²·θᵢ − coupling·(θᵢ − θⱼ) + uᵢ,    x' = A x + B u + w,    w ~ N(0, noise²·I),
    reward = −(xᵀQx + uᵀRu),    Q = I,  R = control_cost·I,    x₀ ~ N(0, start²·I).

Nothing terminates; truncated at `time_limit`. Without control the common mode grows by about 1 + growth·dt a step.

Known answer: with P the fixed point of the discounted Riccati equation

    P = Q + γ AᵀPA − γ AᵀPB K,    K = γ (R + γ BᵀPB)⁻¹ BᵀPA,

u = −K x is optimal and costs xᵀPx + γ/(1 − γ)·noise²·tr P from x (expected, discounted, for ever: the value with
bootstrapped truncation is its negative). For figures that a finite episode can show, `linear_cost(K, γ, horizon)` is
the expected discounted cost of u = −K x over the first `horizon` steps, by default the time limit, from the start
distribution:

    Σ_{t<horizon} γᵗ tr((Q + KᵀRK) Mₜ),    M₀ = start²·I,    Mₜ₊₁ = (A − BK) Mₜ (A − BK)ᵀ + noise²·I.

Zero control is K = 0; over the time limit it costs far more than three times the optimum, and without a limit
infinitely much. (Bertsekas, Dynamic Programming and Optimal Control, vol. 1, section 3.1, with √γ·A and √γ·B for the
discount.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.spaces import Box


class State(NamedTuple):
    """x: float32 [4]; t: steps taken, int32 []."""

    x: Array
    t: Array


class Matrices(NamedTuple):
    """A [4, 4], B [4, 2], Q [4, 4], R [2, 2]."""

    A: Array
    B: Array
    Q: Array
    R: Array


@environment
class LQR:
    growth: float = 0.2  # per second, of the common mode
    coupling: float = 0.01
    control_cost: float = 0.1
    noise: float = 0.05
    start: float = 0.5
    dt: float = 0.1
    time_limit: int = static_field(default=100)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("jaxppo/lqr", Box((4,)), Box((2,)), time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[State, Array]:
        x = self.start * jax.random.normal(key, (4,), jnp.float32)
        return State(x, jnp.int32(0)), x

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        A, B, Q, R = self.matrices()
        reward = -(state.x @ Q @ state.x + action @ R @ action)
        x = A @ state.x + B @ action + self.noise * jax.random.normal(key, (4,), jnp.float32)
        t = state.t + 1
        return State(x, t), Step(x, reward.astype(jnp.float32), jnp.bool_(False), t >= self.time_limit)

    def matrices(self) -> Matrices:
        pull = self.growth**2 - self.coupling
        rates = jnp.zeros((4, 4)).at[(0, 2), (1, 3)].set(1.0)
        rates = rates.at[(1, 3), (0, 2)].set(pull).at[(1, 3), (2, 0)].set(self.coupling)
        A = jnp.eye(4) + self.dt * rates
        B = jnp.zeros((4, 2)).at[(1, 3), (0, 1)].set(self.dt)
        return Matrices(A, B, jnp.eye(4), self.control_cost * jnp.eye(2))

    def riccati(self, gamma: float, iterations: int = 2000) -> tuple[Array, Array]:
        """(P [4, 4], K [2, 4]) by value iteration on the Riccati equation of the module's docstring."""
        A, B, Q, R = self.matrices()

        def gain(P):
            return gamma * jnp.linalg.solve(R + gamma * B.T @ P @ B, B.T @ P @ A)

        def iterate(_, P):
            P = Q + gamma * A.T @ P @ (A - B @ gain(P))
            return (P + P.T) / 2

        P = jax.lax.fori_loop(0, iterations, iterate, Q)
        return P, gain(P)

    def optimal_gain(self, gamma: float) -> Array:
        """K [2, 4] of the optimal policy u = −K x."""
        return self.riccati(gamma)[1]

    def optimal_cost(self, gamma: float, x0: Array | None = None) -> Array:
        """[]: xᵀPx + γ/(1 − γ)·noise²·tr P, expected, discounted, for ever; over the start distribution without x0."""
        P = self.riccati(gamma)[0]
        first = self.start**2 * jnp.trace(P) if x0 is None else x0 @ P @ x0
        return first + gamma / (1 - gamma) * self.noise**2 * jnp.trace(P)

    def linear_cost(self, gain: Array, gamma: float, horizon: int | None = None) -> Array:
        """[]: the expected discounted cost of u = −gain·x over `horizon` steps from the start distribution."""
        A, B, Q, R = self.matrices()
        closed, weight = A - B @ gain, Q + gain.T @ R @ gain
        horizon = self.time_limit if horizon is None else horizon

        def accumulate(t, carry):
            cost, moment = carry
            cost += gamma ** jnp.float32(t) * jnp.trace(weight @ moment)
            return cost, closed @ moment @ closed.T + self.noise**2 * jnp.eye(4)

        return jax.lax.fori_loop(0, horizon, accumulate, (jnp.float32(0.0), self.start**2 * jnp.eye(4)))[0]
