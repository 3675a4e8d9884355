"""Advantage estimators by name.

An estimator is a function of a rollout and of the critic's outputs, with `gamma` and its own numbers as keyword-only
arguments; it returns `Advantages(advantage, target, weight)`. Other keywords without a default are handed in by name:
`state` (then it returns (Advantages, state), and declares `initial_state`), `key`, `group_size`. An estimator whose
scale is part of its meaning declares `standardise=False`; one that needs no critic, `critic=False`.

    @register_advantage("mine", paper="…")
    def mine(rollout, critic, *, gamma, lam=0.95):
        return Advantages(advantage, target, rollout.weight)
"""

from typing import Any

import jax.numpy as jnp

from jaxppo.advantages.estimators import (
    backward_recursion,
    first_episode,
    generalized_advantage,
    group_baseline,
    monte_carlo_return,
    n_step_return,
    temporal_difference,
    vtrace,
)
from jaxppo.registry import Registry
from jaxppo.types import Advantages, CriticOutputs, Rollout

Scalar = Any

__all__ = [
    "ADVANTAGES",
    "backward_recursion",
    "first_episode",
    "generalized_advantage",
    "group_baseline",
    "listing",
    "monte_carlo_return",
    "n_step_return",
    "register_advantage",
    "temporal_difference",
    "vtrace",
]

# groups: several episodes from one start state; log_ratio: only useful where it is not 0 (recomputed each epoch).
ADVANTAGES = Registry("advantage", frozenset({"groups", "log_ratio"}))
register_advantage = ADVANTAGES.register


def listing():
    """All registered estimators."""
    return ADVANTAGES.listing()


@register_advantage(
    "gae", paper="High-Dimensional Continuous Control Using Generalized Advantage Estimation, 1506.02438"
)
def gae(rollout: Rollout, critic: CriticOutputs, *, gamma: Scalar, lam: Scalar = 0.95) -> Advantages:
    """Generalised advantage estimation: the exponential average of all n-step advantages."""
    advantage = generalized_advantage(
        rollout.reward, critic.value, critic.next_value, rollout.continuation, rollout.trace, gamma=gamma, lam=lam
    )
    return Advantages(advantage, advantage + critic.value, rollout.weight)


@register_advantage("monte_carlo", paper="Reinforcement Learning: An Introduction, section 5", aliases=("mc",))
def monte_carlo(rollout: Rollout, critic: CriticOutputs, *, gamma: Scalar) -> Advantages:
    """The return to the end of the episode (the value stands in where it is cut), less the value."""
    target = monte_carlo_return(rollout.reward, critic.next_value, rollout.continuation, rollout.trace, gamma=gamma)
    return Advantages(target - critic.value, target, rollout.weight)


@register_advantage("n_step", paper="Asynchronous Methods for Deep Reinforcement Learning, 1602.01783")
def n_step(rollout: Rollout, critic: CriticOutputs, *, gamma: Scalar, n: Scalar = 5) -> Advantages:
    """n rewards and then the value, less the value."""
    target = n_step_return(rollout.reward, critic.next_value, rollout.continuation, rollout.trace, gamma=gamma, n=n)
    return Advantages(target - critic.value, target, rollout.weight)


@register_advantage(
    "vtrace", paper="IMPALA, 1802.01561; λ as in rlax.vtrace_td_error_and_advantage", requires=("log_ratio",)
)
def v_trace(
    rollout: Rollout,
    critic: CriticOutputs,
    *,
    gamma: Scalar,
    lam: Scalar = 0.95,
    rho_bar: Scalar = 1.0,
    c_bar: Scalar = 1.0,
    pg_rho_bar: Scalar = 1.0,
) -> Advantages:
    """Off-policy corrected estimate; differs from GAE where it is recomputed with a policy that has moved on."""
    advantage, target = vtrace(
        rollout.reward,
        critic.value,
        critic.next_value,
        rollout.continuation,
        rollout.trace,
        critic.log_ratio,
        gamma=gamma,
        lam=lam,
        rho_bar=rho_bar,
        c_bar=c_bar,
        pg_rho_bar=pg_rho_bar,
    )
    return Advantages(advantage, target, rollout.weight)


@register_advantage(
    "group",
    paper="GRPO: DeepSeekMath, 2402.03300; Dr.GRPO: 2503.20783; RLOO: Back to Basics, 2402.14740",
    requires=("groups",),
    aliases=("grpo",),
    critic=False,
    standardise=False,
)
def group(
    rollout: Rollout,
    critic: CriticOutputs,
    *,
    gamma: Scalar,
    group_size: int,
    standardise: Scalar = 1.0,
    leave_one_out: Scalar = 0.0,
) -> Advantages:
    """Discounted return of the whole episode against those of the G − 1 others from the same start state; no critic.

    One number for all steps of the episode; later episodes of the rollout weigh nothing. Defaults are GRPO;
    standardise 0 is Dr.GRPO, and leave_one_out 1 with it RLOO. An episode longer than the rollout counts as far as it
    was seen: choose `num_steps` at least as long as an episode.
    """
    alive = first_episode(rollout.trace)
    time = jnp.arange(rollout.reward.shape[0], dtype=jnp.float32)
    discount = (jnp.asarray(gamma) ** time).reshape(-1, *[1] * (rollout.reward.ndim - 1))
    returns = (discount * alive * rollout.weight * rollout.reward).sum(axis=0)
    grouped = returns.reshape(-1, group_size, *returns.shape[1:])
    advantage = group_baseline(grouped, standardise=standardise, leave_one_out=leave_one_out).reshape(returns.shape)
    return Advantages(jnp.broadcast_to(advantage, rollout.reward.shape), critic.value, rollout.weight * alive)
