"""What `train`, `resume` and `branch` have in common: from a state to the end of a run."""

import sys
from typing import Any

from jax.sharding import Mesh

from jaxppo.errors import UserError
from jaxppo.memory import check_memory
from jaxppo.program import progress, runner
from jaxppo.program.configuration import RunConfig
from jaxppo.program.files import in_words
from jaxppo.program.metrics_table import MetricsTable, read_table
from jaxppo.program.run_directory import RunDirectory
from jaxppo.program.runner import Runner, Switches
from jaxppo.program.signals import Interrupted
from jaxppo.types import Algorithm


def prepare(run: RunConfig, switches: Switches) -> tuple[Algorithm, Mesh | None]:
    """The algorithm of a run and its devices. Raises UserError where they do not fit, or do not suffice."""
    mesh = runner.choose_mesh(run, switches.devices)
    algorithm = runner.build(run, mesh)
    check_memory(algorithm, run.hyper, devices=1 if mesh is None else mesh.size)
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
) -> None:
    """Trains a new run, from the first state or from `state`, in its fresh directory. names: columns of its table."""
    table = MetricsTable.create(directory.metrics, names)
    if state is None:
        state = runner.initial_state(algorithm, run, mesh)
    finish(run, algorithm, directory, switches, table, state, mesh=mesh)


def finish(
    run: RunConfig,
    algorithm: Algorithm,
    directory: RunDirectory,
    switches: Switches,
    table: MetricsTable,
    state: Any,
    *,
    mesh: Mesh | None = None,
    seconds: float = 0.0,
) -> None:
    """Trains to the end, draws the learning curve and says where everything is.

    Raises UserError where the run cannot be written any more, and what `Runner.train` raises.
    """
    shown = progress.choose(run.config.total_steps, quiet=switches.quiet)
    if not switches.quiet:
        print(f"{run.env} in {directory.path}", file=sys.stderr)
    try:
        trainer = Runner(run, algorithm, directory, table, shown, switches=switches, mesh=mesh, seconds=seconds)
        outcome = trainer.train(state)
    except Interrupted:
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
    draw(run, directory)
    if not switches.quiet:
        result = f", {progress.result_text(outcome.report)}" if outcome.report else ""
        print(f"done: {outcome.steps:,} steps in {progress.clock(outcome.seconds)}{result}; {directory.path}")


def draw(run: RunConfig, directory: RunDirectory) -> None:
    """Draws the run's learning curve, if there is a row to draw."""
    from jaxppo import plotting

    table = read_table(directory.metrics)
    if len(table["update"]):
        plotting.learning_curves({run.env: table}, directory.learning_curve)
