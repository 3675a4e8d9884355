"""jaxppo branch: a new run from a checkpoint of another, under changed settings."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxppo.errors import UserError
from jaxppo.program import arguments as command_line
from jaxppo.program import branching, checkpoint, configuration, runner
from jaxppo.program.commands import session
from jaxppo.program.commands.choose import chosen
from jaxppo.program.run_directory import RunDirectory, default_path
from jaxppo.program.runner import Switches


@dataclass(frozen=True)
class Branch:
    """Start a new run from a checkpoint of another one, under changed settings. The other stays as it is."""

    source: tyro.conf.Positional[Path]
    """Directory of the run to start from."""
    set: tuple[str, ...] = ()
    """NAME=VALUE settings, e.g. learning_rate=1e-4:0 num_envs=128 network.compute=bfloat16 env_parameters.gravity=12
    surrogate_numbers.epsilon=0.1 total_steps=1e6. `none` takes a number of the surrogate or the estimator, or an
    environment parameter, away again. Another surrogate or estimator takes over none of the old one's numbers."""
    run: str = ""
    """Directory of the new run; runs/<env>-<time> if not given."""
    checkpoint: Literal["last", "best"] = "last"
    """Which checkpoint to start from."""
    switches: Annotated[Switches, tyro.conf.arg(name="")] = field(default_factory=Switches)


def run(arguments: Sequence[str]) -> None:
    """Branches off a run. Raises UserError, OSError and Interrupted."""
    branch = command_line.parse(Branch, arguments, command="branch")
    parent = RunDirectory(branch.source)
    recorded = parent.read()
    changes = command_line.assignments(branch.set)
    new, gone = branching.changed(recorded, changes)
    renewed = branching.renewed_parts(configuration.differences(recorded, new))
    configuration.check(new)
    entry = chosen(parent, branch.checkpoint)
    if entry.steps >= new.config.total_steps:
        raise UserError(
            f"{entry.path} is at {entry.steps:,} steps already, of {new.config.total_steps:,}; "
            f"add --set total_steps=NUMBER with a larger number"
        )
    directory = RunDirectory(Path(branch.run) if branch.run else default_path(new.env))
    directory.check_free()
    words = ["branch", *arguments, "--run", str(directory.path)]
    crew = session.assemble(words, branch.switches, new, directory)
    if crew is None:
        return
    session.check_shared(crew, parent, entry)
    origin = {"run": str(parent.path.resolve()), "steps": entry.steps, "updates": entry.updates, "set": changes}
    new = dataclasses.replace(new, parent={**origin, "restarted": list(renewed), "cleared": list(gone)})
    algorithm, mesh = session.prepare(new, branch.switches, crew)
    fresh = runner.initial_state(algorithm, new)
    state = branching.branched_state(checkpoint.load_arrays(entry), fresh, renewed, str(entry.path))
    names = session.check(algorithm, new)
    if gone and crew.leads and not branch.switches.quiet:
        print(f"not taken over, as they belong to what was replaced: {', '.join(gone)}", file=sys.stderr)
    with crew.only_leader(directory.created(new)):
        session.start(new, algorithm, directory, branch.switches, names, state, mesh=mesh, crew=crew)
