import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import UserError
from jaxppo.resets import make_resets, where_ended

SIZES = dict(num_envs=16, pool=16, group=8, spares=3)
N = 32


@pytest.fixture(scope="module")
def starts(toy):
    """`starts(strategy, seed, index, ended)`: the first observations that are dealt."""
    env = toy()

    def deal(strategy, seed, index=None, ended=None):
        index = jnp.arange(N) if index is None else index
        ended = jnp.ones(len(index), bool) if ended is None else ended
        resets = make_resets(strategy, env.spec, **SIZES)
        prepare_key, draw_key = jax.random.split(jax.random.key(seed))
        state, observation = resets.draw(env, resets.prepare(env, prepare_key), draw_key, index, ended)
        np.testing.assert_array_equal(state.x, observation)
        return np.asarray(observation)

    return deal


def distinct(rows):
    return len({tuple(row) for row in rows.tolist()})


@pytest.mark.parametrize(("strategy", "most"), [("fresh", N), ("pool", 16), ("optimistic", N // 8 * 3)])
def test_starts_are_many_and_new_ones_come_with_every_key(strategy, most, starts):
    first, second = starts(strategy, 0), starts(strategy, 1)
    assert most * 0.6 < distinct(first) <= most
    assert distinct(np.concatenate([first, second])) == distinct(first) + distinct(second)


@pytest.mark.parametrize("strategy", ["fresh", "pool", "optimistic"])
def test_starts_depend_on_the_global_index_and_not_on_the_chunk(strategy, starts):
    ended = jnp.arange(N) % 3 == 0
    whole = starts(strategy, 0, ended=ended)
    for i in range(0, N, 8):
        part = starts(strategy, 0, jnp.arange(i, i + 8), ended[i : i + 8])
        np.testing.assert_array_equal(part[ended[i : i + 8]], whole[i : i + 8][ended[i : i + 8]])


def test_optimistic_starts_are_distinct_while_ends_are_rare_and_never_cross_a_group(starts):
    ended = jnp.zeros(N, bool).at[jnp.array([0, 3, 7, 9, 20, 21, 31])].set(True)
    assert distinct(starts("optimistic", 0, ended=ended)[ended]) == 7
    everyone = starts("optimistic", 0).reshape(4, 8, 3)
    assert [distinct(group) for group in everyone] == [3, 3, 3, 3]
    assert distinct(everyone.reshape(-1, 3)) == 12
    np.testing.assert_array_equal(everyone[:, 0], everyone[:, 3])  # in turn


def test_two_environments_dealt_the_same_pooled_state_part_ways(toy):
    env = toy()
    state, _ = env.reset(jax.random.key(0))
    both = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    keys = jax.random.split(jax.random.key(1))
    _, step = jax.vmap(env.step)(keys, both, jnp.zeros(2, jnp.int32))
    assert not np.array_equal(step.observation[0], step.observation[1])


def test_where_ended_keeps_types_and_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    fresh = {"a": jnp.ones((3, 2)), "k": jax.random.split(jax.random.key(1), 3)}
    old = {"a": jnp.zeros((3, 2), jnp.int32), "k": keys}
    out = where_ended(jnp.array([True, False, True]), fresh, old)
    assert out["a"].dtype == jnp.int32 and out["a"][:, 0].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(jax.random.key_data(out["k"])[1], jax.random.key_data(keys)[1])
    assert not np.array_equal(jax.random.key_data(out["k"])[0], jax.random.key_data(keys)[0])


def test_auto_takes_what_the_environment_asks_for(toy):
    env = toy()
    auto = make_resets("auto", env.spec, **SIZES)
    assert auto.prepare(env, jax.random.key(0)) == ()  # the toy's spec says fresh


@pytest.mark.parametrize(("n", "group", "spares"), [(16, 8, 3), (12, 4, 1), (7, 1, 1), (8, 8, 3)])
def test_groups_that_nobody_asked_for_fit_any_number_of_environments(n, group, spares, toy):
    env = toy()
    spec = dataclasses.replace(env.spec, reset="optimistic")
    resets = make_resets("auto", spec, **{**SIZES, "num_envs": n})
    _, observation = resets.draw(env, (), jax.random.key(0), jnp.arange(n), jnp.ones(n, bool))
    assert [distinct(part) for part in np.asarray(observation).reshape(-1, group, 3)] == [spares] * (n // group)


def test_groups_asked_for_are_whole_or_refused(toy):
    spec = toy().spec
    make_resets("optimistic", spec, **SIZES, parts=2)
    with pytest.raises(UserError, match="set reset_group=4"):
        make_resets("optimistic", spec, **{**SIZES, "num_envs": 12})
    for strategy, named in (("optimistic", "fresh"), ("auto", "optimistic")):
        with pytest.raises(UserError, match=r"4 environments at a time .* set reset_group=4"):
            make_resets(strategy, dataclasses.replace(spec, reset=named), **SIZES, parts=4)
