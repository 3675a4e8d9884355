"""Playing whole episodes with a trained policy. Changes nothing: training statistics are used, and not updated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.distributions import sample
from jaxppo.environment import EnvironmentSpec, episode_end, finite, split_mask
from jaxppo.policies import Policy
from jaxppo.randomness import key_for_each
from jaxppo.types import Array, Mean, Metrics

DEFAULT_LIMIT = 10_000
"""Steps after which an episode of an environment without a time limit is given up, and marked as not finished."""

Act = Callable[[Any, Array | None, Any, Array, Array], tuple[Array, Any]]


class Evaluation(NamedTuple):
    """All [episodes]. episode_return in the environment's own rewards, averaged over agents; undiscounted.

    discounted_return: with the training discount. finished: False where the step limit came first.
    valid: False where a reward or an observation was NaN or infinite; the other fields tell the way there, and are left
        out of `summary`.
    """

    episode_return: Array
    discounted_return: Array
    episode_length: Array
    finished: Array
    valid: Array

    def summary(self) -> Metrics:
        """The mean of each field over the valid episodes, and `invalid_episodes`: how many are left out."""
        fields = ("episode_return", "discounted_return", "episode_length", "finished")
        means = {name: Mean.of(getattr(self, name), self.valid) for name in fields}
        return means | {"invalid_episodes": Mean((~self.valid).sum().astype(jnp.float32), jnp.ones(()))}


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

    A NaN or infinity in a reward or observation, the first included, ends the episode; it is not `valid` then.

    act: (view, mask, memory, reset [N], keys [N]) -> (environment action, memory).
    limit: default the environment's time limit, or DEFAULT_LIMIT where it has none.
    """
    spec: EnvironmentSpec = env.spec
    limit = limit or spec.time_limit or DEFAULT_LIMIT
    index = jnp.arange(episodes)
    reset_key, play_key = jax.random.split(key)
    state, observation = jax.vmap(env.reset)(key_for_each(reset_key, index))
    zeros, false = jnp.zeros((episodes,)), jnp.zeros((episodes,), bool)
    nothing = Evaluation(
        zeros, zeros, jnp.zeros((episodes,), jnp.int32), false, finite((zeros, split_mask(spec, observation)[0]))
    )

    def playing(result):
        return result.valid & ~result.finished

    def going(carry):
        return (carry[0] < limit) & playing(carry[-1]).any()

    def step(carry):
        t, state, observation, memory, result = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(play_key, t))
        view, mask = split_mask(spec, observation)
        reset = jnp.broadcast_to(t == 0, (episodes,))
        action, memory = act(view, mask, memory, reset, key_for_each(act_key, index))
        state, outcome = jax.vmap(env.step)(key_for_each(env_key, index), state, action)
        reward = outcome.reward if outcome.reward.ndim == 1 else outcome.reward.mean(-1)
        on = playing(result)
        sound = finite((reward, split_mask(spec, outcome.observation)[0]))
        reward = jnp.where(on & sound, reward, 0.0)
        result = Evaluation(
            result.episode_return + reward,
            result.discounted_return + gamma ** t.astype(jnp.float32) * reward,
            result.episode_length + on,
            result.finished | (on & sound & episode_end(outcome)),
            result.valid & (sound | ~on),
        )
        return t + 1, state, outcome.observation, memory, result

    return jax.lax.while_loop(going, step, (jnp.int32(0), state, observation, initial_memory, nothing))[-1]
