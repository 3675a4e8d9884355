import numpy as np
import pytest

from jaxppo.envs import make


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_one_nan_at_the_step_asked_for(where, play):
    _, _, step = play(make("jaxppo/nan", where=where, at=3), steps=10)
    broken = {"reward": np.isnan(step.reward), "observation": np.isnan(step.observation).all(-1)}
    for place, nan in broken.items():
        expected = np.zeros_like(nan)
        expected[2] = place == where
        np.testing.assert_array_equal(nan, expected)


def test_a_broken_start(play):
    first, _, step = play(make("jaxppo/nan", where="reset", probability=0.25), steps=10, envs=400)
    broken = np.isnan(first).all(-1)
    np.testing.assert_array_equal(broken, np.isnan(first).any(-1))
    assert 0.18 < broken.mean() < 0.32
    assert np.isfinite(step.reward).all() and np.isfinite(step.observation).all()


def test_probability(play):
    _, _, step = play(make("jaxppo/nan", at=0, probability=0.25), steps=10, envs=400)
    assert abs(np.isnan(step.reward).mean() - 0.25) < 0.03
