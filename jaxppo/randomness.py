"""Keys for environments, and the shuffle of samples into minibatches."""

import math

import jax
import jax.numpy as jnp

from jaxppo.types import Array


def key_for_each(key: Array, index: Array) -> Array:
    """One key for each global environment index [N]: the same however environments are placed on devices or chunks."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index)


def _hash(x: Array) -> Array:
    """A 32-bit integer mixer (the finaliser of MurmurHash3: xor-shifts and odd multipliers)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


ROUNDS = 4
"""Pairs of Feistel rounds. Tests hold positions and pairs to chi-square; two already pass, four leave a margin."""


def radices(size: int) -> tuple[int, int]:
    """(a, b), a ≤ b, a·b = size, as balanced as the divisors of `size` allow."""
    for a in range(math.isqrt(size), 0, -1):
        if size % a == 0:
            return a, size // a
    return 1, size


def feistel_permutation(index: Array, size: int, key_bits: Array) -> Array:
    """Position → sample: a pseudo-random bijection of range(size), without storing or sorting anything.

    The index is written with two digits x < a, y < b, and each round adds a keyed hash of one to the other, modulo its
    radix: every round is invertible, whatever the hash. No cycle walking. Needs both radices above 1.

    index: integers [...] below `size`; key_bits: uint32 [2·ROUNDS]; returns int32 [...].
    """
    a, b = radices(size)
    index = index.astype(jnp.uint32)
    x, y = index // jnp.uint32(b), index % jnp.uint32(b)
    for i in range(ROUNDS):  # unrolled: a fixed small number, not a size
        x = (x + _hash(y ^ key_bits[2 * i]) % jnp.uint32(a)) % jnp.uint32(a)
        y = (y + _hash(x ^ key_bits[2 * i + 1]) % jnp.uint32(b)) % jnp.uint32(b)
    return (x * jnp.uint32(b) + y).astype(jnp.int32)


MIN_RADIX = 16
"""Below it two digits mix too little (a prime size has no second digit at all): then bits are sorted instead."""


def permute(positions: Array, size: int, key: Array, method: str) -> Array:
    """What lies at `positions` [P] in a random order of range(size). The order depends on the key alone."""
    if method == "feistel" and radices(size)[0] >= MIN_RADIX:
        return feistel_permutation(positions, size, jax.random.bits(key, (2 * ROUNDS,), jnp.uint32))
    return jax.random.permutation(key, size)[positions].astype(jnp.int32)


def minibatch_indices(
    key: Array,
    minibatch: Array,
    *,
    num_steps: int,
    num_envs: int,
    blocks: int,
    minibatches: int,
    method: str,
    first_block: Array | int = 0,
) -> Array:
    """Flat indices t·N + n of one minibatch of one epoch, int32 [T·N / minibatches].

    Samples are permuted within each of `blocks` blocks of consecutive environments, and a minibatch takes an equal
    share of every block: no sample crosses a block, so any device count that divides `blocks` sees the same
    minibatches. Over the minibatches of an epoch (one key) every sample comes up once.

    On a device that holds some of the blocks, `num_envs` and `blocks` are its own, and `first_block` says which they
    are: a block is shuffled in the same way wherever it lies.
    """
    width = num_envs // blocks
    size = num_steps * width
    share = size // minibatches
    positions = minibatch * share + jnp.arange(share)

    def block(b):
        local = permute(positions, size, jax.random.fold_in(key, first_block + b), method)
        return local // width * num_envs + b * width + local % width

    return jax.vmap(block)(jnp.arange(blocks)).reshape(-1)
