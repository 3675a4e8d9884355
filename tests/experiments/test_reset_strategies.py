"""Every spec names the reset strategy that the committed measurement and the one rule give."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import reset_strategies as study
from jaxppo.envs import listing, make
from jaxppo.resets import make_resets

TABLE = study.load()
ROW = study.Row(
    env="x",
    envs=64,
    steps=8,
    learner_us=4.0,
    fresh_us=2.0,
    optimistic_us=1.1,
    pool_us=1.0,
    ends=9,
    optimistic_starts=9,
    pool_starts=8,
)


def test_every_playable_environment_is_measured():
    assert set(TABLE) == {row.name for row in listing() if row.playable}


def marked(name):
    """The simulators of brax take long to make."""
    return pytest.param(name, marks=[pytest.mark.slow] if name.startswith("brax/") else [])


@pytest.mark.parametrize("name", map(marked, TABLE))
def test_the_spec_names_what_the_measurement_and_the_rule_give(name):
    assert TABLE[name].strategy == study.rule(TABLE[name])
    assert make(name).spec.reset == TABLE[name].strategy


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "optimistic"),
        ({"fresh_us": 1.25}, "fresh"),  # 5.25 against 5
        ({"fresh_us": 1.26}, "optimistic"),
        ({"learner_us": 19.0}, "fresh"),  # the same difference in a larger whole
        ({"optimistic_us": 1.26}, "pool"),
        ({"optimistic_starts": 7}, "pool"),
        ({"optimistic_starts": 8}, "pool"),
        ({"pool_us": 1.5}, "optimistic"),
        ({"pool_us": 1.5, "optimistic_starts": 1}, "optimistic"),  # more starts, but too dear
        ({"fresh_us": 1.0, "pool_us": 9.0}, "fresh"),
    ],
)
def test_the_rule(changes, strategy):
    assert study.rule(dataclasses.replace(ROW, **changes)) == strategy


@pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
def test_distinct_starts_are_counted_as_they_are_dealt(rate, toy):
    sizes = dict(pool=16, group=8, spares=3)
    env, index = toy(), jnp.arange(32)
    ended = np.random.default_rng(0).random((20, 32)) < rate
    dealt = {"optimistic": set(), "pool": set()}
    for strategy, seen in dealt.items():
        resets = make_resets(strategy, env.spec, num_envs=32, **sizes)
        supply = resets.prepare(env, jax.random.key(0))
        draw = jax.jit(lambda key, ended, resets=resets, supply=supply: resets.draw(env, supply, key, index, ended)[1])
        for t, row in enumerate(ended):
            starts = np.asarray(draw(jax.random.key(t + 1), jnp.asarray(row)))
            seen |= {tuple(start) for start in starts[row].tolist()}
    optimistic, pool = study.distinct_starts(ended, **sizes)
    assert len(dealt["optimistic"]) == optimistic
    assert abs(len(dealt["pool"]) - pool) <= 2


def test_a_measurement_is_a_row_that_comes_back_from_the_table(tmp_path):
    row = study.measure("jaxppo/counting", 64, 20, seconds=0.0)
    assert min(row.fresh_us, row.optimistic_us, row.pool_us) > 0 and row.ends >= 64
    assert row.strategy == study.rule(row)
    table = tmp_path / "resets.csv"
    study.save([row, dataclasses.replace(row, env="a")], table)
    assert study.load(table) == {"a": dataclasses.replace(row, env="a"), "jaxppo/counting": row}
    assert study.load(tmp_path / "none.csv") == {}
