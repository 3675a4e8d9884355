"""The loop: training is a scan of `update`. Compiled whole, or in chunks that the host goes through."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxppo.algorithms.ppo import ppo
from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.sharding import place, shardings
from jaxppo.types import Algorithm, Array, Mean, Metrics

EVALUATION_METRICS = ("evaluation_return", "evaluation_length", "evaluation_finished", "evaluation_invalid")


class EvaluationPlan(NamedTuple):
    """every: updates between evaluations; episodes; mode: the policy's mode instead of samples."""

    every: int
    episodes: int = 32
    mode: bool = True


def make_train(
    config: PPOConfig,
    env: Any,
    *,
    evaluate: EvaluationPlan | None = None,
    recipe: Callable[..., Algorithm] = ppo,
    **seams,
) -> Callable[..., tuple[Any, Metrics]]:
    """-> train(key, hyper=None, environment=None) -> (final state, metrics with a leading axis of updates).

    The result is pure: jit it, vmap it over keys, hyperparameters or environment parameters, differentiate it
    forward-mode with respect to hyperparameters. `seams` go to the recipe. With `evaluate`, metrics gain
    `evaluation_return`, `evaluation_length` and `evaluation_finished`, with a count of 0 where no evaluation was due.
    """
    algorithm = recipe(config, env, **seams)

    def train(key: Array, hyper: Hyperparameters | None = None, environment: Any = None):
        key, evaluation_key = jax.random.split(key)
        state = algorithm.init(key, hyper, environment)

        def body(state, i):
            state, metrics = algorithm.update(state)
            plan = evaluate
            if plan is not None:
                # The predicate depends on the loop's own counter only, so it stays a branch under vmap.
                metrics |= jax.lax.cond(
                    (i + 1) % plan.every == 0,
                    lambda: evaluation_metrics(algorithm, state, jax.random.fold_in(evaluation_key, i), plan),
                    lambda: dict.fromkeys(EVALUATION_METRICS, Mean(jnp.zeros(()), jnp.zeros(()))),
                )
            return state, metrics

        return jax.lax.scan(body, state, jnp.arange(config.num_updates))

    return train


def evaluation_metrics(algorithm: Algorithm, state: Any, key: Array, plan: EvaluationPlan) -> Metrics:
    """Return and length over the valid episodes, cut ones as far as they went; the share that ended within the limit;
    and how many met a NaN and are left out.
    """
    found = algorithm.evaluate(state, key, mode=plan.mode, episodes=plan.episodes).summary()
    names = ("episode_return", "episode_length", "finished", "invalid_episodes")
    return {metric: found[name] for metric, name in zip(EVALUATION_METRICS, names, strict=True)}


def make_chunk(
    algorithm: Algorithm, length: int, mesh: Mesh | None = None
) -> Callable[[Any, Any], tuple[Any, Metrics]]:
    """-> chunk(state, count) -> (state, metrics [length]): `length` updates in one program; `count` of them run.

    Compiled once: the last, shorter chunk is the same program. The state is donated. Rows from `count` on are zeros
    with a count of 0.
    """

    def chunk(state, count):
        shapes = jax.eval_shape(algorithm.update, state)[1]

        def body(state, i):
            return jax.lax.cond(
                i < count,
                algorithm.update,
                lambda state: (state, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)),
                state,
            )

        return jax.lax.scan(body, state, jnp.arange(length))

    if mesh is None:
        return jax.jit(chunk, donate_argnums=0)

    def placed(state, count):
        state, metrics = chunk(state, count)
        return place_state(algorithm, state, mesh), place(mesh, metrics, None)

    return jax.jit(placed, donate_argnums=0)


def place_state(algorithm: Algorithm, state: Any, mesh: Mesh | None) -> Any:
    """Inside a jitted function: the state with its environments spread over the mesh, the rest on every device."""
    if mesh is None:
        return state
    return jax.lax.with_sharding_constraint(state, shardings(mesh, algorithm.axes(state)))
