"""What the person who waits sees: a live line on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TextIO


@dataclass(frozen=True)
class Report:
    """One chunk of updates.

    episode_return, spread, episode_length: mean and deviation between episodes; None where none has finished.
    compiled: of the first chunk, the seconds that it took; its speed says nothing then.
    """

    steps: int
    total_steps: int
    steps_per_second: float
    seconds_left: float
    episode_return: float | None = None
    spread: float | None = None
    episode_length: float | None = None
    evaluation: Mapping[str, float] | None = None
    compiled: float | None = None


class Progress(Protocol):
    """`show` follows every chunk, `close` comes once, also when the run fails."""

    def show(self, report: Report) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, report: Report) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line to `stream` for the first and the last chunk, and every `interval` seconds between them."""

    def __init__(self, stream: TextIO, *, interval: float = 10.0):
        self._stream, self._interval, self._next = stream, interval, 0.0
        self._evaluation: Mapping[str, float] | None = None

    def show(self, report: Report) -> None:
        self._evaluation = report.evaluation or self._evaluation  # none is lost between two lines
        now = time.monotonic()
        if now >= self._next or report.steps >= report.total_steps:
            self._next = now + self._interval
            print(describe(replace(report, evaluation=self._evaluation)), file=self._stream, flush=True)
            self._evaluation = None

    def close(self) -> None:
        pass


class Bar:
    """A progress bar of rich, on a terminal."""

    def __init__(self, total_steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:3.0f}%"), TextColumn("{task.description}"))
        console = Console(stderr=True)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=False)
        self._task = self._bar.add_task("compiling", total=total_steps)
        self._bar.start()

    def show(self, report: Report) -> None:
        self._bar.update(self._task, completed=report.steps, description=describe(report, left=False))

    def close(self) -> None:
        self._bar.stop()


def choose(total_steps: int, *, quiet: bool) -> Progress:
    """The progress that fits: nothing if `quiet`, a bar on a terminal, otherwise lines. All on standard error."""
    if quiet:
        return Silent()
    return Bar(total_steps) if sys.stderr.isatty() else Lines(sys.stderr)


def describe(report: Report, *, left: bool = True) -> str:
    """`12,800 of 500,000 steps · 98,000/s · return 21.3 ± 9.8 · length 21 · 0:05 left`."""
    speed = f"{report.steps_per_second:,.0f}/s"
    speed = speed if report.compiled is None else f"compiled in {report.compiled:.1f} s"
    parts = [f"{report.steps:,} of {report.total_steps:,} steps", speed]
    parts.append(result_text(report))
    if left and report.compiled is None:
        parts.append(f"{clock(report.seconds_left)} left")
    return " · ".join(parts)


def result_text(report: Report) -> str:
    """`return 21.3 ± 9.8 · length 21 · evaluated 35 ± 4`."""
    if report.episode_return is None:
        parts = ["no episode finished yet"]
    else:
        parts = [f"return {report.episode_return:.4g} ± {report.spread:.2g}", f"length {report.episode_length:.4g}"]
    if report.evaluation:
        mean, deviation = report.evaluation["evaluation_return"], report.evaluation["evaluation_deviation"]
        parts.append(f"evaluated {mean:.4g} ± {deviation:.2g}")
    return " · ".join(parts)


def clock(seconds: float) -> str:
    """`0:05`, `12:30` or `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
