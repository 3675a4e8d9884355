"""The rules beat chance, and the shortest path cannot be beaten."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.greedy import GREEDY, _merge_score, maze, maze_shortest_path
from jaxppo.envs import jumanji

EPISODES = 200
STEPS = {"Snake-v1": 200, "Maze-v0": 100, "Game2048-v1": 150, "Knapsack-v1": 50}


def returns(name, rule):
    """Returns of EPISODES episodes of at most STEPS steps, float [EPISODES]."""
    env = jumanji.make(name)

    def play(key):
        def step(carry, key):
            state, observation, going = carry
            action = rule(observation.view, observation.action_mask, key)
            state, step = env.step(key, state, action)
            reward = jnp.where(going, step.reward, 0.0)
            return (state, step.observation, going & ~step.terminated), reward

        return jax.lax.scan(step, (*env.reset(key), True), jax.random.split(key, STEPS[name]))[1].sum()

    return np.asarray(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), EPISODES)))


def at_random(view, mask, key):
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def clearly_above(better, worse):
    """By three standard errors, so that the seeds do not matter."""
    error = np.sqrt(better.var() / EPISODES + worse.var() / EPISODES)
    return better.mean() - worse.mean() > 3 * error


@pytest.mark.parametrize("name", STEPS)
def test_greedy_is_better_than_random(name):
    greedy, random = returns(name, GREEDY[f"jumanji/{name}"]), returns(name, at_random)
    assert clearly_above(greedy, random)


def test_the_shortest_path_always_arrives_and_greedy_does_not():
    arrived = returns("Maze-v0", maze_shortest_path)
    assert (arrived == 1).all() and clearly_above(arrived, returns("Maze-v0", maze))


@pytest.mark.parametrize(
    ("row", "score"),
    [
        ([0, 0, 0, 0], 0),
        ([1, 0, 0, 1], 4),
        ([1, 1, 1, 0], 4),
        ([2, 2, 1, 1], 12),
        ([1, 2, 1, 2], 0),
        ([1, 1, 2, 2], 12),
    ],
)
def test_merge_score(row, score):
    assert _merge_score(jnp.array(row)) == score
