import math

import numpy as np
import pytest

from jaxppo.errors import UserError
from jaxppo.statistics import bootstrap_interval, interquartile_mean

SCORES = [
    np.array([1.0, 2.0, 4.0]),
    np.array([500.0, 480.0, 12.0, 499.0, 500.0]),
    np.random.default_rng(1).standard_cauchy(40),
]


def test_interquartile_mean_is_the_mean_of_the_middle_half():
    assert interquartile_mean([0, 1, 2, 3]) == pytest.approx(1.5)
    assert interquartile_mean([-1e9, 1, 2, 3, 1e9]) == pytest.approx(2.0)
    assert interquartile_mean([1, 2, 6]) == pytest.approx(3.0)  # a quarter of three is less than one


def test_summary_of_a_constant_is_the_constant():
    scores = np.full(5, 475.0)
    assert interquartile_mean(scores) == 475.0
    assert bootstrap_interval(scores) == (475.0, 475.0)
    assert bootstrap_interval([3.0]) == (3.0, 3.0)


@pytest.mark.parametrize("scores", SCORES, ids=lambda s: f"{len(s)}_scores")
class TestRelations:
    def test_order_does_not_matter_to_the_mean(self, scores):
        shuffled = np.random.default_rng(0).permutation(scores)
        assert interquartile_mean(shuffled) == pytest.approx(interquartile_mean(scores))

    @pytest.mark.parametrize("statistic", [interquartile_mean, np.mean, np.median])
    def test_interval_contains_the_statistic(self, scores, statistic):
        low, high = bootstrap_interval(scores, statistic=statistic)
        assert scores.min() <= low <= statistic(scores) <= high <= scores.max()

    def test_both_move_and_scale_with_the_scores(self, scores):
        moved = 10.0 + 2.0 * scores
        assert interquartile_mean(moved) == pytest.approx(10.0 + 2.0 * interquartile_mean(scores))
        assert bootstrap_interval(moved) == pytest.approx([10.0 + 2.0 * end for end in bootstrap_interval(scores)])

    def test_more_confidence_is_a_wider_interval(self, scores):
        narrow, wide = bootstrap_interval(scores, confidence=0.5), bootstrap_interval(scores, confidence=0.99)
        assert wide[0] <= narrow[0] and narrow[1] <= wide[1]

    def test_same_seed_same_interval(self, scores):
        assert bootstrap_interval(scores, seed=3) == bootstrap_interval(scores, seed=3)


def test_interval_narrows_with_the_root_of_the_number_of_seeds():
    widths = [np.diff(bootstrap_interval(np.random.default_rng(2).normal(size=n)))[0] for n in (100, 1600)]
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.25)


@pytest.mark.parametrize("summary", [interquartile_mean, bootstrap_interval])
def test_scores_that_mean_nothing_are_refused(summary):
    with pytest.raises(UserError, match="no scores"):
        summary([])
    with pytest.raises(UserError, match="1 of 3 scores are NaN"):
        summary([1.0, math.nan, 2.0])


@pytest.mark.parametrize("field, value", [("confidence", 1.0), ("confidence", 95), ("resamples", 0)])
def test_settings_that_mean_nothing_are_refused(field, value):
    with pytest.raises(UserError, match=f"{field}={value}"):
        bootstrap_interval([1.0, 2.0], **{field: value})


def test_scores_of_several_dimensions_have_no_seed_axis():
    with pytest.raises(UserError, match=r"shape \(2, 3\)"):
        bootstrap_interval(np.zeros((2, 3)))
