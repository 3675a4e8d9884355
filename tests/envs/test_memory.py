import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.envs import make
from jaxppo.envs.memory import recall


def episode(env, remember, key):
    state, observation = env.reset(key)

    def step(carry, _):
        memory, state, observation = carry
        memory, action = recall(memory if remember else jnp.int32(0), observation)
        state, outcome = env.step(key, state, action)
        return (memory, state, outcome.observation), outcome

    return jax.lax.scan(step, (jnp.int32(0), state, observation), None, env.spec.time_limit)[1]


def test_recall_is_perfect_and_forgetting_is_chance():
    env = make("jaxppo/memory", delay=9, cues=4)
    keys = jax.random.split(jax.random.key(0), 2000)
    remembered = jax.jit(jax.vmap(lambda key: episode(env, True, key)))(keys)
    forgotten = jax.jit(jax.vmap(lambda key: episode(env, False, key)))(keys)
    np.testing.assert_array_equal(remembered.reward.sum(1), 1.0)
    assert abs(float(forgotten.reward.sum(1).mean()) - env.chance) < 0.03
    assert env.chance == 0.25


def test_ends_by_termination_after_the_answer():
    env = make("jaxppo/memory")
    step = jax.jit(lambda key: episode(env, True, key))(jax.random.key(1))
    assert env.spec.time_limit == 65
    assert step.terminated[-1] and not step.terminated[:-1].any() and not step.truncated.any()


def test_the_cue_is_seen_once():
    env = make("jaxppo/memory", delay=5)
    _, first = env.reset(jax.random.key(0))
    step = episode(env, True, jax.random.key(0))
    assert first[:-1].sum() == 1.0 and not step.observation[:, :-1].any()
    np.testing.assert_array_equal(step.observation[:, -1], [0, 0, 0, 0, 1, 0])
