"""Every recipe is lowered for accelerators on a machine without one, so that nothing that only a CPU has creeps in."""

import jax
import jax.export
import pytest

from jaxppo.algorithms.ppo import ppo
from jaxppo.config import NetworkConfig, PPOConfig
from jaxppo.envs import make

PLATFORMS = ("cuda", "tpu", "cpu")
SHAPE = dict(num_envs=64, num_steps=8, minibatches=2, normalise_observation=True, normalise_reward=True)

CASES = {
    "discrete": ("jaxppo/cartpole", {}),
    "gaussian": ("jaxppo/lqr", {"distribution": "gaussian"}),
    "tanh": ("brax/inverted_pendulum", {"distribution": "tanh_gaussian"}),
    "beta": ("gymnax/Pendulum-v1", {"distribution": "beta"}),
    "sorted": ("jaxppo/cartpole", {"shuffle": "sort", "optimiser": "rmsprop"}),
    "in parts": ("jaxppo/cartpole", {"chunks": 4, "microbatches": 2, "recompute_advantage": True}),
    "image": ("gymnax/Breakout-MinAtar", {"network": NetworkConfig(hidden=(16,), compute="bfloat16")}),
}


@pytest.mark.parametrize("name", CASES)
def test_ppo_is_lowered_for_cuda_and_tpu(name):
    environment, changes = CASES[name]
    config = PPOConfig(**{**SHAPE, "network": NetworkConfig(hidden=(8,)), **changes})
    algorithm = ppo(config, make(environment))
    state = jax.eval_shape(algorithm.init, jax.eval_shape(lambda: jax.random.key(0)))
    leaves, structure = jax.tree.flatten(state)

    def update(leaves):  # exported programs take tuples and dicts only
        following, metrics = algorithm.update(jax.tree.unflatten(structure, leaves))
        return jax.tree.leaves(following), jax.tree.leaves(metrics)

    exported = jax.export.export(jax.jit(update), platforms=PLATFORMS)(leaves)
    assert exported.platforms == PLATFORMS
    assert len(exported.mlir_module_serialized) > 0
    outputs = [(a.shape, a.dtype) for a in exported.out_avals]
    assert outputs[: len(leaves)] == [(x.shape, x.dtype) for x in leaves]
