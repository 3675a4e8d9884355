"""Playing whole episodes with a trained policy. Changes nothing: training statistics are used, and not updated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.distributions import sample
from jaxppo.environment import EnvironmentSpec, episode_end, split_mask
from jaxppo.policies import Policy
from jaxppo.randomness import key_for_each
from jaxppo.types import Array

DEFAULT_LIMIT = 10_000
"""Steps after which an episode of an environment without a time limit is given up, and marked as not finished."""

Act = Callable[[Any, Array | None, Any, Array, Array], tuple[Array, Any]]


class Evaluation(NamedTuple):
    """All [episodes]. episode_return in the environment's own rewards, averaged over agents; undiscounted.

    discounted_return: with the training discount. finished: False where the step limit came first.
    """

    episode_return: Array
    discounted_return: Array
    episode_length: Array
    finished: Array


def policy_act(policy: Policy, parameters: Any, observe: Any, *, mode: bool) -> Act:
    """The policy as a player: its mode, or a sample."""

    def act(view, mask, memory, reset, keys):
        output = policy.apply(parameters, observe(view), mask, memory, reset)
        action = output.distribution.mode() if mode else sample(output.distribution, keys)
        return policy.to_environment(action), output.memory

    return act


def play(
    env: Any, act: Any, initial_memory: Any, key: Array, *, episodes: int, gamma: Any = 1.0, limit: int | None = None
) -> Evaluation:
    """`episodes` first episodes of as many environments, in parallel, until all have ended or the limit is reached.

    act: (view, mask, memory, reset [N], keys [N]) -> (environment action, memory).
    limit: default the environment's time limit, or DEFAULT_LIMIT where it has none.
    """
    spec: EnvironmentSpec = env.spec
    limit = limit or spec.time_limit or DEFAULT_LIMIT
    index = jnp.arange(episodes)
    reset_key, play_key = jax.random.split(key)
    state, observation = jax.vmap(env.reset)(key_for_each(reset_key, index))
    zeros = jnp.zeros((episodes,))
    nothing = Evaluation(zeros, zeros, jnp.zeros((episodes,), jnp.int32), jnp.zeros((episodes,), bool))

    def going(carry):
        return (carry[0] < limit) & ~carry[-1].finished.all()

    def step(carry):
        t, state, observation, memory, result = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(play_key, t))
        view, mask = split_mask(spec, observation)
        reset = jnp.broadcast_to(t == 0, (episodes,))
        action, memory = act(view, mask, memory, reset, key_for_each(act_key, index))
        state, outcome = jax.vmap(env.step)(key_for_each(env_key, index), state, action)
        playing = ~result.finished
        reward = outcome.reward if outcome.reward.ndim == 1 else outcome.reward.mean(-1)
        reward = jnp.where(playing, reward, 0.0)
        result = Evaluation(
            result.episode_return + reward,
            result.discounted_return + gamma ** t.astype(jnp.float32) * reward,
            result.episode_length + playing,
            result.finished | episode_end(outcome),
        )
        return t + 1, state, outcome.observation, memory, result

    return jax.lax.while_loop(going, step, (jnp.int32(0), state, observation, initial_memory, nothing))[-1]
