"""The table is append-only, repaired after a kill, and never believed when it was changed."""

import numpy as np
import pytest

from jaxppo.errors import UserError
from jaxppo.program.metrics_table import MetricsTable, read_table

COLUMNS = ("update", "steps", "seconds", "episode_return")


def rows(*updates):
    return [
        {"update": i, "steps": 8 * i, "seconds": 0.5 * i, "episode_return": None if i % 2 else -1.5} for i in updates
    ]


@pytest.fixture
def table(tmp_path):
    table = MetricsTable.create(tmp_path / "metrics.csv", COLUMNS)
    table.write(rows(1, 2))
    yield table
    table.close()


def test_what_was_written_is_read(table):
    found = read_table(table.path)
    np.testing.assert_array_equal(found["update"], [1, 2])
    np.testing.assert_array_equal(found["episode_return"], [np.nan, -1.5])


def test_reopened_it_goes_on_where_it_was(table):
    position = table.position
    table.write(rows(3, 4, 5))
    with open(table.path, "ab") as file:
        file.write(b"6,4")  # a process was killed here
    again = MetricsTable.reopen(table.path, COLUMNS, position)
    again.write(rows(3))
    again.close()
    np.testing.assert_array_equal(read_table(table.path)["update"], [1, 2, 3])
    table.write([])  # the digest goes on too
    assert MetricsTable.reopen(table.path, COLUMNS, again.position).position == again.position


@pytest.mark.parametrize(
    "change",
    [lambda b: b[:-3], lambda b: b.replace(b"-1.5", b"99.5"), lambda b: b"", lambda b: b.replace(b"update", b"upbeat")],
)
def test_a_changed_table_is_refused_and_left_alone(table, change):
    damaged = change(table.path.read_bytes())
    table.path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"metrics\.csv was changed or cut"):
        MetricsTable.reopen(table.path, COLUMNS, table.position)
    assert table.path.read_bytes() == damaged


def test_a_torn_last_line_is_left_out_of_what_is_read(table):
    with open(table.path, "ab") as file:
        file.write(b"3,24,1.5,7")
    np.testing.assert_array_equal(read_table(table.path)["update"], [1, 2])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda b: b.replace(b"2,16", b"two,16"), 3),
        (lambda b: b.replace(b"2,16", b"5,16"), 3),
        (lambda b: b.replace(b"1,8,", b"1,8,9,"), 2),
        (lambda b: b"\xff\xfe" + b, None),
        (lambda b: b"hello\n" + b, 1),
        (lambda b: b"", 1),
    ],
)
def test_a_garbled_table_is_refused_by_line(table, change, line):
    table.path.write_bytes(change(table.path.read_bytes()))
    with pytest.raises(UserError, match="damaged" if line is None else f"damaged: line {line} "):
        read_table(table.path)


def test_a_full_disk_leaves_whole_rows(table, monkeypatch):
    before, position = table.path.read_bytes(), table.position

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, content):
            self.file.write(content[:5])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(table, "_file", Full(table._file))
    with pytest.raises(OSError, match="No space"):
        table.write(rows(3))
    monkeypatch.undo()
    assert table.path.read_bytes() == before and table.position == position
    table.write(rows(3))
    np.testing.assert_array_equal(read_table(table.path)["update"], [1, 2, 3])
