"""The contract, for each environment of this package."""

import jax
import numpy as np
import pytest

from jaxppo.envs import listing, make

OWN = [row.name for row in listing() if row.name.startswith("jaxppo/")]
ONE_START = {"jaxppo/time_limit", "jaxppo/nan"}  # by construction


def test_there_are_seven():
    assert len(OWN) == 7


@pytest.mark.parametrize("name", OWN)
def test_contract(name, check_contract):
    check_contract(make(name))


@pytest.mark.parametrize("name", sorted(set(OWN) - {"jaxppo/memory"}))
def test_length_is_the_limit(name, play, check_limit):
    env = make(name, time_limit=6)
    _, _, step = play(env, steps=8, envs=8)
    check_limit(env, step)


@pytest.mark.parametrize("name", sorted(set(OWN) - ONE_START))
def test_starts_differ(name):
    keys = jax.random.split(jax.random.key(0), 16)
    _, observation = jax.vmap(make(name).reset)(keys)
    assert len(np.unique(observation, axis=0)) > 1


@pytest.mark.parametrize("name", OWN)
def test_leaves_are_strongly_typed_arrays(name):
    for leaf in jax.tree.leaves(make(name)):
        assert isinstance(leaf, jax.Array) and not leaf.weak_type
