import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.normalisation import (
    Moments,
    init_observation_statistics,
    init_reward_statistics,
    normalise_observation,
    scale_reward,
    update_observation_statistics,
)


def test_moments_of_batches_are_the_moments_of_all():
    x = np.random.default_rng(0).normal(3.0, [0.1, 10.0, 1000.0], size=(6, 5, 4, 3)).astype(np.float32)
    moments = Moments.zero((3,))
    for batch in x:
        moments = moments.merge(jnp.asarray(batch), (0, 1))
    flat = x.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(moments.mean, flat.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.std, flat.std(0), rtol=1e-4)
    assert float(moments.count) == len(flat)


def test_moments_survive_a_large_offset():
    x = 1e4 + np.random.default_rng(0).normal(size=4096).astype(np.float32)
    moments = Moments.zero()
    for batch in np.split(x, 16):
        moments = moments.merge(jnp.asarray(batch), (0,))
    assert float(moments.std) == pytest.approx(x.std(dtype=np.float64), rel=1e-2)


def test_before_anything_was_seen_observations_pass_unchanged(toy):
    statistics = init_observation_statistics(toy().spec, True)
    x = jnp.array([[1.0, -2.0, 3.0]])
    np.testing.assert_array_equal(normalise_observation(statistics, x), x)


def test_standardised_observations_have_mean_zero_and_deviation_one_and_discrete_leaves_pass(toy):
    spec = toy(view="dict").spec
    statistics = init_observation_statistics(spec, True)
    view = {
        "choice": jnp.ones((7, 9), jnp.int32),
        "parts": jnp.ones((7, 9, 2), jnp.int32),
        "x": jax.random.normal(jax.random.key(0), (7, 9, 3)) * 5 + 2,
    }
    out = normalise_observation(update_observation_statistics(statistics, view), view)
    assert statistics[:2] == (None, None)
    np.testing.assert_array_equal(out["choice"], view["choice"])
    np.testing.assert_allclose(out["x"].mean((0, 1)), 0.0, atol=1e-5)
    np.testing.assert_allclose(out["x"].std((0, 1)), 1.0, rtol=1e-4)


def test_outliers_are_clipped_and_constants_give_zero(toy):
    spec = toy().spec
    x = jnp.concatenate([jnp.zeros((1000, 3)), jnp.full((1, 3), 1e6)]).at[:, 2].set(4.0)
    out = normalise_observation(update_observation_statistics(init_observation_statistics(spec, True), x), x)
    np.testing.assert_allclose(out[-1], [10.0, 10.0, 0.0], atol=1e-3)


def test_nothing_is_kept_where_it_is_not_asked_for(toy):
    assert init_observation_statistics(toy().spec, False) == (None,)


def loop(rewards, traces, gamma, chunks):
    """The scaled rewards and the running returns, by plain loops over environments and steps."""
    n = rewards.shape[1]
    running, seen, scaled = np.zeros(n), [], []
    for piece in np.split(np.arange(len(rewards)), chunks):
        for t in piece:
            running = running * gamma + rewards[t]
            seen.append(running.copy())
            running = running * traces[t]
        scaled.append(rewards[piece] / np.std(seen))
    return np.concatenate(scaled), running


def test_reward_scaling_equals_a_loop_over_rollouts():
    rng = np.random.default_rng(0)
    rewards = rng.normal(2.0, 3.0, size=(12, 5)).astype(np.float32)
    traces = (rng.random((12, 5)) > 0.3).astype(np.float32)
    statistics, scaled = init_reward_statistics((5,)), []
    for piece in np.split(np.arange(12), 3):
        out, statistics = scale_reward(statistics, jnp.asarray(rewards[piece]), jnp.asarray(traces[piece]), 0.9)
        scaled.append(np.asarray(out))
    expected, running = loop(rewards.astype(np.float64), traces, 0.9, 3)
    np.testing.assert_allclose(np.concatenate(scaled), expected, rtol=1e-4)
    np.testing.assert_allclose(statistics.discounted, running, rtol=1e-4, atol=1e-5)


def test_reward_scaling_keeps_signs_and_is_indifferent_to_the_unit():
    reward = jax.random.normal(jax.random.key(0), (8, 4))
    trace = jnp.ones((8, 4))
    small, _ = scale_reward(init_reward_statistics((4,)), 0.1 * reward, trace, 0.9)
    large, _ = scale_reward(init_reward_statistics((4,)), 100.0 * reward, trace, 0.9)
    np.testing.assert_allclose(small, large, rtol=1e-4)
    assert (jnp.sign(small) == jnp.sign(reward)).all()


def test_a_rare_large_reward_is_only_clipped_on_request():
    reward = jnp.full((100, 4), -0.1).at[50, 0].set(100.0)
    trace = jnp.ones((100, 4))
    kept, _ = scale_reward(init_reward_statistics((4,)), reward, trace, 0.0)
    clipped, _ = scale_reward(init_reward_statistics((4,)), reward, trace, 0.0, 10.0)
    assert float(kept[50, 0] / kept[0, 0]) == pytest.approx(-1000.0, rel=1e-4)
    assert float(clipped[50, 0]) == 10.0 and float(clipped[0, 0]) == float(kept[0, 0])
