"""The recipe as a whole: against NumPy, against known answers, and against itself under other settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxppo
from jaxppo.config import Hyperparameters, NetworkConfig
from jaxppo.envs import make
from jaxppo.errors import UserError
from jaxppo.optimisers import sum_of_gradients
from jaxppo.randomness import minibatch_indices
from jaxppo.rollout import make_collector
from jaxppo.schedules import Schedule
from jaxppo.training import make_train

KEY = jax.random.key(1)
HYPER = Hyperparameters().replace(learning_rate=0.01)


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


# --- invariant 1 -----------------------------------------------------------------------------------------------------

POLICIES = {
    "categorical": ({}, {}),
    "image": ({"view": "image"}, {}),
    "masked_multi_discrete": (
        {"action": "multi_discrete", "view": "dict", "masked": True},
        {"reset": "pool", "reset_pool": 16, "normalise_reward": True},
    ),
    "gaussian": ({"action": "unbounded"}, {"reset": "optimistic", "reset_group": 4, "reset_spares": 2}),
    "tanh_gaussian": ({"action": "bounded"}, {"distribution": "tanh_gaussian", "surrogate": "ppo_kl"}),
    "beta": ({"action": "bounded"}, {"distribution": "beta", "clip_value": True, "value_loss": "huber"}),
}


@pytest.mark.parametrize("name", POLICIES)
def test_first_ratio_is_one_whatever_the_policy(name, tiny, toy):
    """The update scores what was played, with the statistics that it was played with, over several updates."""
    fields, changes = POLICIES[name]
    network = NetworkConfig(hidden=(8,), channels=(4,), shared=name == "gaussian", layer_norm=name == "categorical")
    config = tiny(network=network, normalise_observation=name != "image", total_steps=4 * 64, **changes)
    train = jax.jit(make_train(config, toy(**fields)))
    for masking in (0, 1, 2) if fields.get("masked") else (0,):
        state, metrics = train(KEY, HYPER, toy(masking=masking, **fields))
        # lgamma in float32 costs a few units in the last place more.
        assert float(metrics["first_ratio_deviation"].total.max()) < (3e-6 if name == "beta" else 1e-6)
        assert metrics["steps_taken"].total.tolist() == [4.0] * 4
        assert finite((state.parameters, metrics))
        # One allowed action leaves nothing to decide; otherwise the policy moves.
        assert (float(metrics["approximate_kl"].value.max()) > 1e-6) == (masking != 1)


# --- invariant 2: the whole update in NumPy --------------------------------------------------------------------------


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def forward(p, x):
    """(logits, value, hidden of the actor, hidden of the critic)."""
    actor = np.tanh(dense(p["actor_torso"]["Layer_0"]["Dense_0"], x))
    critic = np.tanh(dense(p["critic_torso"]["Layer_0"]["Dense_0"], x))
    return dense(p["actor"], actor), dense(p["critic"], critic)[..., 0], actor, critic


def backward(p, x, d_logits, d_value, actor, critic):
    """The gradient of the parameters from those of the outputs."""

    def layer(inputs, d):
        return {"kernel": inputs.T @ d, "bias": d.sum(0)}

    d_actor = d_logits @ p["actor"]["kernel"].T * (1 - actor**2)
    d_critic = d_value[:, None] @ p["critic"]["kernel"].T * (1 - critic**2)
    return {
        "actor": layer(actor, d_logits),
        "critic": layer(critic, d_value[:, None]),
        "actor_torso": {"Layer_0": {"Dense_0": layer(x, d_actor)}},
        "critic_torso": {"Layer_0": {"Dense_0": layer(x, d_critic)}},
    }


def numpy_update(p, rollout, last_observation, final_observation, minibatches, hyper):
    """One PPO update in float64, from the papers: GAE, standardised advantages, clip, entropy, value, Adam, clipping.

    rollout: dict of [T, N, ...]; minibatches: flat indices, one array for each gradient step.
    Returns (parameters, facts about what happened on the way).
    """
    T, N = rollout["reward"].shape
    value = forward(p, rollout["observation"])[1]
    following = np.concatenate([value[1:], forward(p, last_observation)[1][None]])
    advantage, running = np.zeros((T, N)), np.zeros(N)
    for n in range(N):
        slot = 0
        for t in range(T):
            if rollout["truncated"][t, n]:
                following[t, n] = forward(p, final_observation[slot, n])[1]
                slot += 1
    for t in reversed(range(T)):
        alive, same = 1 - rollout["terminated"][t], 1 - (rollout["terminated"][t] | rollout["truncated"][t])
        delta = rollout["reward"][t] + hyper["gamma"] * alive * following[t] - value[t]
        running = delta + hyper["gamma"] * hyper["lam"] * same * running
        advantage[t] = running
    target = advantage + value

    flat = {k: v.reshape(-1, *v.shape[2:]) for k, v in rollout.items()}
    leaves, structure = jax.tree.flatten(p)
    first, second, facts = [np.zeros_like(x) for x in leaves], [np.zeros_like(x) for x in leaves], []
    for step, index in enumerate(minibatches, start=1):
        p = jax.tree.unflatten(structure, leaves)
        x, action, size = flat["observation"][index], flat["action"][index], len(index)
        logits, v, actor, critic = forward(p, x)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        probability, chosen = np.exp(log_p), np.eye(logits.shape[-1])[action]
        r = np.exp((log_p * chosen).sum(-1) - flat["log_prob"][index])
        a = advantage.ravel()[index]
        a = (a - a.mean()) / (a.std() + 1e-8)
        clipped = ((a > 0) & (r > 1 + hyper["epsilon"])) | ((a < 0) & (r < 1 - hyper["epsilon"]))
        entropy = -(probability * log_p).sum(-1, keepdims=True)
        d_logits = (-np.where(clipped, 0.0, r * a))[:, None] * (chosen - probability)
        d_logits += hyper["entropy_coefficient"] * probability * (log_p + entropy)
        d_value = hyper["value_coefficient"] * (v - target.ravel()[index])
        gradient = jax.tree.leaves(backward(p, x, d_logits / size, d_value / size, actor, critic))
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        gradient = [g * min(1.0, hyper["max_grad_norm"] / norm) for g in gradient]
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient, strict=True)]
        second = [0.999 * m + 0.001 * g**2 for m, g in zip(second, gradient, strict=True)]
        leaves = [
            x - hyper["learning_rate"] * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-5)
            for x, m, s in zip(leaves, first, second, strict=True)
        ]
        facts.append({"clipped": clipped.mean(), "norm": norm})
    return jax.tree.unflatten(structure, leaves), facts


@pytest.mark.parametrize("seed", [0, 1])
def test_a_whole_update_equals_numpy(seed, tiny, whole_update):
    config, algorithm, update, collect = whole_update
    hyper = {"gamma": 0.9, "lam": 0.8, "epsilon": 0.05, "entropy_coefficient": 0.02, "value_coefficient": 0.7}
    hyper |= {"max_grad_norm": 0.6, "learning_rate": 0.02}
    ours = Hyperparameters().replace(
        **{k: v for k, v in hyper.items() if k not in ("lam", "epsilon")},
        surrogate={"epsilon": hyper["epsilon"]},
        advantage={"lam": hyper["lam"]},
    )
    state = algorithm.init(jax.random.key(seed), ours)
    after, metrics = update(state)

    _, collect_key, improve_key, _, _ = jax.random.split(state.key, 5)
    rollout = jax.tree.map(np.asarray, collect(state, collect_key))
    data = {
        "observation": rollout.observation.astype(np.float64),
        "action": rollout.action,
        "log_prob": rollout.log_prob[..., 0].astype(np.float64),
        "reward": rollout.reward.astype(np.float64),
        "terminated": rollout.continuation == 0,
        "truncated": rollout.final.taken,
    }
    indices = [
        np.asarray(
            minibatch_indices(
                jax.random.split(jax.random.fold_in(improve_key, epoch))[0],
                jnp.int32(i),
                num_steps=config.num_steps,
                num_envs=config.num_envs,
                blocks=config.num_blocks,
                minibatches=config.minibatches,
                method=config.shuffle,
            )
        )
        for epoch in range(config.epochs)
        for i in range(config.minibatches)
    ]
    start = jax.tree.map(lambda x: np.asarray(x, np.float64), state.parameters["params"])
    expected, facts = numpy_update(start, data, rollout.last_observation, rollout.final.observation, indices, hyper)
    assert not np.array_equal(*(jax.random.key_data(s.key) for s in (state, after))), "no key is used twice"
    assert data["terminated"].any() and data["truncated"].any(), "the example must contain both ends"
    assert any(f["clipped"] > 0 for f in facts) and any(f["norm"] > 0.6 for f in facts), "and both kinds of clipping"
    assert float(metrics["grad_norm"].value) == pytest.approx(np.mean([f["norm"] for f in facts]), rel=1e-3)
    assert float(metrics["clip_fraction"].value) == pytest.approx(np.mean([f["clipped"] for f in facts]), abs=1e-6)
    for got, wanted, before in zip(*map(jax.tree.leaves, (after.parameters["params"], expected, start)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)
        assert np.abs(wanted - before).max() > 1e-2


@pytest.fixture(scope="module")
def whole_update(tiny):
    env = make("jaxppo/cartpole", time_limit=6, angle_limit=0.07)
    config = tiny(epochs=3, num_steps=16)
    algorithm = jaxppo.ppo(config, env)
    gather = make_collector(env.spec, algorithm.policy, config, keep_distribution=False)

    @jax.jit
    def collect(state, key):
        return gather(state.env, state.parameters, lambda x: x, state.carry, key, jnp.arange(config.num_envs))[1]

    return config, algorithm, jax.jit(algorithm.update), collect


# --- invariant 3 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncation", ["bootstrap", "terminate"])
def test_value_of_a_world_that_only_a_limit_ends(truncation, tiny):
    gamma = 0.8
    config = tiny(total_steps=60 * 64, epochs=4, minibatches=1, truncation=truncation)
    env = make("jaxppo/time_limit", time_limit=10)
    algorithm = jaxppo.ppo(config, env)
    hyper = HYPER.replace(gamma=gamma, learning_rate=Schedule(0.05, 0.0))
    state, metrics = jax.jit(make_train(config, env))(KEY, hyper)
    value = float(algorithm.policy.apply(state.parameters, jnp.ones((1, 1)), None, (), None).value[0])
    if truncation == "bootstrap":
        assert value == pytest.approx(1 / (1 - gamma), abs=0.1)
    else:
        assert value < (1 - gamma**10) / (1 - gamma)
    np.testing.assert_allclose(metrics["learning_rate"].total, 0.05 * (1 - np.arange(60) / 60), rtol=1e-4)


# --- invariant 9 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_a_nan_leaves_the_parameters_finite_and_is_counted(where, tiny):
    config = tiny(normalise_observation=True, normalise_reward=True)
    state, metrics = jax.jit(make_train(config, make("jaxppo/nan", where=where, at=5)))(KEY, HYPER)
    assert finite((state.parameters, state.optimiser, state.statistics, state.reward_statistics, metrics))
    # 24 steps, a NaN at every fifth: four in each of eight environments.
    assert float(metrics["invalid_samples"].total.sum()) == 32
    assert metrics["steps_taken"].total.tolist() == [4.0] * 3
    assert float(metrics["weighted_samples"].total.sum()) == 3 * 64 - 32
    assert float(metrics["skipped_updates"].total.sum()) == 0


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_a_nan_in_a_first_observation_does_neither_harm(probability, tiny):
    config = tiny(normalise_observation=True, normalise_reward=True)
    env = make("jaxppo/nan", where="reset", probability=probability)
    state, metrics = jax.jit(make_train(config, env))(KEY, HYPER)
    assert finite((state.parameters, state.optimiser, state.statistics, state.reward_statistics, metrics))
    invalid = float(metrics["invalid_samples"].total.sum())
    assert 0 < invalid < 192 if probability < 1 else invalid == 192
    assert float(metrics["weighted_samples"].total.sum()) == 192 - invalid
    assert float(metrics["skipped_updates"].total.sum()) == 0


# --- surrogates and advantages in the loop ---------------------------------------------------------------------------


def test_a2c_is_a_setting_of_ppo(tiny, toy, assert_trees_close):
    """One epoch of one minibatch: the ratio is 1, and the parameters go the same way."""
    ends = []
    for surrogate in ("ppo_clip", "a2c"):
        config = tiny(surrogate=surrogate, epochs=1, minibatches=1, normalise_advantage="none", optimiser="rmsprop")
        ends.append(jax.jit(make_train(config, toy()))(KEY, HYPER)[0].parameters)
    assert_trees_close(*ends, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def ppo_kl(tiny, toy):
    return jax.jit(make_train(tiny(total_steps=6 * 64, surrogate="ppo_kl"), toy()))


def test_beta_follows_the_kl_in_both_directions(ppo_kl):
    def beta(target):
        hyper = HYPER.replace(learning_rate=0.03, surrogate={"target": target})
        state, metrics = ppo_kl(KEY, hyper)
        assert float(metrics["beta"].value[0]) == 1.0
        return float(state.surrogate_state["beta"])

    assert beta(1e-7) == 2.0**6
    assert beta(1e3) == 0.5**6


def test_a_kl_target_leaves_one_step_an_update(ppo_kl):
    hyper = HYPER.replace(learning_rate=0.05, target_kl=1e-6, surrogate={"target": 0.01})
    _, metrics = ppo_kl(KEY, hyper)
    assert metrics["steps_taken"].total.tolist() == [1.0] * 6
    assert float(metrics["skipped_updates"].total.sum()) == 0


def test_groups_need_no_critic_and_more_than_one_member(tiny, toy, assert_trees_close):
    with pytest.raises(UserError, match="set group_size to at least 2"):
        jaxppo.ppo(tiny(advantage="group"), toy())
    config = tiny(advantage="group", group_size=4, normalise_advantage="none")
    algorithm = jaxppo.ppo(config, toy())
    start = algorithm.init(KEY, HYPER)
    state, metrics = jax.jit(algorithm.update)(start)
    before, after = start.parameters["params"], state.parameters["params"]
    for critic in ("critic", "critic_torso"):
        assert_trees_close(before[critic], after[critic], exact=True)
    assert float(jnp.abs(before["actor"]["kernel"] - after["actor"]["kernel"]).max()) > 1e-3
    assert "value_loss" not in metrics
    assert float(metrics["weighted_samples"].value) < 64


def test_advantages_that_are_computed_again_are_the_same_before_the_first_step(tiny, toy, assert_trees_close):
    ends = []
    for again, advantage in ((False, "gae"), (True, "vtrace")):
        config = tiny(epochs=1, recompute_advantage=again, advantage=advantage)
        algorithm = jaxppo.ppo(config, toy())
        ends.append(jax.jit(algorithm.update)(algorithm.init(KEY, HYPER))[0].parameters)
    assert_trees_close(*ends, rtol=1e-4, atol=1e-5)


# --- seams -----------------------------------------------------------------------------------------------------------


def test_extra_losses_rewards_and_gradients_can_be_handed_in(tiny, assert_trees_close):
    """The list of gradients summed is the plain gradient; the extra loss is felt; reported returns are the world's."""
    seen = []

    def push(parameters, samples, output):
        return 0.1 * jnp.square(output.value - 3.0).mean()

    def listed(gradients, key):
        seen.append(len(gradients))
        return sum_of_gradients(gradients, key)

    config = tiny(num_steps=16, total_steps=3 * 128)
    seams = {"extra_losses": [("push", push)], "reward_transform": lambda rollout: 0.0 * rollout.reward}
    hyper = HYPER.replace(value_coefficient=0.0)
    ends = {}
    for name, combine in (("fast", sum_of_gradients), ("list", listed)):
        ends[name] = jax.jit(make_train(config, make("jaxppo/counting"), combine_gradients=combine, **seams))(
            KEY, hyper
        )
    assert_trees_close(ends["fast"][0].parameters, ends["list"][0].parameters, rtol=1e-4, atol=1e-5)
    assert set(seen) == {4}
    _, metrics = ends["fast"]
    assert float(metrics["push_loss"].value[-1]) < 0.8 * float(metrics["push_loss"].value[0])
    returns = metrics["episode_return"]
    assert 21.0 <= float(returns.total.sum() / returns.count.sum()) <= 45.0


def test_a_surrogate_of_the_user_is_trained_with(tiny, toy, assert_trees_close):
    """The same formula under another name: the same parameters."""

    @jaxppo.register_surrogate("test_mine", paper="this test")
    def mine(inputs, *, weight=1.0):
        """Score times advantage."""
        return -weight * inputs.advantage * inputs.log_prob

    try:
        ends = []
        for surrogate in ("test_mine", "a2c"):
            algorithm = jaxppo.ppo(tiny(surrogate=surrogate), toy())
            ends.append(jax.jit(algorithm.update)(algorithm.init(KEY, HYPER))[0].parameters)
        assert_trees_close(*ends)
        with pytest.raises(UserError, match="test_mine has no number 'wait'; it has: weight"):
            jaxppo.ppo(tiny(surrogate="test_mine"), toy()).init(KEY, HYPER.replace(surrogate={"wait": 1.0}))
    finally:
        from jaxppo.losses import SURROGATES

        SURROGATES._entries.pop("test_mine")
        SURROGATES._names.pop("test_mine")


# --- derivatives -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained_scalar(tiny):
    """(derivative by forward mode, value): a smooth number of a policy trained on the regulator, for some numbers."""
    config = tiny(total_steps=2 * 64, surrogate="spo", epochs=2, minibatches=1, normalise_advantage="none")
    train = make_train(config, make("jaxppo/lqr"))

    def scalar(changes):
        hyper = Hyperparameters().replace(
            learning_rate=changes["learning_rate"],
            gamma=changes["gamma"],
            max_grad_norm=1e6,
            advantage={"lam": changes["lam"]},
        )
        parameters = train(KEY, hyper)[0].parameters
        return sum(jnp.sin(3 * x + i).sum() for i, x in enumerate(jax.tree.leaves(parameters)))

    return jax.jit(lambda at, along: jax.jvp(scalar, (at,), (along,)))


AT = {"learning_rate": 0.02, "gamma": 0.9, "lam": 0.8}


@pytest.mark.parametrize(("name", "step"), [("learning_rate", 2e-4), ("gamma", 4e-3), ("lam", 8e-3)])
def test_forward_mode_equals_finite_differences(name, step, trained_scalar):
    at = {k: jnp.float32(v) for k, v in AT.items()}
    along = {k: jnp.float32(k == name) for k in AT}
    derivative = float(trained_scalar(at, along)[1])
    ends = [float(trained_scalar(at | {name: at[name] + sign * step}, along)[0]) for sign in (1, -1)]
    assert derivative == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.05)
