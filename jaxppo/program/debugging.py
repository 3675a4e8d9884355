"""Finding the first operation that makes a NaN (`--debug-nans`)."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.errors import UserError
from jaxppo.program.checkpoint import named_leaves
from jaxppo.types import Algorithm

PyTree = Any


def watched_chunk(algorithm: Algorithm) -> Callable[[PyTree, int], tuple[PyTree, PyTree]]:
    """Like a chunk of `jaxppo.training.make_chunk`, one update at a time, each looked through for NaNs.

    The first update with one is done again operation by operation. The chunk raises UserError with the place.
    """
    update = jax.jit(algorithm.update)

    def chunk(state: PyTree, count: int) -> tuple[PyTree, PyTree]:
        rows = []
        for _ in range(int(count)):
            following, metrics = update(state)
            where = _first_nan(following, metrics)
            if where is not None:
                raise _located(algorithm, state, where)
            state, rows = following, [*rows, metrics]
        return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)

    return chunk


def _first_nan(state: PyTree, metrics: PyTree) -> str | None:
    """The name of a leaf with a NaN, or what the learner itself counted; None where all is well."""
    for name, leaf in [*named_leaves(state), *named_leaves(metrics)]:
        if jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.isnan(leaf).any()):
            return name
    invalid = metrics.get("invalid_samples")
    return "a sample of the environment" if invalid is not None and float(invalid.total) > 0 else None


def _located(algorithm: Algorithm, state: PyTree, where: str) -> UserError:
    """The error that says which operation of the update after `state` makes the first NaN."""
    update = f"update {int(state.updates) + 1} (after {int(state.samples):,} steps)"
    try:
        with jax.debug_nans(True), jax.disable_jit():
            algorithm.update(state)
    except FloatingPointError as error:
        return UserError(f"the first NaN of {update}: {str(error).rstrip('.')} at {_place(error)}")
    return UserError(f"{update} gives a NaN in {where}, but only when compiled: no single operation makes one")


def _place(error: BaseException) -> str:
    """`file:line (function)` of the last frame that is not JAX's own."""
    inside = str(Path(jax.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(inside)]
    last = frames[-1]
    path = Path(last.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{last.lineno} in {last.name}: {last.line}"
