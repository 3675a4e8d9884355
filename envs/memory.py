"""Recall after a delay: a cue at the first step, `delay` blank steps, then a question.

The observation is (one-hot of the cue or zeros, question): the cue is shown at t = 0 only, the question is 1 at
t = `delay` only, and nothing tells the time between. The action taken at the question ends the episode with reward 1 if
it names the cue, else 0; earlier actions do nothing. An episode has `delay` + 1 steps.

Known answer: 1 for whoever remembers (`recall`), 1 / `cues` for everybody without memory (`chance`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete


class State(NamedTuple):
    """cue, t: int32 []."""

    cue: Array
    t: Array


@environment
class Memory:
    reward: float = 1.0
    delay: int = static_field(default=64)
    cues: int = static_field(default=2)

    def __post_init__(self):
        if self.delay < 1 or self.cues < 2:
            raise UserError(f"jaxppo/memory needs delay >= 1 and cues >= 2, not delay={self.delay}, cues={self.cues}")

    @property
    def spec(self) -> EnvironmentSpec:
        box = Box((self.cues + 1,), 0.0, 1.0)
        return EnvironmentSpec("jaxppo/memory", box, Discrete(self.cues), time_limit=self.delay + 1)

    @property
    def chance(self) -> float:
        """The expected return of the best policy without memory."""
        return self.reward / self.cues

    def reset(self, key: Array) -> tuple[State, Array]:
        state = State(jax.random.randint(key, (), 0, self.cues, jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        answered = state.t == self.delay
        reward = jnp.where(answered & (action == state.cue), self.reward, 0.0).astype(jnp.float32)
        state = State(state.cue, state.t + 1)
        return state, Step(self._observe(state), reward, answered, jnp.bool_(False))

    def _observe(self, state: State) -> Array:
        cue = jax.nn.one_hot(state.cue, self.cues) * (state.t == 0)
        return jnp.append(cue, state.t == self.delay).astype(jnp.float32)


def recall(memory: Array, observation: Array) -> tuple[Array, Array]:
    """(memory, action), both int32 []: keeps the cue that it saw and names it always. Start with memory 0."""
    cue = observation[:-1]
    memory = jnp.where(cue.any(), cue.argmax().astype(jnp.int32), memory)
    return memory, memory
