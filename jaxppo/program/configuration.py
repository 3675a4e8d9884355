"""What a run is: its environment, configuration, numbers and seed, and how that is written down and read back.

Every setting has one flat name, the same in `jaxppo branch --set NAME=VALUE` and in messages: `num_envs`,
`network.hidden`, `learning_rate`, `surrogate_numbers.epsilon`, `env_parameters.gravity`, `seed`.
"""

import dataclasses
import json
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig, check_config, check_hyperparameters
from jaxppo.errors import UserError, unknown
from jaxppo.schedules import Schedule

SCHEMA = 1

_SECTIONS = ("env_parameters", "config", "hyper", "watch")
_NUMBERS = {"surrogate": "surrogate_numbers", "advantage": "advantage_numbers"}  # fields of Hyperparameters, flat names
_OPEN = ("env_parameters", *_NUMBERS.values())  # what holds settings of any name


@dataclass(frozen=True)
class Watch:
    """How a run is watched and kept; changes no training number."""

    evaluate_every: int = 0
    """Environment steps between evaluations of the mode policy; 0 for none. The best checkpoint is chosen by them."""
    episodes: int = 64
    """Episodes of an evaluation."""
    checkpoint_every: float = 0.0
    """Least number of seconds between checkpoints; 0 saves after every chunk of updates (about every 1.5 seconds), so
    that a killed process loses at most the last one."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, and (`watch`, `parent`) what is remembered beside it.

    parent: of a branch, the run, the step and the settings that it started from.
    """

    env: str
    env_parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    config: PPOConfig = field(default_factory=PPOConfig)
    hyper: Hyperparameters = field(default_factory=Hyperparameters)
    watch: Watch = field(default_factory=Watch)
    parent: Mapping[str, Any] | None = None


def check(run: RunConfig) -> None:
    """Refuses what cannot run before anything is imported or compiled. Raises UserError."""
    check_config(run.config)
    check_hyperparameters(run.hyper)
    if not 0 <= run.seed < 2**32:
        raise UserError(f"seed={run.seed} must be between 0 and 2^32 - 1")
    if run.watch.evaluate_every < 0:
        raise UserError(f"evaluate_every={run.watch.evaluate_every} must be a number of steps, or 0 for no evaluation")
    if run.watch.episodes < 1:
        raise UserError(f"episodes={run.watch.episodes} must be at least 1")
    if not 0 <= run.watch.checkpoint_every < float("inf"):
        raise UserError(f"checkpoint_every={run.watch.checkpoint_every} must be a number of seconds of at least 0")


def to_json(run: RunConfig) -> dict[str, Any]:
    """`run` as a JSON object, schema version first."""
    hyper = {f.name: getattr(run.hyper, f.name) for f in dataclasses.fields(run.hyper)}
    return {
        "schema": SCHEMA,
        "env": run.env,
        "env_parameters": {name: _plain(value) for name, value in run.env_parameters.items()},
        "seed": run.seed,
        "config": json.loads(json.dumps(dataclasses.asdict(run.config))),
        "hyper": {name: _plain(value) for name, value in hyper.items()},
        "watch": dataclasses.asdict(run.watch),
        "parent": run.parent,
    }


def from_json(content: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """The run that `to_json` wrote; settings that a newer version added take their defaults.

    Raises UserError for a newer schema, an unknown field (with the nearest names) and a value of the wrong type.
    """
    schema = content.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise UserError(f"{source} has no schema version; it was not written by jaxppo")
    if schema > SCHEMA:
        raise UserError(f"{source} has schema version {schema}, this jaxppo reads up to {SCHEMA}; install a newer one")
    known = {f.name for f in dataclasses.fields(RunConfig)}
    for name in content:
        if name not in known | {"schema"}:
            raise unknown("field", name, known, f"(in {source})")
    for name in _SECTIONS:
        if not isinstance(content.get(name, {}), Mapping):
            raise UserError(f"{name} in {source} is not an object")
    return RunConfig(
        env=convert("env", content.get("env"), str),
        env_parameters=dict(content.get("env_parameters", {})),
        seed=convert("seed", content.get("seed", 0), int),
        config=_structure(PPOConfig, content.get("config", {}), source),
        hyper=_structure(Hyperparameters, content.get("hyper", {}), source),
        watch=_structure(Watch, content.get("watch", {}), source),
        parent=content.get("parent"),
    )


def settings(run: RunConfig) -> dict[str, Any]:
    """Every setting that determines the numbers of `run`, by flat name, as JSON values."""
    content = to_json(run)
    flat = {"env": content["env"], "seed": content["seed"]}
    flat |= {f"env_parameters.{name}": value for name, value in content["env_parameters"].items()}
    for name, value in content["config"].items():
        flat |= {f"network.{n}": v for n, v in value.items()} if name == "network" else {name: value}
    for name, value in content["hyper"].items():
        flat |= {f"{_NUMBERS[name]}.{n}": v for n, v in value.items()} if name in _NUMBERS else {name: value}
    return flat


def differences(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Flat name to (value before, value after) of every setting that differs; None where there is none."""
    old, new = settings(before), settings(after)
    names = dict.fromkeys([*old, *new])
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def with_settings(run: RunConfig, changes: Mapping[str, str]) -> RunConfig:
    """`run` with settings, by flat name, replaced by what a text says: a number, `3e-4:0`, `true`, `64,64`, a word.

    `none` takes a number of the surrogate or the estimator, or a parameter of the environment, away again.
    Raises UserError for an unknown name (with the nearest) and for a text of the wrong type.
    """
    content = to_json(run)
    for name, text in changes.items():
        *path, last = _place(name)
        value = read_text(text)
        target = content
        for part in path:
            target = target[part]
        if value is None and name.partition(".")[0] in _OPEN:
            if last not in target:
                known = ", ".join(target) or "nothing"
                raise UserError(f"{name}=none takes away what is not set; set there: {known}")
            del target[last]
        else:
            target[last] = value
    return from_json(content, "the new configuration")


def stale_numbers(before: PPOConfig, after: PPOConfig, hyper: Hyperparameters) -> list[str]:
    """Flat names of the numbers in `hyper` that belong to a surrogate or estimator of `before` that `after` replaced.

    Raises UserError for a new surrogate or estimator that is unknown.
    """
    from jaxppo.advantages import ADVANTAGES
    from jaxppo.losses import SURROGATES

    found = []
    for kind, registry in (("surrogate", SURROGATES), ("advantage", ADVANTAGES)):
        old, new = getattr(before, kind), getattr(after, kind)
        if old != new and old not in (registry.get(new).name, *registry.get(new).aliases):
            found += [f"{_NUMBERS[kind]}.{name}" for name in getattr(hyper, kind)]
    return found


def without_numbers(hyper: Hyperparameters, names: Collection[str]) -> Hyperparameters:
    """`hyper` without some numbers of the surrogate and the estimator, by flat name."""
    kept = {
        kind: {name: value for name, value in getattr(hyper, kind).items() if f"{flat}.{name}" not in names}
        for kind, flat in _NUMBERS.items()
    }
    return dataclasses.replace(hyper, **kept)


def read_text(text: str) -> Any:
    """A value from the command line: a number, true or false, none, a list with commas, otherwise the text itself."""
    if "," in text:
        return [read_text(part) for part in text.strip("[]() ").split(",") if part.strip()]
    word = {"none": "null"}.get(text.strip().lower(), text.strip().lower())
    try:
        value = json.loads(word)
    except ValueError:
        return text.strip()
    return value if isinstance(value, (bool, int, float, type(None))) else text.strip()


def read_number(name: str, value: Any) -> Any:
    """A number, or a `Schedule` from START:END. Raises UserError with `name` where it is neither."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        return Schedule.parse(str(value))
    except ValueError:
        raise UserError(f"{name}={value!r} is not a number, START:END or START:END:DURATION") from None


def convert(name: str, value: Any, kind: Any) -> Any:
    """`value` as the type `kind` of the setting `name`. Raises UserError where it is of another type."""
    if kind is Any:
        return read_number(name, value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(f"value for {name}", str(value), get_args(kind))
        return value
    if get_origin(kind) in (Union, types.UnionType):
        return None if value is None else convert(name, value, next(k for k in get_args(kind) if k is not type(None)))
    if get_origin(kind) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(name, item, get_args(kind)[0]) for item in items)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    raise UserError(f"{name}={value!r} is not {words.get(kind, f'of type {kind}')}")


def _structure(kind: type, content: Mapping[str, Any], source: str, prefix: str = "") -> Any:
    """An instance of the dataclass `kind` from a JSON object."""
    hints = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise unknown("field", f"{prefix}{name}", [f"{prefix}{k}" for k in known], f"(in {source})")
        if hints[name] is NetworkConfig or get_origin(hints[name]) is dict:
            if not isinstance(value, Mapping):
                raise UserError(f"{name} in {source} is not an object")
        if hints[name] is NetworkConfig:
            values[name] = _structure(NetworkConfig, value, source, "network.")
        elif get_origin(hints[name]) is dict:
            values[name] = {key: read_number(f"{_NUMBERS[name]}.{key}", number) for key, number in value.items()}
        else:
            values[name] = convert(prefix + name, value, hints[name])
    return kind(**values)


def _place(name: str) -> tuple[str, ...]:
    """Where in the JSON object the setting of a flat name lies."""
    fields = {f.name: ("config", f.name) for f in dataclasses.fields(PPOConfig) if f.name != "network"}
    fields |= {f"network.{f.name}": ("config", "network", f.name) for f in dataclasses.fields(NetworkConfig)}
    fields |= {f.name: ("hyper", f.name) for f in dataclasses.fields(Hyperparameters) if f.name not in _NUMBERS}
    fields |= {f.name: ("watch", f.name) for f in dataclasses.fields(Watch)}
    fields |= {"env": ("env",), "seed": ("seed",)}
    if name in fields:
        return fields[name]
    group, _, key = name.partition(".")
    if key and group == "env_parameters":
        return (group, key)
    for section, flat in _NUMBERS.items():
        if key and group == flat:
            return ("hyper", section, key)
    raise unknown("field", name, [*fields, "env_parameters.NAME", *(f"{flat}.NAME" for flat in _NUMBERS.values())])


def _plain(value: Any) -> Any:
    """A number as JSON can hold it: schedules and infinities as text."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Schedule):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
