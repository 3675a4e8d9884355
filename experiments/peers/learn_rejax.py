"""Train rejax's PPO on one task, seed after seed. Runs inside the virtual environment of rejax, knows no jaxppo.

stdin: {"task": fields of tasks.Task, "seeds": [...]}; stdout: one JSON line for each seed (see `protocol.py`).

What rejax 0.1.3 does in its own way: a time limit counts as a true end; the gradient is clipped entry by entry; actor
and critic have an optimiser each; the critic's step is always clipped; statistics of observations and rewards are
updated at every step. The convolution is ours, given to rejax as a network: it ships dense ones only.
"""

import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import protocol
from flax import linen as nn
from flax import struct
from gymnax import make
from rejax import PPO
from rejax.evaluate import evaluate
from rejax.networks import DiscretePolicy, VNetwork


@struct.dataclass
class Tally:
    """The environment's state with the returns of all episodes that it has finished."""

    inner: struct.PyTreeNode
    running: jax.Array
    total: jax.Array
    count: jax.Array

    @property
    def time(self):
        return self.inner.time


class Tallied:
    """A gymnax environment that keeps a `Tally`; it changes nothing that the learner sees."""

    def __init__(self, env):
        self._env = env
        self.default_params = env.default_params
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, key, params):
        observation, state = self._env.reset(key, params)
        return observation, Tally(state, jnp.float32(0), jnp.float32(0), jnp.int32(0))

    def step(self, key, state, action, params):
        observation, inner, reward, done, info = self._env.step(key, state.inner, action, params)
        running = state.running + reward.squeeze()
        state = Tally(inner, running * (1 - done), state.total + running * done, state.count + done)
        return observation, state, reward, done, info


def _patches(x: jax.Array) -> jax.Array:
    """The 3×3 neighbourhoods of x [B, H, W, C], as [B, H-2, W-2, 9C].

    A dense layer on them is a convolution; XLA's own is about ten times slower inside a loop on a CPU.
    """
    height, width = x.shape[1] - 2, x.shape[2] - 2
    return jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=-1)


class _Convolution(nn.Module):
    channels: Sequence[int]
    hidden_layer_sizes: Sequence[int]
    activation: Callable

    @nn.compact
    def __call__(self, x):
        for width in self.channels:
            x = self.activation(nn.Dense(width)(_patches(x)))
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden_layer_sizes:
            x = self.activation(nn.Dense(width)(x))
        return x


class ConvolutionalPolicy(DiscretePolicy):
    channels: Sequence[int] = (16,)

    def setup(self):
        self.features = _Convolution(self.channels, self.hidden_layer_sizes, self.activation)
        self.action_logits = nn.Dense(self.action_dim)


class ConvolutionalValue(VNetwork):
    channels: Sequence[int] = (16,)

    @nn.compact
    def __call__(self, x):
        x = _Convolution(self.channels, self.hidden_layer_sizes, self.activation)(x)
        return nn.Dense(1)(x).squeeze(1)


def make_algorithm(task: dict, *, tally: bool = True) -> tuple[PPO, object, object]:
    """(algorithm, untallied environment, its parameters). Instead of rejax's evaluations it reads the tally, if any."""
    env, params = make(task["peer_environment"])
    samples = task["num_envs"] * task["num_steps"]
    updates = -(-task["total_steps"] // samples)
    learning_rate = task["learning_rate"]
    if task["anneal"]:
        learning_rate = optax.linear_schedule(learning_rate, 0.0, updates * task["epochs"] * task["minibatches"])
    algorithm = PPO.create(
        env=Tallied(env) if tally else env,
        eval_freq=samples,
        skip_initial_evaluation=True,
        total_timesteps=updates * samples,
        num_envs=task["num_envs"],
        num_steps=task["num_steps"],
        num_epochs=task["epochs"],
        num_minibatches=task["minibatches"],
        learning_rate=learning_rate,
        gamma=task["gamma"],
        gae_lambda=task["gae_lambda"],
        clip_eps=task["clip"],
        ent_coef=task["entropy_coefficient"],
        vf_coef=task["value_coefficient"],
        max_grad_norm=task["max_grad_norm"],
        normalize_observations=task["normalise_observation"],
        normalize_rewards=task["normalise_reward"],
        reward_normalization_discount=task["gamma"],
        agent_kwargs={"hidden_layer_sizes": task["hidden"], "activation": task["activation"]},
    )
    if task["torso"] == "cnn":
        shape = (tuple(task["hidden"]), getattr(nn, task["activation"]))
        actor = ConvolutionalPolicy(algorithm.action_dim, *shape, channels=tuple(task["channels"]))
        algorithm = algorithm.replace(actor=actor, critic=ConvolutionalValue(*shape, channels=tuple(task["channels"])))
    callback = _finished if tally else lambda *_: ()
    return algorithm.replace(eval_callback=callback), env, params


def _finished(algorithm, state, key):
    """Sum and number of the returns so far."""
    return state.env_state.total.sum(), state.env_state.count.sum()


def make_evaluation(algorithm: PPO, env, params, episodes: int) -> Callable:
    """(state, key) -> mean returns of the mode and of the stochastic policy over `episodes` episodes."""

    def mode(state):
        def act(observation, key):
            if algorithm.normalize_observations:
                observation = algorithm.normalize_obs(state.obs_rms_state, observation)
            policy = algorithm.actor.apply(state.actor_ts.params, observation[None], method="_action_dist")
            action = policy.mode().squeeze()
            return action if algorithm.discrete else jnp.clip(action, *algorithm.actor.action_range)

        return act

    def returns(act, key):
        return evaluate(act, key, env, params, episodes, params.max_steps_in_episode)[1].mean()

    return jax.jit(lambda state, key: (returns(mode(state), key), returns(algorithm.make_act(state), key)))


def main() -> None:
    task, seeds = protocol.request()
    algorithm, env, params = make_algorithm(task)
    start = time.perf_counter()
    train = jax.jit(lambda key: algorithm.train(key)).lower(jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - start
    evaluation = make_evaluation(algorithm, env, params, protocol.EPISODES)
    for seed in seeds:
        start = time.perf_counter()
        state, (total, count) = jax.block_until_ready(train(jax.random.key(seed)))
        wall_seconds = time.perf_counter() - start
        by_mode, sampled = evaluation(state, jax.random.fold_in(jax.random.key(seed), 1))
        protocol.reply(
            seed=seed,
            steps=algorithm.total_timesteps,
            evaluation_return=float(by_mode),
            sampled_return=float(sampled),
            **protocol.training(np.diff(total, prepend=0.0), np.diff(count, prepend=0)),
            wall_seconds=wall_seconds,
            compile_seconds=compile_seconds,
            packages=("rejax", "gymnax"),
        )


if __name__ == "__main__":
    main()
