"""What to do with time limits: the right way, and four lossy conventions of other code bases, for comparison.

Each is a change of the rollout and the critic's outputs before any estimator sees them.
"""

from typing import Any

import jax.numpy as jnp

from jaxppo.types import CriticOutputs, Rollout

CONVENTIONS = {
    "bootstrap": "the value of the true final observation follows (the default)",
    "hold": "V(s_t) stands for V(s_{t+1}) (rsl_rl, brax with bootstrap_on_timeout)",
    "terminate": "a time limit is an end: nothing follows (PureJaxRL, rejax, CleanRL, JaxMARL)",
    "mask": "advantage 0 and no loss on that sample (brax's PPO)",
    "zero": "advantage 0 and the value as its own target (on-policy's and HARL's bad masks)",
}


def _consistent(rollout: Rollout, critic: CriticOutputs, gamma: Any):
    """The reward of which the one-step error, and where the trace is cut the advantage, is 0."""
    return critic.value - gamma * rollout.continuation * critic.next_value


def silence_invalid(rollout: Rollout, critic: CriticOutputs, gamma: Any) -> Rollout:
    """The rollout with rewards that tell nothing where a sample does not count: no step before it learns from it."""
    return rollout._replace(reward=jnp.where(rollout.weight > 0, rollout.reward, _consistent(rollout, critic, gamma)))


def apply_truncation(
    convention: str, rollout: Rollout, critic: CriticOutputs, gamma: Any
) -> tuple[Rollout, CriticOutputs]:
    """(rollout, critic outputs) as `convention` would have them; unchanged for `bootstrap`."""
    if convention == "bootstrap" or rollout.final is None:
        return rollout, critic
    truncated = rollout.final.taken.reshape(rollout.final.taken.shape + (1,) * (rollout.reward.ndim - 2))
    if convention == "hold":
        return rollout, critic._replace(next_value=jnp.where(truncated, critic.value, critic.next_value))
    if convention == "terminate":
        return rollout._replace(continuation=jnp.where(truncated, 0.0, rollout.continuation)), critic
    rollout = rollout._replace(reward=jnp.where(truncated, _consistent(rollout, critic, gamma), rollout.reward))
    if convention == "mask":
        rollout = rollout._replace(weight=jnp.where(truncated, 0.0, rollout.weight))
    return rollout, critic
