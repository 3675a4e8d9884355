import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.packing import pack

B = 6
LEAVES = {
    "float": jnp.arange(B * 3.0).reshape(B, 3) / 7,
    "scalar": jnp.arange(B, dtype=jnp.float32),
    "nan": jnp.full((B,), jnp.nan),
    "denormal": jnp.full((B, 2), 1e-42),
    "integer": 2**24 + 1 + jnp.arange(B, dtype=jnp.int32),
    "negative": -jnp.arange(B, dtype=jnp.int8).reshape(B, 1),
    "unsigned": jnp.full((B,), 2**32 - 1, jnp.uint32),
    "image": jnp.arange(B * 5 * 3, dtype=jnp.uint8).reshape(B, 5, 3),
    "mask": (jnp.arange(B * 7) % 3 == 0).reshape(B, 7),
    "wide": jnp.arange(B * 128, dtype=jnp.uint8).reshape(B, 8, 16),
    "half": jnp.arange(B * 3, dtype=jnp.bfloat16).reshape(B, 3),
}


def bits(x):
    x = np.asarray(x)
    return x.view(np.uint8) if x.dtype != bool else x


@pytest.mark.parametrize("name", LEAVES)
def test_bits_shape_and_type_come_back_alone(name):
    rows, unpack = pack(LEAVES[name])
    back = unpack(rows)
    assert (back.shape, back.dtype) == (LEAVES[name].shape, LEAVES[name].dtype)
    np.testing.assert_array_equal(bits(back), bits(LEAVES[name]))


def test_rows_stay_together():
    rows, unpack = pack(LEAVES)
    order = jnp.array([4, 0, 5])
    back = unpack(jax.tree.map(lambda x: x[order], rows))
    for name, leaf in LEAVES.items():
        np.testing.assert_array_equal(bits(back[name]), bits(leaf[order]))


def test_wide_leaves_are_not_stored_twice():
    (words, alone), _ = pack(LEAVES)
    assert len(alone) == 1 and alone[0] is LEAVES["wide"]
    assert words.shape[1] == sum(-(-leaf[0].nbytes // 4) for name, leaf in LEAVES.items() if name != "wide")
