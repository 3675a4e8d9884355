"""The parameters of an environment by name: its leaves, which can be traced, swept and randomised.

    env = make("gymnax/CartPole-v1")
    parameters(env)                               # {"gravity": 9.8, "length": 0.5, ...}
    heavier = with_parameters(env, gravity=12.0)  # also under jit and vmap, with a traced value

An environment is a dataclass; a leaf field is a parameter, and a leaf field that is itself a dataclass (what a wrapper
wraps, or the parameter object of a library) or a dict contributes its own.
"""

import dataclasses
from typing import Any

import jax
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
    typed = {name: _like(name, known[name], value) for name, value in values.items()}
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


def _like(name: str, old: PyTree, new: PyTree) -> PyTree:
    try:
        return jax.tree.map(lambda o, n: jax.numpy.asarray(n, jax.numpy.asarray(o).dtype), old, new)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}={new!r} does not fit the parameter, which is {old!r}") from error


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
