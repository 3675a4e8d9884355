"""Losses of the critic, one value a sample, not reduced."""

from typing import Any

import chex
import jax.numpy as jnp
import optax

from jaxppo.types import Array


def value_loss(
    value: Array,
    target: Array,
    old_value: Array,
    *,
    kind: str = "squared",
    huber_delta: Any = 10.0,
    clip: Any | None = None,
) -> Array:
    """½(v − target)², or Huber's loss; with `clip` the worse of that and the one of v clipped around `old_value`.

    `clip` is in units of the return: with returns of hundreds and a clip of .2 it freezes the critic, which is why it
    is separate from the policy's and off by default. (Clipping: Engstrom et al., 2020.)

    Shapes: all [B, ...]; returns [B, ...].
    """
    chex.assert_equal_shape([value, target, old_value])

    def loss(prediction):
        error = prediction - target
        return optax.huber_loss(error, delta=huber_delta) if kind == "huber" else 0.5 * jnp.square(error)

    if clip is None:
        return loss(value)
    return jnp.maximum(loss(value), loss(old_value + jnp.clip(value - old_value, -clip, clip)))
