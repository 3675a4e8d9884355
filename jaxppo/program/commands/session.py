"""What `train`, `resume` and `branch` have in common: the processes of a run, and from a state to its end."""

import sys
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxppo.errors import UserError
from jaxppo.memory import available_bytes, check_memory
from jaxppo.program import crew as crews
from jaxppo.program import launcher, progress, runner
from jaxppo.program.checkpoint import Checkpoint
from jaxppo.program.configuration import RunConfig
from jaxppo.program.crew import ALONE, Crew
from jaxppo.program.files import in_words
from jaxppo.program.metrics_table import MetricsTable, NoTable, read_table
from jaxppo.program.run_directory import RunDirectory
from jaxppo.program.runner import Runner, Switches
from jaxppo.program.signals import Interrupted
from jaxppo.types import Algorithm


def assemble(words: Sequence[str], switches: Switches, run: RunConfig, directory: RunDirectory) -> Crew | None:
    """The crew of this process; None where it has started processes of its own that have trained the run meanwhile.

    words: the command line that they get. Raises UserError, and what `launcher.launch` raises.
    """
    summoned = switches.distributed or crews.summoned()
    if not summoned:
        launcher.check(switches.processes, run.config)
    if switches.debug_nans and (summoned or switches.processes > 1):
        raise UserError("--debug-nans looks into one process; leave --processes and --distributed out")
    if summoned:
        return crews.join(processes=switches.processes)
    if switches.processes > 1:
        return launcher.launch(words, switches.processes, directory.path)
    return ALONE


def check_shared(crew: Crew, directory: RunDirectory, entry: Checkpoint | None) -> None:
    """Raises UserError where this process has found another checkpoint than the leader."""
    mine = -1 if entry is None else entry.updates
    theirs = crew.agree(mine)
    if mine != theirs:
        raise UserError(
            f"{directory.checkpoints} holds update {mine} here and update {theirs} for process 0; the run's directory "
            f"must lie on a file system that all processes share"
        )


def prepare(run: RunConfig, switches: Switches, crew: Crew = ALONE) -> tuple[Algorithm, Mesh | None]:
    """The algorithm of a run and its devices. Raises UserError where they do not fit, or do not suffice."""
    mesh = runner.choose_mesh(run, switches.devices)
    algorithm = runner.build(run, mesh)
    available = available_bytes()
    if available is not None and jax.default_backend() == "cpu":  # shared by all processes of a machine
        available //= crew.neighbours()
    check_memory(algorithm, run.hyper, available=available, devices=1 if mesh is None else mesh.size)
    return algorithm, mesh


def check(algorithm: Algorithm, run: RunConfig) -> tuple[str, ...]:
    """The columns of the run's table. Raises UserError for what only shows when the program is traced."""
    return runner.columns(algorithm, runner.state_template(algorithm, run))


def start(
    run: RunConfig,
    algorithm: Algorithm,
    directory: RunDirectory,
    switches: Switches,
    names: tuple[str, ...],
    state: Any = None,
    *,
    mesh: Mesh | None = None,
    crew: Crew = ALONE,
) -> None:
    """Trains a new run, from the first state or from `state`, in its fresh directory. names: columns of its table."""
    table = MetricsTable.create(directory.metrics, names) if crew.leads else NoTable()
    if state is None:
        state = runner.initial_state(algorithm, run, mesh)
    finish(run, algorithm, directory, switches, table, state, mesh=mesh, crew=crew)


def finish(
    run: RunConfig,
    algorithm: Algorithm,
    directory: RunDirectory,
    switches: Switches,
    table: MetricsTable | NoTable,
    state: Any,
    *,
    mesh: Mesh | None = None,
    crew: Crew = ALONE,
    seconds: float = 0.0,
) -> None:
    """Trains to the end, draws the learning curve and says where everything is.

    Raises UserError where the run cannot be written any more, and what `Runner.train` raises.
    """
    quiet = switches.quiet or not crew.leads
    shown = progress.choose(run.config.total_steps, quiet=quiet)
    if not quiet:
        print(f"{run.env} in {directory.path}", file=sys.stderr)
    try:
        trainer = Runner(
            run, algorithm, directory, table, shown, switches=switches, mesh=mesh, crew=crew, seconds=seconds
        )
        outcome = trainer.train(state)
    except Interrupted:
        if crew.leads:
            draw(run, directory)
        raise
    except OSError as error:
        raise UserError(
            f"{in_words(error)}; the run is whole up to its last checkpoint: once that is put right, "
            f"`jaxppo resume {directory.path}` goes on"
        ) from error
    finally:
        shown.close()
        table.close()
    if crew.leads:
        draw(run, directory)
    if not quiet:
        result = f", {progress.result_text(outcome.report)}" if outcome.report else ""
        print(f"done: {outcome.steps:,} steps in {progress.clock(outcome.seconds)}{result}; {directory.path}")


def draw(run: RunConfig, directory: RunDirectory) -> None:
    """Draws the run's learning curve, if there is a row to draw."""
    from jaxppo import plotting

    table = read_table(directory.metrics)
    if len(table["update"]):
        plotting.learning_curves({run.env: table}, directory.learning_curve)
