import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxppo.minibatches import take_rows
from jaxppo.packing import pack
from jaxppo.randomness import ROUNDS, feistel_permutation, key_for_each, minibatch_indices, permute, radices

SIZES = [1, 2, 3, 4, 6, 7, 12, 97, 256, 289, 1000, 1024, 2310, 4096, 65536, 128 * 63, 1009 * 16]


def epoch_of_minibatches(key, **shape):
    """[minibatches, samples of one]."""
    one = jax.jit(lambda k, i: minibatch_indices(k, i, **shape))
    return np.stack([np.asarray(one(key, jnp.int32(i))) for i in range(shape["minibatches"])])


def test_keys_depend_on_the_global_index_only():
    key = jax.random.key(0)
    whole = jax.random.key_data(key_for_each(key, jnp.arange(12)))
    parts = [jax.random.key_data(key_for_each(key, jnp.arange(i, i + 4))) for i in (0, 4, 8)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert len({tuple(row) for row in whole.tolist()}) == 12


@pytest.mark.parametrize("size", [*range(1, 60), *SIZES])
def test_radices_multiply_to_the_size(size):
    a, b = radices(size)
    assert a * b == size and 1 <= a <= b


@pytest.mark.parametrize("method", ["feistel", "sort"])
@pytest.mark.parametrize("size", SIZES)
def test_an_order_contains_everything_once(size, method):
    order = permute(jnp.arange(size), size, jax.random.key(size), method)
    assert sorted(np.asarray(order).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [4, 6, 12, 97 * 2, 289, 4096, 1009 * 16])
def test_feistel_is_a_bijection_whatever_the_key(size):
    for seed in range(3):
        bits = jax.random.bits(jax.random.key(seed), (2 * ROUNDS,), jnp.uint32)
        order = np.asarray(feistel_permutation(jnp.arange(size), size, bits))
        assert np.bincount(order, minlength=size).tolist() == [1] * size


def test_feistel_of_a_part_is_the_part_of_the_whole():
    key, size = jax.random.key(5), 4096
    whole = permute(jnp.arange(size), size, key, "feistel")
    np.testing.assert_array_equal(permute(jnp.arange(1000, 1100), size, key, "feistel"), whole[1000:1100])


@pytest.fixture(scope="module")
def many_orders():
    """4000 orders of 16 × 20 samples by the Feistel network: [keys, size]."""
    size = 320
    assert radices(size)[0] >= 16
    keys = jax.random.split(jax.random.key(0), 4000)
    return np.asarray(jax.jit(jax.vmap(lambda k: permute(jnp.arange(size), size, k, "feistel")))(keys))


def test_every_sample_comes_to_every_position_equally_often(many_orders):
    """Chi-square over values at fixed positions; the p-values of the positions are uniform."""
    p = [stats.chisquare(np.bincount(many_orders[:, position], minlength=320)).pvalue for position in range(0, 320, 16)]
    assert min(p) > 1e-4 and stats.kstest(p, "uniform").pvalue > 1e-3


def test_pairs_of_positions_are_independent(many_orders):
    """Chi-square over (bin of the value here, bin of the value there), for neighbours in either digit and far ones."""
    p = []
    for i, j in [(0, 1), (0, 20), (0, 21), (5, 25), (7, 319), (100, 101), (40, 60), (160, 300)]:
        table = np.zeros((8, 8))
        np.add.at(table, (many_orders[:, i] // 40, many_orders[:, j] // 40), 1)
        # Without replacement: two different positions never hold the same sample, so the diagonal is a little rarer.
        same, other = 40 * 39 / (320 * 319), 40 * 40 / (320 * 319)
        expected = len(many_orders) * np.where(np.eye(8) > 0, same, other)
        p.append(stats.chisquare(table.ravel(), expected.ravel()).pvalue)
    assert min(p) > 1e-4


def test_differences_of_neighbours_are_uniform(many_orders):
    """A weak mixer shows in what lies side by side: in a row of digits, or in the same minibatch."""
    for step in (1, 20):
        difference = (many_orders[:, step:] - many_orders[:, :-step]) % 320
        counts = np.bincount(difference.ravel(), minlength=320)
        assert counts[0] == 0
        scale = counts[1:].sum() / 319
        # Differences within one order are weakly dependent: allow twice the chi-square's usual spread.
        assert np.square(counts[1:] - scale).sum() / scale < 318 + 2 * 5 * math.sqrt(2 * 318)


SHAPES = [
    dict(num_steps=8, num_envs=8, blocks=1, minibatches=4),
    dict(num_steps=8, num_envs=8, blocks=8, minibatches=2),
    dict(num_steps=1, num_envs=64, blocks=4, minibatches=8),
    dict(num_steps=7, num_envs=6, blocks=3, minibatches=7),
    dict(num_steps=1, num_envs=1, blocks=1, minibatches=1),
    dict(num_steps=4, num_envs=1, blocks=1, minibatches=4),
    dict(num_steps=13, num_envs=11, blocks=11, minibatches=13),
    dict(num_steps=32, num_envs=32, blocks=2, minibatches=4),
    dict(num_steps=128, num_envs=16, blocks=4, minibatches=8),
]


@pytest.mark.parametrize("method", ["feistel", "sort"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s.values())))
def test_tagged_samples_survive_the_shuffle(shape, method):
    """Samples tagged (t, n) come through whole, once an epoch, and every minibatch has an equal share of each block."""
    steps, envs = shape["num_steps"], shape["num_envs"]
    t, n = jnp.meshgrid(jnp.arange(steps), jnp.arange(envs), indexing="ij")
    tagged = {"t": t, "both": jnp.stack([t, n], -1), "n": n.astype(jnp.float32)}
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tagged)
    rows, unpack = pack(flat)
    seen = []
    for indices in epoch_of_minibatches(jax.random.key(1), method=method, **shape):
        got = unpack([take_rows(rows[0], jnp.asarray(indices)), []])  # no leaf is wide
        np.testing.assert_array_equal(got["t"], got["both"][:, 0])
        np.testing.assert_array_equal(got["n"], got["both"][:, 1])
        of_block = np.bincount(got["both"][:, 1] // (envs // shape["blocks"]), minlength=shape["blocks"])
        assert len(set(of_block.tolist())) == 1
        seen += [tuple(row) for row in got["both"].tolist()]
    assert sorted(seen) == list(itertools.product(range(steps), range(envs)))


def test_a_block_is_shuffled_the_same_way_wherever_it_lies():
    """The samples of block b do not depend on how many minibatch samples other blocks give: placement is free."""
    shape = dict(num_steps=16, num_envs=32, blocks=4, minibatches=4, method="feistel")
    indices = epoch_of_minibatches(jax.random.key(2), **shape).reshape(4, 4, -1)
    n = indices % 32
    for block in range(4):
        assert (n[:, block] // 8 == block).all()


def test_epochs_with_other_keys_have_other_orders():
    shape = dict(num_steps=16, num_envs=16, blocks=1, minibatches=2, method="feistel")
    first, second = (epoch_of_minibatches(jax.random.key(seed), **shape) for seed in (0, 1))
    assert set(first[0].tolist()) != set(second[0].tolist())
    # Half of the samples of one minibatch are expected in the other's: neither none nor all.
    assert 30 < len(set(first[0].tolist()) & set(second[0].tolist())) < 98


def test_blocks_of_one_epoch_have_different_orders():
    shape = dict(num_steps=16, num_envs=64, blocks=4, minibatches=1, method="feistel")
    indices = epoch_of_minibatches(jax.random.key(0), **shape).reshape(4, -1)
    local = [(indices[b] // 64 * 16 + indices[b] % 16).tolist() for b in range(4)]
    assert all(sorted(x) == list(range(256)) for x in local)
    assert len({tuple(x) for x in local}) == 4
