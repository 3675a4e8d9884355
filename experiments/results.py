"""The one results table of all experiments: a row for each finished run, as CSV that people and git can read.

Rows are appended, never changed. Several processes may append to one file: each locks the folder, writes the whole
table beside the old one and renames it, so that a reader, a crash or a full disk finds the old table or the new one,
never a piece.
Columns are only ever added, with a default; `SCHEMA` then counts up, and tables of every older schema stay loadable.
"""

import csv
import fcntl
import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxppo.errors import UserError
from jaxppo.statistics import bootstrap_interval, interquartile_mean
from jaxppo.types import Mean

SCHEMA = 1
"""Version of the table's columns."""

FOLDER = Path(__file__).parent / "results"
"""Where the committed tables lie."""

IMPLEMENTATIONS = ("jaxppo", "rejax", "brax", "random", "greedy", "optimal", "zero")


@dataclass(frozen=True)
class Result:
    """One finished run. Returns are NaN where nothing was measured."""

    task: str
    """Name in `tasks.py`: an environment with its settings."""
    environment: str
    algorithm: str
    implementation: str
    """Whose code: one of `IMPLEMENTATIONS` (those from `random` on are scripted players, not learned)."""
    seed: int
    steps: int
    """Environment steps that were really taken."""
    evaluation_return: float
    """Mean return of the final policy's mode."""
    sampled_return: float = float("nan")
    """Mean return of the final policy, actions sampled."""
    discounted_return: float = float("nan")
    """Mean discounted return of the final policy's mode, with the task's discount."""
    training_return: float = float("nan")
    """Mean return of the episodes that finished in the last tenth of the steps."""
    curve: tuple[float, ...] = ()
    """The same for every twentieth of the steps; NaN where no episode finished."""
    wall_seconds: float = float("nan")
    """Training, without compilation and evaluation."""
    compile_seconds: float = float("nan")
    versions: str = ""
    """Packages that matter, as "jax 0.9.2, brax 0.14.2"."""
    commit: str = ""
    """Of this repository; ends in "+" when files were changed."""
    settings: str = ""
    """`tasks.settings_hash`: rows of one task with different settings never mix."""
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))
    schema: int = SCHEMA


def average(mean: Mean) -> float:
    """The average as a number for the table: NaN where nothing was counted."""
    return float(mean.value) if mean.count > 0 else math.nan


def append(path: Path, *results: Result) -> None:
    """Add rows to the table at `path`; it is created where it does not exist."""
    path = Path(path)
    for result in results:
        if result.implementation not in IMPLEMENTATIONS:
            raise UserError(f"implementation {result.implementation!r} is not one of {', '.join(IMPLEMENTATIONS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        _write(path, [*(load(path) if path.exists() else []), *results])


def load(path: Path) -> list[Result]:
    """All rows of one table, or of all tables in a folder. Raises UserError for a table that cannot be trusted."""
    path = Path(path)
    if path.is_dir():
        return [result for table in sorted(path.glob("*.csv")) for result in load(table)]
    if not path.exists():
        raise UserError(f"there is no results table at {path}")
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [_parse(row, f"{path}, line {rows.line_num}") for row in rows]


def done(path: Path, *, task: str, implementation: str, settings: str) -> set[int]:
    """The seeds that need not run again: those of the same task, code and settings in the table(s) at `path`."""
    if not Path(path).exists():
        return set()
    wanted = (task, implementation, settings)
    return {r.seed for r in load(path) if (r.task, r.implementation, r.settings) == wanted}


@dataclass(frozen=True)
class Summary:
    """All seeds of one task, settings and implementation."""

    task: str
    environment: str
    algorithm: str
    implementation: str
    settings: str
    steps: int
    """Of the longest run."""
    seeds: int
    mean: float
    """Interquartile mean over the seeds."""
    low: float
    high: float
    """95 % bootstrap interval of it."""
    wall_seconds: float
    """Mean over the seeds."""
    versions: str


def summarise(results: Iterable[Result], *, score: str = "evaluation_return") -> list[Summary]:
    """One row for each (task, settings, implementation), in the order of their first rows. `score` names a column.

    A seed that was run again counts once, with its latest row.
    """
    groups: dict[tuple, dict[int, Result]] = {}
    for r in results:
        groups.setdefault((r.task, r.algorithm, r.implementation, r.settings), {})[r.seed] = r
    summaries = []
    for runs in (list(group.values()) for group in groups.values()):
        first, scores = runs[0], [getattr(r, score) for r in runs]
        low, high = bootstrap_interval(scores)
        summaries.append(
            Summary(
                **{name: getattr(first, name) for name in _SHARED},
                steps=max(r.steps for r in runs),
                seeds=len(runs),
                mean=float(interquartile_mean(scores)),
                low=low,
                high=high,
                wall_seconds=sum(r.wall_seconds for r in runs) / len(runs),
                versions=runs[-1].versions,
            )
        )
    return summaries


def markdown_table(summaries: Sequence[Summary]) -> str:
    """The summaries as a Markdown table: interquartile mean, 95 % interval, number of seeds."""
    head = "| task | implementation | steps | seeds | return (IQM) | 95 % interval | wall time | versions |"
    rule = "|---|---|---:|---:|---:|---:|---:|---|"
    rows = [
        f"| {s.task} | {s.implementation} | {s.steps:,} | {s.seeds} | {s.mean:.4g} | {s.low:.4g} … {s.high:.4g} "
        f"| {_duration(s.wall_seconds)} | {s.versions} |"
        for s in summaries
    ]
    return "\n".join([head, rule, *rows]) + "\n"


def commit() -> str:
    """The repository's short commit, with "+" when tracked files were changed; empty outside a repository."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions(*packages: str) -> str:
    """The installed versions of `packages`, as the column of the same name has them; absent ones are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {number}" for name, number in found.items())


_SHARED = ("task", "environment", "algorithm", "implementation", "settings")
_COLUMNS = {f.name: f for f in fields(Result)}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: the folder itself is locked, so nothing is left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(path: Path, results: Iterable[Result]) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_COLUMNS), lineterminator="\n")
            writer.writeheader()
            writer.writerows(_format(result) for result in results)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _format(result: Result) -> dict[str, object]:
    row = asdict(result)
    row = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
    return row | {"curve": " ".join(f"{value:.4g}" for value in result.curve)}


def _parse(row: Mapping[str | None, str | None], where: str) -> Result:
    """A row of any schema up to this one; columns that it does not know yet take their defaults."""
    schema = row.get("schema") or ""
    if not schema.isdigit() or not 1 <= int(schema) <= SCHEMA:
        raise UserError(f"{where}: schema {schema!r} is not among those that this version reads (1 to {SCHEMA})")
    values = {}
    for name, column in _COLUMNS.items():
        text = row.get(name)
        if text is None:
            if column.default is MISSING and column.default_factory is MISSING:
                raise UserError(f"{where}: column {name!r} is missing, the table was cut short or edited")
            continue
        try:
            values[name] = tuple(map(float, text.split())) if name == "curve" else column.type(text)
        except ValueError:
            raise UserError(f"{where}: column {name!r} cannot hold {text!r}") from None
    if None in row:
        raise UserError(f"{where}: more cells than columns, the table was edited")
    return Result(**values)


def _duration(seconds: float) -> str:
    if seconds != seconds:
        return "–"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
