"""Devices: one mesh axis, over environments. Everything else is the same on each device.

The recipes are written for global arrays and stay as they are: `jit` with named shardings splits what has an
environment axis, and turns sums over environments into sums over devices. Only what must not leave a device, the
shuffle within blocks of environments, is said explicitly (`on_each_device`).
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxppo.errors import UserError
from jaxppo.types import PyTree

AXIS = "environments"


def make_mesh(devices: int | None = None) -> Mesh:
    """A mesh over the first `devices` of all devices, those of other processes included; default all of them.

    Raises UserError where there are not so many.
    """
    there = jax.devices()
    count = len(there) if devices is None else devices
    if not 1 <= count <= len(there):
        raise UserError(
            f"devices={count} was asked for, and JAX sees {len(there)} ({there[0].platform}); on a CPU, more come from "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    return Mesh(np.asarray(there[:count]), (AXIS,), axis_types=(AxisType.Auto,))


def check_mesh(mesh: Mesh | None, *, num_envs: int, num_blocks: int) -> None:
    """Refuse a mesh that does not divide the blocks of environments. Raises UserError."""
    if mesh is None or num_blocks % mesh.size == 0:
        return
    fits = [k for k in range(1, mesh.size) if num_blocks % k == 0]
    more = f"set blocks={mesh.size}" if num_envs % mesh.size == 0 else f"take num_envs a multiple of {mesh.size}"
    raise UserError(
        f"{num_blocks} blocks of environments ({num_envs} environments) do not divide over {mesh.size} devices; "
        f"{more}, or use {fits[-1]} device{'s' if fits[-1] > 1 else ''}"
    )


def spec(axis: int | None) -> PartitionSpec:
    """Split along array axis `axis`; not at all for None."""
    return PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, AXIS)


def place(mesh: Mesh | None, tree: PyTree, axis: int | None) -> PyTree:
    """Inside a jitted function: say that all leaves are split along `axis`. Nothing without a mesh."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, spec(axis)))


def shardings(mesh: Mesh, axes: PyTree) -> PyTree:
    """The shardings for a pytree of axes (an int, or -1 for the same on all devices), for `jit` and `device_put`."""
    return jax.tree.map(lambda axis: NamedSharding(mesh, spec(None if axis < 0 else axis)), axes)


def on_each_device(
    mesh: Mesh | None, function: Callable[..., Any], in_axes: tuple[int | None, ...], out_axis: int
) -> Callable[..., Any]:
    """`function(device's number, *its parts of the arguments)` on each device, results joined along `out_axis`.

    Without a mesh a call with number 0 and the whole.
    """
    if mesh is None:
        return lambda *arguments: function(0, *arguments)
    return jax.shard_map(
        lambda *parts: function(jax.lax.axis_index(AXIS), *parts),
        mesh=mesh,
        in_specs=tuple(spec(axis) for axis in in_axes),
        out_specs=spec(out_axis),
    )


def in_chunks(function: Callable[..., Any], chunks: int, mesh: Mesh | None = None) -> Callable[..., Any]:
    """`function` of pytrees of leaves [N, ...], called on `chunks` equal parts of them one after another.

    For functions that treat every environment by itself: the result is the same, temporaries are smaller. A chunk takes
    consecutive environments, on several devices an equal part of each device's.
    """
    if chunks == 1:
        return function
    devices = 1 if mesh is None else mesh.size

    def split(x):
        return jax.numpy.moveaxis(x.reshape(devices, chunks, -1, *x.shape[1:]), 1, 0).reshape(chunks, -1, *x.shape[1:])

    def join(x):
        shape = x.shape[2:]
        return jax.numpy.moveaxis(x.reshape(chunks, devices, -1, *shape), 0, 1).reshape(-1, *shape)

    def chunked(*arguments):
        parts = place(mesh, jax.tree.map(split, arguments), 1)
        return place(mesh, jax.tree.map(join, jax.lax.map(lambda part: function(*part), parts)), 0)

    return chunked
