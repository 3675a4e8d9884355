"""The memory plan against what XLA allocates, and the remedies that it names."""

import re

import jax
import pytest

from jaxppo.algorithms.ppo import ppo
from jaxppo.config import NetworkConfig, PPOConfig
from jaxppo.envs import make
from jaxppo.errors import UserError
from jaxppo.memory import check_memory, plan

SHAPE = dict(total_steps=10**9, num_envs=4096, num_steps=32, network=NetworkConfig(hidden=(32, 32)))


def allocated(algorithm):
    state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
    compiled = jax.jit(algorithm.update, donate_argnums=0).lower(state).compile().memory_analysis()
    total = compiled.argument_size_in_bytes + compiled.temp_size_in_bytes + compiled.output_size_in_bytes
    return total - compiled.alias_size_in_bytes


@pytest.mark.parametrize("changes", [{}, {"microbatches": 8, "chunks": 4}], ids=["whole", "in parts"])
def test_the_plan_is_near_what_is_allocated(changes):
    algorithm = ppo(PPOConfig(**SHAPE, **changes), make("jaxppo/cartpole"))
    assert 0.8 < plan(algorithm).total / allocated(algorithm) < 1.7


def algorithm(**changes):
    return ppo(PPOConfig(**{**SHAPE, **changes}), make("jaxppo/cartpole"))


def test_parts_scale_as_they_should():
    whole, half = plan(algorithm()), plan(algorithm(num_envs=2048))
    assert half.rollout == whole.rollout // 2 and half.activations == pytest.approx(whole.activations / 2, rel=0.01)
    assert plan(algorithm(microbatches=4)).activations == pytest.approx(whole.activations / 4, rel=0.01)
    assert plan(algorithm(chunks=4)).acting < whole.acting
    assert plan(algorithm(), devices=2).rollout == whole.rollout // 2
    assert whole.scaled(microbatches=4).activations == pytest.approx(whole.activations / 4, rel=0.01)


def test_what_fits_is_let_through():
    needed = plan(algorithm()).total
    assert check_memory(algorithm(), available=2 * needed).total == needed


def test_a_remedy_that_is_named_helps():
    """Whatever is advised is tried, and fits."""
    available = plan(algorithm()).total // 2
    with pytest.raises(UserError, match=r"4096 environments × 32 steps need about .* are free; ") as refusal:
        check_memory(algorithm(), available=available)
    remedies = re.findall(r"(microbatches|chunks|num_envs)=(\d+)", str(refusal.value))
    assert {"microbatches", "num_envs"} <= {name for name, _ in remedies}
    for name, value in remedies:
        check_memory(algorithm(**{name: int(value)}), available=available)


def test_nothing_helps_but_less():
    with pytest.raises(UserError, match=r"take num_envs=|smaller network"):
        check_memory(algorithm(), available=2**18)
