"""The parameters of an environment by name: its leaves, which can be traced, swept and randomised.

    env = make("gymnax/CartPole-v1")
    parameters(env)                               # {"gravity": 9.8, "length": 0.5, ...}
    heavier = with_parameters(env, gravity=12.0)  # also under jit and vmap, with a traced value

An environment is a dataclass; a leaf field is a parameter, and a leaf field that is itself a dataclass (what a wrapper
wraps, or the parameter object of a library) or a dict contributes its own.
"""

import dataclasses
import functools
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxppo import errors
from jaxppo.environment import Environment, strongly_typed
from jaxppo.errors import UserError

PyTree = Any


def parameters(env: Environment) -> dict[str, PyTree]:
    """Name to value, of every leaf parameter; outermost first."""
    found: dict[str, PyTree] = {}
    for name, value in _children(env).items():
        inner = parameters(value) if _is_branch(value) else {name: value}
        found.update((n, v) for n, v in inner.items() if n not in found)
    return found


def with_parameters(env: Environment, **values: PyTree) -> Environment:
    """The same environment with other parameter values. Traced values are welcome, and have to keep the shapes."""
    known = parameters(env)
    for name in values:
        if name not in known:
            raise errors.unknown(f"parameter of {env.spec.name}", name, known)
    typed = {
        name: jax.tree.map(functools.partial(like, name, env.spec.name), known[name], value)
        for name, value in values.items()
    }
    return _replace(env, typed)


def as_leaves(name: str, env: Environment) -> Environment:
    """`env` with every leaf a strongly typed array; refuses what is not a finite number."""
    for parameter, value in parameters(env).items():
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, Tracer):
                continue
            number = np.asarray(leaf)
            if number.dtype.kind not in "biuf" or not np.isfinite(number).all():
                raise UserError(f"{parameter}={leaf} of {name} must be a finite number")
    return strongly_typed(env)


def like(name: str, owner: str, old: Any, new: Any) -> jax.Array:
    """`new` as an array of the shape and type of `old`, the present value of parameter `name` of environment `owner`.

    Traced values are welcome. Raises UserError where `new` is of another shape or kind.
    """
    shape, dtype = np.shape(old), np.dtype(jnp.result_type(old))
    whole, array = dtype.kind in "iu", None
    if not isinstance(new, (str, NoneType)) and (dtype.kind == "b" or not isinstance(new, bool)):
        try:
            array = jnp.asarray(new, dtype)
            if whole and not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(new)):
                array = array if np.equal(new, np.round(new)).all() else None
        except (TypeError, ValueError, OverflowError):
            array = None
    if array is not None and array.shape == shape:
        return array
    kind = "whole number" if whole else "number"
    wanted = f"{shape[0]} {kind}s" if len(shape) == 1 else f"{kind}s of shape {shape}" if shape else f"one {kind}"
    raise UserError(f"{name}={new!r} of {owner} does not fit: it takes {wanted}{_now(old)}")


def _now(value: Any) -> str:
    """The present value for a message, where it is known and short."""
    if isinstance(value, Tracer) or np.size(value) > 8:
        return ""
    return f", now {','.join(f'{x:.6g}' for x in np.ravel(value).tolist())}"


def _children(node: PyTree) -> dict[str, PyTree]:
    if isinstance(node, dict):
        return node
    fields = [f.name for f in dataclasses.fields(node) if f.metadata.get("pytree_node", True)]
    return {name: getattr(node, name) for name in fields}


def _is_branch(value: PyTree) -> bool:
    return isinstance(value, dict) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _replace(node: PyTree, values: dict[str, PyTree]) -> PyTree:
    children = _children(node)
    changed = {n: _replace(v, values) if _is_branch(v) else values.get(n, v) for n, v in children.items()}
    return changed if isinstance(node, dict) else dataclasses.replace(node, **changed)
