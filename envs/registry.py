"""Environments by name: `make("brax/ant", backend="spring")`, `listing()`, and `register` for those from outside.

A name is `library/environment`. Simulators are imported when one of theirs is asked for, never before. Besides the
environments of this package and those of the libraries, a name may come from

- `register("mylab/maze", Maze)`, also as a decorator: any callable that takes keyword parameters and returns an
  `Environment`;
- an entry point of the group `jaxppo.environments` in an installed package:

      [project.entry-points."jaxppo.environments"]
      "mylab/maze" = "mylab.maze:Maze"
"""

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral
from types import ModuleType
from typing import Any

from jaxppo import errors
from jaxppo.environment import Environment
from jaxppo.envs import wrappers
from jaxppo.envs.leaves import as_leaves, like
from jaxppo.errors import UserError

Factory = Callable[..., Environment]

GROUP = "jaxppo.environments"
LIBRARIES = (
    "brax",
    "gymnax",
    "jumanji",
)  # each has an adapter here: `listing()`, `make(name, ...)`, names without library
OPTIONS = ("time_limit", "action_repeat", "frame_stack", "flatten", "rescale_action")

_factories: dict[str, Factory] = {}


@dataclass(frozen=True)
class Listing:
    """One known environment. `reason` says why it is not playable, and is empty where it is."""

    name: str
    playable: bool = True
    reason: str = ""


def register(name: str, factory: Factory | None = None) -> Any:
    """Makes `make(name, **parameters)` call `factory(**parameters)`. Without a factory: a decorator."""
    if factory is None:
        return lambda decorated: register(name, decorated)
    if name in _factories:
        raise UserError(f"environment {name!r} is registered already")
    _factories[name] = factory
    return factory


def make(
    name: str,
    /,
    *,
    time_limit: int | None = None,
    action_repeat: int = 1,
    frame_stack: int = 1,
    flatten: bool = False,
    rescale_action: bool = False,
    **values: Any,
) -> Environment:
    """The environment of that name, in the wrappers asked for.

    time_limit: steps of the environment itself after which an episode is truncated; None keeps its own.
    action_repeat: steps of the environment for one of the agent's (the spec's time limit is counted in the agent's).
    frame_stack: the observation is the last so many, concatenated along the last axis.
    flatten: the observation as one float32 vector.
    rescale_action: a bounded continuous action is given in [-1, 1].
    values: the environment's own parameters. Those that are leaves (see `jaxppo.envs.leaves`) may be traced.
    """
    for option, count in (("time_limit", time_limit), ("action_repeat", action_repeat), ("frame_stack", frame_stack)):
        fits = not isinstance(count, bool) and isinstance(count, Integral) and count >= 1
        if not fits and not (option == "time_limit" and count is None):
            raise UserError(f"{option}={count!r} of {name} must be a whole number of at least 1")
    for option, switch in (("flatten", flatten), ("rescale_action", rescale_action)):
        if not isinstance(switch, bool):
            raise UserError(f"{option}={switch!r} of {name} must be true or false")
    env = _build(name, time_limit, values)
    if action_repeat > 1:
        env = wrappers.ActionRepeat(env, repeat=int(action_repeat))
    if rescale_action:
        env = wrappers.RescaleAction(env)
    if frame_stack > 1:
        env = wrappers.FrameStack(env, frames=int(frame_stack))
    return wrappers.FlattenObservation(env) if flatten else env


def listing() -> list[Listing]:
    """Every environment that `make` knows, sorted by name; a library that is not installed is one line."""
    rows = [Listing(name) for name in _factories]
    rows += [_entry_point_listing(entry) for entry in _entry_points().values()]
    for library in LIBRARIES:
        try:
            rows += _library_listing(library)
        except UserError as error:
            rows.append(Listing(f"{library}/*", False, str(error)))
    return sorted({row.name: row for row in rows}.values(), key=lambda row: row.name)


def check_parameters(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises for the first of `given` that environment `name` does not have, with the nearest that it has."""
    known = sorted({*known, *OPTIONS})
    for parameter in given:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise UserError(f"{name} has no parameter {parameter!r}; {hint}")


def _build(name: str, time_limit: int | None, values: dict[str, Any]) -> Environment:
    """The bare environment with its time limit: its own if it takes one, else the wrapper's."""
    limit = {} if time_limit is None else {"time_limit": int(time_limit)}
    library, _, short = name.partition("/")
    if name in _factories or name in _entry_points():
        factory = _factories.get(name) or _load(_entry_points()[name])
        known = _keywords(factory)
        if known is not None:
            check_parameters(name, values, known)
            values = {
                parameter: _typed(name, parameter, value, known[parameter]) for parameter, value in values.items()
            }
        takes_limit = known is None or "time_limit" in known
        env = factory(**values, **(limit if takes_limit else {}))
    elif library in LIBRARIES:
        adapter = _adapter(library)
        rows = {row.name: row for row in _library_listing(library)}
        if name not in rows:
            raise errors.unknown("environment", name, rows)
        if not rows[name].playable:
            raise UserError(f"{name} is not playable: {rows[name].reason}")
        if "name" in values:  # would be taken for the adapter's own argument
            raise UserError(f"{name} has no parameter 'name'")
        env = adapter.make(short, **values, **limit)
    else:
        raise errors.unknown("environment", name, [row.name for row in listing() if not row.name.endswith("/*")])
    env = as_leaves(name, env)
    if limit and env.spec.time_limit is None:
        env = wrappers.TimeLimit(env, time_limit=limit["time_limit"])
    if limit and env.spec.time_limit != limit["time_limit"]:
        raise UserError(
            f"{name} fixes its time limit at {env.spec.time_limit}; time_limit={time_limit} is not possible"
        )
    return env


def _keywords(factory: Factory) -> dict[str, Any] | None:
    """The parameters that a factory takes, with their defaults; None where it takes any."""
    accepted = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in accepted):
        return None
    return {p.name: p.default for p in accepted if p.kind is not p.VAR_POSITIONAL}


def _typed(name: str, parameter: str, value: Any, default: Any) -> Any:
    """Refuses what is not one number where the default is one.

    A whole number given for a real parameter is made real, or later values of it would be cut to whole ones.
    """
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        return value
    like(parameter, name, default, value)
    if isinstance(default, float):
        return float(value) if isinstance(value, Integral) else value
    return int(value) if isinstance(value, float) else value


def _adapter(library: str) -> ModuleType:
    """The adapter module of a library; says what to install where the library is missing."""
    if importlib.util.find_spec(library) is None:
        raise UserError(f"{library} is not installed; pip install 'jaxppo[{library}]'")
    return importlib.import_module(f"jaxppo.envs.{library}")


def _library_listing(library: str) -> list[Listing]:
    """The adapter's rows, under the names by which `make` knows them."""
    return [replace(row, name=f"{library}/{row.name}") for row in _adapter(library).listing()]


def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> Factory:
    try:
        return entry.load()
    except Exception as error:
        raise UserError(f"environment {entry.name!r} ({entry.value}) cannot be imported: {error}") from error


def _entry_point_listing(entry: EntryPoint) -> Listing:
    try:
        _load(entry)
    except UserError as error:
        return Listing(entry.name, False, str(error))
    return Listing(entry.name)
