"""How `bench_peers.py` and the scripts of this folder talk: JSON over stdin and stdout, one line a message."""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from typing import Any

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


def serve(
    seeds: list[int],
    *,
    train: Callable[[int], Any],
    sampled_return: Callable[[Any], Any],
    packages: tuple[str, ...],
    **fields,
) -> None:
    """Say that everything is compiled, then train one seed for each line of stdin and reply with the time it took."""
    sampled_return(train(seeds[0]))
    reply(packages=packages, **fields)
    for seed, _ in zip(seeds, sys.stdin, strict=False):
        start = time.perf_counter()
        state = train(seed)
        seconds = time.perf_counter() - start
        reply(packages=packages, seed=seed, seconds=seconds, sampled_return=float(sampled_return(state)), **fields)


def training(totals: np.ndarray, counts: np.ndarray) -> dict[str, object]:
    """The learning curve, and the mean return in the last tenth of the run.

    `totals` and `counts` [U] are the sum and the number of the returns of the episodes that ended in each update.
    """
    return {"curve": _means(totals, counts, POINTS), "training_return": _means(totals, counts, 10)[-1]}


def _means(totals: np.ndarray, counts: np.ndarray, parts: int) -> list[float]:
    """Mean return in each of so many equal parts of the run; NaN where no episode ended."""
    edges = np.linspace(0, len(counts), parts + 1).round().astype(int)
    pairs = [(totals[a:b].sum(), counts[a:b].sum()) for a, b in pairwise(edges)]
    return [float(total / count) if count else float("nan") for total, count in pairs]
