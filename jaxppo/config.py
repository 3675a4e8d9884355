"""What a run is made of, in two halves.

`PPOConfig` holds shapes and choices: static, hashable, a change recompiles.
`Hyperparameters` holds numbers: a pytree of traced leaves, a change does not recompile, and a vmap over them, over
seeds or over both is the same call. Each may be a `Schedule` over the samples.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from flax import struct

from jaxppo.errors import UserError, unknown
from jaxppo.schedules import Schedule

Number = float | Schedule

Truncation = Literal["bootstrap", "hold", "terminate", "mask", "zero"]


@dataclass(frozen=True)
class NetworkConfig:
    """The networks of actor and critic."""

    torso: Literal["auto", "mlp", "cnn"] = "auto"
    """Encoder of the observation: `auto` gives arrays of three axes a convolution and all others a dense layer; `cnn`
    is the same, but refuses observations without such an array."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the dense layers."""
    channels: tuple[int, ...] = (16,)
    """Output channels of the 3×3 convolutions."""
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh"
    """Non-linearity after each hidden layer."""
    shared: bool = False
    """One torso for actor and critic instead of one each."""
    layer_norm: bool = False
    """Layer normalisation before each non-linearity."""
    actor_gain: float = 0.01
    """Gain of the orthogonal initialisation of the policy's last layer."""
    initial_log_std: float = 0.0
    """Logarithm of the first standard deviation of Gaussian policies."""
    state_dependent_std: bool = False
    """Let the network give the standard deviation instead of one free parameter for each action dimension."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Type of activations; parameters, losses and statistics stay float32."""


@dataclass(frozen=True)
class PPOConfig:
    """Shapes and choices of PPO: everything that a compiled program is built on."""

    total_steps: int = 500_000
    """Environment steps in all; rounded up to whole updates."""
    num_envs: int = 64
    """Parallel environments (N)."""
    num_steps: int = 128
    """Steps of each environment between two updates (T)."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Gradient steps in a pass."""
    microbatches: int = 1
    """Parts of a minibatch whose gradients are added up one after another: the same step in less memory."""
    chunks: int = 1
    """Parts of the environments that act one after another: the same samples in less memory."""
    blocks: int | None = None
    """Blocks of environments that samples are shuffled within, a multiple of any device count; default gcd(N, 8)."""
    shuffle: Literal["feistel", "sort"] = "feistel"
    """How minibatches are drawn: a hash that is a bijection, or a sort of random bits (slower)."""
    distribution: str = "auto"
    """Policy head: auto, categorical, gaussian, tanh_gaussian or beta."""
    surrogate: str = "ppo_clip"
    """Policy loss; `jaxppo list surrogates`."""
    advantage: str = "gae"
    """Advantage estimator; `jaxppo list advantages`."""
    group_size: int = 1
    """Environments that start each rollout from one shared fresh state (for group estimators)."""
    recompute_advantage: bool = False
    """Estimate advantages again before each epoch, with the current critic and policy."""
    normalise_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over what the advantages are standardised."""
    normalise_observation: bool = False
    """Standardise observations by running statistics, frozen during an update."""
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    value_loss: Literal["squared", "huber"] = "squared"
    """Loss of the critic: half the squared error, or Huber's."""
    clip_value: bool = False
    """Clip the critic's step by `value_clip`, in units of the return."""
    truncation: Truncation = "bootstrap"
    """What follows a time limit: its value (bootstrap), or a lossy convention of other code (docs/algorithms.md)."""
    reset: Literal["auto", "fresh", "pool", "optimistic"] = "auto"
    """How new episodes start; auto takes what was measured best for the environment."""
    reset_pool: int = 256
    """First states drawn for each update by the reset strategy `pool`."""
    reset_group: int = 64
    """Consecutive environments that share `reset_spares` new states in a step, for the strategy `optimistic`."""
    reset_spares: int = 4
    """New states that a group gets in a step, for the strategy `optimistic`."""
    optimiser: Literal["adam", "rmsprop", "sgd"] = "adam"
    """First-order method."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The networks."""

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return -(-self.total_steps // self.steps_per_update)

    @property
    def num_blocks(self) -> int:
        return self.blocks if self.blocks is not None else math.gcd(self.num_envs, 8)


@struct.dataclass
class Hyperparameters:
    """Numbers of PPO: traced leaves, each a number or a `Schedule` (written START:END)."""

    learning_rate: Any = 3e-4
    """Step size of the optimiser."""
    gamma: Any = 0.99
    """Discount of one step."""
    entropy_coefficient: Any = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: Any = 0.5
    """Weight of the critic's loss."""
    max_grad_norm: Any = 0.5
    """Largest global norm of the gradient."""
    value_clip: Any = 0.2
    """Range of the clipped value loss, in units of the return; only with `clip_value`."""
    huber_delta: Any = 10.0
    """Where Huber's loss turns linear; only with `value_loss` huber."""
    target_kl: Any = math.inf
    """Approximate KL beyond which the remaining gradient steps of an update are skipped."""
    reward_scale: Any = 1.0
    """Factor on every reward that the learner sees (not on reported returns)."""
    reward_clip: Any = math.inf
    """Largest size of a reward after `normalise_reward`; other code clips at 10, which hides rare large rewards."""
    adam_epsilon: Any = 1e-5
    """Adam's and RMSprop's ε."""
    adam_b1: Any = 0.9
    """Adam's first decay."""
    adam_b2: Any = 0.999
    """Adam's second decay."""
    surrogate: dict[str, Any] = struct.field(default_factory=dict)
    """Numbers of the surrogate by name, e.g. epsilon 0.1; unnamed ones keep their defaults."""
    advantage: dict[str, Any] = struct.field(default_factory=dict)
    """Numbers of the advantage estimator by name, e.g. lam 0.9; unnamed ones keep their defaults."""


def _positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name}={value!r} must be a whole number of at least 1")


def _near_multiples(value: int, factor: int) -> str:
    below, above = value // factor * factor, (value // factor + 1) * factor
    return f"{below} or {above}" if below else f"{above}"


def _near_divisors(value: int, near: int) -> str:
    """The one or two divisors of `value` that are closest to `near`, as words."""
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    fits = {*small, *(value // d for d in small)}
    return " or ".join(map(str, sorted(sorted(fits, key=lambda d: abs(d - near))[:2])))


def check_config(config: PPOConfig) -> None:
    """Refuse what cannot run, before anything compiles. Raises UserError."""
    _positive(config, "total_steps", "num_envs", "num_steps", "epochs", "minibatches", "microbatches", "chunks")
    _positive(
        config,
        "group_size",
        "reset_pool",
        "reset_group",
        "reset_spares",
        *(["blocks"] if config.blocks is not None else []),
    )
    for owner in (config, config.network):
        for f in dataclasses.fields(owner):
            choices = get_args(f.type) if "Literal" in str(f.type) else ()
            if choices and getattr(owner, f.name) not in choices:
                raise unknown(f"value for {f.name}", str(getattr(owner, f.name)), choices)
    if config.num_envs % config.num_blocks:
        raise UserError(
            f"num_envs={config.num_envs} does not divide into {config.num_blocks} blocks of environments; "
            f"use {_near_multiples(config.num_envs, config.num_blocks)}, or set blocks={math.gcd(config.num_envs, 8)}"
        )
    per_block = config.num_envs // config.num_blocks * config.num_steps
    block = f"{config.num_envs // config.num_blocks} environments × {config.num_steps} steps"
    if per_block % config.minibatches:
        raise UserError(
            f"minibatches={config.minibatches} does not divide the {per_block} samples of a block ({block}); "
            f"use {_near_divisors(per_block, config.minibatches)}"
        )
    share = per_block // config.minibatches
    if share % config.microbatches:
        raise UserError(
            f"microbatches={config.microbatches} does not divide the {share} samples that a minibatch has of a block "
            f"({block}, minibatches={config.minibatches}); use {_near_divisors(share, config.microbatches)}"
        )
    if config.num_envs % config.chunks:
        raise UserError(
            f"num_envs={config.num_envs} does not divide into {config.chunks} chunks of environments; "
            f"use {_near_divisors(config.num_envs, config.chunks)}"
        )
    if config.num_envs % config.group_size:
        raise UserError(
            f"num_envs={config.num_envs} does not divide into groups of {config.group_size}; "
            f"use {_near_multiples(config.num_envs, config.group_size)}"
        )
    if config.reset == "optimistic" and config.num_envs % config.reset_group:
        raise UserError(
            f"num_envs={config.num_envs} does not divide into optimistic reset groups of {config.reset_group} "
            f"environments; use {_near_multiples(config.num_envs, config.reset_group)}, or set reset_group="
            f"{math.gcd(config.num_envs, config.reset_group)}"
        )
    if not all(width >= 1 for width in (*config.network.hidden, *config.network.channels)):
        raise UserError(f"network widths must be at least 1, got {config.network.hidden} and {config.network.channels}")


# What a number may be, closed interval; everything else is checked to be a number and not negative.
_RANGES = {
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "adam_b1": (0.0, 0.999999),
    "adam_b2": (0.0, 0.999999),
    "reward_scale": (-math.inf, math.inf),
}


def check_hyperparameters(hyper: Hyperparameters) -> None:
    """Refuse NaN, negative and out-of-range numbers. Raises UserError. Traced and batched leaves are left alone."""

    def check(name: str, value: Any, low: float, high: float) -> None:
        if isinstance(value, Schedule) and isinstance(value.duration, (int, float)) and not value.duration > 0:
            raise UserError(f"{name}={value}: the duration of a schedule must be above 0")
        for end in (value.start, value.end) if isinstance(value, Schedule) else (value,):
            if isinstance(end, bool) or not isinstance(end, (int, float)):
                continue
            if math.isnan(end) or not low <= end <= high:
                bound = f"between {low:g} and {high:g}" if high < math.inf else f"a number of at least {low:g}"
                raise UserError(f"{name}={end!r} must be {bound}")

    for f in dataclasses.fields(hyper):
        value = getattr(hyper, f.name)
        if isinstance(value, dict):
            for key, number in value.items():
                check(f"{f.name}.{key}", number, *_RANGES.get(key, (0.0, math.inf)))
        else:
            check(f.name, value, *_RANGES.get(f.name, (0.0, math.inf)))
