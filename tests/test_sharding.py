"""Any number of devices, chunks and microbatches see the same samples and minibatches (design: 1, 2 and 8 devices)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import UserError
from jaxppo.sharding import check_mesh, in_chunks, make_mesh

VARIANTS = {
    "plain": {"devices": None},
    "chunks and microbatches": {"devices": None, "chunks": 4, "microbatches": 2},
    "one": {"devices": 1},
    "two": {"devices": 2},
    "eight, chunked": {"devices": 8, "chunks": 2, "microbatches": 2},
}
RESETS = {
    "plain": {"devices": None, "reset": "optimistic", "reset_group": 8, "recompute_advantage": True},
    "eight": {"devices": 8, "reset": "optimistic", "reset_group": 8, "recompute_advantage": True},
}


@pytest.fixture(scope="module")
def trained():
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("many_devices.py")],
        input="".join(json.dumps(v | {"updates": 3}) + "\n" for v in (*VARIANTS.values(), *RESETS.values())),
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results = [json.loads(line) for line in process.stdout.splitlines()]
    return dict(zip([*VARIANTS, *(f"resets {name}" for name in RESETS)], results, strict=True))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "plain"])
def test_devices_chunks_and_microbatches_change_nothing(trained, name):
    assert trained[name]["samples"] == trained["plain"]["samples"]
    np.testing.assert_allclose(trained[name]["parameters"], trained["plain"]["parameters"], atol=1e-5)


def test_groups_of_resets_and_renewed_advantages_neither(trained):
    np.testing.assert_allclose(trained["resets eight"]["parameters"], trained["resets plain"]["parameters"], atol=1e-5)
    assert trained["resets plain"]["parameters"] != trained["plain"]["parameters"]


@pytest.mark.parametrize("name", ["two", "eight, chunked", "resets eight"])
def test_environments_stay_on_their_devices(trained, name):
    """Only sums travel: no sample is ever gathered from another device."""
    assert trained[name]["collectives"] == ["all-reduce"]
    assert trained[name]["devices"] == (2 if name == "two" else 8)
    assert trained[name]["spread"] == ["('environments',)"]


def test_chunks_cover_every_environment_in_its_place():
    x = {"a": jnp.arange(12), "b": jnp.arange(24).reshape(12, 2)}
    seen = []

    def function(part):
        seen.append(part["a"].shape)
        return part["a"] * 2, part["b"] + 1

    a, b = jax.jit(in_chunks(function, 3))(x)
    np.testing.assert_array_equal(a, x["a"] * 2)
    np.testing.assert_array_equal(b, x["b"] + 1)
    assert set(seen) == {(4,)}


def test_more_devices_than_there_are():
    with pytest.raises(UserError, match=r"devices=99 .* JAX sees \d+ .*xla_force_host_platform_device_count=99"):
        make_mesh(99)


class Three:
    size = 3


@pytest.mark.parametrize(
    "num_envs, blocks, message",
    [(9, 1, "set blocks=3, or use 1 device$"), (8, 8, "take num_envs a multiple of 3, or use 2 devices$")],
)
def test_blocks_that_do_not_divide_over_the_devices(num_envs, blocks, message):
    with pytest.raises(UserError, match=message):
        check_mesh(Three(), num_envs=num_envs, num_blocks=blocks)  # type: ignore[arg-type]
