"""A run that is written down is the same run when it is read; every setting has one name and one rule."""

import json
import math

import numpy as np
import pytest

from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig
from jaxppo.envs import make, parameters
from jaxppo.errors import UserError
from jaxppo.program import branching, configuration
from jaxppo.program.commands import train
from jaxppo.program.configuration import RunConfig, Watch
from jaxppo.schedules import Schedule

RUN = RunConfig(
    env="jaxppo/cartpole",
    env_parameters={"gravity": 9.8, "time_limit": 20, "backend": "spring", "flatten": True},
    seed=3,
    config=PPOConfig(num_envs=8, blocks=4, network=NetworkConfig(hidden=(8, 16))),
    hyper=Hyperparameters(
        learning_rate=Schedule(3e-4, 0.0), target_kl=math.inf, surrogate={"epsilon": Schedule(0.2, 0.1, 0.5)}
    ),
    watch=Watch(evaluate_every=100),
    parent={"run": "/somewhere", "steps": 10},
)


def test_json_and_back_is_the_same_run():
    text = json.dumps(configuration.to_json(RUN), allow_nan=False)
    again = configuration.from_json(json.loads(text))
    assert again == RUN
    assert '"learning_rate": "0.0003:0.0"' in text


def test_a_file_of_schema_1_stays_loadable():
    """As the first version wrote it, shortened: what is not there takes its default."""
    old = {"schema": 1, "env": "jaxppo/cartpole", "config": {"num_envs": 8}, "hyper": {"learning_rate": "1e-3:0"}}
    run = configuration.from_json(old)
    assert run.config == PPOConfig(num_envs=8) and run.hyper.learning_rate == Schedule(1e-3, 0.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"env": "x"}, "schema version"),
        ({"schema": 99, "env": "x"}, "schema version 99"),
        ({"schema": 1, "env": "x", "hypr": {}}, "did you mean hyper"),
        ({"schema": 1, "env": "x", "config": {"num_env": 4}}, "did you mean num_envs"),
        ({"schema": 1, "env": "x", "config": {"network": {"hiden": [4]}}}, "did you mean network.hidden"),
        ({"schema": 1, "env": "x", "config": {"num_envs": "many"}}, "num_envs='many' is not a whole number"),
        ({"schema": 1, "env": "x", "config": {"optimiser": "adm"}}, "did you mean adam"),
        ({"schema": 1, "env": "x", "config": {"network": 3}}, "network"),
        ({"schema": 1, "env": "x", "config": []}, "config"),
        ({"schema": 1, "env": "x", "hyper": {"learning_rate": "fast"}}, "learning_rate='fast' is not a number"),
        ({"schema": 1, "env": 3}, "env=3 is not a word"),
    ],
)
def test_what_cannot_be_read_is_said(content, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        configuration.from_json(content)


def test_settings_are_changed_by_their_flat_names():
    changed = configuration.with_settings(
        RUN,
        {
            "num_envs": "16",
            "network.hidden": "32,32",
            "learning_rate": "1e-3:0",
            "surrogate_numbers.epsilon": "0.1",
            "env_parameters.gravity": "12",
            "normalise_reward": "true",
            "blocks": "none",
            "total_steps": "1e6",
        },
    )
    assert changed.config.num_envs == 16 and changed.config.network.hidden == (32, 32)
    assert changed.config.normalise_reward and changed.config.blocks is None
    assert changed.config.total_steps == 1_000_000
    assert changed.hyper.learning_rate == Schedule(1e-3, 0.0) and changed.hyper.surrogate == {"epsilon": 0.1}
    assert changed.env_parameters["gravity"] == 12
    names = set(configuration.differences(RUN, changed))
    assert {"num_envs", "network.hidden", "surrogate_numbers.epsilon", "env_parameters.gravity"} <= names
    with pytest.raises(UserError, match="did you mean num_envs"):
        configuration.with_settings(RUN, {"num_envz": "4"})


def test_every_setting_has_a_rule_for_branches_and_every_rule_a_setting():
    names = set(configuration.settings(RUN))
    for name in names:
        branching.rule_of(name)
    stale = {
        rule for rule in branching.RULES if not any(name.partition(".")[0] == rule or name == rule for name in names)
    }
    assert stale <= {"advantage_numbers"}  # RUN names none


@pytest.mark.parametrize("words", [("physics.gravity", "-1,0,-5"), ("physics.opt.timestep", "0.005")])
def test_physics_is_a_setting_like_any_other(words):
    """Given at the command line, written down, read back, changed in a branch, and where the environment is made."""
    pytest.importorskip("brax")
    name, value = words[0], configuration.read_text(words[1])
    given = train.read(["--env", "brax/reacher", "--env-parameters", *words])[1]
    again = configuration.from_json(json.loads(json.dumps(configuration.to_json(given))))
    assert again == given and configuration.settings(again)[f"env_parameters.{name}"] == value
    found = parameters(make(again.env, **again.env_parameters))[name.removeprefix("physics.")]
    np.testing.assert_allclose(found, value)
    changed = configuration.with_settings(given, {f"env_parameters.{name}": words[1].replace("5", "4")})
    assert list(configuration.differences(given, changed)) == [f"env_parameters.{name}"]
    assert branching.renewed_parts(configuration.differences(given, changed)) == branching.Rule.EPISODES.value
