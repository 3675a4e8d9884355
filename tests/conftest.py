"""What the tests of the core share: a tiny configuration, and a toy environment of every shape.

Compilation is most of the time that these tests take, so networks are one layer of eight and rollouts eight by eight.
"""

import dataclasses
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxppo.config import NetworkConfig, PPOConfig
from jaxppo.environment import EnvironmentSpec, Masked, Step, environment, static_field
from jaxppo.spaces import Box, Discrete, MultiDiscrete

os.environ["JAXPPO_COMPILATION_CACHE"] = "off"  # tests that compile are to compile

TINY = PPOConfig(
    total_steps=3 * 64, num_envs=8, num_steps=8, epochs=2, minibatches=2, network=NetworkConfig(hidden=(8,))
)

ACTIONS = {
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete((2, 3)),
    "bounded": Box((2,), low=(-2.0, 0.0), high=(2.0, 1.0)),
    "unbounded": Box((2,)),
}


class State(NamedTuple):
    x: Any
    t: Any


@environment
class Toy:
    """A noisy drift in three dimensions; terminated where it leaves ±bound, truncated at `time_limit`.

    masking: 0 forbids one choice in turn, 1 allows only the first of each component, 2 allows none.
    """

    bound: float = 1.5
    masking: int = 0
    action: str = static_field(default="discrete")
    view: str = static_field(default="vector")
    masked: bool = static_field(default=False)
    time_limit: int | None = static_field(default=5)

    @property
    def spec(self):
        views = {
            "vector": Box((3,)),
            "image": Box((6, 6, 2), 0, 255, jnp.dtype(jnp.uint8)),
            "dict": {"choice": Discrete(4), "parts": MultiDiscrete((2, 3)), "x": Box((3,))},
        }
        return EnvironmentSpec(
            "toy", views[self.view], ACTIONS[self.action], masked=self.masked, time_limit=self.time_limit
        )

    def reset(self, key):
        state = State(0.5 * jax.random.normal(key, (3,)), jnp.int32(0))
        return state, self.observe(state)

    def step(self, key, state, action):
        push = jnp.tanh(action.astype(jnp.float32)).sum() * jnp.array([0.1, -0.1, 0.2])
        state = State(0.9 * state.x + push + 0.3 * jax.random.normal(key, (3,)), state.t + 1)
        terminated = jnp.abs(state.x[0]) > self.bound
        truncated = jnp.bool_(False) if self.time_limit is None else (state.t >= self.time_limit) & ~terminated
        return state, Step(self.observe(state), 1.0 - jnp.square(state.x).sum(), terminated, truncated)

    def observe(self, state):
        x, t = state
        if self.view == "image":
            view = jnp.broadcast_to(128.0 + 20.0 * x[0], (6, 6, 2)).astype(jnp.uint8)
        elif self.view == "dict":
            view = {"choice": t % 4, "parts": jnp.stack([t % 2, t % 3]), "x": x}
        else:
            view = x
        if not self.masked:
            return view
        space = ACTIONS[self.action]
        sizes = getattr(space, "nvec", (space.num_logits,))
        some = jnp.concatenate([jnp.arange(n) != t % n for n in sizes])
        first = jnp.concatenate([jnp.arange(n) == 0 for n in sizes])
        return Masked(view, jnp.where(self.masking == 2, False, jnp.where(self.masking == 1, first, some)))


@pytest.fixture(scope="session")
def tiny():
    """`tiny(field=value, ...)`: the tiny configuration with some fields changed."""
    return lambda **changes: dataclasses.replace(TINY, **changes)


@pytest.fixture(scope="session")
def toy():
    """`toy(field=value, ...)`: the toy environment with strongly typed leaves."""

    def build(**fields):
        return jax.tree.map(jnp.asarray, Toy(**fields))

    return build


@pytest.fixture(scope="session")
def assert_trees_close():
    """Leaves of two pytrees agree; `exact` asks for the same bits."""
    import numpy as np

    def plain(leaf):
        leaf = jnp.asarray(leaf)
        return np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    def check(a, b, *, exact=False, rtol=1e-5, atol=1e-6):
        leaves_a, leaves_b = jax.tree.leaves(a), jax.tree.leaves(b)
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for x, y in zip(leaves_a, leaves_b, strict=True):
            if exact:
                np.testing.assert_array_equal(plain(x), plain(y))
            else:
                np.testing.assert_allclose(plain(x), plain(y), rtol=rtol, atol=atol)

    return check
