"""Our PPO on the tasks of `tasks.py`: every seed of each, into experiments/results/ppo.csv.

    python -m experiments.benchmark                    # all tasks; finished seeds are not run again
    python -m experiments.benchmark cartpole ant       # some of them
    python -m experiments.benchmark --scripted         # random, greedy and optimal players beside them
    python -m experiments.benchmark --list

Two processes with different tasks may write to the same table at once: on a CPU that is the way to use two cores.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from experiments import results
from experiments.tasks import TASKS, Task, settings_hash
from jaxppo import Hyperparameters, PPOConfig, make_train, ppo
from jaxppo.envs import make
from jaxppo.errors import UserError, unknown

TABLE = results.FOLDER / "ppo.csv"
EPISODES = 256
"""Evaluation episodes of the final policy."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "brax", "jumanji", "numpy")


def environment(task: Task) -> Any:
    """The task's environment."""
    return make(task.environment, **task.preset.env_parameters)


def configure(task: Task) -> tuple[PPOConfig, Hyperparameters]:
    """The task's settings."""
    return task.preset.settings()


def curve(returns: Any, points: int) -> tuple[float, ...]:
    """A `Mean` with a leading axis of updates, averaged in `points` equal parts; NaN where no episode finished."""
    totals, counts = (np.array_split(np.asarray(x, np.float64), points) for x in returns)
    return tuple(float(t.sum() / c.sum()) if c.sum() else float("nan") for t, c in zip(totals, counts, strict=True))


def learn(task: Task, seeds: list[int]) -> Iterator[results.Result]:
    """Train and evaluate each of `seeds`; one compilation for all."""
    config, hyper = configure(task)
    env = environment(task)
    begun = time.perf_counter()
    train = jax.jit(make_train(config, env)).lower(jax.random.key(0), hyper).compile()
    compile_seconds = time.perf_counter() - begun
    evaluate = jax.jit(ppo(config, env).evaluate, static_argnames=("mode", "episodes"))
    for seed in seeds:
        begun = time.perf_counter()
        state, metrics = jax.block_until_ready(train(jax.random.key(seed), hyper))
        wall_seconds = time.perf_counter() - begun
        key = jax.random.key(10_000 + seed)
        returns = metrics["episode_return"]
        played = evaluate(state, key, mode=True, episodes=EPISODES).summary()
        sampled = evaluate(state, key, mode=False, episodes=EPISODES).summary()
        yield results.Result(
            task=task.name,
            environment=task.environment,
            algorithm="ppo",
            implementation="jaxppo",
            seed=seed,
            steps=int(state.samples),
            evaluation_return=results.average(played["episode_return"]),
            discounted_return=results.average(played["discounted_return"]),
            sampled_return=results.average(sampled["episode_return"]),
            training_return=curve(returns, 10)[-1],
            curve=curve(returns, 20),
            wall_seconds=wall_seconds,
            compile_seconds=compile_seconds,
            versions=results.versions(*PACKAGES),
            commit=results.commit(),
            settings=settings_hash(task),
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="names of tasks; default all")
    parser.add_argument("--seeds", type=int, help="seeds 0 … N − 1 instead of the task's own number")
    parser.add_argument("--scripted", action="store_true", help="play the scripted policies instead of learning")
    parser.add_argument("--list", action="store_true", help="show the tasks and stop")
    options = parser.parse_args(arguments)
    if options.list:
        for task in TASKS.values():
            print(f"{task.name:24} {task.environment:32} {task.total_steps:>10,} steps  {task.goal}")
        return 0
    for name in options.tasks:
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    for task in (TASKS[name] for name in options.tasks or TASKS):
        if options.scripted:
            from experiments.scripted import play_scripted

            runs: Iterator[results.Result] = play_scripted(task, environment(task), TABLE)
        else:
            count = options.seeds or task.seeds
            finished = results.done(TABLE, task=task.name, implementation="jaxppo", settings=settings_hash(task))
            missing = [seed for seed in range(count) if seed not in finished]
            runs = learn(task, missing) if missing else iter(())
        for result in runs:
            results.append(TABLE, result)
            row = dataclasses.asdict(result)
            print(
                f"{task.name} {row['implementation']} seed {result.seed}: {result.evaluation_return:.4g} in mode, "
                f"{result.sampled_return:.4g} sampled, {result.training_return:.4g} in training, "
                f"{result.steps / max(result.wall_seconds, 1e-9):,.0f} steps/s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"benchmark: {error}")
