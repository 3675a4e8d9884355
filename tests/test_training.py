"""The compiled loop: seeds and hyperparameters are rows of a vmap, chunks are the whole, nothing recompiles.

One program of each kind is compiled for the whole module.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxppo
from jaxppo.config import Hyperparameters
from jaxppo.envs import make, with_parameters
from jaxppo.training import EVALUATION_METRICS, EvaluationPlan, make_chunk, make_train

UPDATES = 7


@pytest.fixture(scope="module")
def config(tiny):
    return tiny(total_steps=UPDATES * 64, normalise_observation=True, normalise_reward=True)


@pytest.fixture(scope="module")
def env():
    return make("jaxppo/cartpole", time_limit=20)


@pytest.fixture(scope="module")
def train(config, env):
    return jax.jit(make_train(config, env))


HYPER = Hyperparameters().replace(learning_rate=3e-3)
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def solo(train, env):
    return train(KEY, HYPER, env)


def stacked(*trees):
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x, jnp.float32) for x in leaves]), *trees)


ROWS = {
    "seed": (jax.random.key(11), HYPER, {}),
    "learning_rate": (KEY, HYPER.replace(learning_rate=1e-2, gamma=0.9), {}),
    "gravity": (KEY, HYPER, {"gravity": 25.0}),
    "itself": (KEY, HYPER, {}),
}


@pytest.fixture(scope="module")
def rows(config, env):
    """All rows in one vmapped program."""
    keys = jnp.stack([key for key, _, _ in ROWS.values()])
    hypers = stacked(*(hyper for _, hyper, _ in ROWS.values()))
    environments = stacked(*(with_parameters(env, **values) for _, _, values in ROWS.values()))
    return jax.jit(jax.vmap(make_train(config, env)))(keys, hypers, environments)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_a_vmap_equals_the_solo_run(row, rows, train, env, solo, assert_trees_close):
    key, hyper, values = ROWS[row]
    i = list(ROWS).index(row)
    state, metrics = train(key, hyper, with_parameters(env, **values))
    assert_trees_close(jax.tree.map(lambda x: x[i], rows[0].parameters), state.parameters, rtol=1e-4, atol=1e-5)
    assert_trees_close(
        {k: v.count[i] for k, v in rows[1].items()}, {k: v.count for k, v in metrics.items()}, exact=True
    )
    leaves = map(jax.tree.leaves, (state.parameters, solo[0].parameters))
    moved = [bool((a != b).any()) for a, b in zip(*leaves, strict=True)]
    assert any(moved) == (row != "itself")


def test_the_same_seed_gives_the_same_bits(train, env, solo, assert_trees_close):
    assert_trees_close(train(KEY, HYPER, env), solo, exact=True)


def test_evaluation_changes_no_training_number(config, env, solo, assert_trees_close):
    plan = EvaluationPlan(every=3, episodes=4)
    state, metrics = jax.jit(make_train(config, env, evaluate=plan))(KEY, HYPER, env)
    assert_trees_close(state, solo[0], exact=True)
    assert_trees_close({k: metrics[k] for k in solo[1]}, solo[1], exact=True)
    count = metrics["evaluation_return"].count
    assert count.tolist() == [0, 0, 4, 0, 0, 4, 0]
    assert (np.asarray(metrics["evaluation_return"].total)[np.asarray(count) == 0] == 0).all()
    assert set(metrics) - set(solo[1]) == set(EVALUATION_METRICS)


@pytest.fixture(scope="module")
def chunked(config, env):
    """(chunk, final state, metrics) of chunks of three updates, the last one partial."""
    algorithm = jaxppo.ppo(config, env)
    chunk = make_chunk(algorithm, 3)
    state = algorithm.init(jax.random.split(KEY)[0], HYPER, env)
    rows = []
    for count in (3, 3, 1):
        state, metrics = chunk(state, jnp.int32(count))
        rows.append(jax.tree.map(np.asarray, metrics))
    return chunk, state, rows


def test_chunks_equal_the_straight_scan_bit_for_bit(chunked, solo, assert_trees_close):
    _, state, rows = chunked
    assert_trees_close(state, solo[0], exact=True)
    joined = jax.tree.map(lambda *x: np.concatenate(x)[:UPDATES], *rows)
    assert_trees_close(joined, solo[1], exact=True)


def test_rows_that_did_not_run_count_nothing(chunked):
    _, state, rows = chunked
    assert all((mean.count[1:] == 0).all() and (mean.total[1:] == 0).all() for mean in rows[-1].values())
    assert int(state.samples) == UPDATES * 64 and int(state.updates) == UPDATES


def test_nothing_is_compiled_after_the_first_chunk(chunked):
    assert chunked[0]._cache_size() == 1


def test_nothing_is_compiled_for_other_numbers(train, env, solo):
    before = train._cache_size()
    train(jax.random.key(99), HYPER.replace(gamma=0.5, target_kl=0.1), with_parameters(env, gravity=5.0))
    assert train._cache_size() == before


def test_the_program_has_no_host_callback(config, env):
    text = str(jax.make_jaxpr(make_train(config, env, evaluate=EvaluationPlan(every=2)))(KEY))
    assert "scan" in text and "callback" not in text and "infeed" not in text


def test_what_comes_out_does_not_depend_on_the_size_of_the_rollout(tiny, env):
    def shapes(**changes):
        config = tiny(**changes)
        return jax.eval_shape(make_train(config, env), KEY)[1]

    assert shapes() == shapes(num_envs=16, num_steps=4) == shapes(num_envs=64, num_steps=32, total_steps=3 * 64 * 32)


def test_statistics_moved_and_counted_every_sample(solo):
    (moments,) = solo[0].statistics
    assert float(moments.count) == UPDATES * 64
    assert int(solo[0].samples) == UPDATES * 64
    assert float(solo[0].reward_statistics.moments.count) == UPDATES * 64
    assert float(jnp.abs(moments.mean).max()) > 0


def test_no_finished_episode_and_minibatches_of_one(tiny, env):
    """Four samples of one environment, each its own minibatch: no episode can end."""
    config = tiny(total_steps=4, num_envs=1, num_steps=4, minibatches=4)
    state, metrics = jax.jit(make_train(config, env))(KEY)
    assert float(metrics["episode_return"].count[0]) == 0 and float(metrics["episode_return"].total[0]) == 0
    assert float(metrics["steps_taken"].total[0]) == 8 and float(metrics["skipped_updates"].total[0]) == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.parameters, metrics)))


STRESS = """
import jax, jaxppo
from jaxppo.envs import make
config = jaxppo.PPOConfig(total_steps=40 * 512, num_envs=32, num_steps=16, network=jaxppo.NetworkConfig(hidden=(16,)))
train = jax.jit(jax.vmap(jaxppo.make_train(config, make("jaxppo/cartpole"))))
for attempt in range(3):
    state, metrics = train(jax.random.split(jax.random.key(attempt), 8))
    jax.block_until_ready(state)
print("finished", metrics["episode_return"].count.shape)
"""


@pytest.mark.timeout(200)
def test_vmapped_training_does_not_hang():
    """Some versions of jax hang for ever in vmapped training loops on few cores: see docs/architecture.md."""
    done = subprocess.run([sys.executable, "-c", STRESS], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "finished (8, 40)" in done.stdout
