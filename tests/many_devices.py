"""Trains on forced host devices and prints what came out, as JSON. Run by test_sharding.py in a process of its own."""

import json
import re
import sys

import jax
import numpy as np

import jaxppo
from jaxppo.envs import make
from jaxppo.sharding import make_mesh
from jaxppo.training import make_chunk, place_state

COLLECTIVES = re.compile(r" (all-gather|all-to-all|collective-permute|all-reduce)(?:-start)?\(")


def train(devices, updates, **changes):
    environment = make("jaxppo/cartpole", time_limit=20)
    settings = dict(
        num_envs=64, num_steps=8, minibatches=2, epochs=2, normalise_observation=True, normalise_reward=True
    )
    config = jaxppo.PPOConfig(
        total_steps=512 * updates, network=jaxppo.NetworkConfig(hidden=(8,)), **(settings | changes)
    )
    mesh = make_mesh(devices) if devices else None
    algorithm = jaxppo.ppo(config, environment, mesh=mesh)
    state = jax.jit(lambda key: place_state(algorithm, algorithm.init(key), mesh))(jax.random.key(0))
    chunk = make_chunk(algorithm, updates, mesh).lower(state, updates).compile()
    state, metrics = chunk(state, updates)
    spread = {str(tuple(leaf.sharding.spec)) for leaf in jax.tree.leaves(state.carry)} if devices else set()
    return {
        "parameters": np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.device_get(state.parameters))]).tolist(),
        "samples": float(np.sum(metrics["episode_length"].total)),
        "collectives": sorted(set(COLLECTIVES.findall(chunk.as_text()))),
        "spread": sorted(spread),
        "devices": len(jax.tree.leaves(state.carry)[0].sharding.device_set),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(train(**json.loads(line))), flush=True)
