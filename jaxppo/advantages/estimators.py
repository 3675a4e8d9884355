"""Advantage recursions over time: plain functions of [T, ...] arrays, time first, any trailing axes.

They speak of `continuation` and `trace`, never of "done": `continuation` is 0 only where the episode truly ended,
`trace` is 0 where it ended or was cut, so that nothing of the next episode leaks in and a time limit still bootstraps.
All use the two facts G_t = r_t + γ·continuation_t·(…of the true next state…) and "what follows is unknown where trace
is 0 or the rollout ends: there `next_value` stands for it".
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxppo.types import Array

Scalar = Any


def backward_recursion(bias: Array, factor: Array) -> Array:
    """x_t = bias_t + factor_t·x_{t+1}, x_T = 0. Both [T, ...]; returns [T, ...]."""
    chex.assert_equal_shape([bias, factor])

    def step(following, inputs):
        b, f = inputs
        here = b + f * following
        return here, here

    return jax.lax.scan(step, jnp.zeros_like(bias[0]), (bias, factor), reverse=True)[1]


def temporal_difference(reward: Array, value: Array, next_value: Array, continuation: Array, *, gamma: Scalar) -> Array:
    """δ_t = r_t + γ·continuation_t·v(s_{t+1}) − v(s_t). All [T, ...]; returns [T, ...]."""
    chex.assert_equal_shape([reward, value, next_value, continuation])
    return reward + gamma * continuation * next_value - value


def generalized_advantage(
    reward: Array, value: Array, next_value: Array, continuation: Array, trace: Array, *, gamma: Scalar, lam: Scalar
) -> Array:
    """A_t = δ_t + γλ·continuation_t·trace_t·A_{t+1}. All [T, ...]; returns [T, ...].

    λ = 0 is the TD error, λ = 1 the Monte Carlo return less the value.
    (Schulman et al., 2016, eq. 16; the cut at time limits as in Pardo et al., 2018.)
    """
    chex.assert_equal_shape([reward, value, next_value, continuation, trace])
    delta = temporal_difference(reward, value, next_value, continuation, gamma=gamma)
    return backward_recursion(delta, gamma * lam * continuation * trace)


def monte_carlo_return(reward: Array, next_value: Array, continuation: Array, trace: Array, *, gamma: Scalar) -> Array:
    """G_t = r_t + γ·continuation_t·(G_{t+1} if trace_t else v(s_{t+1})); the rollout's end counts as a cut.

    All [T, ...]; returns [T, ...].
    """
    chex.assert_equal_shape([reward, next_value, continuation, trace])
    trace = trace.at[-1].set(0.0)
    discount = gamma * continuation
    return backward_recursion(reward + discount * (1.0 - trace) * next_value, discount * trace)


def n_step_return(
    reward: Array, next_value: Array, continuation: Array, trace: Array, *, gamma: Scalar, n: Scalar
) -> Array:
    """The n-step return from every t: n rewards, then the value; shorter where the episode or the rollout ends.

    n may be traced (it is rounded); n = 1 is the one-step target, n ≥ T Monte Carlo. Costs n passes over [T, ...].

    All [T, ...]; returns [T, ...].
    """
    chex.assert_equal_shape([reward, next_value, continuation, trace])
    trace = trace.at[-1].set(0.0)

    def lengthen(_, following):
        here = reward + gamma * continuation * following
        shifted = jnp.concatenate([here[1:], next_value[-1:]])
        return jnp.where(trace > 0, shifted, next_value)

    count = jnp.clip(jnp.round(jnp.asarray(n, jnp.float32)), 1, reward.shape[0]).astype(jnp.int32)
    following = jax.lax.fori_loop(0, count - 1, lengthen, next_value)
    return reward + gamma * continuation * following


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    continuation: Array,
    trace: Array,
    log_ratio: Array,
    *,
    gamma: Scalar,
    lam: Scalar = 1.0,
    rho_bar: Scalar = 1.0,
    c_bar: Scalar = 1.0,
    pg_rho_bar: Scalar = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and advantages for data of another policy. (Espeholt et al., 2018, eq. 1; λ as in rlax.)

    e_t = ρ̂_t·δ_t + γ·continuation_t·trace_t·λ·min(c̄, ρ_t)·e_{t+1};  target = v + e;
    A_t = min(ρ̄_pg, ρ_t)·(r_t + γ·continuation_t·(λ·target_{t+1} + (1 − λ)·v_{t+1}) − v_t).
    Where trace is 0 or the rollout ends, target_{t+1} is the next value. With ρ ≡ 1 the target is the λ-return and A is
    GAE(λ); with ρ ≡ 0 the target is v and A is 0.

    Shapes: all [T, ...]; returns (advantage, target), each [T, ...].
    """
    chex.assert_equal_shape([reward, value, next_value, continuation, trace, log_ratio])
    rho = jnp.exp(log_ratio)
    delta = temporal_difference(reward, value, next_value, continuation, gamma=gamma)
    correction = backward_recursion(
        jnp.minimum(rho_bar, rho) * delta, gamma * continuation * trace * lam * jnp.minimum(c_bar, rho)
    )
    target = value + correction
    following = jnp.concatenate([target[1:], next_value[-1:]])
    following = jnp.where(trace.at[-1].set(0.0) > 0, following, next_value)
    bootstrap = reward + gamma * continuation * (lam * following + (1.0 - lam) * next_value)
    return jnp.minimum(pg_rho_bar, rho) * (bootstrap - value), target


def first_episode(trace: Array) -> Array:
    """1 for the steps of the first episode of each environment, 0 after it. [T, ...] -> [T, ...]."""
    alive = jnp.cumprod(trace, axis=0)
    return jnp.concatenate([jnp.ones_like(alive[:1]), alive[:-1]])


def group_baseline(
    returns: Array, *, standardise: Scalar = 1.0, leave_one_out: Scalar = 0.0, epsilon: Scalar = 1e-6
) -> Array:
    """Advantage of each of G episodes from one start over the others. [P, G, ...] -> [P, G, ...].

    (R − μ)/(σ + ε) with standardise = 1 is GRPO (σ with G − 1 in the denominator, as verl and TRL have it); with 0 it
    is Dr.GRPO; leave_one_out = 1 multiplies by G/(G − 1), which makes the baseline the mean of the others: RLOO.
    A group of one has the advantage 0.
    """
    size = returns.shape[1]
    if size == 1:
        return jnp.zeros_like(returns)
    centred = returns - returns.mean(axis=1, keepdims=True)
    # The variance's gradient at 0 is never asked for, but forward-mode through a swept reward would meet sqrt'(0).
    variance = jnp.square(centred).sum(axis=1, keepdims=True) / (size - 1)
    deviation = jnp.sqrt(jnp.maximum(variance, 1e-20))
    scale = standardise / (deviation + epsilon) + (1.0 - standardise)
    return centred * scale * (1.0 + leave_one_out / (size - 1))
