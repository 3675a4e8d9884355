"""What the tests of environments share: playing an episode on, and the contract that every environment keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.environment import Masked
from jaxppo.spaces import Box, Discrete


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: compiles a heavy simulator; deselect with -m 'not slow'")


def random_action(space, key):
    if isinstance(space, Box):
        low, high = (np.clip(bound, -1.0, 1.0) for bound in space.bounds())
        return jax.random.uniform(key, space.shape, jnp.float32, low, high)
    sizes = space.n if isinstance(space, Discrete) else jnp.array(space.nvec)
    return jax.random.randint(key, space.shape, 0, sizes, jnp.int32)


def _play(env, *, steps, envs=2, policy=None, seed=0):
    """Plays on over every end, without resets. Returns (first observation [N, ...], actions, Step) [T, N, ...]."""

    def one(key):
        first_key, key = jax.random.split(key)
        state, observation = env.reset(first_key)

        def step(carry, key):
            state, observation = carry
            action_key, step_key = jax.random.split(key)
            action = random_action(env.spec.action, action_key) if policy is None else policy(observation)
            state, outcome = env.step(step_key, state, action)
            return (state, outcome.observation), (action, outcome)

        return observation, *jax.lax.scan(step, (state, observation), jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(seed), envs)
    return jax.jit(jax.vmap(one, out_axes=(0, 1, 1)))(keys)


def _check_contract(env):
    """What spec and types promise, from abstract evaluation alone: nothing is compiled."""
    spec = env.spec
    key = jax.random.key(0)
    action = jax.ShapeDtypeStruct(spec.action.shape, spec.action.dtype)
    state, observation = jax.eval_shape(env.reset, key)
    after, step = jax.eval_shape(env.step, key, state, action)
    assert types(after) == types(state), "the carry of a scan has one type"
    assert types(step.observation) == types(observation)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after, observation, step)))
    assert isinstance(observation, Masked) == spec.masked
    view = observation.view if spec.masked else observation
    assert types(view) == [(space.shape, space.dtype) for space in jax.tree.leaves(spec.observation)]
    assert jax.tree.structure(view) == jax.tree.structure(spec.observation)
    assert (step.reward.shape, step.reward.dtype) == ((), jnp.float32)
    assert step.terminated.shape == step.truncated.shape == ()
    assert step.terminated.dtype == step.truncated.dtype == bool


def types(tree):
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _check_limit(env, step):
    """Played over the time limit: truncated there and not before, except where it terminated."""
    limit = env.spec.time_limit
    terminated, truncated = np.asarray(step.terminated), np.asarray(step.truncated)
    assert not truncated[: limit - 1].any()
    alive = ~terminated[:limit].any(axis=0)
    assert alive.any(), "this check needs an episode that reaches the limit"
    assert truncated[limit - 1, alive].all()
    assert not (terminated & truncated).any()


@pytest.fixture
def play():
    return _play


@pytest.fixture
def check_contract():
    return _check_contract


@pytest.fixture
def check_limit():
    return _check_limit
