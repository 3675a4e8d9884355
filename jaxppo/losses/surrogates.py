"""Policy losses: one function each.

A surrogate takes `SurrogateInputs` and its own numbers as keyword-only arguments, and returns one loss a sample,
negated objective, not reduced; or (loss, diagnostics) with named arrays. Reduction, weights and everything that is
common to all are the recipe's. Use `ratio`: it is finite whatever
the log-probabilities are.

    @register_surrogate("mine", paper="…")
    def mine(inputs, *, epsilon=0.2):
        return -ratio(inputs) * inputs.advantage

A stateful one names `state` as keyword, declares `initial_state`, and an `update_state(state, diagnostics, **numbers)`
that is called once after each update with the averages of the update's last epoch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.registry import Registry
from jaxppo.types import Array, PyTree

Scalar = Any

REQUIREMENTS = frozenset(
    {
        "kl_old_new",  # analytic KL(π_old ‖ π), differentiable
        "kl_new_old",  # analytic KL(π ‖ π_old), differentiable
        "entropy",  # entropy of π, a sample
        "distribution",  # log-probabilities of all actions, both policies; discrete only
        "proximal",  # a proximal policy beside the behaviour policy
        "reference",  # a frozen reference policy
        "groups",  # several episodes from one start state
        "segments",  # sequence or turn ids
        "time",  # the index in the episode
    }
)


class SurrogateInputs(NamedTuple):
    """All of one shape, [B, D] (with agents [B, M, D]); None where the surrogate did not ask for it.

    log_prob: log π(a|s), current policy; the gradient flows through it.
    behaviour_log_prob: log μ(a|s) of the policy that acted.
    advantage: as the estimator gave it, standardised if configured.
    kl_old_new, kl_new_old, entropy: analytic, differentiable.
    log_prob_all, behaviour_log_prob_all: [B, A].
    proximal_log_prob, reference_log_prob: of other policies.
    """

    log_prob: Array
    behaviour_log_prob: Array
    advantage: Array
    kl_old_new: Array | None = None
    kl_new_old: Array | None = None
    entropy: Array | None = None
    log_prob_all: Array | None = None
    behaviour_log_prob_all: Array | None = None
    proximal_log_prob: Array | None = None
    reference_log_prob: Array | None = None


SURROGATES = Registry("surrogate", REQUIREMENTS)
register_surrogate = SURROGATES.register


def listing():
    """All registered surrogates."""
    return SURROGATES.listing()


LARGEST_LOG_RATIO = 40.0
"""e^40 squared is still a float32. Beyond it a ratio loss is flat: one lost sample instead of a NaN for all."""


def ratio(inputs: SurrogateInputs) -> Array:
    """π(a|s) / μ(a|s), at most e^40."""
    return jnp.exp(jnp.minimum(inputs.log_prob - inputs.behaviour_log_prob, LARGEST_LOG_RATIO))


@register_surrogate(
    "ppo_clip",
    paper="Proximal Policy Optimization Algorithms, 1707.06347; Clip-Higher: DAPO, 2503.14476; dual-clip: 1912.09729",
    aliases=("ppo", "dapo_clip"),
    limits={"epsilon": 1e6},
)
def ppo_clip(
    inputs: SurrogateInputs,
    *,
    epsilon: Scalar = 0.2,
    epsilon_high: Scalar | None = None,
    dual_clip: Scalar | None = None,
) -> tuple[Array, dict[str, Array]]:
    """min(r·A, clip(r, 1 − ε, 1 + ε_high)·A); with dual-clip c, at least c·A where A < 0.

    The gradient is r·A, and 0 where r has already gone beyond the bound that A pushes it to; on the wrong side it is
    never clipped. ε_high (default ε) is Clip-Higher, DAPO's .28; dual-clip (default off, 3 in the paper) bounds what a
    sample of negative advantage costs once r > c. ε → ∞ gives the importance-weighted policy gradient.
    """
    r = ratio(inputs)
    low, high = 1.0 - epsilon, 1.0 + (epsilon if epsilon_high is None else epsilon_high)
    advantage = inputs.advantage
    objective = jnp.minimum(r * advantage, jnp.clip(r, low, high) * advantage)
    clipped = ((advantage > 0) & (r > high)) | ((advantage < 0) & (r < low))
    if dual_clip is not None:
        floor = dual_clip * advantage
        clipped = clipped | ((advantage < 0) & (r > dual_clip))
        objective = jnp.where(advantage < 0, jnp.maximum(objective, floor), objective)
    return -objective, {"clip_fraction": clipped}


def _adapt_beta(state: PyTree, diagnostics: dict[str, Array], *, target: Scalar, beta: Scalar) -> PyTree:
    """β ← β/2 where KL < target/1.5, 2β where KL > 1.5·target (1707.06347, section 4)."""
    del beta  # only the first value
    kl = diagnostics["kl_old_new"]
    factor = jnp.where(kl > 1.5 * target, 2.0, jnp.where(kl < target / 1.5, 0.5, 1.0))
    return {"beta": jnp.clip(state["beta"] * factor, 1e-6, 1e6)}


@register_surrogate(
    "ppo_kl",
    paper="Proximal Policy Optimization Algorithms, 1707.06347, section 4 (the factor 1.5 from memory)",
    requires=("kl_old_new",),
    initial_state=lambda *, beta, target: {"beta": jnp.asarray(beta, jnp.float32)},
    update_state=_adapt_beta,
)
def ppo_kl(
    inputs: SurrogateInputs, *, state: PyTree, beta: Scalar = 1.0, target: Scalar = 0.01
) -> tuple[Array, dict[str, Array]]:
    """r·A − β·KL(π_old ‖ π), with β doubled or halved after each update to hold KL near `target`.

    At r = 1 the gradient of the penalty is 0. β = 0 is the importance-weighted policy gradient.
    """
    del beta, target  # they start and steer the state
    assert inputs.kl_old_new is not None
    loss = state["beta"] * inputs.kl_old_new - ratio(inputs) * inputs.advantage
    return loss, {"kl_old_new": inputs.kl_old_new, "beta": jnp.broadcast_to(state["beta"], loss.shape)}


@register_surrogate(
    "spo",
    paper="Simple Policy Optimization, 2401.16025; the same expression as Clipping-Free PO, 2601.22801",
    aliases=("simple_policy_optimization", "cfpo"),
    limits={"epsilon": 1e6},
)
def spo(inputs: SurrogateInputs, *, epsilon: Scalar = 0.2) -> Array:
    """r·A − |A|·(r − 1)² / 2ε.

    The gradient vanishes at r = 1 + ε·sign(A) and points back beyond it, so unlike a clip it restores.
    ε → ∞ gives the importance-weighted policy gradient.
    """
    r = ratio(inputs)
    penalty = jnp.abs(inputs.advantage) * jnp.square(r - 1.0) / (2.0 * epsilon)
    return penalty - r * inputs.advantage


@register_surrogate(
    "a2c",
    paper="A2C is a special case of PPO, 2205.09123",
    aliases=("reinforce", "policy_gradient"),
    kernel="score",
)
def a2c(inputs: SurrogateInputs) -> Array:
    """A·log π(a|s): the plain policy gradient.

    With one epoch of one minibatch PPO's ratio is 1 and both have the same gradient: the parameters go the same way.
    """
    return -inputs.advantage * inputs.log_prob


@register_surrogate(
    "soft_adaptive",
    paper="Soft Adaptive Policy Optimization, 2511.20347",
    limits={"temperature": 1e-3, "temperature_negative": 1e-3},
)
def soft_adaptive(inputs: SurrogateInputs, *, temperature: Scalar = 1.0, temperature_negative: Scalar = 1.05) -> Array:
    """A·(4/τ)·σ(τ(r − 1)), τ = `temperature` where A > 0, else `temperature_negative`.

    The gradient r·A·sech²(τ(r − 1)/2) fades smoothly instead of being cut, never changes sign, and is A at r = 1.
    τ → 0 gives the importance-weighted policy gradient.
    """
    tau = jnp.where(inputs.advantage > 0, temperature, temperature_negative)
    return -inputs.advantage * 4.0 / tau * jax.nn.sigmoid(tau * (ratio(inputs) - 1.0))
