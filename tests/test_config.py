import dataclasses
import math

import jax.numpy as jnp
import pytest

from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig, check_config, check_hyperparameters
from jaxppo.errors import UserError
from jaxppo.schedules import Schedule

FIELDS = [f.name for f in dataclasses.fields(PPOConfig) if f.type == "int" or f.type is int]


def test_defaults_are_valid():
    check_config(PPOConfig())
    check_hyperparameters(Hyperparameters())


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [0, -3, 1.5, True])
def test_sizes_are_whole_numbers_of_at_least_one(name, value):
    with pytest.raises(UserError, match=name):
        check_config(dataclasses.replace(PPOConfig(), **{name: value}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_envs": 100, "blocks": 8}, "num_envs=100 .* use 96 or 104"),
        ({"num_envs": 8, "num_steps": 8, "minibatches": 3}, "minibatches=3 .* use 2 or 4"),
        ({"num_envs": 8, "num_steps": 8, "microbatches": 3}, "microbatches=3 .* minibatches=4.; use 1 or 2"),
        ({"num_envs": 8, "num_steps": 8, "microbatches": 0}, "microbatches=0 must be"),
        ({"num_envs": 8, "chunks": 3}, "into 3 chunks of environments; use 2 or 4"),
        ({"num_envs": 8, "group_size": 3}, "groups of 3; use 6 or 9"),
        ({"num_envs": 96, "reset": "optimistic"}, "use 64 or 128, or set reset_group=32"),
        ({"truncation": "bootstap"}, "did you mean bootstrap"),
        ({"optimiser": "adm"}, "did you mean adam"),
        ({"network": NetworkConfig(activation="tan")}, "did you mean tanh"),
        ({"network": NetworkConfig(hidden=(0,))}, "widths"),
    ],
)
def test_an_impossible_configuration_says_what_would_be_possible(changes, says):
    with pytest.raises(UserError, match=says):
        check_config(dataclasses.replace(PPOConfig(), **changes))


@pytest.mark.parametrize("blocks", [0, -1])
def test_blocks_of_less_than_one_are_refused(blocks):
    with pytest.raises(UserError, match="blocks"):
        check_config(dataclasses.replace(PPOConfig(), blocks=blocks))


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": -1.0},
        {"learning_rate": math.nan},
        {"gamma": 1.01},
        {"gamma": Schedule(0.9, 1.5)},
        {"target_kl": -0.1},
        {"surrogate": {"epsilon": math.nan}},
        {"learning_rate": Schedule(1e-3, 0.0, -1.0)},
        {"learning_rate": Schedule(1e-3, 0.0, 0.0)},
    ],
)
def test_numbers_out_of_range_are_refused_by_name(changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        check_hyperparameters(Hyperparameters().replace(**changes))


def test_traced_and_batched_numbers_are_left_alone():
    check_hyperparameters(Hyperparameters().replace(learning_rate=jnp.array([1e-3, 1e-4])))


def test_updates_are_rounded_up():
    config = PPOConfig(total_steps=1000, num_envs=8, num_steps=16)
    assert (config.steps_per_update, config.num_updates) == (128, 8)
