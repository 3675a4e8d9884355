"""Times a reset against a step, the ground for the reset strategy in each spec.

    python experiments/reset_strategies.py gymnax/CartPole-v1 brax/ant --envs 256

Under vmap a fresh reset is computed in every step, needed or not; `pool` costs P resets an update, next to nothing.
The rule: `fresh`, which has no bias, while a reset costs no more than 5 % of a training step, the environment's step
and the learner's share (4 microseconds for a small network on vectors, 10 on pictures, on one core); otherwise `pool`.
The clock is processor time, so that what else the machine does matters little.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp

from jaxppo.envs import listing, make


def timed(function, *arguments, seconds: float = 0.2) -> float:
    """Seconds of processor time a call, compiled before; the best of three runs of about `seconds`."""
    jax.block_until_ready(function(*arguments))
    start = time.process_time()
    jax.block_until_ready(function(*arguments))
    repeats = max(1, int(seconds / (time.process_time() - start)))
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for _ in range(repeats):
            outcome = function(*arguments)
        jax.block_until_ready(outcome)
        best = min(best, (time.process_time() - start) / repeats)
    return best


def measure(name: str, envs: int, steps: int = 16) -> dict:
    """Microseconds of one environment's reset and step, in a batch, inside a scan as in training."""
    env = make(name)
    keys = jax.random.split(jax.random.key(0), envs)
    action = jnp.zeros((envs, *env.spec.action.shape), env.spec.action.dtype)
    state, _ = jax.jit(jax.vmap(env.reset))(keys)

    def stepped(state):
        def step(state, key):
            state, outcome = jax.vmap(env.step)(jax.random.split(key, envs), state, action)
            return state, outcome.reward

        return jax.lax.scan(step, state, jax.random.split(keys[0], steps))

    def reset(key):
        def once(_, key):
            return jax.vmap(env.reset)(jax.random.split(key, envs)), None

        first = jax.vmap(env.reset)(jax.random.split(key, envs))
        return jax.lax.scan(once, first, jax.random.split(key, steps))[0]

    step_us = timed(jax.jit(stepped), state) / steps / envs * 1e6
    reset_us = timed(jax.jit(reset), keys[0]) / (steps + 1) / envs * 1e6
    pictures = any(len(space.shape) > 1 for space in jax.tree.leaves(env.spec.observation))
    learner_us = 10.0 if pictures else 4.0
    strategy = "fresh" if reset_us < 0.05 * (step_us + learner_us) else "pool"
    return {
        "env": name,
        "envs": envs,
        "step_us": round(step_us, 3),
        "reset_us": round(reset_us, 3),
        "ratio": round(reset_us / step_us, 2),
        "rule": strategy,
        "spec": env.spec.reset,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="environments; all playable ones where none is given")
    parser.add_argument("--envs", type=int, default=256)
    options = parser.parse_args()
    for name in options.names or [row.name for row in listing() if row.playable]:
        print(json.dumps(measure(name, options.envs)), flush=True)


if __name__ == "__main__":
    main()
