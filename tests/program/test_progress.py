"""What is shown while a run goes on, and in its picture."""

import io

import numpy as np
import pytest

from jaxppo import plotting, presets
from jaxppo.config import check_config, check_hyperparameters
from jaxppo.errors import UserError
from jaxppo.program import progress
from jaxppo.program.progress import Lines, Report, describe


def report(steps=500, **changes):
    values = {"episode_return": 21.25, "spread": 9.8, "episode_length": 21.0, **changes}
    return Report(steps, 1000, 98_000.4, 5.2, **values)


def test_a_line_says_it_all():
    assert describe(report()) == "500 of 1,000 steps · 98,000/s · return 21.25 ± 9.8 · length 21 · 0:05 left"
    assert "no episode finished yet" in describe(report(episode_return=None, spread=None, episode_length=None))
    evaluation = {"evaluation_return": 35.0, "evaluation_deviation": 4.0}
    assert "evaluated 35 ± 4" in describe(report(evaluation=evaluation))
    assert "compiled in 3.5 s" in describe(report(compiled=3.5)) and "/s" not in describe(report(compiled=3.5))
    assert (progress.clock(59.6), progress.clock(3723)) == ("1:00", "1:02:03")


def test_lines_come_at_intervals_and_at_the_end():
    stream = io.StringIO()
    lines = Lines(stream, interval=1000.0)
    for steps in (100, 200, 300, 1000):
        lines.show(report(steps))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["100", "1,000"]


def test_quiet_shows_nothing(capsys):
    shown = progress.choose(1000, quiet=True)
    shown.show(report())
    shown.close()
    assert capsys.readouterr() == ("", "")


def test_the_curve_leaves_out_updates_without_an_episode():
    returns = np.array([1.0, np.nan, 3.0, np.nan])
    table = {"steps": np.arange(4.0), "episode_return": returns, "episode_return_square": np.square(returns) + 4.0}
    steps, mean, deviation = plotting.smoothed(table)
    np.testing.assert_array_equal(steps, [0, 2])
    np.testing.assert_array_equal(mean, [1, 3])
    np.testing.assert_allclose(deviation, 2.0)
    assert plotting.smoothed({**table, "episode_return": np.full(4, np.nan)})[0].shape == (0,)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_sound(name):
    config, hyper = presets.find(name).settings()
    check_config(config)
    check_hyperparameters(hyper)


def test_a_preset_of_ones_own(monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", dict(presets.PRESETS))
    mine = presets.register("mine", presets.Preset("mylab/maze", config={"network": {"hidden": (8,)}}))
    assert presets.find("mine") is mine is presets.preset_of("mylab/maze")
    assert mine.settings()[0].network.hidden == (8,)
    with pytest.raises(UserError, match="registered already"):
        presets.register("mine", mine)
