"""A checkpoint gives back every bit, notices every damage, and runs nothing."""

import json
import os
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import UserError
from jaxppo.program import checkpoint


class State(NamedTuple):
    parameters: dict
    key: jax.Array
    old_key: jax.Array
    nothing: jax.Array
    count: jax.Array


def state(seed=0):
    key = jax.random.key(seed)
    return State(
        parameters={"a": jax.random.normal(key, (3, 4)), "b": [jnp.bfloat16(1.25), jnp.array([True, False])]},
        key=jax.random.split(key, 3),
        old_key=jax.random.PRNGKey(7),
        nothing=jnp.zeros((2, 0), jnp.int8),
        count=jnp.uint32(2**32 - 1),
    )


def save(directory, steps=1, seed=0, score=None, **kwargs):
    return checkpoint.save(directory, state(seed), steps=steps, updates=steps, score=score, extra={}, **kwargs)


def template():
    return jax.eval_shape(state)


def test_every_leaf_comes_back_bit_for_bit(tmp_path):
    restored = checkpoint.load(save(tmp_path), template())
    expected, found = checkpoint.flatten(state()), checkpoint.flatten(restored)
    assert list(expected) == list(found)
    for name in expected:
        assert expected[name].dtype == found[name].dtype and expected[name].shape == found[name].shape
        assert expected[name].tobytes() == found[name].tobytes()
    assert restored.key.dtype == state().key.dtype  # still a typed key
    np.testing.assert_array_equal(jax.random.uniform(restored.key[1]), jax.random.uniform(state().key[1]))


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for steps, score in enumerate([1.0, 5.0, 2.0, None, 3.0], start=1):
        save(tmp_path, steps, score=score)
    found = checkpoint.find(tmp_path)
    assert [entry.steps for entry in found] == [2, 4, 5]
    assert checkpoint.best(found).steps == 2
    assert not list(tmp_path.glob(".*"))


def every_file(tmp_path):
    entry = save(tmp_path / "pristine")
    return sorted(str(f.relative_to(entry.path)) for f in entry.path.rglob("*") if f.is_file())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "added"])
def test_a_damaged_file_is_named(tmp_path, damage):
    (tmp_path / "pristine").mkdir()
    for i, name in enumerate(every_file(tmp_path)):
        directory = tmp_path / f"{damage}{i}"
        shutil.copytree(tmp_path / "pristine", directory)
        file = next(directory.glob("step-*")) / name
        content = file.read_bytes()
        if damage == "truncated":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "flipped":
            middle = len(content) // 2
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif damage == "missing":
            file.unlink()
        else:
            file = file.with_name("stranger")
            file.write_bytes(b"x")
        with pytest.raises(UserError) as error:
            checkpoint.load(checkpoint.find(directory)[-1], template())
        assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_manifest_that_lies_about_itself_is_refused(tmp_path):
    entry = save(tmp_path)
    manifest = entry.path / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "steps": 999}))
    with pytest.raises(UserError, match="changed"):
        checkpoint.find(tmp_path)
    for nonsense in ("[]", "", "{", "null", '{"sha256": 1}'):
        manifest.write_text(nonsense)
        with pytest.raises(UserError, match=r"manifest\.json is damaged"):
            checkpoint.find(tmp_path)


def test_a_leaf_of_another_shape_or_type_is_named(tmp_path):
    entry = save(tmp_path)
    other = template()._replace(count=jax.ShapeDtypeStruct((), jnp.int32))
    with pytest.raises(UserError, match=r"count .* is uint32\[\], but int32\[\] is needed"):
        checkpoint.load(entry, other)
    other = template()._replace(nothing=jax.ShapeDtypeStruct((3, 0), jnp.int8))
    with pytest.raises(UserError, match=r"nothing .* is int8\[2, 0\], but int8\[3, 0\] is needed"):
        checkpoint.load(entry, other)
    fewer = template()
    del fewer.parameters["a"]
    with pytest.raises(UserError, match=r"has parameters\.a, which"):
        checkpoint.load(entry, fewer)


def test_a_failing_save_leaves_the_older_checkpoints(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000000001"]
    checkpoint.load(checkpoint.find(tmp_path)[-1], template())


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    (tmp_path / ".saving-000000000000001" / "state").mkdir(parents=True)
    save(tmp_path, 2)
    assert [entry.steps for entry in checkpoint.find(tmp_path)] == [2] and not list(tmp_path.glob(".*"))


def test_loading_unpickles_nothing(tmp_path, monkeypatch):
    """A stranger's checkpoint with a pickle in it, properly listed in its manifest: it is never opened as one."""
    import pickle

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "boom"),))

    directory = tmp_path / "checkpoints"
    directory.mkdir()
    entry = save(directory)
    for name in ("state/_METADATA", "state/manifest.ocdbt"):
        (entry.path / name).write_bytes(pickle.dumps(Bomb()))
    manifest = entry.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("sha256")
    content["files"] = {name: checkpoint._sha256(entry.path / name) for name in content["files"]}
    content["leaves"]["parameters.a"] = ["object", [3, 4]]
    content["sha256"] = checkpoint._digest(content)
    manifest.write_text(json.dumps(content))
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("unpickled"))
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(checkpoint.find(directory)[-1], template())
    assert not (tmp_path / "boom").exists()
