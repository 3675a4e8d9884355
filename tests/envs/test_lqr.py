import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.envs import make

GAMMA = 0.99


def simulated_cost(env, gain, *, episodes=4000):
    """Discounted cost of u = −gain·x over the time limit: (mean, standard error)."""

    def episode(key):
        state, observation = env.reset(key)

        def step(carry, key):
            state, observation, discount = carry
            state, outcome = env.step(key, state, -gain @ observation)
            return (state, outcome.observation, discount * GAMMA), -discount * outcome.reward

        keys = jax.random.split(jax.random.fold_in(key, 1), env.spec.time_limit)
        return jax.lax.scan(step, (state, observation, jnp.float32(1.0)), keys)[1].sum()

    costs = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes))
    return float(costs.mean()), float(costs.std()) / episodes**0.5


def test_the_system_is_as_promised():
    A, B, _, _ = make("jaxppo/lqr").matrices()
    assert A.shape[0] >= 4 and B.shape[1] >= 2
    assert np.abs(np.linalg.eigvals(A)).max() > 1.01
    controllable = np.hstack([np.linalg.matrix_power(np.asarray(A), i) @ B for i in range(4)])
    assert np.linalg.matrix_rank(controllable) == 4


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.999])
def test_riccati_equals_scipys(gamma):
    linalg = pytest.importorskip("scipy.linalg")
    env = make("jaxppo/lqr")
    A, B, Q, R = (np.asarray(m, np.float64) for m in env.matrices())
    P = linalg.solve_discrete_are(gamma**0.5 * A, gamma**0.5 * B, Q, R)
    np.testing.assert_allclose(env.riccati(gamma)[0], P, rtol=1e-3)
    K = gamma * np.linalg.solve(R + gamma * B.T @ P @ B, B.T @ P @ A)
    np.testing.assert_allclose(env.optimal_gain(gamma), K, rtol=1e-3, atol=1e-4)


def test_the_riccati_policy_attains_its_cost():
    env = make("jaxppo/lqr")
    gain = env.optimal_gain(GAMMA)
    mean, error = simulated_cost(env, gain)
    assert abs(mean - env.linear_cost(gain, GAMMA)) < 4 * error
    assert 4 * error < 0.04 * mean


def test_the_two_formulas_agree_on_a_long_horizon():
    env = make("jaxppo/lqr")
    endless = env.linear_cost(env.optimal_gain(GAMMA), GAMMA, horizon=3000)
    np.testing.assert_allclose(endless, env.optimal_cost(GAMMA), rtol=1e-3)


def test_zero_control_costs_at_least_three_times_the_optimum():
    env = make("jaxppo/lqr")
    zero, gain = jnp.zeros((2, 4)), env.optimal_gain(GAMMA)
    mean, error = simulated_cost(env, zero)
    assert abs(mean - env.linear_cost(zero, GAMMA)) < 4 * error
    assert mean > 3 * env.linear_cost(gain, GAMMA)


def test_no_other_gain_is_better_for_ever():
    env = make("jaxppo/lqr")
    gain, best = env.optimal_gain(GAMMA), env.optimal_cost(GAMMA)
    for seed in range(5):
        other = gain + 0.1 * jax.random.normal(jax.random.key(seed), gain.shape)
        assert env.linear_cost(other, GAMMA, horizon=3000) > best
