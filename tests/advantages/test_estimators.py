"""Recursions over time held against loops, against each other, and against what they must not see."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import advantages
from jaxppo.advantages import ADVANTAGES, first_episode, group_baseline
from jaxppo.types import CriticOutputs, Rollout

GAMMA, LAM, T, N = 0.9, 0.7, 11, 4


def of_arrays(function):
    """The data here are NumPy's, to be cut and changed in place."""
    return lambda *arrays, **numbers: function(*map(jnp.asarray, arrays), **numbers)


generalized_advantage = of_arrays(advantages.generalized_advantage)
monte_carlo_return = of_arrays(advantages.monte_carlo_return)
n_step_return = of_arrays(advantages.n_step_return)
temporal_difference = of_arrays(advantages.temporal_difference)
vtrace = of_arrays(advantages.vtrace)


class Data(NamedTuple):
    reward: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    continuation: np.ndarray
    trace: np.ndarray

    @property
    def without_value(self):
        return self.reward, self.next_value, self.continuation, self.trace

    def between(self, start, stop):
        return Data(*(x[start:stop] for x in self))


def make_data(seed=0, *, ends=True):
    """Random episodes; next values are the following values except where the episode was truncated."""
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(T + 1, N)).astype(np.float32)
    terminated = (rng.random((T, N)) < 0.15) & ends
    truncated = (rng.random((T, N)) < 0.15) & ends & ~terminated
    next_value = np.where(truncated, rng.normal(size=(T, N)), value[1:]).astype(np.float32)
    reward = rng.normal(size=(T, N)).astype(np.float32)
    continuation = 1.0 - terminated.astype(np.float32)
    return Data(reward, value[:-1], next_value, continuation, 1.0 - (terminated | truncated).astype(np.float32))


def rollout_of(data, log_ratio=None):
    """What an estimator takes; it may look at nothing else."""
    nothing = dict.fromkeys(Rollout._fields)
    rollout = Rollout(**nothing)._replace(
        reward=data.reward,
        value=data.value,
        continuation=data.continuation,
        trace=data.trace,
        weight=np.ones_like(data.reward),
    )
    ratio = np.zeros_like(data.reward) if log_ratio is None else log_ratio
    return jax.tree.map(jnp.asarray, (rollout, CriticOutputs(data.value, data.next_value, ratio)))


def estimate(name, data, log_ratio=None, **numbers):
    entry = ADVANTAGES.get(name)
    keywords = {"gamma": GAMMA, "group_size": 2}
    handed = {k: v for k, v in keywords.items() if k in entry.keywords}
    return entry.function(*rollout_of(data, log_ratio), **handed, **entry.resolve(numbers))


def loop_gae(data, gamma, lam):
    advantage, out = np.zeros(data.reward.shape[1:]), np.zeros(data.reward.shape)
    for t in reversed(range(len(out))):
        for n in range(out.shape[1]):
            delta = data.reward[t, n] - data.value[t, n]
            if data.continuation[t, n]:
                delta += gamma * data.next_value[t, n]
            advantage[n] = delta + (gamma * lam * advantage[n] if data.trace[t, n] else 0.0)
            out[t, n] = advantage[n]
    return out


def loop_n_step(data, gamma, n):
    out = np.zeros(data.reward.shape)
    for t in range(len(out)):
        for e in range(out.shape[1]):
            total, discount = 0.0, 1.0
            for k in range(t, min(t + n, len(out))):
                total += discount * data.reward[k, e]
                discount *= gamma * data.continuation[k, e]
                if data.trace[k, e] == 0:
                    break
            out[t, e] = total + discount * data.next_value[k, e]
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_scan_equals_a_loop(seed, lam):
    data = make_data(seed)
    np.testing.assert_allclose(
        generalized_advantage(*data, gamma=GAMMA, lam=lam), loop_gae(data, GAMMA, lam), rtol=1e-4, atol=1e-5
    )


def test_gae_with_lambda_one_is_monte_carlo_and_with_zero_the_td_error():
    data = make_data()
    mc = monte_carlo_return(*data.without_value, gamma=GAMMA) - data.value
    np.testing.assert_allclose(generalized_advantage(*data, gamma=GAMMA, lam=1.0), mc, rtol=1e-4, atol=1e-5)
    delta = temporal_difference(*data[:4], gamma=GAMMA)
    np.testing.assert_allclose(generalized_advantage(*data, gamma=GAMMA, lam=0.0), delta, rtol=1e-5)


@pytest.mark.parametrize("name", ["gae", "monte_carlo", "n_step", "vtrace"])
def test_a_truncated_batch_equals_its_two_halves(name):
    data, cut = make_data(ends=False), 5
    trace = data.trace.copy()
    trace[cut - 1] = 0.0
    next_value = data.next_value.copy()
    next_value[cut - 1] = 7.0  # the true final observation's, not that of the next episode's first
    joined = estimate(name, data._replace(trace=trace, next_value=next_value))
    halves = [
        estimate(name, data.between(0, cut)._replace(next_value=next_value[:cut])),
        estimate(name, data.between(cut, T)),
    ]
    for field in ("advantage", "target"):
        np.testing.assert_allclose(
            getattr(joined, field), np.concatenate([getattr(h, field) for h in halves]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", ["gae", "monte_carlo", "n_step", "vtrace"])
def test_termination_ignores_the_final_value_and_what_follows(name):
    data, end = make_data(ends=False), 5
    continuation, trace = data.continuation.copy(), data.trace.copy()
    continuation[end], trace[end] = 0.0, 0.0
    results = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        next_value, value, reward = data.next_value.copy(), data.value.copy(), data.reward.copy()
        next_value[end:], value[end + 1 :] = rng.normal(size=(T - end, N)), rng.normal(size=(T - end - 1, N))
        reward[end + 1 :] = rng.normal(size=(T - end - 1, N))
        results.append(estimate(name, Data(reward, value, next_value, continuation, trace)))
    for field in ("advantage", "target"):
        np.testing.assert_array_equal(*(getattr(r, field)[: end + 1] for r in results))


@pytest.mark.parametrize("name", ["gae", "monte_carlo", "n_step", "vtrace"])
def test_a_truncation_uses_the_final_value_and_nothing_after_it(name):
    data, cut = make_data(ends=False), 5
    trace = data.trace.copy()
    trace[cut] = 0.0

    def early(final_value, later):
        next_value, value, reward = data.next_value.copy(), data.value.copy(), data.reward.copy()
        next_value[cut] = final_value
        value[cut + 1 :] += later
        next_value[cut + 1 :] += later
        reward[cut + 1 :] += later
        out = estimate(name, Data(reward, value, next_value, data.continuation, trace))
        return np.asarray(out.advantage[: cut + 1])

    np.testing.assert_array_equal(early(1.0, 0.0), early(1.0, 5.0))
    assert (early(2.0, 0.0)[cut] > early(1.0, 0.0)[cut]).all()


@pytest.mark.parametrize("n", [1, 2, 3, T, 50])
def test_n_step_equals_a_loop(n):
    for seed in range(3):
        data = make_data(seed)
        out = n_step_return(*data.without_value, gamma=GAMMA, n=n)
        np.testing.assert_allclose(out, loop_n_step(data, GAMMA, n), rtol=1e-4, atol=1e-5)


def test_n_step_lies_between_the_one_step_target_and_monte_carlo():
    data = make_data()
    one = n_step_return(*data.without_value, gamma=GAMMA, n=1)
    np.testing.assert_allclose(one - data.value, temporal_difference(*data[:4], gamma=GAMMA), rtol=1e-4, atol=1e-5)
    all_of_them = n_step_return(*data.without_value, gamma=GAMMA, n=T)
    np.testing.assert_allclose(all_of_them, monte_carlo_return(*data.without_value, gamma=GAMMA), rtol=1e-4, atol=1e-5)


def test_n_may_be_swept():
    data = make_data()
    swept = jax.vmap(lambda n: n_step_return(*map(jnp.asarray, data.without_value), gamma=GAMMA, n=n))(
        jnp.array([1.0, 3.0])
    )
    np.testing.assert_allclose(swept[1], n_step_return(*data.without_value, gamma=GAMMA, n=3), rtol=1e-5)


def test_gae_is_the_exponential_average_of_the_n_step_advantages():
    data = make_data(ends=False)
    steps = [n_step_return(*data.without_value, gamma=GAMMA, n=n) - data.value for n in range(1, T + 1)]
    average = (1 - LAM) * sum(LAM**i * s for i, s in enumerate(steps)) + LAM**T * steps[-1]
    np.testing.assert_allclose(generalized_advantage(*data, gamma=GAMMA, lam=LAM)[0], average[0], rtol=1e-4, atol=1e-5)


def test_a_perfect_critic_leaves_no_advantage():
    data = make_data(ends=False)
    ones = np.ones_like(data.reward)
    perfect = Data((1 - GAMMA) * 3.0 * ones, 3.0 * ones, 3.0 * ones, ones, ones)
    for name in ("gae", "monte_carlo", "n_step", "vtrace"):
        np.testing.assert_allclose(estimate(name, perfect).advantage, 0.0, atol=1e-5)


def test_potential_shaping_leaves_the_advantage_unchanged():
    data = make_data(3)
    potential = np.random.default_rng(9).normal(size=(T + 1, N)).astype(np.float32)
    following = potential[1:]
    shaped = data._replace(
        reward=data.reward + GAMMA * data.continuation * following - potential[:-1],
        value=data.value - potential[:-1],
        next_value=data.next_value - following,
    )
    np.testing.assert_allclose(
        generalized_advantage(*shaped, gamma=GAMMA, lam=LAM),
        generalized_advantage(*data, gamma=GAMMA, lam=LAM),
        rtol=1e-3,
        atol=1e-4,
    )


def test_vtrace_of_the_same_policy_is_gae_and_the_lambda_return():
    data = make_data()
    zero = np.zeros_like(data.reward)
    advantage, target = vtrace(*data, zero, gamma=GAMMA, lam=LAM)
    gae = generalized_advantage(*data, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(advantage, gae, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, gae + data.value, rtol=1e-4, atol=1e-5)


def test_vtrace_of_a_policy_that_would_never_act_so_is_the_value():
    data = make_data()
    advantage, target = vtrace(*data, np.full_like(data.reward, -1e4), gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(advantage, 0.0, atol=1e-6)
    np.testing.assert_allclose(target, data.value, rtol=1e-6)


def test_vtrace_equals_its_definition_as_a_sum():
    """v_s = V_s + Σ_t γ^{t−s} (Π_{i<t} c_i) ρ_t δ_t, λ = 1; written out for one episode without ends."""
    data = make_data(4, ends=False)
    log_ratio = np.random.default_rng(0).normal(size=(T, N)).astype(np.float32)
    rho, c = np.minimum(1.2, np.exp(log_ratio)), np.minimum(0.8, np.exp(log_ratio))
    delta = data.reward + GAMMA * data.next_value - data.value
    expected = np.array(
        [
            data.value[s] + sum(GAMMA ** (t - s) * np.prod(c[s:t], axis=0) * rho[t] * delta[t] for t in range(s, T))
            for s in range(T)
        ]
    )
    advantage, target = vtrace(*data, log_ratio, gamma=GAMMA, lam=1.0, rho_bar=1.2, c_bar=0.8, pg_rho_bar=1.5)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    following = np.concatenate([expected[1:], data.next_value[-1:]])
    np.testing.assert_allclose(
        advantage,
        np.minimum(1.5, np.exp(log_ratio)) * (data.reward + GAMMA * following - data.value),
        rtol=1e-4,
        atol=1e-5,
    )


RETURNS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def test_grpo_ignores_affine_changes_and_is_standardised():
    advantage = group_baseline(jnp.asarray(RETURNS))
    np.testing.assert_allclose(advantage, group_baseline(jnp.asarray(7.0 + 3.0 * RETURNS)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(advantage.sum(1), 0.0, atol=1e-5)
    np.testing.assert_allclose(jnp.square(advantage).sum(1), 4.0, rtol=1e-4)  # G − 1


def test_dr_grpo_is_grpo_without_its_division():
    centred = group_baseline(jnp.asarray(RETURNS), standardise=0.0)
    np.testing.assert_allclose(centred, RETURNS - RETURNS.mean(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(
        group_baseline(jnp.asarray(RETURNS)), centred / RETURNS.std(1, ddof=1, keepdims=True), rtol=1e-4
    )


def test_rloo_is_the_return_less_the_mean_of_the_others():
    advantage = group_baseline(jnp.asarray(RETURNS), standardise=0.0, leave_one_out=1.0)
    for i in range(5):
        others = np.delete(RETURNS, i, axis=1).mean(1)
        np.testing.assert_allclose(advantage[:, i], RETURNS[:, i] - others, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("returns", [np.ones((2, 4)), np.zeros((2, 1)), np.full((1, 3), 1e6)])
def test_groups_without_differences_have_no_advantage_and_finite_derivatives(returns):
    returns = jnp.asarray(returns, jnp.float32)
    out, tangent = jax.jvp(group_baseline, (returns,), (jnp.ones_like(returns),))
    np.testing.assert_allclose(out, 0.0, atol=1e-6)
    assert np.isfinite(tangent).all()


def test_first_episode_is_alive_up_to_and_with_its_last_step():
    trace = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert first_episode(trace).T.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_group_advantage_is_one_number_for_the_first_episode_and_weighs_nothing_later():
    data = make_data(1)
    out = estimate("group", data, standardise=0.0)
    for pair in range(2):
        returns = []
        for n in (2 * pair, 2 * pair + 1):
            ends = np.flatnonzero(data.trace[:, n] == 0)
            last = ends[0] if len(ends) else T - 1
            returns.append(sum(GAMMA**t * data.reward[t, n] for t in range(last + 1)))
            np.testing.assert_array_equal(out.weight[:, n], np.arange(T) <= last)
        np.testing.assert_allclose(out.advantage[:, 2 * pair], (returns[0] - returns[1]) / 2, rtol=1e-4)
        np.testing.assert_allclose(out.advantage[:, 2 * pair + 1], (returns[1] - returns[0]) / 2, rtol=1e-4)


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_estimator_keeps_shapes_and_scales_with_reward_and_value(name):
    data = make_data()
    doubled = data._replace(reward=2 * data.reward, value=2 * data.value, next_value=2 * data.next_value)
    numbers = {"standardise": 0.0} if name == "group" else {}
    one, two = estimate(name, data, **numbers), estimate(name, doubled, **numbers)
    assert {x.shape for x in jax.tree.leaves(one)} == {(T, N)}
    np.testing.assert_allclose(2 * one.advantage, two.advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(2 * one.target, two.target, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(one.weight, two.weight)


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_estimator_is_indifferent_to_the_order_of_the_groups(name):
    data, order = make_data(), np.array([2, 3, 0, 1])
    permuted = Data(*(x[:, order] for x in data))
    for one, two in zip(estimate(name, data), estimate(name, permuted), strict=True):
        np.testing.assert_allclose(one[:, order], two, rtol=1e-6, atol=1e-6)


def test_fractional_continuation_discounts():
    data = make_data(ends=False)
    half = data._replace(continuation=0.5 * np.ones_like(data.reward))
    full = data._replace(continuation=np.ones_like(data.reward))
    np.testing.assert_allclose(
        generalized_advantage(*half, gamma=0.8, lam=LAM), generalized_advantage(*full, gamma=0.4, lam=LAM), rtol=1e-5
    )


def test_agents_are_a_trailing_axis():
    data = make_data()
    stacked = Data(*(np.stack([x, 2 * x if i < 3 else x], -1) for i, x in enumerate(data)))
    out = generalized_advantage(*stacked, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(out[..., 1], 2 * out[..., 0], rtol=1e-4, atol=1e-5)
