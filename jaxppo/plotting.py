"""Pictures of runs."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxppo.errors import UserError

Table = Mapping[str, np.ndarray]


def learning_curves(runs: Mapping[str, Table], path: Path) -> None:
    """Draws the return over the steps of each run into the picture `path`; the ending chooses the format.

    runs: label to metrics table (`jaxppo.program.metrics_table.read_table`). The line is the mean return of the
    episodes that ended in a stretch of updates, the band their deviation, dots are evaluations of the mode policy.
    Raises UserError for a format that matplotlib does not know, OSError where the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    kind = path.suffix.lstrip(".") or "png"
    if kind not in canvas.get_supported_filetypes():
        raise UserError(f"{path} does not end in a known picture format; use .png, .svg or .pdf")
    axes = figure.subplots()
    for label, table in runs.items():
        steps, mean, deviation = smoothed(table)
        (line,) = axes.plot(steps, mean, label=label)
        axes.fill_between(steps, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.2, linewidth=0)
        if "evaluation_return" in table and np.isfinite(table["evaluation_return"]).any():
            axes.plot(table["steps"], table["evaluation_return"], ".", color=line.get_color(), label="mode policy")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(temporary, format=kind, dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def smoothed(table: Table, points: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps, mean, deviation) of the return in at most `points` equal stretches of updates, each [P].

    Only updates in which an episode ended count; a stretch without one is left out.
    """
    rows = np.flatnonzero(np.isfinite(table["episode_return"]))
    stretches = np.array_split(rows, min(points, len(rows))) if len(rows) else []
    square = table.get("episode_return_square")
    mean = np.array([table["episode_return"][part].mean() for part in stretches])
    steps = np.array([table["steps"][part].mean() for part in stretches])
    if square is None:
        return steps, mean, np.zeros_like(mean)
    second = np.array([square[part].mean() for part in stretches])
    return steps, mean, np.sqrt(np.maximum(second - np.square(mean), 0.0))
