"""First-order optimisers with traced numbers: optax underneath, the learning rate outside.

The learning rate multiplies the direction that optax gives, so that a schedule counts samples (optax counts calls,
which epochs, minibatches and early stops change) and a vmap over learning rates is a vmap over one number.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.types import Array, PyTree


class StepReport(NamedTuple):
    """norm: global norm of the gradient before clipping; applied: bool, the step was taken."""

    norm: Array
    applied: Array


def make_direction(kind: str, hyper: Hyperparameters) -> optax.GradientTransformation:
    """The optimiser without its learning rate. `hyper` may be traced: build it inside the traced function."""
    if kind == "adam":
        return optax.scale_by_adam(b1=hyper.adam_b1, b2=hyper.adam_b2, eps=hyper.adam_epsilon)
    if kind == "rmsprop":
        return optax.scale_by_rms(decay=0.99, eps=hyper.adam_epsilon)
    return optax.identity()


def optimiser_step(
    config: PPOConfig, hyper: Hyperparameters, parameters: PyTree, optimiser: PyTree, gradient: PyTree, go: Array
) -> tuple[PyTree, PyTree, StepReport]:
    """One clipped step; nothing changes where `go` (bool []) is False or the gradient is not finite.

    Clipping is by the global norm over all parameters. Returns (parameters, optimiser state, report).
    """
    norm = optax.global_norm(gradient)
    applied = go & jnp.isfinite(norm)
    scale = jnp.minimum(1.0, hyper.max_grad_norm / jnp.maximum(norm, 1e-12))
    gradient = jax.tree.map(lambda g: jnp.where(applied, g * scale, 0.0), gradient)
    direction, following = make_direction(config.optimiser, hyper).update(gradient, optimiser, parameters)

    def step(p, d):
        return jnp.where(applied, p - hyper.learning_rate * d, p)

    keep = jax.tree.map(lambda new, old: jnp.where(applied, new, old), following, optimiser)
    return jax.tree.map(step, parameters, direction), keep, StepReport(norm, applied)


Combine = Any  # (list of gradients, key) -> gradient


def sum_of_gradients(gradients: list[PyTree], key: Array) -> PyTree:
    """The default way to combine the gradients of the loss terms."""
    del key
    return jax.tree.map(lambda *leaves: sum(leaves), *gradients)
