import jax
import jax.numpy as jnp
import pytest

from jaxppo.config import Hyperparameters
from jaxppo.schedules import Schedule, at_fraction


@pytest.mark.parametrize("text", ["0.5", "0.001:0.0", "0.2:0.1:0.5"])
def test_text_round_trip(text):
    value = Schedule.parse(text)
    assert Schedule.parse(str(value)) == value


def test_more_parts_than_three_are_refused():
    with pytest.raises(ValueError, match="START:END"):
        Schedule.parse("1:2:3:4")


def test_a_line_from_start_to_end_and_constant_afterwards():
    schedule = Schedule(2.0, 1.0, 0.5)
    assert [float(schedule.at(jnp.float32(f))) for f in (0.0, 0.25, 0.5, 0.75, 2.0)] == [2.0, 1.5, 1.0, 1.0, 1.0]


def test_every_schedule_in_the_hyperparameters_is_resolved():
    hyper = Hyperparameters().replace(learning_rate=Schedule(1.0, 0.0), surrogate={"epsilon": Schedule(0.2, 0.1)})
    now = at_fraction(hyper, jnp.float32(0.5))
    assert float(now.learning_rate) == 0.5
    assert float(now.surrogate["epsilon"]) == pytest.approx(0.15)
    assert now.gamma == hyper.gamma


def test_numbers_of_a_schedule_are_leaves():
    starts = jnp.array([1.0, 3.0])
    values = jax.vmap(lambda s: Schedule(s, 0.0).at(jnp.float32(0.5)))(starts)
    assert values.tolist() == [0.5, 1.5]
