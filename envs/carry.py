"""What adapters share: a library's state made fit to be the carry of a scan.

Libraries start counters as Python ints or floats, and their first step changes the type. A scan wants one type.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def carry_types(reset: Callable[..., PyTree], step: Callable[..., PyTree], *action: PyTree) -> PyTree:
    """The types of `reset(key)` widened until `step(key, carry, *action)` gives the same back.

    Both return (carry, observation) in a pytree of one structure. Returns it with `jax.ShapeDtypeStruct` leaves.
    """
    key = jax.random.key(0)
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), jax.eval_shape(reset, key))
    for _ in range(4):
        after = jax.eval_shape(step, key, types[0], *action)
        widened = jax.tree.map(_join, types, after)
        if widened == types:
            return types
        types = widened
    raise TypeError("the types of the environment's state change with every step")


def cast(tree: PyTree, types: PyTree) -> PyTree:
    """Every leaf in the type and shape of `types`, never weakly typed."""

    def to(leaf, type_):
        leaf = jnp.asarray(leaf)
        return jax.lax.convert_element_type(leaf, type_.dtype).reshape(type_.shape)

    return jax.tree.map(to, tree, types)


def _join(before: Any, after: Any) -> jax.ShapeDtypeStruct:
    dtype = after.dtype if before.dtype == after.dtype else jnp.promote_types(before.dtype, after.dtype)
    return jax.ShapeDtypeStruct(before.shape, dtype)
