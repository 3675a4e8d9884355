"""How a handful of seeds is summarised: a robust mean and an interval that says how far it can be trusted."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from jaxppo.errors import UserError


def interquartile_mean(scores: ArrayLike, *, axis: int | None = None) -> np.ndarray | float:
    """The mean of the middle half: a quarter of the scores is cut from each end, rounded down.

    Three seeds are averaged whole, of five the best and the worst are left out. `axis=None` pools all scores.
    (Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021.)
    """
    from scipy.stats import trim_mean

    return trim_mean(_checked(scores), 0.25, axis=axis)  # type: ignore[arg-type]  (None pools, its stub forgets)


def bootstrap_interval(
    scores: ArrayLike,
    *,
    statistic: Callable[..., ArrayLike] = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """(low, high): the percentile bootstrap interval of `statistic` over the seeds `scores` [S].

    `statistic(samples, axis=-1)` reduces the last axis, as `numpy.mean` does. The same seed gives the same interval.
    With S scores the interval lies between the lowest and the highest of them: for three seeds it is honest about
    the spread that was seen and silent about what was not. One score gives an interval of no width.
    """
    scores = _checked(scores)
    if scores.ndim != 1:
        raise UserError(f"bootstrap_interval needs one score a seed, got an array of shape {scores.shape}")
    if not 0.0 < confidence < 1.0:
        raise UserError(f"confidence={confidence} is not between 0 and 1; use for example 0.95")
    if resamples < 1:
        raise UserError(f"resamples={resamples} is not positive; use for example 2000")
    draws = np.random.default_rng(seed).integers(scores.size, size=(resamples, scores.size))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.asarray(statistic(scores[draws], axis=-1)), [tail, 1.0 - tail])
    return float(low), float(high)


def _checked(scores: ArrayLike) -> np.ndarray:
    """The scores as float64, refused where a summary of them would mean nothing."""
    scores = np.asarray(scores, np.float64)
    if scores.size == 0:
        raise UserError("no scores to summarise: give at least one seed")
    if missing := int(np.isnan(scores).sum()):
        raise UserError(f"{missing} of {scores.size} scores are NaN; leave out or repeat the runs that failed")
    return scores
