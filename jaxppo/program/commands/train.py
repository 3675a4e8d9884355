"""jaxppo train: a new run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from jaxppo import presets
from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.errors import UserError
from jaxppo.program import arguments as command_line
from jaxppo.program import configuration
from jaxppo.program.commands import session
from jaxppo.program.configuration import RunConfig, Watch
from jaxppo.program.run_directory import RunDirectory, default_path
from jaxppo.program.runner import Switches

_FLAT = tyro.conf.arg(name="")  # the fields of a nested dataclass without a prefix
_NAMED = ("surrogate", "advantage")  # hyperparameters that are dicts: --surrogate-numbers, --advantage-numbers


def _number_flags() -> Any:
    """The dataclass of the hyperparameters as texts, with the documentation of `Hyperparameters`."""
    documents = command_line.field_documents(Hyperparameters)
    flags = []
    for f in fields(Hyperparameters):
        if f.name not in _NAMED:
            note = tyro.conf.arg(help=documents[f.name], metavar="NUMBER|START:END")
            flags.append((f.name, Annotated[str, note], field(default=str(f.default))))
    return dataclasses.make_dataclass("Numbers", flags, frozen=True)


Numbers = _number_flags()


@dataclass(frozen=True)
class Train:
    """Train a policy in a new run directory."""

    env: str = ""
    """Environment; `jaxppo list envs`. Its preset, if there is one, gives the defaults."""
    preset: str = ""
    """Settings to start from; `jaxppo list presets`. `none` for the plain defaults."""
    run: str = ""
    """Directory of the run; runs/<env>-<time> if not given."""
    seed: int = 0
    """Seed of everything random."""
    env_parameters: tuple[str, ...] = ()
    """NAME VALUE pairs for the environment, e.g. gravity 9.8 time_limit 200; several numbers with commas, as in brax's
    physics.gravity 0,0,-5."""
    surrogate_numbers: tuple[str, ...] = ()
    """NAME VALUE pairs for the surrogate, e.g. epsilon 0.1; values may be schedules START:END."""
    advantage_numbers: tuple[str, ...] = ()
    """NAME VALUE pairs for the advantage estimator, e.g. lam 0.9; values may be schedules START:END."""
    config: Annotated[PPOConfig, _FLAT] = field(default_factory=PPOConfig)
    numbers: Annotated[Numbers, _FLAT] = field(default_factory=Numbers)  # pyright: ignore[reportInvalidTypeForm]
    watch: Annotated[Watch, _FLAT] = field(default_factory=Watch)
    switches: Annotated[Switches, _FLAT] = field(default_factory=Switches)


class Base(NamedTuple):
    """What holds where no flag is given."""

    train: Train
    hyper: Hyperparameters
    env_parameters: dict[str, Any]


def base(arguments: Sequence[str]) -> Base:
    """The preset that is asked for, or the one of the environment, or the plain defaults."""
    name, env = command_line.peek(arguments, "preset"), command_line.peek(arguments, "env")
    if name and name != "none":
        preset = presets.find(name)
        if env and env != preset.env:
            raise UserError(f"preset {name} is for {preset.env}, not {env}; drop --env or --preset")
    else:
        preset = presets.preset_of(env) if env and name != "none" else None
    if preset is None:
        return Base(Train(), Hyperparameters(), {})
    config, hyper = preset.settings()
    texts = {f.name: str(getattr(hyper, f.name)) for f in fields(Numbers)}
    return Base(Train(env=preset.env, config=config, numbers=Numbers(**texts)), hyper, dict(preset.env_parameters))


def read(arguments: Sequence[str]) -> tuple[Train, RunConfig]:
    """The command line, and the run that it asks for. Raises UserError."""
    start = base(arguments)
    train = command_line.parse(Train, arguments, command="train", default=start.train)
    if not train.env:
        raise UserError("which environment? --env NAME or --preset NAME; `jaxppo list envs`, `jaxppo list presets`")
    hyper = command_line.hyperparameters({f.name: getattr(train.numbers, f.name) for f in fields(Numbers)}, start.hyper)
    # The preset's numbers are those of the preset's surrogate and estimator.
    stale = configuration.stale_numbers(start.train.config, train.config, hyper)
    hyper = configuration.without_numbers(hyper, stale)
    hyper = dataclasses.replace(
        hyper,
        surrogate={**hyper.surrogate, **command_line.numbers("surrogate-numbers", train.surrogate_numbers)},
        advantage={**hyper.advantage, **command_line.numbers("advantage-numbers", train.advantage_numbers)},
    )
    run = RunConfig(
        env=train.env,
        env_parameters={**start.env_parameters, **command_line.parameters(train.env_parameters)},
        seed=train.seed,
        config=train.config,
        hyper=hyper,
        watch=train.watch,
    )
    configuration.check(run)
    return train, run


def run(arguments: Sequence[str]) -> None:
    """Trains in a new directory. Raises UserError, OSError and Interrupted."""
    train, new = read(arguments)
    directory = RunDirectory(Path(train.run) if train.run else default_path(new.env))
    directory.check_free()
    crew = session.assemble(["train", *arguments, "--run", str(directory.path)], train.switches, new, directory)
    if crew is None:
        return
    algorithm, mesh = session.prepare(new, train.switches, crew)
    names = session.check(algorithm, new)
    with crew.only_leader(directory.created(new)):
        session.start(new, algorithm, directory, train.switches, names, mesh=mesh, crew=crew)
