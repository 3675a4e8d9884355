"""How new episodes start. The learner's business: an environment's `step` never resets.

- fresh: every environment draws a reset in every step, used where an episode ended. Exact; costs a reset a step,
  because under vmap both branches run.
- pool: P first states are drawn for each update, and an ended episode takes one of them at random. Starts repeat
  within an update (P is `reset_pool`); over updates they are as many as you like. What an environment draws later
  comes from the step's key, so two environments dealt the same state part ways.
- optimistic: in every step each group of G consecutive environments draws R resets, and its ended episodes share them
  in turn: with more than R ends in a group and step, starts are duplicated among neighbours. Exact while ends are rare.

Which of them an environment's spec names is measured; the rule and the table are experiments/reset_strategies.py's.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.environment import EnvironmentSpec
from jaxppo.errors import UserError, unknown
from jaxppo.randomness import key_for_each
from jaxppo.types import Array, PyTree


class Resets(NamedTuple):
    """prepare: (env, key) -> supply, once an update.
    draw: (env, supply, key, index [N], ended bool [N]) -> (states, observations) [N, ...], meaningful where ended.
    """

    prepare: Callable[[Any, Array], PyTree]
    draw: Callable[[Any, PyTree, Array, Array, Array], tuple[PyTree, PyTree]]


def _fresh() -> Resets:
    def draw(env, supply, key, index, ended):
        return jax.vmap(env.reset)(key_for_each(key, index))

    return Resets(lambda env, key: (), draw)


def _pool(size: int) -> Resets:
    def prepare(env, key):
        return jax.vmap(env.reset)(key_for_each(key, jnp.arange(size)))

    def draw(env, supply, key, index, ended):
        pick = jax.vmap(lambda k: jax.random.randint(k, (), 0, size))(key_for_each(key, index))
        return jax.tree.map(lambda leaf: leaf[pick], supply)

    return Resets(prepare, draw)


def _optimistic(group: int, spares: int) -> Resets:
    def draw(env, supply, key, index, ended):
        # Whole groups only, and `index` is consecutive: chunks and shards are multiples of the group.
        groups = index.reshape(-1, group)[:, 0] // group
        keys = jax.vmap(lambda k: key_for_each(k, jnp.arange(spares)))(key_for_each(key, groups))
        fresh = jax.vmap(jax.vmap(env.reset))(keys)
        rank = jnp.cumsum(ended.reshape(-1, group), axis=1) - 1
        pick = jnp.maximum(rank, 0) % spares

        def deal(leaf):
            return jax.vmap(lambda of, which: of[which])(leaf, pick).reshape(-1, *leaf.shape[2:])

        return jax.tree.map(deal, fresh)

    return Resets(lambda env, key: (), draw)


def make_resets(
    strategy: str, spec: EnvironmentSpec, *, num_envs: int, pool: int, group: int, spares: int, parts: int = 1
) -> Resets:
    """The reset strategy by name. The `num_envs` environments are drawn for in `parts` equal parts.

    `auto` takes the strategy that the environment's spec names, and where that is `optimistic` the largest groups into
    which the environments divide, with their share of the spares. Groups asked for by name have to fit.
    """
    auto = strategy == "auto"
    strategy = spec.reset if auto else strategy
    if strategy not in ("fresh", "pool", "optimistic"):
        raise unknown("reset strategy", strategy, ("fresh", "pool", "optimistic"))
    fits = math.gcd(num_envs, group)
    if auto:
        group, spares = fits, max(1, spares * fits // group)
    if strategy == "optimistic" and num_envs % group:
        raise UserError(
            f"num_envs={num_envs} does not divide into optimistic reset groups of {group} environments; "
            f"set reset_group={fits}"
        )
    if strategy == "optimistic" and num_envs // parts % group:
        raise UserError(
            f"{num_envs // parts} environments at a time are not whole optimistic reset groups of {group}; "
            f"set reset_group={math.gcd(num_envs // parts, group)}"
        )
    return {"fresh": _fresh, "pool": lambda: _pool(pool), "optimistic": lambda: _optimistic(group, spares)}[strategy]()


def where_ended(ended: Array, fresh: PyTree, continued: PyTree) -> PyTree:
    """Leaves [N, ...] of `fresh` where `ended` [N], else of `continued`, in the latter's types."""

    def select(new, old):
        mask = ended.reshape(ended.shape + (1,) * (old.ndim - ended.ndim))
        if not jax.dtypes.issubdtype(old.dtype, jax.dtypes.prng_key):
            new = new.astype(old.dtype)
        return jnp.where(mask, new, old)

    return jax.tree.map(select, fresh, continued)
