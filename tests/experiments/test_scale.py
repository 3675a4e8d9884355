"""The growth study: every size is a possible configuration, and the page says what the table says."""

import dataclasses

import pytest

from experiments import scale
from jaxppo.config import check_config
from jaxppo.errors import UserError


@pytest.mark.parametrize("environment", scale.ENVIRONMENTS)
def test_every_size_can_run(environment):
    for exponent in scale.SIZES:
        config = scale.configuration(environment, exponent)
        check_config(config)
        assert config.num_envs == 2**exponent
        assert config.steps_per_update <= max(scale.SAMPLES[environment], 4 * config.num_envs)
        held = config.steps_per_update // config.minibatches // config.microbatches
        assert held <= scale.MINIBATCH


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "TABLE", tmp_path / "scale.csv")
    monkeypatch.setattr(scale, "MILLION", tmp_path / "million.csv")
    monkeypatch.setattr(scale, "PAGE", tmp_path / "scale.md")
    return tmp_path


def test_an_empty_table_is_no_page(tables):
    with pytest.raises(UserError, match=r"experiments\.scale"):
        scale.page()


def test_the_page_comes_from_the_tables(tables):
    row = scale.Row("jaxppo/cartpole", 64, 128, 1, 1, 2e5, 0.91, 4.0, 2**20, 2**21, "cpu", "jax 0.9.2", "abc")
    for number in (4096, 64):  # in any order
        scale.append(scale.TABLE, dataclasses.asdict(dataclasses.replace(row, num_envs=number)))
    assert [r.num_envs for r in scale.read()] == [4096, 64] and scale.read()[1] == row
    names = ("update", "steps", "evaluation_return", "seconds", "steps_per_second", "peak_bytes", "resident_bytes")
    for update, score in ((1, 20.5), (2, 480.0)):
        values = (update, update * 2**24, score, 60 * update, 250000, 2**30, 2**31)
        scale.append(scale.MILLION, dict(zip(names, values, strict=True)))
    scale.page()
    text = scale.PAGE.read_text()
    assert text.index("| 2^6 | 128 |") < text.index("| 2^12 | 128 |")
    assert "200,000 | 0.91 | 4.0 s | 1 MiB | 16,384 | 2.00 × |" in text
    assert "After 2 updates (33,554,432 steps, 2 minutes): return of the mode 480.0" in text
    assert (tables / "scale.png").stat().st_size > 1000
