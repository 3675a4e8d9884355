"""The samples of a rollout, dealt out in minibatches: flat rows, packed, fetched by a keyed bijection."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxppo.config import PPOConfig
from jaxppo.packing import pack
from jaxppo.randomness import minibatch_indices
from jaxppo.sharding import on_each_device
from jaxppo.types import Array, PyTree

Deal = Callable[[Array, Array, int], PyTree]


def take_rows(rows: Array, indices: Array) -> Array:
    """Rows `indices` [B] of [T·N, ...]; every index is unique and in range."""
    return rows.at[indices].get(mode="promise_in_bounds", unique_indices=True)


def make_deal(config: PPOConfig, samples: PyTree, mesh: Mesh | None = None) -> Deal:
    """-> deal(key, part, parts): part number `part` of `parts` equal ones of the shuffled samples, leaves [B, ...].

    samples: leaves [T, N, ...]. One key is one order; over all parts every sample comes up once. A part has an equal
    share of each block of environments, whose samples stay on their device, so any number of devices that divides the
    blocks deals the same parts.
    """
    devices = 1 if mesh is None else mesh.size
    blocks = config.num_blocks // devices

    def flatten(device, tree):
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)

    # The rows of a device lie together: [devices · T · N / devices, ...].
    flat = on_each_device(mesh, flatten, (1,), 0)(samples)
    rows, unpack = pack(flat)
    gather = on_each_device(mesh, lambda device, rows, indices: take_rows(rows, indices), (0, 0), 0)

    @jax.custom_jvp
    def take(flat, rows, indices):
        del flat
        return unpack(jax.tree.map(lambda leaf: gather(leaf, indices), rows))

    @take.defjvp
    def _(primals, tangents):
        """Packed bits have no tangents, so forward-mode derivatives are fetched from the leaves themselves."""
        flat, _, indices = primals

        def fetch(leaf, tangent):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return np.zeros((*indices.shape, *leaf.shape[1:]), jax.dtypes.float0)
            return gather(tangent, indices)

        return take(*primals), jax.tree.map(fetch, flat, tangents[0])

    def deal(key: Array, part: Array, parts: int) -> PyTree:
        def indices(device, key, part):
            return minibatch_indices(
                key,
                part,
                num_steps=config.num_steps,
                num_envs=config.num_envs // devices,
                blocks=blocks,
                first_block=device * blocks,
                minibatches=parts,
                method=config.shuffle,
            )

        return take(flat, rows, on_each_device(mesh, indices, (None, None), 0)(key, part))

    return deal
