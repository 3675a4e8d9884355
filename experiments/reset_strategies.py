"""Which reset strategy each environment's spec names: the measurement, and the one rule.

    python -m experiments.reset_strategies [gymnax/CartPole-v1 brax/ant ...] [--envs 256] [--steps 128]

Measured is the environment's side of a rollout, in one program for each strategy, with random allowed actions: act,
step, draw the starts, put them where episodes ended, and for `pool` the drawing of the pool. To the time of a sample
comes the learner's share (4 microseconds for a small network on vectors, 10 on pictures, on one core). The strategies
take turns, and the clock is processor time, so that what else the machine does matters little.

The rule: of the strategies whose sample costs at most 5 % more than the cheapest one's, `fresh`, which has no bias; or
else the one that dealt more distinct starts to the episodes of the rollout, `pool` where both deal as many. That is
`optimistic`, whose starts are new in every step, where ends are scattered. But episodes of one length end together, and
then whole groups share a few starts, where a pool has more; and long ones show no ends here.

The table is docs/results/resets.csv; named environments are measured anew in it, the others keep their rows. A test
compares the specs with it.
"""

import argparse
import csv
import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.scripted import random_act
from jaxppo.config import PPOConfig
from jaxppo.environment import episode_end, split_mask
from jaxppo.envs import listing, make
from jaxppo.randomness import key_for_each
from jaxppo.resets import make_resets, where_ended

TABLE = Path(__file__).parents[1] / "docs" / "results" / "resets.csv"
STRATEGIES = ("fresh", "optimistic", "pool")
TOLERANCE = 1.05


@dataclasses.dataclass(frozen=True)
class Row:
    """One environment's measurement.

    learner_us: the learner's share of a sample. fresh_us, optimistic_us, pool_us: the environment's, by strategy.
    ends: episodes that ended in the rollout of `envs` times `steps`.
    optimistic_starts, pool_starts: how many distinct starts they were dealt (for the pool: expected).
    strategy: what the rule gives.
    """

    env: str
    envs: int
    steps: int
    learner_us: float
    fresh_us: float
    optimistic_us: float
    pool_us: float
    ends: int
    optimistic_starts: int
    pool_starts: int
    strategy: str = ""


def rule(row: Row) -> str:
    """The strategy that the measurement speaks for; see the module's docstring."""
    cost = {strategy: row.learner_us + getattr(row, f"{strategy}_us") for strategy in STRATEGIES}
    near = [
        strategy for strategy in ("fresh", "pool", "optimistic") if cost[strategy] <= TOLERANCE * min(cost.values())
    ]
    starts = {"fresh": float("inf"), "optimistic": row.optimistic_starts, "pool": row.pool_starts}
    return max(near, key=starts.__getitem__)  # the first of equals


def distinct_starts(ended: np.ndarray, *, pool: int, group: int, spares: int) -> tuple[int, int]:
    """(optimistic, pool): distinct starts dealt to the ends [T, N]; of a pool of P, E ends draw P(1 − (1 − 1/P)^E)."""
    in_groups = ended.reshape(len(ended), -1, group).sum(-1)
    return int(np.minimum(in_groups, spares).sum()), round(pool * (1 - (1 - 1 / pool) ** int(ended.sum())))


def rollout(env: Any, strategy: str, config: PPOConfig) -> Callable:
    """(states and observations [N, ...], key) -> (the same after T steps, (ended, reward) [T, N])."""
    resets = make_resets(
        strategy,
        env.spec,
        num_envs=config.num_envs,
        pool=config.reset_pool,
        group=config.reset_group,
        spares=config.reset_spares,
    )
    act, index = random_act(env.spec), jnp.arange(config.num_envs)

    def run(start, key):
        supply_key, key = jax.random.split(key)
        supply = resets.prepare(env, supply_key)

        def step(carry, key):
            state, observation = carry
            act_key, env_key, reset_key = jax.random.split(key, 3)
            action, _ = act(*split_mask(env.spec, observation), (), None, key_for_each(act_key, index))
            state, outcome = jax.vmap(env.step)(key_for_each(env_key, index), state, action)
            ended = episode_end(outcome)
            fresh = resets.draw(env, supply, reset_key, index, ended)
            return where_ended(ended, fresh, (state, outcome.observation)), (ended, outcome.reward)

        return jax.lax.scan(step, start, jax.random.split(key, config.num_steps))

    return jax.jit(run)


def measure(name: str, envs: int, steps: int, seconds: float = 1.5) -> Row:
    """The row of one environment; each strategy runs at least twice, and for about `seconds`."""
    env = make(name)
    config = PPOConfig(num_envs=envs, num_steps=steps)
    key = jax.random.key(0)
    start = jax.jit(jax.vmap(env.reset))(jax.random.split(key, envs))
    runs = {strategy: rollout(env, strategy, config) for strategy in STRATEGIES}
    for run in runs.values():  # compiled here; the measured episodes are under way
        start, _ = jax.block_until_ready(run(start, key))
    best, spent, ended = dict.fromkeys(STRATEGIES, float("inf")), 0.0, None
    for turn in range(30):
        for strategy, run in runs.items():
            begun = time.process_time()
            _, (ended, _) = jax.block_until_ready(run(start, key))
            took = time.process_time() - begun
            best[strategy] = min(best[strategy], took)
            spent += took
        if turn and spent > seconds * len(STRATEGIES):
            break
    sizes = dict(pool=config.reset_pool, group=config.reset_group, spares=config.reset_spares)
    optimistic, pool = distinct_starts(np.asarray(ended), **sizes)
    pictures = any(len(space.shape) == 3 for space in jax.tree.leaves(env.spec.observation))
    row = Row(
        env=name,
        envs=envs,
        steps=steps,
        learner_us=10.0 if pictures else 4.0,
        **{f"{strategy}_us": round(best[strategy] / envs / steps * 1e6, 3) for strategy in STRATEGIES},
        ends=int(np.sum(ended)),
        optimistic_starts=optimistic,
        pool_starts=pool,
    )
    return dataclasses.replace(row, strategy=rule(row))


def load(path: Path = TABLE) -> dict[str, Row]:
    """The rows of the table by environment."""
    if not path.exists():
        return {}
    kinds = {field.name: field.type for field in dataclasses.fields(Row)}
    with path.open(newline="") as file:
        rows = [Row(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(file)]
    return {row.env: row for row in rows}


def save(rows: Iterable[Row], path: Path = TABLE) -> None:
    """Writes the table, sorted by environment."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in sorted(rows, key=lambda row: row.env))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="environments; all playable ones where none is given")
    parser.add_argument("--envs", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--steps", type=int, default=128)
    options = parser.parse_args()
    table = load()
    for name in options.names or [row.name for row in listing() if row.playable]:
        table[name] = measure(name, options.envs, options.steps)
        save(table.values())
        print(table[name], f"the spec says {make(name).spec.reset}", flush=True)


if __name__ == "__main__":
    main()
