"""How `bench_peers.py` and the scripts of this folder talk: JSON over stdin and stdout, one line a message."""

import json
import sys
from importlib.metadata import version
from itertools import pairwise

import numpy as np

EPISODES = 128
"""Episodes of an evaluation, for each of the two policies (mode and stochastic)."""

POINTS = 20
"""Points of a learning curve."""


def request() -> tuple[dict, list[int]]:
    """(fields of the task, seeds), read from the first line of stdin."""
    message = json.loads(sys.stdin.readline())
    return message["task"], message["seeds"]


def reply(*, packages: tuple[str, ...], **fields) -> None:
    """Print one result, with the versions that made it."""
    versions = {name: version(name) for name in ("jax", *packages)}
    print(json.dumps({**fields, "versions": versions}), flush=True)


def curve(totals: np.ndarray, counts: np.ndarray) -> list[float]:
    """Mean return of the episodes that finished in each twentieth of the run; NaN where none did.

    `totals` and `counts` [U] are the sum and the number of the returns that were finished in each update.
    """
    edges = np.linspace(0, len(counts), POINTS + 1).round().astype(int)
    pairs = [(totals[a:b].sum(), counts[a:b].sum()) for a, b in pairwise(edges)]
    return [float(total / count) if count else float("nan") for total, count in pairs]
