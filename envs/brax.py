"""The environments of brax.

Only the bare environment is used, without brax's episode and auto-reset wrappers: its `done` is a termination, and the
time limit (1000 steps, as brax trains with) is counted here, so that an end on the limit stays a termination. For
brax's action repeat use `make(..., action_repeat=...)`: like brax's, it counts the limit in steps of the environment;
unlike brax's, it stops at the end of the episode.

The engine is `backend="spring"`, for swimmer, which it does not support, `generalized`; `positional` and `mjx` are the
others. Arguments of the environment's
constructor are static: `make("brax/ant", ctrl_cost_weight=0.1)`. The physics can be made leaves, by the path in brax's
`System` and its new value: `make("brax/ant", physics={"gravity": gravity})`, traced if you like. Where parameters are
flat names, as on the command line, a path follows a point: `--env-parameters physics.gravity 0,0,-5`.

Actions are in [−1, 1], and brax scales them to the actuators. `inverted_pendulum` reports its fall as a `time_out` in
`info`; it is a termination here, as in MuJoCo.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import warnings
from collections.abc import Hashable, Mapping
from types import NoneType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxppo import errors
from jaxppo.environment import Array, EnvironmentSpec, Step, environment, static_field
from jaxppo.envs.carry import carry_types, cast
from jaxppo.envs.leaves import like
from jaxppo.envs.registry import Listing, check_parameters
from jaxppo.errors import UserError
from jaxppo.spaces import Box

# mujoco prints at import what it would like to have, which would end up in the output of a program.
with contextlib.redirect_stdout(io.StringIO()):
    from brax import envs

PyTree = Any

BACKENDS = ("spring", "positional", "generalized", "mjx")
_NOT_SPRING = {"swimmer": "generalized"}


def listing() -> list[Listing]:
    """Every environment that the installed brax registers."""
    return [Listing(name) for name in sorted(envs._envs)]


class State(NamedTuple):
    """simulation: brax's state; t: steps taken, int32 []."""

    simulation: PyTree
    t: Array


@dataclasses.dataclass(frozen=True, eq=False)
class _Simulator:
    """The constants of one environment; compared by identity, as part of the structure of `Brax`.

    library: brax's environment; types: of (its state, observation).
    """

    library: Any
    spec: EnvironmentSpec
    types: PyTree


_RESETS = {
    **dict.fromkeys(("ant", "hopper", "humanoid", "inverted_double_pendulum", "inverted_pendulum"), "optimistic"),
    **dict.fromkeys(("reacher", "swimmer", "walker2d"), "pool"),
}
"""Where `fresh` costs too much: experiments/reset_strategies.py, its rule and its table."""


@environment
class Brax:
    """One brax environment. `physics`: values by their path in brax's `System`, in place of its own."""

    physics: dict[str, Array]
    simulator: _Simulator = static_field()
    time_limit: int = static_field()

    @property
    def spec(self) -> EnvironmentSpec:
        return dataclasses.replace(self.simulator.spec, time_limit=self.time_limit)

    def reset(self, key: Array) -> tuple[State, PyTree]:
        simulation = self._library().reset(key)
        simulation, observation = cast((simulation, simulation.obs), self.simulator.types)
        return State(simulation, jnp.int32(0)), observation

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Step]:
        """brax is deterministic after the reset: `key` is not used."""
        simulation = _step(self._library(), state.simulation, action)
        simulation, observation = cast((simulation, simulation.obs), self.simulator.types)
        t = state.t + 1
        terminated = simulation.done > 0.5
        truncated = (t >= self.time_limit) & ~terminated
        return State(simulation, t), Step(observation, simulation.reward, terminated, truncated)

    def _library(self) -> Any:
        if not self.physics:
            return self.simulator.library
        library = copy.copy(self.simulator.library)
        library.sys = library.sys.tree_replace(self.physics)
        return library


def make(
    name: str,
    *,
    backend: str | None = None,
    time_limit: int = 1000,
    physics: Mapping[str, Array] | None = None,
    **values: Any,
) -> Brax:
    """The environment that brax registers as `name`.

    values: those named `physics.PATH` are physics, too; all others go to its constructor.
    """
    backend = _NOT_SPRING.get(name, "spring") if backend is None else backend
    if backend not in BACKENDS:
        raise errors.unknown("brax backend", str(backend), BACKENDS)
    if not isinstance(physics, (Mapping, NoneType)):
        raise UserError(f"physics={physics!r} of brax/{name} must name what to set, as in physics.gravity 0,0,-9.81")
    paths = {p: v for p, v in values.items() if p.startswith("physics.")}
    given = {p: _hashable(name, p, v) for p, v in values.items() if p not in paths}
    known = _keywords(envs._envs[name])
    check_parameters(f"brax/{name}", given, {*known, "backend", "physics"})
    for parameter, value in given.items():
        _check(name, parameter, value, known[parameter])
    wanted = {**(physics or {}), **{p.removeprefix("physics."): v for p, v in paths.items()}}
    with jax.ensure_compile_time_eval():  # the constants outlive a trace in which `make` may be called
        simulator = _simulator(name, backend, **given)
        there = _physics(getattr(simulator.library, "sys", None)) if wanted else {}
        for path in wanted:
            if not there:
                raise UserError(f"brax/{name} has no {path!r}, nor any other physics that can be set")
            if path not in there:
                raise errors.unknown(f"physics of brax/{name}", path, there, "(paths in brax's System)")
        leaves = {p: like(f"physics.{p}", f"brax/{name}", there[p], value) for p, value in wanted.items()}
    return Brax(leaves, simulator, time_limit)


def _check(name: str, parameter: str, value: Any, default: Any) -> None:
    """Refuses another kind of value than a constructor's argument has by default, which brax may let through."""
    if parameter == "n_frames" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"n_frames={value!r} of brax/{name} must be a whole number of at least 1")
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UserError(f"{parameter}={value!r} of brax/{name} must be true or false")
    elif isinstance(default, (int, float, tuple)):
        like(parameter, f"brax/{name}", np.asarray(default, np.float32), value)


def _hashable(name: str, parameter: str, value: Any) -> Any:
    """A constructor's argument in a form that tells equal choices: lists and arrays as tuples."""
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, Tracer):
        value = np.asarray(value).tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(name, parameter, item) for item in value)
    if isinstance(value, Tracer) or not isinstance(value, Hashable):
        raise UserError(f"{parameter}={value!r} of brax/{name} must be a number, a word, or several of them")
    return value


@functools.cache
def _simulator(name: str, backend: str, **values: Any) -> _Simulator:
    """One for each choice: equal choices are one structure for jit."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Brax System")  # that brax is no longer developed
            library = envs._envs[name](backend=backend, **values)
        action_size = library.action_size
        types = carry_types(
            lambda key: _observed(library.reset(key)),
            lambda key, state, action: _observed(_step(library, state, action)),
            jax.ShapeDtypeStruct((action_size,), jnp.float32),
        )
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise UserError(f"brax/{name} refuses backend={backend} with {values}: {error}") from error
    observation = jax.tree.map(lambda leaf: Box(leaf.shape, dtype=np.dtype(leaf.dtype)), types[1])
    spec = EnvironmentSpec(
        f"brax/{name}", observation, Box((action_size,), -1.0, 1.0), reset=_RESETS.get(name, "fresh")
    )
    return _Simulator(library, spec, types)


def _step(library: Any, state: PyTree, action: Array) -> PyTree:
    """brax writes into the dicts of the state that it is given: a copy, so that the caller's stays as it was."""
    return library.step(jax.tree.map(lambda leaf: leaf, state), action)


def _observed(state: Any) -> tuple[PyTree, PyTree]:
    return state, state.obs


def _keywords(constructor: Any) -> dict[str, Any]:
    """The named arguments with their defaults, those of brax's base class included where they are passed on."""
    own = inspect.signature(constructor).parameters
    passed_on = any(p.kind is p.VAR_KEYWORD for p in own.values())
    inherited = inspect.signature(envs.PipelineEnv).parameters if passed_on else {}
    known = {name: p.default for name, p in {**inherited, **own}.items()}
    return {name: default for name, default in known.items() if name not in ("self", "kwargs", "sys")}


def _physics(node: Any, prefix: str = "") -> dict[str, Array | float]:
    """Path to present value of the real numbers in brax's System; its whole numbers and choices are structure."""
    found: dict[str, Array | float] = {}
    for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
        value = getattr(node, field.name)
        if field.name.startswith("_"):
            continue
        if dataclasses.is_dataclass(value):
            found |= _physics(value, f"{prefix}{field.name}.")
        elif isinstance(value, (jax.Array, float)) and jnp.issubdtype(jnp.result_type(value), jnp.floating):
            found[f"{prefix}{field.name}"] = value
    return found
