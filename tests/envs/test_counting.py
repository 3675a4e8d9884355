import jax
import numpy as np

from jaxppo.envs import make


def test_reward_is_the_count_that_was_seen(play):
    first, _, step = play(make("jaxppo/counting"), steps=12, envs=32)
    seen = np.concatenate([first[None], step.observation])[:-1]
    np.testing.assert_array_equal(step.reward, seen[..., 1])
    np.testing.assert_array_equal(step.observation[..., 1], seen[..., 1] + 1)
    np.testing.assert_array_equal(step.observation[..., 0], seen[..., 0])


def test_odd_episodes_terminate_and_even_ones_are_truncated(play):
    first, _, step = play(make("jaxppo/counting", life=4, time_limit=6), steps=6, envs=32)
    odd = np.asarray(first[:, 0]) % 2 == 1
    assert odd.any() and not odd.all()
    np.testing.assert_array_equal(np.argmax(step.terminated | step.truncated, axis=0), np.where(odd, 3, 5))
    np.testing.assert_array_equal(step.truncated[-1], ~odd)


def test_episode_numbers_are_exact_and_rarely_meet():
    _, observation = jax.vmap(make("jaxppo/counting").reset)(jax.random.split(jax.random.key(0), 64))
    number = np.asarray(observation[:, 0])
    assert (number == number.astype(int)).all() and len(np.unique(number)) == 64
