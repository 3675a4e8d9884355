"""Action distributions: pytrees of parameters with log_prob, entropy, kl, sample and mode.

Normal and Beta mathematics is distrax's. Ours is what it lacks: masks (in entropy and KL too), several discrete
components in one vector of logits, sampling with one uniform number an action instead of one a choice, and a
tanh-Gaussian that is scored on the sample before the tanh, so that it is never inverted.

Continuous policies act in units in which every bounded action lies in [-1, 1] (Beta: [0, 1]); `to_environment` maps
them to the bounds. What is stored and scored is the action before squashing or clipping.

Shapes: parameters [..., A] or [..., actions]; log_prob, entropy and kl sum over action dimensions and return [...].
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.errors import UserError
from jaxppo.registry import Registry
from jaxppo.spaces import Box, Discrete, MultiDiscrete, Space
from jaxppo.types import Array

# Large, finite: −inf in a logit makes NaN of 0·(−inf) in entropies and of its gradient.
MASKED_LOGIT = -1e9


class Distribution(Protocol):
    """What the losses ask of a distribution."""

    def log_prob(self, action: Array) -> Array: ...

    def entropy(self) -> Array: ...

    def kl(self, other: Any) -> Array: ...

    def sample(self, key: Array) -> Array: ...

    def mode(self) -> Array: ...


def mask_logits(logits: Array, mask: Array | None) -> Array:
    """Logits with those of forbidden actions far below all others. [..., A]; where nothing is allowed, all is."""
    if mask is None:
        return logits
    mask = mask | ~mask.any(axis=-1, keepdims=True)
    return jnp.where(mask, logits, MASKED_LOGIT)


class Categorical(NamedTuple):
    """log_probs [..., A], normalised. Forbidden actions have probability 0 exactly."""

    log_probs: Array

    @classmethod
    def from_logits(cls, logits: Array, mask: Array | None = None) -> "Categorical":
        return cls(jax.nn.log_softmax(mask_logits(logits, mask)))

    def log_prob(self, action: Array) -> Array:
        # A comparison instead of a gather: its gradient is no scatter, and few actions fit in a register.
        chosen = jnp.arange(self.log_probs.shape[-1]) == action[..., None]
        return jnp.where(chosen, self.log_probs, 0.0).sum(-1)

    def entropy(self) -> Array:
        p = jnp.exp(self.log_probs)
        return -jnp.where(p > 0, p * self.log_probs, 0.0).sum(-1)

    def kl(self, other: "Categorical") -> Array:
        p = jnp.exp(self.log_probs)
        return jnp.where(p > 0, p * (self.log_probs - other.log_probs), 0.0).sum(-1)

    def sample(self, key: Array) -> Array:
        # Inverse of the cumulative distribution: the number of entries at or below a uniform point. u < 1 strictly, so
        # the last entry is never passed, and entries of probability 0 are never stopped at.
        cumulative = jnp.cumsum(jnp.exp(self.log_probs), axis=-1)
        point = jax.random.uniform(key, self.log_probs.shape[:-1]) * cumulative[..., -1]
        return (cumulative <= point[..., None]).sum(-1).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.log_probs, axis=-1).astype(jnp.int32)


class MultiCategorical(NamedTuple):
    """Independent categorical components; actions [..., components]."""

    components: tuple[Categorical, ...]

    @classmethod
    def from_logits(cls, logits: Array, nvec: tuple[int, ...], mask: Array | None = None) -> "MultiCategorical":
        """Logits and mask [..., sum(nvec)], concatenated over the components."""
        cuts = np.cumsum(nvec)[:-1].tolist()
        pieces = jnp.split(logits, cuts, axis=-1)
        masks = [None] * len(nvec) if mask is None else jnp.split(mask, cuts, axis=-1)
        return cls(tuple(Categorical.from_logits(x, m) for x, m in zip(pieces, masks, strict=True)))

    def log_prob(self, action: Array) -> Array:
        return sum(c.log_prob(action[..., i]) for i, c in enumerate(self.components))  # type: ignore[return-value]

    def entropy(self) -> Array:
        return sum(c.entropy() for c in self.components)  # type: ignore[return-value]

    def kl(self, other: "MultiCategorical") -> Array:
        pairs = zip(self.components, other.components, strict=True)
        return sum(c.kl(o) for c, o in pairs)  # type: ignore[return-value]

    def sample(self, key: Array) -> Array:
        keys = jax.random.split(key, len(self.components))
        return jnp.stack([c.sample(k) for c, k in zip(self.components, keys, strict=True)], axis=-1)

    def mode(self) -> Array:
        return jnp.stack([c.mode() for c in self.components], axis=-1)


class Gaussian(NamedTuple):
    """Independent normal dimensions: mean, log_std [..., dimensions]."""

    mean: Array
    log_std: Array

    def _normal(self):
        import distrax  # heavy, and not needed for discrete actions

        return distrax.Normal(self.mean, jnp.exp(self.log_std))

    def log_prob(self, action: Array) -> Array:
        return self._normal().log_prob(action).sum(-1)

    def entropy(self) -> Array:
        return self._normal().entropy().sum(-1)

    def kl(self, other: "Gaussian") -> Array:
        return self._normal().kl_divergence(other._normal()).sum(-1)

    def sample(self, key: Array) -> Array:
        return self._normal().sample(seed=key)

    def mode(self) -> Array:
        return self.mean


def tanh_log_det(x: Array) -> Array:
    """log d tanh(x)/dx = 2(log 2 − x − softplus(−2x)), exact in the tails where 1 − tanh² is 0 in float32."""
    return 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))


class TanhGaussian(NamedTuple):
    """tanh of a Gaussian; actions are the samples *before* the tanh, the density is the one after it.

    entropy: of the squashed variable: H(Gaussian) + E[log det], the mean by Gauss–Hermite quadrature (16 nodes a
    dimension), so that it needs no sample and has a smooth gradient. This estimate is ours.
    kl: of the Gaussians, which is the same: the tanh is a bijection.
    mode: tanh of the mean (the mode of the density itself lies at the bounds for wide Gaussians).
    """

    gaussian: Gaussian

    def log_prob(self, action: Array) -> Array:
        return self.gaussian.log_prob(action) - tanh_log_det(action).sum(-1)

    def entropy(self) -> Array:
        nodes, weights = np.polynomial.hermite_e.hermegauss(16)
        mean, std = self.gaussian.mean[..., None], jnp.exp(self.gaussian.log_std)[..., None]
        log_det = tanh_log_det(mean + std * jnp.asarray(nodes, jnp.float32))
        expected = (log_det * jnp.asarray(weights / weights.sum(), jnp.float32)).sum(-1)
        return self.gaussian.entropy() + expected.sum(-1)

    def kl(self, other: "TanhGaussian") -> Array:
        return self.gaussian.kl(other.gaussian)

    def sample(self, key: Array) -> Array:
        return self.gaussian.sample(key)

    def mode(self) -> Array:
        return self.gaussian.mean


class Beta(NamedTuple):
    """Independent Beta dimensions on [0, 1]: alpha, beta [..., dimensions], both above 1 (one mode inside)."""

    alpha: Array
    beta: Array

    def _beta(self):
        import distrax  # heavy, and not needed for discrete actions

        return distrax.Beta(self.alpha, self.beta)

    def log_prob(self, action: Array) -> Array:
        return self._beta().log_prob(action).sum(-1)

    def entropy(self) -> Array:
        return self._beta().entropy().sum(-1)

    def kl(self, other: "Beta") -> Array:
        return self._beta().kl_divergence(other._beta()).sum(-1)

    def sample(self, key: Array) -> Array:
        # Kept off the ends, where the log density is infinite.
        return jnp.clip(self._beta().sample(seed=key), 1e-6, 1.0 - 1e-6)

    def mode(self) -> Array:
        # The middle where both are 1 and every point is a mode.
        return (self.alpha - 1.0 + 1e-6) / (self.alpha + self.beta - 2.0 + 2e-6)


class Head(NamedTuple):
    """How network outputs become a distribution.

    size: outputs of the last layer; free: of them those that may be one parameter for all states (log std).
    build: (outputs [..., size], mask or None) -> Distribution.
    to_environment: action as stored -> action as the environment takes it.
    """

    size: int
    free: int
    build: Any
    to_environment: Any


DISTRIBUTIONS = Registry("distribution")


@DISTRIBUTIONS.register("categorical", continuous=False)
def categorical_head(space: Space) -> Head:
    """One or several discrete choices, with masks."""
    if isinstance(space, Discrete):
        return Head(space.n, 0, Categorical.from_logits, lambda action: action)
    if isinstance(space, MultiDiscrete):
        return Head(
            space.num_logits,
            0,
            lambda x, mask: MultiCategorical.from_logits(x, space.nvec, mask),
            lambda action: action,
        )
    raise UserError(f"distribution=categorical cannot give the continuous actions {space}; use gaussian")


def _box(name: str, space: Space, bounded: bool = False) -> tuple[int, Any, Any, bool]:
    if not isinstance(space, Box):
        raise UserError(f"distribution={name} is continuous, but the environment takes {space}; use categorical")
    if bounded and not space.bounded:
        raise UserError(f"distribution={name} needs bounded actions, but the environment's are {space}; use gaussian")
    low, high = space.bounds()
    return int(np.prod(space.shape, dtype=int)), low, high, space.bounded


def _unflatten(action: Array, shape: tuple[int, ...]) -> Array:
    return action.reshape(*action.shape[:-1], *shape)


@DISTRIBUTIONS.register("gaussian")
def gaussian_head(space: Space) -> Head:
    """Diagonal Gaussian; what is sent to a bounded environment is clipped, what is scored is not."""
    size, low, high, bounded = _box("gaussian", space)

    def to_environment(action):
        action = _unflatten(action, low.shape)
        return (
            low + (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0 * (high - low) if bounded else jnp.clip(action, low, high)
        )

    return Head(2 * size, size, lambda x, mask: Gaussian(*jnp.split(x, 2, axis=-1)), to_environment)


@DISTRIBUTIONS.register("tanh_gaussian")
def tanh_gaussian_head(space: Space) -> Head:
    """tanh of a diagonal Gaussian, scored on the sample before the tanh."""
    size, low, high, _ = _box("tanh_gaussian", space, bounded=True)

    def to_environment(action):
        return low + (jnp.tanh(_unflatten(action, low.shape)) + 1.0) / 2.0 * (high - low)

    def build(x, mask):
        return TanhGaussian(Gaussian(*jnp.split(x, 2, axis=-1)))

    return Head(2 * size, size, build, to_environment)


@DISTRIBUTIONS.register(
    "beta", paper="Improving Stochastic Policy Gradients … with the Beta Distribution, Chou et al., 2017"
)
def beta_head(space: Space) -> Head:
    """Beta on the bounds, α and β above 1."""
    size, low, high, _ = _box("beta", space, bounded=True)

    def build(x, mask):
        return Beta(*(1.0 + jax.nn.softplus(part) for part in jnp.split(x, 2, axis=-1)))

    def to_environment(action):
        return low + _unflatten(action, low.shape) * (high - low)

    return Head(2 * size, 0, build, to_environment)


def make_head(name: str, space: Space) -> Head:
    """The head called `name` for `space`; `auto` is categorical for discrete and gaussian for continuous actions."""
    if name == "auto":
        name = "gaussian" if isinstance(space, Box) else "categorical"
    return DISTRIBUTIONS.get(name).function(space)


def sample(distribution: Any, keys: Array) -> Array:
    """One action for each key: `distribution` batched [N, ...], keys [N]."""
    return jax.vmap(lambda d, key: d.sample(key))(distribution, keys)
