"""Time our whole loop on one task whenever it is told to, with all that is on by default.

The other side of `speed_rejax`, under our own Python. Messages as in `protocol.serve`.
"""

import sys
import time
from pathlib import Path

import jax
import protocol

sys.path.append(str(Path(__file__).parents[2]))

from experiments.benchmark import configure, environment
from experiments.tasks import TASKS
from jaxppo import make_train, ppo


def main() -> None:
    fields, seeds = protocol.request()
    sizes = ("num_envs", "num_steps", "epochs", "minibatches", "microbatches", "total_steps")
    task = TASKS[fields["name"]].changed(**{name: fields[name] for name in sizes})
    env = environment(task)
    config, hyper = configure(task)
    start = time.perf_counter()
    train = jax.jit(make_train(config, env)).lower(jax.random.key(0), hyper).compile()
    compile_seconds = time.perf_counter() - start
    evaluate = jax.jit(ppo(config, env).evaluate, static_argnames=("mode", "episodes"))
    protocol.serve(
        seeds,
        train=lambda seed: jax.block_until_ready(train(jax.random.key(seed), hyper))[0],
        sampled_return=lambda state: evaluate(
            state, jax.random.key(1), mode=False, episodes=protocol.EPISODES
        ).episode_return.mean(),
        steps=config.num_updates * config.steps_per_update,
        compile_seconds=compile_seconds,
        packages=("jaxppo", "gymnax"),
    )


if __name__ == "__main__":
    main()
