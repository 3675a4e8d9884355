"""From a registered surrogate to a scalar: inputs, weights, reduction, and the diagnostics that all of them share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.distributions import Categorical
from jaxppo.environment import EnvironmentSpec
from jaxppo.errors import UserError
from jaxppo.losses.surrogates import SURROGATES, SurrogateInputs, ratio
from jaxppo.registry import Entry
from jaxppo.spaces import Box, Discrete
from jaxppo.types import Array, PyTree

PROVIDED = frozenset({"kl_old_new", "kl_new_old", "entropy", "distribution"})
"""Requirements that every recipe with an analytic distribution meets."""


def weighted_mean(x: Array, weight: Array) -> Array:
    """Σ w·x / Σ w over all axes; 0 where nothing counts. `weight` is broadcast from the left."""
    weight = jnp.broadcast_to(weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim)), x.shape)
    # What weighs nothing may be infinite.
    return jnp.where(weight != 0, weight * x, 0.0).sum() / jnp.maximum(weight.sum(), 1e-8)


class Moments(NamedTuple):
    """Mean and standard deviation of the samples that count."""

    mean: Array
    deviation: Array


def moments(x: Array, weight: Array) -> Moments:
    """The moments by which `standardise` moves and scales. One sample has deviation 1e-8, never NaN."""
    mean = weighted_mean(x, weight)
    variance = weighted_mean(jnp.square(x - mean), weight)
    return Moments(mean, jnp.sqrt(jnp.maximum(variance, 1e-16)))


def standardise(x: Array, by: Moments) -> Array:
    """(x − mean) / (std + 1e-8). One sample gives 0."""
    return (x - by.mean) / (by.deviation + 1e-8)


class Surrogate(NamedTuple):
    """A surrogate made ready: loss(distribution, entropy, batch, advantage, state, numbers) -> (scalar, aux)."""

    entry: Entry
    needs_distribution: bool
    init: Any
    loss: Any
    update_state: Any


def make_surrogate(entry: Entry, spec: EnvironmentSpec, provided: frozenset[str] = PROVIDED) -> Surrogate:
    """Raises UserError, by name, where the surrogate asks for what is not there or is not valid for the actions."""
    missing = entry.requires - provided
    if missing:
        raise UserError(
            f"surrogate={entry.name} needs {', '.join(sorted(missing))}, which this algorithm does not give"
        )
    if isinstance(spec.action, Box) and not entry.continuous:
        fit = ", ".join(e.name for e in SURROGATES.listing() if e.continuous and not e.requires)
        raise UserError(
            f"surrogate={entry.name} works with probabilities, which continuous actions have none of; use one of {fit}"
        )
    if "distribution" in entry.requires and not isinstance(spec.action, Discrete):
        raise UserError(f"surrogate={entry.name} needs the probabilities of all actions: one discrete choice only")
    stateful = "state" in entry.keywords
    needs = bool(entry.requires & {"kl_old_new", "kl_new_old", "distribution"})

    def loss(distribution, entropy, batch, advantage, state, numbers):
        log_prob = distribution.log_prob(batch.action)[..., None]
        like = jnp.zeros_like(log_prob)
        old = batch.distribution

        def spread(x):
            return x[..., None] + like

        def wanted(name, make):
            return make() if name in entry.requires else None

        discrete = isinstance(distribution, Categorical)
        inputs = SurrogateInputs(
            log_prob=log_prob,
            behaviour_log_prob=batch.log_prob,
            advantage=spread(advantage),
            kl_old_new=wanted("kl_old_new", lambda: spread(old.kl(distribution))),
            kl_new_old=wanted("kl_new_old", lambda: spread(distribution.kl(old))),
            entropy=wanted("entropy", lambda: spread(entropy)),
            log_prob_all=wanted("distribution", lambda: distribution.log_probs if discrete else None),
            behaviour_log_prob_all=wanted("distribution", lambda: old.log_probs if discrete else None),
        )
        result = entry.function(inputs, **({"state": state} if stateful else {}), **numbers)
        losses, diagnostics = result if isinstance(result, tuple) else (result, {})
        log_ratio = log_prob - batch.log_prob
        r = ratio(inputs)
        shared = {
            # E[r − 1 − log r] under the behaviour policy is KL(old ‖ new), and never negative. (Schulman, 2020.)
            "approximate_kl": weighted_mean(r - 1.0 - log_ratio, batch.weight),
            "ratio_deviation": jnp.abs(jnp.where(batch.weight[..., None] > 0, r - 1.0, 0.0)).max(),
        }
        diagnostics = {k: weighted_mean(v.astype(jnp.float32), batch.weight) for k, v in diagnostics.items()}
        return weighted_mean(losses, batch.weight), jax.lax.stop_gradient(shared | diagnostics)

    def init(numbers: PyTree) -> PyTree:
        return entry.facts["initial_state"](**numbers) if stateful else ()

    def update_state(state: PyTree, diagnostics: dict[str, Array], numbers: PyTree) -> PyTree:
        return entry.facts["update_state"](state, diagnostics, **numbers) if stateful else state

    return Surrogate(entry, needs, init, loss, update_state)
