"""Time rejax's whole loop on one task whenever it is told to. Runs inside the virtual environment of rejax.

The bare loop: no tally of episodes, no evaluation inside. Messages as in `protocol.serve`.
"""

import time

import jax
import protocol
from learn_rejax import make_algorithm, make_evaluation


def main() -> None:
    task, seeds = protocol.request()
    algorithm, env, params = make_algorithm(task, tally=False)
    start = time.perf_counter()
    train = jax.jit(lambda key: algorithm.train(key)[0]).lower(jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - start
    evaluate = make_evaluation(algorithm, env, params, protocol.EPISODES)
    protocol.serve(
        seeds,
        train=lambda seed: jax.block_until_ready(train(jax.random.key(seed))),
        sampled_return=lambda state: evaluate(state, jax.random.key(1))[1],
        steps=algorithm.total_timesteps,
        compile_seconds=compile_seconds,
        packages=("rejax", "gymnax"),
    )


if __name__ == "__main__":
    main()
