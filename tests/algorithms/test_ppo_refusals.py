"""What PPO cannot do is said by name, and what an environment does not announce does no harm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxppo
from jaxppo.config import Hyperparameters, check_hyperparameters
from jaxppo.errors import UserError
from jaxppo.policies import feed_forward
from jaxppo.rollout import begin, critic_outputs, make_collector

KEY = jax.random.key(0)


def test_a_policy_with_memory_is_refused(tiny, toy):
    config, env = tiny(), toy()
    policy = feed_forward(config.network, "auto", env.spec)._replace(
        initial_memory=lambda batch: jnp.zeros((*batch, 4))
    )
    with pytest.raises(UserError, match="memory"):
        jaxppo.ppo(config, env, policy=policy)


def test_an_extra_loss_does_not_take_the_place_of_ours(tiny, toy):
    with pytest.raises(UserError, match="'value' has the name of one of PPO's own"):
        jaxppo.ppo(tiny(), toy(), extra_losses=[("value", lambda parameters, batch, output: 0.0)])


@pytest.mark.parametrize("numbers", [{"surrogate": {"epsilon": -0.1}}, {"advantage": {"lam": 1.5}}])
def test_numbers_of_surrogates_and_estimators_have_ranges(numbers):
    with pytest.raises(UserError, match=next(iter(next(iter(numbers.values()))))):
        check_hyperparameters(Hyperparameters().replace(**numbers))


def test_the_group_variants_differ_with_the_default_standardisation(tiny, toy):
    config = tiny(advantage="group", group_size=4, optimiser="sgd")
    algorithm = jaxppo.ppo(config, toy())
    update = jax.jit(algorithm.update)
    ends = {}
    for name, numbers in {
        "grpo": {},
        "dr": {"standardise": 0.0},
        "rloo": {"standardise": 0.0, "leave_one_out": 1.0},
    }.items():
        hyper = Hyperparameters().replace(advantage=numbers, max_grad_norm=1e6)
        ends[name] = np.concatenate(
            [np.ravel(x) for x in jax.tree.leaves(update(algorithm.init(KEY, hyper))[0].parameters)]
        )
    for a, b in (("grpo", "dr"), ("dr", "rloo")):
        assert np.abs(ends[a] - ends[b]).max() > 1e-6


class Unannounced:
    """An environment whose spec says another time limit than it keeps."""

    def __init__(self, env, limit):
        self.env, self.limit = env, limit
        self.reset, self.step = env.reset, env.step

    @property
    def spec(self):
        return dataclasses.replace(self.env.spec, time_limit=self.limit)


@pytest.mark.parametrize("limit", [None, 8, 4])
def test_truncations_that_the_spec_does_not_announce_hold_the_value(limit, tiny, toy):
    """The environment truncates every second step; slots are for none, one or two of them."""
    config = tiny()
    env = Unannounced(toy(time_limit=2, bound=100.0), limit)
    policy = feed_forward(config.network, "auto", env.spec)
    parameters = policy.init(KEY)
    index = jnp.arange(config.num_envs)
    collect = make_collector(env.spec, policy, config, keep_distribution=False)
    _, rollout, _ = collect(env, parameters, lambda view: view, begin(env, policy, KEY, index), KEY, index)
    critic = critic_outputs(env.spec, policy, parameters, lambda view: view, rollout)
    slots = 0 if limit is None else -(-config.num_steps // limit)
    cut = np.asarray(rollout.trace) == 0
    assert cut[1::2].all()
    held = np.isclose(critic.next_value, critic.value)
    assert (held & cut).sum(0).min() >= 4 - slots and np.isfinite(critic.next_value).all()


def test_a_reset_strategy_of_the_spec_is_checked_too(tiny, toy):
    class Env(Unannounced):
        @property
        def spec(self):
            return dataclasses.replace(self.env.spec, reset="pol")

    with pytest.raises(UserError, match="pool"):
        jaxppo.ppo(tiny(), Env(toy(), None))
