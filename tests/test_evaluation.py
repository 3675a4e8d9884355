from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import NetworkConfig
from jaxppo.envs import make
from jaxppo.envs.cartpole import balance
from jaxppo.evaluation import play, policy_act
from jaxppo.policies import feed_forward


def scripted(function):
    def act(view, mask, memory, reset, keys):
        return jax.vmap(function)(view), memory

    return act


def anything(observation):
    return jnp.int32(0)


def run(env, act, episodes, **kwargs):
    return jax.jit(lambda env, key: play(env, act, (), key, episodes=episodes, **kwargs))(env, jax.random.key(0))


def test_returns_and_lengths_are_those_of_the_first_episode():
    result = run(make("jaxppo/counting"), scripted(anything), 64)
    assert result.finished.all()
    expected = np.where(np.asarray(result.episode_length) == 7, 21.0, 45.0)
    np.testing.assert_array_equal(result.episode_return, expected)
    assert set(result.episode_length.tolist()) == {7, 10}


def test_the_discount_is_that_of_the_step():
    result = run(make("jaxppo/time_limit"), scripted(anything), 3, gamma=0.5)
    np.testing.assert_allclose(result.discounted_return, 2 * (1 - 0.5**10), rtol=1e-6)
    assert result.episode_return.tolist() == [10.0] * 3


def test_the_time_limit_bounds_what_a_shorter_limit_cuts():
    result = run(make("jaxppo/cartpole", time_limit=30), scripted(balance), 4)
    assert result.episode_length.tolist() == [30] * 4 and result.finished.all()
    cut = run(make("jaxppo/cartpole", time_limit=30), scripted(balance), 4, limit=12)
    assert cut.episode_length.tolist() == [12] * 4 and not cut.finished.any()


def test_a_policy_plays_by_its_mode_or_by_samples(toy):
    env = toy(time_limit=20, bound=1e6)
    policy = feed_forward(NetworkConfig(hidden=(8,), actor_gain=1.0), "auto", env.spec)
    parameters = policy.init(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (50, 3))
    keys = [jax.random.split(jax.random.key(k), 50) for k in (0, 1)]
    for mode in (True, False):
        act = policy_act(policy, parameters, lambda x: x, mode=mode)
        first, second = (act(observation, None, (), None, k)[0] for k in keys)
        assert bool((first == second).all()) == mode
    modal = policy_act(policy, parameters, lambda x: x, mode=True)(observation, None, (), None, keys[0])[0]
    np.testing.assert_array_equal(
        modal, policy.apply(parameters, observation, None, (), None).distribution.log_probs.argmax(-1)
    )


@pytest.mark.parametrize("episodes", [1, 5])
def test_episodes_start_differently(episodes, toy):
    result = run(toy(), scripted(anything), episodes)
    assert len(set(result.episode_return.tolist())) == episodes


@pytest.mark.parametrize("where", ["reward", "observation", "reset"])
def test_an_episode_with_a_nan_is_left_out_and_counted(where):
    chance = 0.5 if where == "reset" else 0.1
    result = run(make("jaxppo/nan", where=where, at=0, probability=chance), scripted(anything), 64, gamma=0.5)
    assert 5 < result.valid.sum() < 59
    np.testing.assert_array_equal(result.finished, result.valid)
    summary = result.summary()
    expected = {"episode_return": 10.0, "discounted_return": 2 * (1 - 0.5**10), "episode_length": 10, "finished": 1}
    for name, value in expected.items():
        assert float(summary[name].count) == result.valid.sum()
        assert float(summary[name].value) == pytest.approx(value, rel=1e-6)
    assert float(summary["invalid_episodes"].total) == 64 - result.valid.sum()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((result, summary)))


@pytest.mark.parametrize("where", ["reward", "observation", "reset"])
def test_no_valid_episode_is_a_count_of_0(where):
    """And play stops where nobody plays on."""
    result = run(make("jaxppo/nan", where=where, at=3, probability=float(where == "reset")), scripted(anything), 4)
    assert result.episode_length.tolist() == [0 if where == "reset" else 3] * 4
    assert not result.valid.any() and not result.finished.any()
    summary = result.summary()
    assert float(summary.pop("invalid_episodes").total) == 4
    assert all(float(mean.count) == float(mean.total) == 0 for mean in summary.values())


def test_what_an_environment_gives_after_its_end_is_not_looked_at():
    """Odd episodes end at 7 and are played on, beside the even ones, which go to 10."""

    class Afterwards(NamedTuple):
        env: Any

        @property
        def spec(self):
            return self.env.spec

        def reset(self, key):
            return self.env.reset(key)

        def step(self, key, state, action):
            state, step = self.env.step(key, state, action)
            return state, step._replace(reward=jnp.where(state.t > 7, jnp.nan, step.reward))

    result = run(Afterwards(make("jaxppo/counting")), scripted(anything), 32)
    odd = np.asarray(result.episode_length) == 7
    assert 0 < odd.sum() < 32
    np.testing.assert_array_equal(result.valid, odd)
    assert (np.asarray(result.episode_return)[odd] == 21).all()
