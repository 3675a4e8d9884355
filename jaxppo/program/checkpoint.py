"""Checkpoints: whole or absent, verified on load, and only ever data.

    checkpoints/step-000000128000/state/...       the arrays (orbax), a flat dict from a leaf's path to its array
    checkpoints/step-000000128000/manifest.json   SHA-256 of every file, shapes and types, the run's configuration

A checkpoint is written under another name, its manifest last, and then renamed: a killed process leaves none, never
half of one. The state's structure comes from the program, not from the file, so nothing in a file is ever run: there is
no pickle, and a checkpoint from a stranger can at worst hold wrong numbers.

The manifest is needed because a flipped byte in an orbax checkpoint restores without an error, with wrong values; and
arrays without elements are left out of orbax because it refuses them.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.errors import UserError
from jaxppo.program.files import read_json, write_json

SCHEMA = 1

PyTree = Any


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found. `score` is the return by which the best one is chosen, None where it was not known.

    extra: what the run remembered beside the state (configuration, the metrics table's position, wall time).
    """

    path: Path
    steps: int
    updates: int
    score: float | None
    leaves: Mapping[str, tuple[str, tuple[int, ...]]]
    files: Mapping[str, str]
    extra: Mapping[str, Any]


def named_leaves(state: PyTree) -> list[tuple[str, Any]]:
    """(path, leaf) of every leaf; a path is like `params.actor.kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]


def flatten(state: PyTree) -> dict[str, np.ndarray]:
    """Path to array on the host, of every leaf; typed PRNG keys as their data."""
    leaves = named_leaves(state)
    flat = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in leaves}
    if len(flat) < len(leaves):
        raise ValueError("two leaves of the state have the same path")
    return {name: np.asarray(leaf) for name, leaf in jax.device_get(flat).items()}


def unflatten(template: PyTree, arrays: Mapping[str, np.ndarray], source: str) -> PyTree:
    """The state in the structure of `template` (arrays, or shapes from `jax.eval_shape`) with the values of `arrays`.

    Raises UserError, naming the leaf, where one is missing, too many, or of another shape or type.
    """
    wanted = dict(named_leaves(template))
    for name in [*wanted, *arrays]:
        if name not in arrays:
            raise UserError(f"{source} has no {name}; it was written by another version or configuration")
        if name not in wanted:
            raise UserError(f"{source} has {name}, which this version or configuration does not have")
    leaves = [_leaf(name, leaf, arrays[name], source) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _leaf(name: str, template: Any, array: np.ndarray, source: str) -> jax.Array:
    data = jax.eval_shape(jax.random.key_data, template) if _is_key(template) else template
    if array.shape != data.shape or array.dtype != data.dtype:
        raise UserError(
            f"{name} in {source} is {array.dtype}{list(array.shape)}, but {data.dtype}{list(data.shape)} is needed"
        )
    if _is_key(template):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=template.dtype._impl)
    return jnp.asarray(array)


def save(
    directory: Path,
    state: PyTree,
    *,
    steps: int,
    updates: int,
    score: float | None,
    extra: Mapping[str, Any],
    keep: int = 2,
) -> Checkpoint:
    """Writes a checkpoint into `directory` and removes all older ones but the last `keep` and the best.

    Raises OSError where the disk is full or the directory cannot be written; the older checkpoints are then all there.
    """
    final, temporary = directory / f"step-{steps:015d}", directory / f".saving-{steps:015d}"
    arrays = flatten(state)
    for leftover in directory.glob(".saving-*"):
        shutil.rmtree(leftover)
    try:
        temporary.mkdir()
        _make_sure_of_space(temporary, arrays)
        with _without_log():
            _store(temporary / "state", {name: array for name, array in arrays.items() if array.size})
        content = {
            "schema": SCHEMA,
            "steps": steps,
            "updates": updates,
            "score": score,
            "leaves": {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()},
            "files": {file: _sha256(temporary / file) for file in _files(temporary)},
            "extra": dict(extra),
        }
        write_json(temporary / "manifest.json", {**content, "sha256": _digest(content)})
        if final.exists():
            _remove(final)
        os.replace(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    found = find(directory)
    kept = {entry.path for entry in found[-keep:]} | {entry.path for entry in [best(found)] if entry}
    for entry in found:
        if entry.path not in kept:
            _remove(entry.path)
    return read_manifest(final)


def _store(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes `arrays` with orbax. Raises OSError, whatever types the storage library reports a full disk in."""
    try:
        _checkpointer().save(path.absolute(), arrays)
    except OSError:
        raise
    except Exception as error:
        text = str(error)
        code = next((code for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES) if os.strerror(code) in text), None)
        if code is None:
            raise OSError(f"{path} cannot be written: {text.splitlines()[0]}") from error
        raise OSError(code, os.strerror(code), str(path)) from error


def _checkpointer() -> Any:
    """Orbax as if this process were alone: one of several writes, all read, and none of them waits for another."""
    import orbax.checkpoint as ocp

    rank = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=rank, active_processes={rank})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _make_sure_of_space(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises OSError where the disk has no room for a checkpoint, before orbax meets it and fills the screen."""
    needed = sum(array.nbytes for array in arrays.values()) * 5 // 4 + 2048 * len(arrays) + 2**17
    reserve = directory / "reserve"
    with open(reserve, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, needed)
    reserve.unlink()


@contextmanager
def _without_log() -> Iterator[None]:
    """Keeps the log of the storage library off the screen: what went wrong comes as an exception, too."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def find(directory: Path) -> list[Checkpoint]:
    """The checkpoints in `directory`, oldest first. Raises UserError, naming the file, for a damaged manifest."""
    return [read_manifest(path) for path in sorted(directory.glob("step-*"))]


def best(found: list[Checkpoint]) -> Checkpoint | None:
    """The one of the highest score, the latest of equals; None where none has a score."""
    scored = [entry for entry in found if entry.score is not None]
    return max(scored, key=lambda entry: (entry.score, entry.steps)) if scored else None


def read_manifest(path: Path) -> Checkpoint:
    """What the manifest of the checkpoint `path` says. Raises UserError where it is missing, cut or changed."""
    manifest = path / "manifest.json"
    content = read_json(manifest, "checkpoint manifest")
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise UserError(f"{manifest} is damaged: it was changed after it was written; {_advice(path)}")
    if content.get("schema") != SCHEMA:
        raise UserError(f"{manifest} has schema version {content.get('schema')}, this jaxppo reads {SCHEMA}")
    try:
        leaves = {name: (str(jnp.dtype(dtype)), tuple(shape)) for name, (dtype, shape) in content["leaves"].items()}
        fields = {name: content[name] for name in ("steps", "updates", "score", "files", "extra")}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{manifest} is damaged: it is no checkpoint manifest; {_advice(path)}") from None
    return Checkpoint(path=path, leaves=leaves, **fields)


def load_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by path. Raises UserError, naming the file, where one is missing, cut or changed."""
    path = checkpoint.path
    present = _files(path)
    for file in [*checkpoint.files, *present]:
        if file not in present:
            raise UserError(f"{path / file} is missing; {_advice(path)}")
        if file not in checkpoint.files:
            raise UserError(f"{path / file} does not belong to the checkpoint; {_advice(path)}")
    for file, sha256 in checkpoint.files.items():
        if (path / file).is_symlink() or _sha256(path / file) != sha256:
            raise UserError(f"{path / file} is damaged: it was changed or cut; {_advice(path)}")
    import orbax.checkpoint as ocp

    stored = [name for name, (_, shape) in checkpoint.leaves.items() if 0 not in shape]
    request = ocp.args.PyTreeRestore(
        item=dict.fromkeys(stored, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in stored},
    )
    try:
        with _without_log():
            arrays = _checkpointer().restore((path / "state").absolute(), args=request)
    except Exception as error:
        raise UserError(f"{path / 'state'} cannot be read: {str(error).splitlines()[0]}") from error
    empty = {
        name: np.zeros(shape, jnp.dtype(dtype)) for name, (dtype, shape) in checkpoint.leaves.items() if 0 in shape
    }
    return {name: (empty if name in empty else arrays)[name] for name in checkpoint.leaves}


def load(checkpoint: Checkpoint, template: PyTree) -> PyTree:
    """The state of a checkpoint in the structure of `template`. Raises as `load_arrays` and `unflatten` do."""
    return unflatten(template, load_arrays(checkpoint), str(checkpoint.path))


def _remove(path: Path) -> None:
    """Removes a checkpoint, under another name first: a process killed in the middle must not leave half of one."""
    doomed = path.with_name(f".saving-removed-{path.name}")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _files(path: Path) -> list[str]:
    files = (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    return sorted(str(file.relative_to(path)) for file in files if file != path / "manifest.json")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _advice(path: Path) -> str:
    return f"remove {path} to go on from the checkpoint before it"
