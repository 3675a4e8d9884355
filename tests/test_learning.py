"""Training learns: the demonstration's settings at a third of its steps, against a policy that has not learned."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxppo.algorithms.ppo import ppo
from jaxppo.envs import make
from jaxppo.presets import PRESETS
from jaxppo.training import make_train


@pytest.mark.parametrize("changes", [{}, {"surrogate": "spo", "advantage": "vtrace"}], ids=["ppo", "spo_vtrace"])
def test_cartpole_is_balanced_for_hundreds_of_steps(changes):
    config, hyper = PRESETS["demo"].settings()
    config = dataclasses.replace(config, total_steps=100_000, **changes)
    env = make("jaxppo/cartpole")
    state, metrics = jax.jit(make_train(config, env))(jax.random.key(0), hyper)
    assert float(metrics["first_ratio_deviation"].value.max()) < 1e-5
    algorithm = ppo(config, env)
    played = algorithm.evaluate(state, jax.random.key(1), episodes=32)
    untrained = algorithm.evaluate(algorithm.init(jax.random.key(0), hyper), jax.random.key(1), episodes=32)
    assert float(np.mean(untrained.episode_return)) < 150
    assert float(np.mean(played.episode_return)) > 300
