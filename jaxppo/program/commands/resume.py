"""jaxppo resume: go on with a run, bit for bit as if it had never stopped."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from jaxppo.errors import UserError
from jaxppo.program import arguments as command_line
from jaxppo.program import checkpoint, configuration, runner
from jaxppo.program.checkpoint import Checkpoint
from jaxppo.program.commands import session
from jaxppo.program.commands.train import Train
from jaxppo.program.configuration import RunConfig
from jaxppo.program.metrics_table import NoTable, read_table
from jaxppo.program.run_directory import RunDirectory
from jaxppo.program.runner import Switches


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its last checkpoint, bit for bit as if it had never stopped."""

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    switches: Annotated[Switches, tyro.conf.arg(name="")] = field(default_factory=Switches)


def run(arguments: Sequence[str]) -> None:
    """Resumes a run. Raises UserError, OSError and Interrupted."""
    _refuse_settings(arguments)
    resume = command_line.parse(Resume, arguments, command="resume")
    directory = RunDirectory(resume.run)
    recorded = directory.read()
    crew = session.assemble(["resume", *arguments], resume.switches, recorded, directory)
    if crew is None:
        return
    with crew.only_leader(directory.locked()):
        found = checkpoint.find(directory.checkpoints)
        session.check_shared(crew, directory, found[-1] if found else None)
        if found:
            check_same(found[-1], recorded, directory)
        algorithm, mesh = session.prepare(recorded, resume.switches, crew)
        names = session.check(algorithm, recorded)
        if not found:
            if directory.metrics.exists() and len(read_table(directory.metrics)["update"]):
                raise UserError(f"{directory.checkpoints} is empty, but metrics were written: the checkpoints are gone")
            if recorded.parent:
                raise UserError(f"{directory.path} has no checkpoint yet; remove it and branch again")
            if crew.leads:
                directory.metrics.unlink(missing_ok=True)
            return session.start(recorded, algorithm, directory, resume.switches, names, mesh=mesh, crew=crew)
        entry = found[-1]
        if entry.steps >= recorded.config.total_steps:
            raise UserError(
                f"{directory.path} is finished at {entry.steps:,} steps; to train longer: "
                f"jaxppo branch {directory.path} --set total_steps=NUMBER"
            )
        state = checkpoint.load(entry, runner.state_template(algorithm, recorded))
        table = runner.reopen(entry, directory, names) if crew.leads else NoTable()
        session.finish(
            recorded,
            algorithm,
            directory,
            resume.switches,
            table,
            state,
            mesh=mesh,
            crew=crew,
            seconds=entry.extra.get("seconds", 0.0),
        )


def check_same(entry: Checkpoint, recorded: RunConfig, directory: RunDirectory) -> None:
    """Raises UserError where config.json is not what the checkpoint was written under."""
    written = configuration.from_json(entry.extra.get("run", {}), str(entry.path / "manifest.json"))
    for name, (before, after) in configuration.differences(written, recorded).items():
        raise UserError(
            f"{directory.config} says {name}={after}, but the run was trained with {before}; put it back, and use "
            f"`jaxppo branch {directory.path} --set {name}={after}` for a new run with another value"
        )


def _refuse_settings(arguments: Sequence[str]) -> None:
    """Points to `branch` where a setting of the run is given."""
    mine = set(command_line.flags(Resume))
    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        if flag in set(command_line.flags(Train)) - mine:
            name = flag[2:].replace("-", "_")
            raise UserError(
                f"resume goes on under the run's own settings; `jaxppo branch RUN --set {name}=VALUE` changes"
            )
