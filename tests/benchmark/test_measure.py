"""The benchmark at a size that says nothing about speed: what it reports, and that its parts are the loop's."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxppo.algorithms.ppo import ppo
from jaxppo.benchmark import benchmark
from jaxppo.benchmark.parts import make_parts
from jaxppo.cli import main
from jaxppo.config import NetworkConfig, PPOConfig
from jaxppo.envs import make

PARTS = {"environment", "forward", "sampling", "advantages", "shuffle", "gradient", "optimiser"}
TINY = PPOConfig(num_envs=64, num_steps=8, epochs=2, minibatches=4, network=NetworkConfig(hidden=(8,)))


def test_one_json_object(capsys):
    words = ["--env", "jaxppo/cartpole", "--num-envs", "64", "--num-steps", "8", "--network.hidden", "8", "--json"]
    assert main(["bench", *words, "--preset", "none", "--rounds", "2", "--seconds", "0.02"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    wanted = {"steps_per_second", "efficiency", "floor", "parts", "compile_seconds", "peak_bytes", "predicted_bytes"}
    assert wanted <= set(facts)
    assert set(facts["parts"]) == set(facts["kernels"]) == PARTS
    assert all(seconds > 0 for seconds in facts["parts"].values()) and all(n > 0 for n in facts["kernels"].values())
    assert facts["floor"] == pytest.approx(64 * 8 / sum(facts["parts"].values()), rel=0.5)
    for loop in (facts, facts["bare"]):
        low, high = loop["efficiency_range"]
        assert low <= loop["efficiency"] <= high and loop["steps_per_second"] > 0 and loop["compile_seconds"] > 0
        assert 0.3 < loop["predicted_bytes"] / loop["peak_bytes"] < 5


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--seconds", "0"], ["--num-envs", "0"], ["--env", "none/such"]])
def test_refused_in_one_line(wrong, capsys):
    assert main(["bench", "--env", "jaxppo/cartpole", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_parts_do_the_work_of_the_loop():
    """A part that is cheaper than what the loop does would make the floor a lie: every part's result is checked."""
    algorithm = ppo(TINY, make("jaxppo/cartpole"))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    parts = make_parts(algorithm, state)
    assert set(parts) == PARTS
    results = {name: jax.jit(part.run)(*part.arguments[0]) for name, part in parts.items()}

    (_, last_observation), (observation, reward, _, _) = results["environment"]
    assert observation.shape == (8, 64, 4) and last_observation.shape == (64, 4) and reward.shape == (8, 64)
    rollout = parts["forward"].arguments[0][1]
    np.testing.assert_allclose(observation, rollout, atol=1e-5)  # the rollout's actions lead to its observations
    distribution, value = results["forward"]
    assert value.shape == (8, 64)
    actions, log_prob = results["sampling"]
    np.testing.assert_allclose(log_prob, distribution.log_prob(actions), atol=1e-5)
    assert results["shuffle"].advantage.shape == (128,)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max() > 0, results["gradient"], state.parameters)
    assert any(jax.tree.leaves(moved))
    _, optimiser = results["optimiser"]
    assert int(optimiser.count) == TINY.epochs * TINY.minibatches


def test_measuring_leaves_the_caller_alone():
    result = benchmark(ppo, TINY, make("jaxppo/cartpole"), rounds=1, seconds=0.01)
    assert result.num_envs == 64 and result.minibatch_size == 128 and result.rounds == 1


def test_parts_are_as_large_as_those_of_a_loop_in_parts():
    """A chunked loop's floor is chunked too: no part holds what the loop itself never holds at once."""
    config = dataclasses.replace(TINY, chunks=2, microbatches=4)
    algorithm = ppo(config, make("jaxppo/cartpole"))
    state = jax.jit(algorithm.init)(jax.random.key(0))
    parts, whole = make_parts(algorithm, state), make_parts(ppo(TINY, make("jaxppo/cartpole")), state)
    assert parts["gradient"].arguments[0][1].advantage.shape == (32,)

    def result(parts, name):
        return jax.jit(parts[name].run)(*parts[name].arguments[0])

    assert result(parts, "shuffle").advantage.shape == (32,)
    for name in ("environment", "forward", "sampling"):
        for a, b in zip(jax.tree.leaves(result(parts, name)), jax.tree.leaves(result(whole, name)), strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=1e-5)
