"""The update of a policy on one rollout: epochs over minibatches, as two nested scans. Knows no algorithm.

The recipe gives the loss terms; how their gradients are combined, and which steps are still taken, is decided here.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.minibatches import make_deal
from jaxppo.optimisers import Combine, optimiser_step, sum_of_gradients
from jaxppo.types import Array, PyTree

Terms = dict[str, Array]
LossTerms = Callable[[PyTree, PyTree, PyTree], tuple[Terms, dict[str, Array]]]

MAXIMA = frozenset({"ratio_deviation"})
"""Diagnostics that are the largest over samples; all others, and all losses, are means over samples by weight."""


class Progress(NamedTuple):
    """parameters, optimiser state, and whether further steps are still wanted (bool [])."""

    parameters: PyTree
    optimiser: PyTree
    go: Array


class Gradients(NamedTuple):
    """One gradient for each group of loss terms that is differentiated apart, the terms and the diagnostics."""

    each: list[PyTree]
    terms: Terms
    diagnostics: dict[str, Array]


def gradients_of(
    terms: Callable[[PyTree], tuple[Terms, dict[str, Array]]], parameters: PyTree, apart: bool
) -> Gradients:
    """One backward pass for the sum of the terms, or one for each term where they are wanted `apart`."""
    if not apart:

        def total(p):
            values, diagnostics = terms(p)
            return sum(values.values()), (values, diagnostics)

        gradient, (values, diagnostics) = jax.grad(total, has_aux=True)(parameters)
        return Gradients([gradient], values, diagnostics)
    values, pullback, diagnostics = jax.vjp(terms, parameters, has_aux=True)
    seeds = [{n: jnp.full_like(values[n], n == name) for n in values} for name in values]
    return Gradients([pullback(seed)[0] for seed in seeds], values, diagnostics)


def accumulate(parts: int, part: Callable[[Array], tuple[Array, Gradients]]) -> Gradients:
    """Gradients of a whole minibatch from those of its parts: `part(j)` -> (share of the weight, means over the part).

    Exact: with shares W_j / W, Σ share_j · mean_j is the mean over the whole.
    """

    def step(total: Gradients, j: Array) -> tuple[Gradients, None]:
        share, found = part(j)
        added = jax.tree.map(lambda sum_, x: sum_ + share * x, total, found)
        largest = {name: jnp.maximum(total.diagnostics[name], found.diagnostics[name]) for name in MAXIMA & {*found[2]}}
        return added._replace(diagnostics=added.diagnostics | largest), None

    _, shapes = jax.eval_shape(part, jnp.int32(0))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(step, zeros, jnp.arange(parts))[0]


def improve(
    config: PPOConfig,
    hyper: Hyperparameters,
    parameters: PyTree,
    optimiser: PyTree,
    key: Array,
    batch_for_epoch: Callable[[PyTree, Array], PyTree],
    terms: LossTerms,
    combine: Combine = sum_of_gradients,
    *,
    summarise: Callable[[PyTree], PyTree] = lambda minibatch: (),
    weigh: Callable[[PyTree], Array] = lambda samples: jnp.ones(()),
    mesh: Mesh | None = None,
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """All gradient steps of one update. Returns (parameters, optimiser state, diagnostics [epochs, minibatches]).

    batch_for_epoch: (parameters, epoch) -> samples [T, N, ...]; called at the start of each epoch.
    terms: (parameters, samples [B, ...], summary) -> (named scalar losses, diagnostics), means by weight over the
        samples. The diagnostic `approximate_kl` beyond `hyper.target_kl` stops this and all further steps.
    summarise: minibatch -> what `terms` must know of the whole minibatch, of which it may see one microbatch only.
    weigh: samples -> what they weigh together in a mean.
    """
    apart = combine is not sum_of_gradients
    parts = config.microbatches

    def minibatch_gradients(parameters: PyTree, deal, key: Array, i: Array) -> Gradients:
        minibatch = deal(key, i, config.minibatches)
        summary = summarise(minibatch)
        if parts == 1:
            return gradients_of(lambda p: terms(p, minibatch, summary), parameters, apart)
        weight = jnp.maximum(weigh(minibatch), 1e-8)

        def part(j: Array) -> tuple[Array, Gradients]:
            # A minibatch is consecutive in the order of its key: its microbatches are the finer parts of it.
            samples = deal(key, i * parts + j, config.minibatches * parts)
            found = gradients_of(lambda p: terms(p, samples, summary), parameters, apart)
            return weigh(samples) / weight, found

        return accumulate(parts, part)

    def minibatch_step(progress: Progress, deal, epoch_key: Array, i: Array) -> tuple[Progress, dict[str, Array]]:
        shuffle_key, combine_key = jax.random.split(epoch_key)
        each, values, diagnostics = minibatch_gradients(progress.parameters, deal, shuffle_key, i)
        gradient = combine(each, jax.random.fold_in(combine_key, i)) if apart else each[0]
        go = progress.go & ~(diagnostics["approximate_kl"] > hyper.target_kl)
        new_parameters, new_optimiser, report = optimiser_step(
            config, hyper, progress.parameters, progress.optimiser, gradient, go
        )
        skipped = (progress.go & ~jnp.isfinite(report.norm)).astype(jnp.float32)
        outputs = {
            **{f"{name}_loss": value for name, value in values.items()},
            **diagnostics,
            "grad_norm": jnp.where(jnp.isfinite(report.norm), report.norm, 0.0),
            "steps_taken": report.applied.astype(jnp.float32),
            "skipped_updates": skipped,
        }
        return Progress(new_parameters, new_optimiser, go), outputs

    def epoch_step(progress: Progress, epoch: Array) -> tuple[Progress, dict[str, Array]]:
        epoch_key = jax.random.fold_in(key, epoch)
        deal = make_deal(config, batch_for_epoch(progress.parameters, epoch), mesh)
        return jax.lax.scan(
            lambda carry, i: minibatch_step(carry, deal, epoch_key, i), progress, jnp.arange(config.minibatches)
        )

    start = Progress(parameters, optimiser, jnp.ones((), bool))
    end, outputs = jax.lax.scan(epoch_step, start, jnp.arange(config.epochs))
    return end.parameters, end.optimiser, outputs
