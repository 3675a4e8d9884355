"""What a rollout records, held against the counting environment, whose every number is known."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.envs import make
from jaxppo.policies import feed_forward
from jaxppo.rollout import begin, critic_outputs, make_collector, num_final_slots

N, T = 8, 32


def identity(view):
    return view


def scaled(view):
    """Of the counting environment: unscaled, its numbers saturate the network, and all values are the same."""
    return view / jnp.array([2.0**20, 10.0])


def collect(env, config, *, seed=0, rollouts=1, parameters=None, index=None, observe=identity):
    """(policy, parameters, [(carry before, rollout, metrics)])."""
    policy = feed_forward(config.network, "auto", env.spec)
    parameters = policy.init(jax.random.key(7)) if parameters is None else parameters
    index = jnp.arange(config.num_envs) if index is None else index
    run = jax.jit(
        lambda env, p, c, k: make_collector(env.spec, policy, config, keep_distribution=True)(
            env, p, observe, c, k, index
        )
    )
    begin_key, key = jax.random.split(jax.random.key(seed))
    carry, out = begin(env, policy, begin_key, index, config.group_size), []
    for k in jax.random.split(key, rollouts):
        before = carry
        carry, rollout, metrics = run(env, parameters, carry, k)
        out.append((before, rollout, metrics))
    return policy, parameters, out


@pytest.fixture(scope="module")
def counted(tiny):
    """Two rollouts of the counting environment end to end, [2·T, N], and the parts they come from."""
    env = make("jaxppo/counting")
    policy, parameters, parts = collect(env, tiny(num_steps=T), rollouts=2, observe=scaled)
    joined = {
        name: np.concatenate([np.asarray(getattr(r, name)) for _, r, _ in parts])
        for name in ("observation", "reward", "continuation", "trace", "weight", "reset", "value")
    }
    joined["taken"] = np.concatenate([np.asarray(r.final.taken) for _, r, _ in parts])
    return env, policy, parameters, parts, joined


def test_reward_stands_beside_the_observation_that_it_was_earned_in(counted):
    joined = counted[-1]
    np.testing.assert_array_equal(joined["reward"], joined["observation"][..., 1])


def test_ends_stand_at_the_step_that_ended(counted):
    joined = counted[-1]
    episode, t = joined["observation"][..., 0], joined["observation"][..., 1]
    odd = episode % 2 == 1
    np.testing.assert_array_equal(joined["continuation"] == 0, odd & (t == 6))
    np.testing.assert_array_equal(joined["taken"], ~odd & (t == 9))
    np.testing.assert_array_equal(joined["trace"] == 0, (odd & (t == 6)) | (~odd & (t == 9)))
    assert joined["taken"].any() and (joined["continuation"] == 0).any()


def test_reset_is_the_end_of_the_step_before_also_across_rollouts(counted):
    joined = counted[-1]
    assert joined["reset"][0].all()
    np.testing.assert_array_equal(joined["reset"][1:], joined["trace"][:-1] == 0)
    np.testing.assert_array_equal(joined["observation"][1:, :, 1] == 0, joined["trace"][:-1] == 0)


def test_an_episode_keeps_its_number_until_it_ends_and_starts_are_many(counted):
    joined = counted[-1]
    episode = joined["observation"][..., 0]
    same = episode[1:] == episode[:-1]
    np.testing.assert_array_equal(same, joined["trace"][:-1] == 1)
    assert len(np.unique(episode)) >= (joined["trace"] == 0).sum()


def test_final_slots_hold_the_true_last_observations(counted):
    for _, rollout, _ in counted[3]:
        taken = np.asarray(rollout.final.taken)
        slots = np.asarray(rollout.final.observation)
        assert slots.shape[0] == num_final_slots(T, 10) == 4
        for n in range(N):
            for k, t in enumerate(np.flatnonzero(taken[:, n])):
                assert slots[k, n].tolist() == [rollout.observation[t, n, 0], 10.0]


@pytest.mark.parametrize(("steps", "limit", "slots"), [(32, None, 0), (32, 10, 4), (10, 10, 1), (11, 10, 2), (8, 1, 8)])
def test_slots_are_as_many_as_truncations_can_be(steps, limit, slots):
    assert num_final_slots(steps, limit) == slots


def test_next_values_are_those_of_the_true_next_states(counted):
    _, policy, parameters, parts, _ = counted

    def value(observation):
        return np.asarray(policy.apply(parameters, scaled(jnp.asarray(observation)), None, (), None).value)

    env_spec = counted[0].spec
    for i, (_, rollout, _) in enumerate(parts):
        critic = critic_outputs(env_spec, policy, parameters, scaled, rollout)
        observation = np.asarray(rollout.observation)
        true_next = np.stack([observation[..., 0], observation[..., 1] + 1], -1)
        alive = np.asarray(rollout.continuation) > 0
        np.testing.assert_allclose(np.asarray(critic.next_value)[alive], value(true_next)[alive], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(critic.value, value(observation), rtol=1e-4, atol=1e-5)
        assert np.ptp(critic.value[:, 0]) > 0.1, "values must differ, or nothing is shown"
        if i == 0:
            np.testing.assert_array_equal(rollout.last_observation, parts[1][1].observation[0])


def test_finished_episodes_are_counted_exactly(counted):
    joined, parts = counted[-1], counted[3]
    returns = []
    for n in range(N):
        total = 0.0
        for t in range(2 * T):
            total += joined["reward"][t, n]
            if joined["trace"][t, n] == 0:
                returns.append(total)
                total = 0.0
    count = sum(float(m["episode_return"].count) for _, _, m in parts)
    assert count == len(returns)
    assert sum(float(m["episode_return"].total) for _, _, m in parts) == sum(returns)
    assert sum(float(m["episode_return_square"].total) for _, _, m in parts) == np.square(returns).sum()
    assert set(returns) == {21.0, 45.0}
    lengths = sum(float(m["episode_length"].total) for _, _, m in parts)
    assert lengths == sum(7 if r == 21.0 else 10 for r in returns)


def test_log_probabilities_and_values_are_those_of_the_policy_that_acted(counted):
    _, policy, parameters, parts, _ = counted
    for _, rollout, _ in parts:
        output = policy.apply(parameters, scaled(rollout.observation), None, (), None)
        assert rollout.log_prob.shape == (T, N, 1)
        log_prob = output.distribution.log_prob(rollout.action)
        np.testing.assert_allclose(rollout.log_prob[..., 0], log_prob, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rollout.distribution.log_probs, output.distribution.log_probs, atol=1e-5)


def test_every_step_and_every_rollout_draws_anew(counted):
    """The policy is almost uniform over two actions: one key for all steps would repeat one of them."""
    first, second = (np.asarray(rollout.action) for _, rollout, _ in counted[3])
    assert (first.min(0) == 0).all() and (first.max(0) == 1).all()
    assert not np.array_equal(first, second)


def test_samples_of_an_environment_do_not_depend_on_the_others(tiny, toy):
    """Chunks of the global indices see what the whole sees."""
    env, config = toy(), tiny()
    whole = collect(env, config)[2][0][1]
    for start in (0, 4):
        part = collect(env, dataclasses.replace(config, num_envs=4), index=jnp.arange(start, start + 4))[2][0][1]
        np.testing.assert_array_equal(part.action, whole.action[:, start : start + 4])
        np.testing.assert_array_equal(part.reward, whole.reward[:, start : start + 4])
    assert len({tuple(a) for a in np.asarray(whole.action.T).tolist()}) > 4


def test_members_of_a_group_share_the_start_and_part_ways(tiny, toy):
    env = toy(time_limit=20)
    parts = collect(env, tiny(group_size=4), rollouts=2)[2]
    for _, rollout, _ in parts:
        observation = np.asarray(rollout.observation).reshape(8, 2, 4, 3)
        np.testing.assert_array_equal(observation[0], np.broadcast_to(observation[0, :, :1], (2, 4, 3)))
        assert not np.array_equal(observation[0, 0, 0], observation[0, 1, 0])
        assert len({tuple(x) for x in observation[1, 0].tolist()}) == 4
        assert len({tuple(a) for a in np.asarray(rollout.action.T)[:4].tolist()}) > 1
        assert rollout.reset[0].all()
    assert not np.array_equal(parts[0][1].observation[0], parts[1][1].observation[0])


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_a_nan_ends_the_episode_weighs_nothing_and_is_counted(where, tiny):
    env = make("jaxppo/nan", where=where, at=5)
    policy, parameters, ((_, rollout, metrics),) = collect(env, tiny(num_steps=13))
    broken = np.asarray(rollout.weight) == 0
    assert np.flatnonzero(broken[:, 0]).tolist() == [4, 9]
    assert (broken == broken[:, :1]).all()
    assert float(metrics["invalid_samples"].total) == broken.sum()
    assert float(metrics["episode_return"].count) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(rollout._replace(distribution=None)))
    assert (np.asarray(rollout.trace)[broken] == 0).all() and rollout.reset[5].all()
    critic = critic_outputs(env.spec, policy, parameters, identity, rollout)
    assert np.isfinite(critic.next_value).all()


@pytest.mark.parametrize("how", ["fresh", "pool", "optimistic", "groups"])
def test_a_nan_in_a_first_observation_weighs_nothing_and_is_counted(how, tiny):
    """However episodes begin. A sound observation of this environment ends in a 1, and zeros stand for the others."""
    env = make("jaxppo/nan", where="reset", probability=0.4)
    choice = {"group_size": 2} if how == "groups" else {"reset": how, "reset_group": 4, "reset_spares": 2}
    policy, parameters, parts = collect(env, tiny(num_envs=16, num_steps=9, **choice), rollouts=8)
    first, later = [], []
    for before, rollout, metrics in parts:
        observation, weight = np.asarray(rollout.observation), np.asarray(rollout.weight)
        broken = observation[..., 1] == 0
        np.testing.assert_array_equal(broken, weight == 0)
        assert (observation[broken] == 0).all() and np.asarray(rollout.reset)[broken].all()
        assert (np.asarray(rollout.trace)[broken] == 0).all() and (np.asarray(rollout.continuation) == 1).all()
        assert float(metrics["invalid_samples"].total) == broken.sum()
        # Nothing of it reaches an episode that was sound: each of them lasts for ten steps of reward 1.
        ends = np.asarray(rollout.final.taken)
        np.testing.assert_array_equal(ends, (np.asarray(rollout.trace) == 0) & ~broken)
        assert float(metrics["episode_return"].count) == ends.sum()
        assert float(metrics["episode_return"].total) == 10.0 * ends.sum()
        critic = critic_outputs(env.spec, policy, parameters, identity, rollout)
        kept = (before.observation, rollout._replace(distribution=None), critic, metrics)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept))
        first.append(broken[0].sum())
        later.append(broken[1:].sum())
    assert first[0] and sum(first[1:]) and sum(later), "broken starts everywhere, or nothing is shown"


@pytest.mark.parametrize(("view", "masked"), [("vector", False), ("vector", True), ("dict", True), ("image", True)])
def test_zeros_stand_for_the_numbers_of_a_broken_start_and_for_nothing_else(view, masked, tiny, toy):
    class Broken(NamedTuple):
        env: Any
        nan: Any
        spec = property(lambda self: self.env.spec)

        def reset(self, key):
            state, observation = self.env.reset(key)
            bad = jnp.where(jax.random.bernoulli(key), self.nan, 0.0)
            return state, jax.tree.map(lambda x: x + bad if jnp.issubdtype(x.dtype, jnp.floating) else x, observation)

    env = toy(view=view, masked=masked)
    policy = feed_forward(tiny().network, "auto", env.spec)
    for nan in (jnp.nan, -jnp.inf):
        carry = begin(Broken(env, nan), policy, jax.random.key(0), jnp.arange(16))
        broken = np.isnan(carry.episode_return)
        assert broken.sum() == 0 if view == "image" else 0 < broken.sum() < 16
        expected = begin(env, policy, jax.random.key(0), jnp.arange(16)).observation
        for leaf, sound in zip(jax.tree.leaves(carry.observation), jax.tree.leaves(expected), strict=True):
            zeroed = broken if jnp.issubdtype(leaf.dtype, jnp.floating) else np.zeros(16, bool)
            np.testing.assert_array_equal(leaf[~zeroed], sound[~zeroed])
            assert (np.asarray(leaf)[zeroed] == 0).all()


def test_termination_wins_over_a_limit_on_the_same_step(tiny):
    env = make("jaxppo/counting", time_limit=7)  # odd episodes end at 7 as well
    ((_, rollout, _),) = collect(env, tiny(num_steps=16))[2]
    odd = np.asarray(rollout.observation)[..., 0] % 2 == 1
    last = np.asarray(rollout.observation)[..., 1] == 6
    np.testing.assert_array_equal(rollout.continuation == 0, odd & last)
    np.testing.assert_array_equal(rollout.final.taken, ~odd & last)
