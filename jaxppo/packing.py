"""Samples as rows of one matrix, so that a minibatch is one gather instead of one for each field.

A gather costs by the row it fetches, not by the bytes in it: fields of 4 bytes lie beside each other as 32-bit words,
and bool and 1- or 2-byte fields are packed into words, so they stay narrow. Wide fields (images) stay as they are.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.types import Array, PyTree


def _to_words(x: Array) -> Array:
    """[B, ...] of 1-, 2- or 4-byte entries -> uint32 [B, words]."""
    x = x.reshape(x.shape[0], -1)
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    per_word = 4 // x.dtype.itemsize
    if per_word == 1:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % per_word)))
    return jax.lax.bitcast_convert_type(x.reshape(x.shape[0], -1, per_word), jnp.uint32)


def _from_words(words: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """The inverse: uint32 [B, words] -> [B, *shape]."""
    stored = np.dtype(np.uint8) if np.issubdtype(dtype, np.bool_) else dtype
    entries = jax.lax.bitcast_convert_type(words, stored).reshape(words.shape[0], -1)
    return entries[:, : int(np.prod(shape, dtype=int))].reshape(-1, *shape).astype(dtype)


WIDE = 128
"""Bytes of a sample's leaf from which it is fetched by itself: a row so long pays for its own gather, and packed it
would lie in memory twice."""


def pack(batch: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """(rows, unpack) of a pytree of leaves [B, ...]; `unpack` of rows [b, ...] gives leaves [b, ...].

    rows: (uint32 [B, words] of all narrow leaves, list of the wide leaves as they are). Bits are moved, never
    converted: NaNs and integers beyond 2^24 come back as they were. Leaves of 8 bytes are refused by assertion.
    """
    leaves, structure = jax.tree.flatten(batch)
    assert all(leaf.dtype.itemsize <= 4 for leaf in leaves), "64-bit samples are not packed"
    wide = [int(np.prod(leaf.shape[1:], dtype=int)) * leaf.dtype.itemsize >= WIDE for leaf in leaves]
    narrow = [leaf for leaf, alone in zip(leaves, wide, strict=True) if not alone]
    words = [_to_words(leaf) for leaf in narrow]
    cuts = np.cumsum([w.shape[1] for w in words])[:-1].tolist()
    facts = [(leaf.shape[1:], np.dtype(leaf.dtype)) for leaf in narrow]

    def unpack(rows: PyTree) -> PyTree:
        packed, alone = rows
        pieces = jnp.split(packed, cuts, axis=1) if facts else []
        unpacked = iter([_from_words(p, shape, dtype) for p, (shape, dtype) in zip(pieces, facts, strict=True)])
        kept = iter(alone)
        return jax.tree.unflatten(structure, [next(kept) if a else next(unpacked) for a in wide])

    together = jnp.concatenate(words, axis=1) if words else jnp.zeros((leaves[0].shape[0], 0), jnp.uint32)
    return (together, [leaf for leaf, alone in zip(leaves, wide, strict=True) if alone]), unpack
