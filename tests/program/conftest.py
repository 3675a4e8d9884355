"""A tiny algorithm in place of PPO, so that the program around it is tested without long compilations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxppo.cli import main
from jaxppo.config import Hyperparameters
from jaxppo.program import configuration, runner
from jaxppo.program.commands import session
from jaxppo.schedules import at_fraction
from jaxppo.types import Algorithm, Counter, Mean


class State(NamedTuple):
    parameters: Any
    optimiser: Any
    statistics: Any
    reward_statistics: Any
    surrogate_state: Any
    advantage_state: Any
    hyper: Hyperparameters
    env: Any
    carry: Any
    key: Any
    samples: Counter
    updates: Any


class Episodes(NamedTuple):
    episode_return: Any
    episode_length: Any
    finished: Any
    valid: Any


def tiny(run: configuration.RunConfig) -> Algorithm:
    """A random walk whose step is the learning rate; every third update no episode ends, and it can make NaNs."""
    config = run.config

    def init(key, hyper, environment=None):
        carry = {"position": jnp.zeros((config.num_envs, 2)), "nothing": jnp.zeros((config.num_envs, 0))}
        return State(
            parameters={"kernel": jax.random.normal(key, config.network.hidden)},
            optimiser=({"momentum": jnp.zeros(config.network.hidden)}, jnp.int32(0)),
            statistics=(None, jnp.ones((3,), jnp.bfloat16)),
            reward_statistics=(),
            surrogate_state=jnp.zeros((), bool),
            advantage_state=(),
            hyper=jax.tree.map(jnp.float32, hyper),
            env={"gravity": jnp.float32(run.env_parameters.get("gravity", 9.8))},
            carry=carry,
            key=(key, jax.random.key_data(key)),
            samples=Counter.zero(),
            updates=jnp.int32(0),
        )

    def update(state):
        key, draw = jax.random.split(state.key[0])
        noise = jax.random.normal(draw, config.network.hidden)
        bad = state.updates == run.env_parameters.get("nan_at", -1)
        noise = jnp.log(jnp.where(bad, -1.0, 1.0)) + noise
        learning_rate = at_fraction(state.hyper, state.samples.fraction_of(640.0)).learning_rate
        parameters = {"kernel": state.parameters["kernel"] + learning_rate * noise}
        total = parameters["kernel"].sum()
        ended = jnp.float32(state.updates % 3 != 2)
        following = state._replace(
            parameters=parameters,
            key=(key, state.key[1]),
            samples=state.samples.add(config.steps_per_update),
            updates=state.updates + 1,
        )
        return following, {
            "episode_return": Mean(total * ended, ended),
            "episode_return_square": Mean(total**2 * ended, ended),
            "episode_length": Mean(5.0 * ended, ended),
            "entropy": Mean(noise.sum(), jnp.float32(noise.size)),
        }

    def evaluate(state, key, *, mode=True, episodes=64):
        returns = state.parameters["kernel"].sum() + (0.0 if mode else 1.0) + jax.random.normal(key, (episodes,))
        return Episodes(returns, jnp.full((episodes,), 5), *[jnp.ones((episodes,), bool)] * 2)

    unused = dict.fromkeys(Algorithm._fields)
    return Algorithm(**{**unused, "init": init, "update": update, "evaluate": evaluate, "config": config})


@pytest.fixture
def fake(monkeypatch):
    """`main` trains the tiny algorithm, whatever the environment is called."""

    def build(run, mesh=None):
        configuration.check(run)
        return tiny(run)

    monkeypatch.setattr(runner, "build", build)
    monkeypatch.setattr(session, "check_memory", lambda *_, **__: None)


SMALL = ["--num-envs", "4", "--num-steps", "8", "--minibatches", "2", "--network.hidden", "8", "--quiet"]


@pytest.fixture
def train(tmp_path, fake):
    """train(name, *flags) makes a run of 20 small updates and returns its directory."""

    def run(name, *flags):
        path = tmp_path / name
        assert main(["train", "--env", "tiny/walk", "--run", str(path), "--total-steps", "640", *SMALL, *flags]) == 0
        return path

    return run


@pytest.fixture
def refused(capsys):
    """refused(*arguments): `main` leaves with code 2 and one line, which is returned."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert code == 2, f"exit code {code}: {said}"
        assert said.err.startswith("jaxppo: error: ") and said.err.count("\n") == 1, said.err
        return said.err

    return run
