"""Players that do not learn, measured as the learners are: random, greedy by a rule, optimal where it is known."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments import results
from experiments.greedy import GREEDY
from experiments.tasks import Task, settings_hash
from jaxppo.distributions import mask_logits
from jaxppo.environment import EnvironmentSpec
from jaxppo.evaluation import play
from jaxppo.spaces import Box, Discrete

EPISODES = 256


def random_act(spec: EnvironmentSpec) -> Any:
    """Uniform among the allowed actions; unbounded continuous ones from a standard normal."""
    space = spec.action

    def choose(mask, key):
        if isinstance(space, Box):
            low, high = space.bounds()
            if space.bounded:
                return jax.random.uniform(key, space.shape, minval=low, maxval=high)
            return jax.random.normal(key, space.shape)
        nvec = (space.n,) if isinstance(space, Discrete) else space.nvec
        logits = mask_logits(jnp.zeros(sum(nvec)), mask)
        picks, at = [], 0
        for n, k in zip(nvec, jax.random.split(key, len(nvec)), strict=True):
            picks.append(jax.random.categorical(k, logits[at : at + n]))
            at += n
        return picks[0] if isinstance(space, Discrete) else jnp.stack(picks)

    def act(view, mask, memory, reset, keys):
        del view, reset
        return jax.vmap(choose, (None if mask is None else 0, 0))(mask, keys), memory

    return act


def rule_act(rule: Any) -> Any:
    """A greedy rule of one observation as a player of many."""

    def act(view, mask, memory, reset, keys):
        del reset
        return jax.vmap(rule)(view, mask, keys), memory

    return act


def linear_act(gain: jax.Array) -> Any:
    """u = −gain·x."""

    def act(view, mask, memory, reset, keys):
        del mask, reset, keys
        return -view @ gain.T, memory

    return act


def players(task: Task, env: Any) -> dict[str, Any]:
    """The scripted players of a task by the name of their implementation."""
    found = {"random": random_act(env.spec)}
    if task.environment in GREEDY:
        found["greedy"] = rule_act(GREEDY[task.environment])
    if task.environment == "jaxppo/lqr":
        found["optimal"] = linear_act(env.optimal_gain(task.gamma))
        found["zero"] = linear_act(jnp.zeros((2, 4)))
    return found


def play_scripted(task: Task, env: Any, table: Path) -> Iterator[results.Result]:
    """One row for each scripted player that is not in the table yet; the seeds are those of the episodes."""
    for name, act in players(task, env).items():
        run = jax.jit(lambda key, act=act: play(env, act, (), key, episodes=EPISODES, gamma=task.gamma))
        finished = results.done(table, task=task.name, implementation=name, settings=settings_hash(task))
        for seed in sorted(set(range(task.seeds)) - finished):
            begun = time.perf_counter()
            outcome = jax.block_until_ready(run(jax.random.key(10_000 + seed)))
            wall_seconds, played = time.perf_counter() - begun, outcome.summary()
            yield results.Result(
                task=task.name,
                environment=task.environment,
                algorithm="scripted",
                implementation=name,
                seed=seed,
                steps=0,
                evaluation_return=results.average(played["episode_return"]),
                discounted_return=results.average(played["discounted_return"]),
                wall_seconds=wall_seconds,
                versions=results.versions("jax"),
                commit=results.commit(),
                settings=settings_hash(task),
            )
