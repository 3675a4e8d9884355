"""jaxppo plot: learning curves of one or several runs in one picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxppo import plotting
from jaxppo.errors import UserError
from jaxppo.program import arguments as command_line
from jaxppo.program.metrics_table import read_table
from jaxppo.program.run_directory import RunDirectory


@dataclass(frozen=True)
class Plot:
    """Draw learning curves of runs into one picture."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of the runs."""
    output: Path = Path("learning_curves.png")
    """The picture; the ending chooses the format (png, svg, pdf)."""


def run(arguments: Sequence[str]) -> None:
    """Draws the picture. Raises UserError and OSError."""
    plot = command_line.parse(Plot, arguments, command="plot")
    if not plot.runs:
        raise UserError("which runs? jaxppo plot RUN [RUN ...]")
    curves = {}
    for path in plot.runs:
        directory = RunDirectory(path)
        recorded = directory.read()
        table = read_table(directory.metrics)
        if not len(table["update"]):
            raise UserError(f"{directory.metrics} has no rows yet")
        curves[f"{recorded.env} ({path})"] = table
    plotting.learning_curves(curves, plot.output)
    print(plot.output)
