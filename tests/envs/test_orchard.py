import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.algorithms.ppo import ppo
from jaxppo.envs import make, with_parameters
from jaxppo.envs.orchard import APPLE, GOLD, SIZE, STONE, State, plan
from jaxppo.presets import PRESETS
from jaxppo.training import make_train

KEY = jax.random.key(0)


def above(kind, *, column, gatherer):
    """A state in which a thing is about to land in `column`, and nothing else is on the board."""
    rows = np.zeros((2, SIZE), np.int8)
    rows[:, SIZE - 2] = kind, column
    return State(jnp.asarray(rows[0]), jnp.asarray(rows[1]), jnp.int32(gatherer), jnp.int32(0))


@pytest.mark.parametrize("action, reached", [(0, 3), (1, 4), (2, 5)])
@pytest.mark.parametrize("kind", [APPLE, GOLD, STONE])
def test_what_lands_on_the_gatherer_is_caught(kind, action, reached):
    env = make("jaxppo/orchard", density=0.0, gold=7.0)
    for column in (3, 4, 5):
        state, step = env.step(KEY, above(kind, column=column, gatherer=4), jnp.int32(action))
        caught = column == reached
        assert int(state.gatherer) == reached
        assert float(step.reward) == {APPLE: 1.0, GOLD: 7.0, STONE: 0.0}[kind] * caught
        assert bool(step.terminated) == (caught and kind == STONE)
        _, later = env.step(KEY, state, jnp.int32(1))
        assert float(later.reward) == 0.0 and not later.terminated and not later.observation[..., 1:].any()


def test_walls_stop_the_gatherer():
    env = make("jaxppo/orchard")
    for column, action in ((0, 0), (SIZE - 1, 2)):
        state, _ = env.step(KEY, above(APPLE, column=5, gatherer=column), jnp.int32(action))
        assert int(state.gatherer) == column


def test_everything_falls_by_one_row_in_its_column(play):
    first, _, step = play(make("jaxppo/orchard"), steps=60, envs=16)
    board = np.concatenate([np.asarray(first)[None], np.asarray(step.observation)])  # [T + 1, N, 10, 10, 4]
    np.testing.assert_array_equal(board[1:, :, 1:, :, 1:], board[:-1, :, :-1, :, 1:])
    assert board[..., 1:].sum((-1, -2)).max() == 1, "one thing in a row"
    gatherer = board[..., 0]
    assert not gatherer[:, :, :-1].any() and (gatherer.sum((-1, -2)) == 1).all()


def test_things_appear_as_often_as_the_parameters_say(play):
    _, _, step = play(make("jaxppo/orchard", density=0.6, danger=0.25, luck=0.2), steps=100, envs=400)
    new = np.asarray(step.observation)[:, :, 0, :, 1:].reshape(-1, SIZE, 3)
    expected = np.array([0.6 * 0.75 * 0.8, 0.6 * 0.75 * 0.2, 0.6 * 0.25])
    counts = new.sum(0)
    deviation = np.sqrt(len(new) * expected)
    assert (np.abs(counts.sum(0) - len(new) * expected) < 4 * deviation).all()
    each = counts.sum() / SIZE
    assert (np.abs(counts.sum(1) - each) < 4 * np.sqrt(each)).all()


def test_whoever_plans_lasts_and_a_random_policy_does_not(play):
    env = make("jaxppo/orchard")
    _, _, planned = play(env, steps=200, envs=64, policy=plan)
    assert not planned.terminated.any() and planned.truncated[-1].all()
    assert 85 < float(planned.reward.sum(0).mean()) < float(env.most)
    _, _, guessed = play(env, steps=200, envs=256)
    alive = np.cumsum(guessed.terminated, axis=0) == 0
    assert 2 < float((np.asarray(guessed.reward) * alive).sum(0).mean()) < 5


def test_danger_can_be_swept():
    env = make("jaxppo/orchard")
    keys = jax.random.split(KEY, 64)

    def ends(danger, key):
        changed = with_parameters(env, danger=danger)

        def step(state, key):
            state, outcome = changed.step(key, state, jnp.int32(1))
            return state, outcome.terminated

        return jax.lax.scan(step, env.reset(key)[0], jax.random.split(key, 100))[1].any()

    found = jax.jit(jax.vmap(jax.vmap(ends, (None, 0)), (0, None)))(jnp.array([0.0, 0.1, 1.0]), keys).mean(1)
    assert found[0] == 0.0 < found[1] < found[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_preset_learns():
    config, hyper = PRESETS["orchard"].settings()
    env = make("jaxppo/orchard")
    state, _ = jax.jit(make_train(config, env))(KEY, hyper)
    assert float(ppo(config, env).evaluate(state, KEY, episodes=128).episode_return.mean()) > 45
