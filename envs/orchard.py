"""An orchard on a board of 10 × 10: catch the apples, above all the golden ones, and let the stones pass.

The gatherer walks along the bottom row: left, stay, right. In every step it moves, everything falls by one row, and
with probability `density` something new appears in a random column of the top row: a stone with probability `danger`,
else a golden apple with probability `luck`, else an apple. What falls to the bottom row where the gatherer stands is
caught: reward 1 for an apple, `gold` for a golden one; a stone ends the episode (terminated). What is missed is gone.
Truncated at `time_limit` = 200 steps. An episode starts with an empty board and the gatherer in a random column.

The observation is bool [10, 10, 4], row by row from the top: gatherer, apples, golden apples, stones. A row holds one
thing at most, so a state is what lies in each row and where, and nothing is hidden.

Known answers: one thing lands in a step and the gatherer has at least two columns to choose from, so whoever avoids
stones (`plan` does) lasts until `time_limit`; no return exceeds `most`. With the parameters as they are a random policy
is hit after some 50 steps and gets about 3; `plan`, which weighs everything in sight, gets about 94.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.spaces import Box, Discrete

SIZE = 10
NOTHING, APPLE, GOLD, STONE = range(4)


class State(NamedTuple):
    """kind, column: of the thing in each row, from the top, int8 [10].

    gatherer: its column; t: steps taken; int32 [].
    """

    kind: Array
    column: Array
    gatherer: Array
    t: Array


@environment
class Orchard:
    density: float = 0.8
    danger: float = 0.3
    luck: float = 0.1
    gold: float = 5.0
    time_limit: int = static_field(default=200)

    @property
    def spec(self) -> EnvironmentSpec:
        box = Box((SIZE, SIZE, 4), 0.0, 1.0, jnp.dtype(bool))
        return EnvironmentSpec("jaxppo/orchard", box, Discrete(3), time_limit=self.time_limit)

    @property
    def most(self) -> Array:
        """float32 []: the return of a gatherer who catches something golden in every step that anything can land in."""
        return jnp.maximum(1.0, self.gold) * max(self.time_limit - SIZE + 1, 0)

    def reset(self, key: Array) -> tuple[State, Array]:
        rows = jnp.zeros((SIZE,), jnp.int8)
        state = State(rows, rows, jax.random.randint(key, (), 0, SIZE, jnp.int32), jnp.int32(0))
        return state, _observe(state)

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        gatherer = jnp.clip(state.gatherer + action - 1, 0, SIZE - 1).astype(jnp.int32)
        what, where = jax.random.uniform(key, (2,))
        # One number for all of it: below density · danger a stone, then gold, then apples, then nothing.
        stones = self.density * self.danger
        golden = stones + (self.density - stones) * self.luck
        rest = jnp.where(what < self.density, APPLE, NOTHING)
        new = jnp.where(what < stones, STONE, jnp.where(what < golden, GOLD, rest))
        kind = jnp.concatenate([new[None].astype(jnp.int8), state.kind[:-1]])
        column = jnp.concatenate([(where * SIZE)[None].astype(jnp.int8), state.column[:-1]])
        caught = jnp.where(column[-1] == gatherer, kind[-1], NOTHING)
        reward = jnp.where(caught == GOLD, self.gold, jnp.where(caught == APPLE, 1.0, 0.0)).astype(jnp.float32)
        state = State(kind, column, gatherer, state.t + 1)
        terminated = caught == STONE
        truncated = (state.t >= self.time_limit) & ~terminated
        return state, Step(_observe(state), reward, terminated, truncated)


def _observe(state: State) -> Array:
    cells = jnp.arange(SIZE)
    there = (state.column[:, None] == cells)[..., None] & (state.kind[:, None] == jnp.arange(1, 4))[:, None]
    gatherer = (cells[:, None] == SIZE - 1) & (cells == state.gatherer)
    return jnp.concatenate([gatherer[..., None], there], axis=-1)


def plan(observation: Array, gold: float = 5.0) -> Array:
    """int32 []: the first move of the best walk through all that is on the board, stones being worth −1000."""
    worth = observation[..., 1:] @ jnp.array([1.0, gold, -1000.0])
    ahead = jnp.zeros((SIZE,))
    for row in range(SIZE - 1):  # the top row lands last
        ahead = worth[row] + _neighbours(ahead).max(0)
    here = observation[-1, :, 0].argmax()
    left, stay, right = _neighbours(ahead)[:, here]
    # Stays where nothing is gained by walking, and then in the direction of the middle.
    return jnp.where(stay >= jnp.maximum(left, right), 1, jnp.where(left > right, 0, 2)).astype(jnp.int32)


def _neighbours(x: Array) -> Array:
    """[3, 10]: what a walk to the left, none, and one to the right leads to; a wall stops it."""
    return jnp.stack([jnp.append(x[:1], x[:-1]), x, jnp.append(x[1:], x[-1:])])
