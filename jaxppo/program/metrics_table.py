"""Where metrics go: the protocol of a sink, and the embedded default, a table in a CSV file.

The table has one row an update: `update`, `steps` (environment steps so far), `seconds` (of wall time so far), then
every metric's mean, empty where nothing was counted. Rows are only ever appended. A checkpoint remembers the table's
`Position` (length and SHA-256), so a resumed run cuts the table back to it, whatever a killed process left behind it,
and notices when what lies before it was changed.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from jaxppo.errors import UserError

SCHEMA = 1

Row = dict[str, float | int | None]


class Sink(Protocol):
    """Takes rows as they come; each has the same names in the same order, None where nothing was counted."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


class Position(NamedTuple):
    """An end of the table: its length in bytes and the SHA-256 of everything before it."""

    length: int
    sha256: str


class MetricsTable:
    """The sink of every run. Use `create` or `reopen`."""

    def __init__(self, path: Path, columns: Sequence[str], digest: "hashlib._Hash", length: int):
        self.path, self.columns = path, tuple(columns)
        self._digest, self._length = digest, length
        self._file = open(path, "ab", buffering=0)

    @classmethod
    def create(cls, path: Path, columns: Sequence[str]) -> "MetricsTable":
        """A new table with its header. Raises OSError."""
        table = cls(path, columns, hashlib.sha256(), 0)
        table._append(",".join(columns) + "\n")
        return table

    @classmethod
    def reopen(cls, path: Path, columns: Sequence[str], position: Position) -> "MetricsTable":
        """The table as it was at `position`; later rows are cut off.

        Raises UserError where what lies before `position` is not what was written, and OSError.
        """
        try:
            with open(path, "rb") as file:
                kept = file.read(position.length)
        except FileNotFoundError:
            raise UserError(f"{path} is missing; {_ADVICE}") from None
        digest = hashlib.sha256(kept)
        if len(kept) < position.length or digest.hexdigest() != position.sha256:
            raise UserError(f"{path} was changed or cut after it was written; {_ADVICE}")
        header = kept.split(b"\n", 1)[0].decode()
        if header != ",".join(columns):
            raise UserError(f"{path} has other columns than this version of jaxppo writes; {_ADVICE}")
        os.truncate(path, position.length)
        return cls(path, columns, digest, position.length)

    @property
    def position(self) -> Position:
        return Position(self._length, self._digest.hexdigest())

    def write(self, rows: Sequence[Row]) -> None:
        """Appends `rows`, all or none. Raises OSError where the disk is full."""
        lines = (",".join(_cell(row[column]) for column in self.columns) for row in rows)
        self._append("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        self._file.close()

    def _append(self, text: str) -> None:
        content = text.encode()
        try:
            written = self._file.write(content)
            while written < len(content):
                written += self._file.write(content[written:])
        except OSError:
            os.truncate(self.path, self._length)
            raise
        self._digest.update(content)
        self._length += len(content)


class NoTable:
    """The sink of a process that writes nothing."""

    position = Position(0, "")

    def write(self, rows: Sequence[Row]) -> None:
        pass

    def close(self) -> None:
        pass


_ADVICE = "put it back, or go on from the checkpoint in a new run with `jaxppo branch`"


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def read_table(path: Path) -> dict[str, np.ndarray]:
    """The table by column, float64 [rows], NaN where a cell is empty. A last line without its end is left out.

    Raises UserError, naming the line, where it is no table of a run.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: no metrics here") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not a text file") from None
    header, *lines = text.split("\n")[:-1] or [""]
    columns = header.split(",")
    if columns[:3] != ["update", "steps", "seconds"] or len(set(columns)) < len(columns):
        raise UserError(f"{path} is damaged: line 1 is not the header of a metrics table")
    values = np.full((len(lines), len(columns)), np.nan)
    for i, line in enumerate(lines):
        cells = line.split(",")
        try:
            values[i] = [float(cell) if cell else math.nan for cell in cells]
            valid = values[i, 0] == values[0, 0] + i  # updates follow each other; a NaN is not valid either
        except ValueError:
            valid = False
        if not valid:
            raise UserError(f"{path} is damaged: line {i + 2} is not the row of the next update")
    return dict(zip(columns, values.T, strict=True))
