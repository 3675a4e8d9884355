"""Networks of actor and critic (flax linen). Observations are pytrees: every leaf gets the encoder of its space."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config import NetworkConfig
from jaxppo.errors import UserError
from jaxppo.spaces import Box, Discrete, MultiDiscrete, Space
from jaxppo.types import Array, PyTree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}


def orthogonal(gain: float) -> Any:
    """Orthogonal initialisation with the given gain."""
    return nn.initializers.orthogonal(gain)


class Layer(nn.Module):
    """Dense or 3×3 convolution, then (layer norm and) activation; orthogonal with gain √2."""

    config: NetworkConfig
    features: int
    convolution: bool = False
    padding: str = "VALID"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kwargs: dict[str, Any] = {"dtype": jnp.dtype(self.config.compute), "kernel_init": orthogonal(np.sqrt(2))}
        if self.convolution:
            x = nn.Conv(self.features, (3, 3), padding=self.padding, **kwargs)(x)
        else:
            x = nn.Dense(self.features, **kwargs)(x)
        if self.config.layer_norm:
            x = nn.LayerNorm(dtype=jnp.dtype(self.config.compute))(x)
        return ACTIVATIONS[self.config.activation](x)


class Torso(nn.Module):
    """Observation pytree -> features: one encoder a leaf, concatenated, then the dense layers.

    spaces: the leaves' spaces, in the order of `jax.tree.leaves`. Discrete leaves become one-hot, arrays of three axes
    (height, width, channels) go through convolutions unless `torso` is mlp, everything else is flattened.
    """

    config: NetworkConfig
    spaces: tuple[Space, ...]

    def encode(self, space: Space, x: Array) -> Array:
        if isinstance(space, Discrete):
            return jax.nn.one_hot(x, space.n)
        if isinstance(space, MultiDiscrete):
            parts = [jax.nn.one_hot(x[..., i], n) for i, n in enumerate(space.nvec)]
            return jnp.concatenate(parts, axis=-1)
        batch = x.shape[: x.ndim - len(space.shape)]
        # Only raw bytes are scaled: a standardised image comes as floats.
        scale = 1.0 / 255.0 if x.dtype == np.uint8 and np.max(space.bounds()[1]) > 1 else 1.0
        x = x.astype(jnp.dtype(self.config.compute)) * scale
        if len(space.shape) == 3 and self.config.torso != "mlp":
            for features in self.config.channels:
                padding = "VALID" if min(x.shape[-3:-1]) >= 5 else "SAME"
                x = Layer(self.config, features, convolution=True, padding=padding)(x)
        return x.reshape(*batch, -1)

    @nn.compact
    def __call__(self, observation: PyTree) -> Array:
        leaves = jax.tree.leaves(observation)
        features = [self.encode(s, x) for s, x in zip(self.spaces, leaves, strict=True)]
        dtype = jnp.dtype(self.config.compute)
        x = jnp.concatenate([f.astype(dtype) for f in features], axis=-1) if len(features) > 1 else features[0]
        for width in self.config.hidden:
            x = Layer(self.config, width)(x)
        return x.astype(jnp.float32)


class ActorCritic(nn.Module):
    """(outputs of the policy head [..., size], value [...]). Two torsos, or one that both share.

    Raises UserError for the torso cnn where no observation has three axes: it would be an mlp.
    The last `free` outputs of the head are one parameter for all states unless `state_dependent_std`.
    """

    config: NetworkConfig
    spaces: tuple[Space, ...]
    size: int
    free: int

    def __post_init__(self):
        super().__post_init__()
        shapes = [space.shape for space in self.spaces]
        if self.config.torso == "cnn" and not any(len(shape) == 3 for shape in shapes):
            raise UserError(
                f"network.torso=cnn needs an observation of three axes (height, width, channels), but there are only "
                f"those of shape {', '.join(map(str, shapes))}; use mlp or auto"
            )

    @nn.compact
    def __call__(self, observation: PyTree) -> tuple[Array, Array]:
        actor = Torso(self.config, self.spaces, name="actor_torso")(observation)
        critic = actor if self.config.shared else Torso(self.config, self.spaces, name="critic_torso")(observation)
        free = 0 if self.config.state_dependent_std else self.free
        outputs = nn.Dense(self.size - free, kernel_init=orthogonal(self.config.actor_gain), name="actor")(actor)
        if free:
            log_std = self.param("log_std", nn.initializers.constant(self.config.initial_log_std), (free,))
            outputs = jnp.concatenate([outputs, jnp.broadcast_to(log_std, (*outputs.shape[:-1], free))], axis=-1)
        elif self.free:
            outputs = outputs.at[..., -self.free :].add(self.config.initial_log_std)
        value = nn.Dense(1, kernel_init=orthogonal(1.0), name="critic")(critic)
        return outputs, value[..., 0]


def observation_spaces(space: PyTree) -> tuple[Space, ...]:
    """The leaves of an observation space, in the order of the observation's leaves."""
    return tuple(jax.tree.leaves(space, is_leaf=lambda s: isinstance(s, (Box, Discrete, MultiDiscrete))))


def dummy_observation(space: PyTree) -> PyTree:
    """Zeros in the shape and type of one observation."""
    return jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype), space, is_leaf=lambda s: isinstance(s, (Box, Discrete, MultiDiscrete))
    )
