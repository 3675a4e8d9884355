"""A run that is written down is the same run when it is read; every setting has one name and one rule."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxppo import presets
from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig
from jaxppo.envs import make, parameters
from jaxppo.errors import UserError
from jaxppo.losses import SURROGATES
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


def test_none_takes_a_setting_of_any_name_away():
    run = dataclasses.replace(RUN, hyper=RUN.hyper.replace(advantage={"lam": 0.9, "other": 1.0}))
    names = ("surrogate_numbers.epsilon", "advantage_numbers.lam", "env_parameters.gravity")
    changed = configuration.with_settings(run, dict.fromkeys(names, "none"))
    assert configuration.differences(run, changed).keys() == set(names)
    assert configuration.settings(run).keys() - configuration.settings(changed).keys() == set(names)
    for name in ("surrogate_numbers.epsilom", "advantage_numbers.gamma", "env_parameters.length"):
        with pytest.raises(UserError, match=f"{name}=none takes away what is not set"):
            configuration.with_settings(run, {name: "none"})


@pytest.mark.parametrize(
    ("changes", "gone", "surrogate", "advantage"),
    [
        ({}, (), {"epsilon": 0.3, "dual_clip": 3.0}, {"lam": 0.9}),
        ({"surrogate": "ppo_clip"}, (), {"epsilon": 0.3, "dual_clip": 3.0}, {"lam": 0.9}),
        ({"surrogate": "spo"}, ("surrogate_numbers.epsilon", "surrogate_numbers.dual_clip"), {}, {"lam": 0.9}),
        (
            {"surrogate": "spo", "surrogate_numbers.epsilon": "0.1"},
            ("surrogate_numbers.dual_clip",),
            {"epsilon": 0.1},
            {"lam": 0.9},
        ),
        (
            {"surrogate": "spo", "surrogate_numbers.epsilon": "none", "advantage_numbers.lam": "none"},
            ("surrogate_numbers.dual_clip",),
            {},
            {},
        ),
        ({"advantage": "grpo"}, ("advantage_numbers.lam",), {"epsilon": 0.3, "dual_clip": 3.0}, {}),
        ({"advantage": "grpo", "advantage_numbers.x": "2"}, ("advantage_numbers.lam",), None, {"x": 2.0}),
    ],
)
def test_numbers_stay_with_the_surrogate_and_the_estimator_that_they_are_of(changes, gone, surrogate, advantage):
    run = dataclasses.replace(
        RUN, hyper=RUN.hyper.replace(surrogate={"epsilon": 0.3, "dual_clip": 3.0}, advantage={"lam": 0.9})
    )
    new, left = branching.changed(run, changes)
    assert left == gone
    assert new.hyper.surrogate == (run.hyper.surrogate if surrogate is None else surrogate)
    assert new.hyper.advantage == advantage
    assert new.hyper.learning_rate == run.hyper.learning_rate


def test_an_alias_is_the_same_surrogate_and_an_unknown_one_is_refused():
    run = dataclasses.replace(
        RUN, config=PPOConfig(surrogate="spo"), hyper=RUN.hyper.replace(surrogate={"epsilon": 0.3})
    )
    (alias, *_) = SURROGATES.get("spo").aliases
    new, gone = branching.changed(run, {"surrogate": alias})
    assert new.hyper == run.hyper and gone == ()
    assert branching.changed(new, {"surrogate": "spo"})[1] == ()
    with pytest.raises(UserError, match="unknown surrogate 'sppo'; did you mean"):
        branching.changed(run, {"surrogate": "sppo"})
    elsewhere = dataclasses.replace(run, config=PPOConfig(surrogate="registered_in_a_script"))
    assert branching.changed(elsewhere, {"surrogate": "spo"})[1] == ("surrogate_numbers.epsilon",)


def test_numbers_of_a_preset_stay_with_its_surrogate(monkeypatch):
    preset = presets.Preset("jaxppo/cartpole", hyper={"surrogate": {"epsilon": 0.3}, "advantage": {"lam": 0.9}})
    monkeypatch.setitem(presets.PRESETS, "mine", preset)

    def numbers(*flags):
        hyper = train.read(["--preset", "mine", *flags])[1].hyper
        return hyper.surrogate, hyper.advantage

    assert numbers() == ({"epsilon": 0.3}, {"lam": 0.9})
    assert numbers("--surrogate", "spo") == ({}, {"lam": 0.9})
    given = ("--surrogate", "spo", "--surrogate-numbers", "epsilon", "0.4", "--advantage-numbers", "lam", "0.8")
    assert numbers(*given) == ({"epsilon": 0.4}, {"lam": 0.8})


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
