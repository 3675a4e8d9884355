"""The update of a policy on one rollout: epochs over minibatches, as two nested scans. Knows no algorithm.

The recipe gives the loss terms; how their gradients are combined, and which steps are still taken, is decided here.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.optimisers import Combine, optimiser_step, sum_of_gradients
from jaxppo.packing import pack
from jaxppo.randomness import minibatch_indices
from jaxppo.types import Array, PyTree

Terms = dict[str, Array]
LossTerms = Callable[[PyTree, PyTree], tuple[Terms, dict[str, Array]]]


class Progress(NamedTuple):
    """parameters, optimiser state, and whether further steps are still wanted (bool [])."""

    parameters: PyTree
    optimiser: PyTree
    go: Array


def take_rows(rows: Array, indices: Array) -> Array:
    """Rows `indices` [B] of [T·N, ...]; every index is unique and in range."""
    return rows.at[indices].get(mode="promise_in_bounds", unique_indices=True)


def take_samples(samples: PyTree, rows: Array, unpack: Callable[[Array], PyTree], indices: Array) -> PyTree:
    """Samples `indices` [B] of leaves [T·N, ...], fetched as packed `rows` (see `jaxppo.packing`).

    Packed bits have no tangents, so forward-mode derivatives are fetched from the leaves themselves.
    """

    @jax.custom_jvp
    def take(samples, rows, indices):
        del samples
        return unpack(take_rows(rows, indices))

    @take.defjvp
    def _(primals, tangents):
        samples, _, indices = primals

        def fetch(leaf, tangent):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return np.zeros((*indices.shape, *leaf.shape[1:]), jax.dtypes.float0)
            return take_rows(tangent, indices)

        return take(*primals), jax.tree.map(fetch, samples, tangents[0])

    return take(samples, rows, indices)


def combined_gradient(terms: LossTerms, parameters: PyTree, minibatch: PyTree, combine: Combine, key: Array):
    """(gradient, loss terms, diagnostics). One backward pass for the plain sum, one for each term otherwise."""
    if combine is sum_of_gradients:

        def total(p):
            values, diagnostics = terms(p, minibatch)
            return sum(values.values()), (values, diagnostics)

        gradient, (values, diagnostics) = jax.grad(total, has_aux=True)(parameters)
        return gradient, values, diagnostics
    values, pullback, diagnostics = jax.vjp(lambda p: terms(p, minibatch), parameters, has_aux=True)
    names = list(values)
    seeds = [{n: jnp.full_like(values[n], n == name) for n in names} for name in names]
    return combine([pullback(seed)[0] for seed in seeds], key), values, diagnostics


def improve(
    config: PPOConfig,
    hyper: Hyperparameters,
    parameters: PyTree,
    optimiser: PyTree,
    key: Array,
    batch_for_epoch: Callable[[PyTree, Array], PyTree],
    terms: LossTerms,
    combine: Combine = sum_of_gradients,
) -> tuple[PyTree, PyTree, dict[str, Array]]:
    """All gradient steps of one update. Returns (parameters, optimiser state, diagnostics [epochs, minibatches]).

    batch_for_epoch: (parameters, epoch) -> samples [T, N, ...]; called at the start of each epoch.
    terms: (parameters, minibatch [B, ...]) -> (named scalar losses, diagnostics). The diagnostic `approximate_kl`
        beyond `hyper.target_kl` stops this and all further steps of the update.
    """

    def minibatch_step(progress: Progress, inputs) -> tuple[Progress, dict[str, Array]]:
        samples, rows, unpack, epoch_key, i = inputs
        shuffle_key, combine_key = jax.random.split(epoch_key)
        indices = minibatch_indices(
            shuffle_key,
            i,
            num_steps=config.num_steps,
            num_envs=config.num_envs,
            blocks=config.num_blocks,
            minibatches=config.minibatches,
            method=config.shuffle,
        )
        gradient, values, diagnostics = combined_gradient(
            terms,
            progress.parameters,
            take_samples(samples, rows, unpack, indices),
            combine,
            jax.random.fold_in(combine_key, i),
        )
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
        samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch_for_epoch(progress.parameters, epoch))
        rows, unpack = pack(samples)
        return jax.lax.scan(
            lambda carry, i: minibatch_step(carry, (samples, rows, unpack, epoch_key, i)),
            progress,
            jnp.arange(config.minibatches),
        )

    start = Progress(parameters, optimiser, jnp.ones((), bool))
    end, outputs = jax.lax.scan(epoch_step, start, jnp.arange(config.epochs))
    return end.parameters, end.optimiser, outputs
