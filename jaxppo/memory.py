"""How much memory a run will take, before anything compiles; and what would make it fit.

The plan adds up what the program must hold at its fullest: the state, the rollout, the samples packed beside it, and
either the temporaries of acting or those of one gradient step. All of it comes from shapes; what the backward pass
keeps of the forward pass is asked of JAX itself. A compiler may do better, by fusing, and a little worse.
"""

import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.environment import split_mask
from jaxppo.errors import UserError
from jaxppo.packing import pack
from jaxppo.types import Algorithm, PyTree

FUSED = 0.6
"""Share of what automatic differentiation asks to keep that XLA does keep: for tanh, say, one array where JAX counts
two. Measured on a CPU against XLA's own allocation: 0.5 to 0.6 for dense networks and convolutions."""

SPARE = 0.9
"""Share of the memory that a plan may fill: the compiler's own buffers need the rest."""


class MemoryPlan(NamedTuple):
    """Bytes on one device.

    parameters: what every device holds whole (parameters, optimiser, statistics, numbers).
    environments: their states and the policy's memory.
    rollout: what acting leaves. samples: the packed rows beside it.
    acting: temporaries of one step of one chunk of environments.
    minibatch: rows fetched for one gradient step. activations: what the backward pass of one microbatch keeps.
    """

    parameters: int
    environments: int
    rollout: int
    samples: int
    acting: int
    minibatch: int
    activations: int

    @property
    def total(self) -> int:
        learning = self.samples + self.minibatch + self.activations
        return 4 * self.parameters + self.environments + self.rollout + max(self.acting, learning)

    def scaled(self, environments: float = 1.0, chunks: int = 1, microbatches: int = 1) -> "MemoryPlan":
        """The plan with a factor on the environments, and that many times the chunks or microbatches."""
        whole, *rest = (self.parameters, *(math.ceil(x * environments) for x in self[1:]))
        plan = MemoryPlan(whole, *rest)
        return plan._replace(
            acting=2 * plan.environments + (plan.acting - 2 * plan.environments) // chunks,
            activations=plan.activations // microbatches,
        )


def size_of(tree: PyTree) -> int:
    """Bytes of all leaves, arrays or their shapes."""

    def one(leaf):
        key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return math.prod(leaf.shape) * (8 if key else np.dtype(leaf.dtype).itemsize)

    return sum(map(one, jax.tree.leaves(tree)))


def plan(algorithm: Algorithm, hyper: Hyperparameters | None = None, *, devices: int = 1) -> MemoryPlan:
    """The plan of a run of `algorithm` on `devices` devices, from shapes alone (about a second of tracing)."""
    config: PPOConfig = algorithm.config
    parts = algorithm.parts
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda key: algorithm.init(key, hyper), key)
    _, rollout, _ = jax.eval_shape(parts.act, state, key)
    samples = jax.eval_shape(parts.dataset, state, rollout, key)

    def rows(count: int) -> PyTree:
        """Shapes of that many samples."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[2:]), x.dtype), samples)

    def backward(state, batch):
        return jax.vjp(lambda p: parts.terms(state, p, batch, parts.summary(batch))[0], state.parameters)[1]

    minibatch = config.steps_per_update // config.minibatches
    microbatch = minibatch // config.microbatches
    packed, _ = jax.eval_shape(lambda tree: pack(tree)[0], rows(config.steps_per_update))
    spread = [axis >= 0 for axis in jax.tree.leaves(algorithm.axes(state))]
    environments = size_of([leaf for leaf, here in zip(jax.tree.leaves(state), spread, strict=True) if here])
    everywhere = size_of(state) - environments
    # Each residual once, and none that is there anyway: parameters, numbers and the batch itself.
    kept = jax.make_jaxpr(backward)(state, rows(microbatch)).jaxpr
    given = {id(v) for v in (*kept.invars, *kept.constvars)}
    residuals = {id(v): v.aval for v in kept.outvars if id(v) not in given}
    activations = int(FUSED * size_of(list(residuals.values())))
    fetched = size_of(rows(microbatch)) + (size_of(rows(minibatch)) if config.microbatches > 1 else 0)
    acting = 2 * environments + _widest(algorithm, state) * config.num_envs // config.chunks
    spread_sizes = (environments, size_of(rollout), size_of(packed), acting, fetched, activations)
    return MemoryPlan(everywhere, *(size // devices for size in spread_sizes))


def _widest(algorithm: Algorithm, state: Any) -> int:
    """Bytes for each environment of the two largest values while the policy acts: a layer's input and output."""

    def act(parameters, observation, memory, reset):
        view, mask = split_mask(state.env.spec, observation)
        return algorithm.policy.apply(parameters, view, mask, memory, reset).value

    carry = state.carry
    jaxpr = jax.make_jaxpr(act)(state.parameters, carry.observation, carry.memory, carry.reset)
    sizes = sorted(size_of([v.aval for v in equation.outvars]) for equation in _equations(jaxpr.jaxpr))
    return sum(sizes[-2:]) // algorithm.config.num_envs


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All primitive equations, those of inner calls included."""
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "jaxpr")]
        if not inner:
            yield equation
        for closed in inner:
            yield from _equations(closed.jaxpr)


def allocated(compiled: Any) -> int:
    """Bytes that XLA allocates for a compiled program: arguments, temporaries and outputs, a donated buffer once."""
    found = compiled.memory_analysis()
    total = found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes
    return total - found.alias_size_in_bytes


def available_bytes() -> int | None:
    """Memory of one device: the accelerator's limit, or what this machine can spare; None where nobody says."""
    device = jax.devices()[0]
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    if device.platform != "cpu":
        return None
    found = []
    try:
        with open("/proc/meminfo") as lines:
            found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except OSError:
        found += [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:  # a container's limit
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            found += [int(limit.read()) - int(used.read())]
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def check_memory(
    algorithm: Algorithm, hyper: Hyperparameters | None = None, *, available: int | None = None, devices: int = 1
) -> MemoryPlan:
    """The plan, if it fits `available` bytes a device (default: what there is). Raises UserError, with a remedy."""
    config: PPOConfig = algorithm.config
    needed = plan(algorithm, hyper, devices=devices)
    limit = available_bytes() if available is None else available
    if limit is None or needed.total <= limit * SPARE:
        return needed
    raise UserError(
        f"{config.num_envs} environments × {config.num_steps} steps need about {gib(needed.total)} "
        f"(rollout {gib(needed.rollout + needed.samples)}, one gradient step "
        f"{gib(needed.minibatch + needed.activations)}, acting {gib(needed.acting)}), and {gib(limit)} are free; "
        f"{' or '.join(_remedies(config, needed, limit * SPARE)) or 'take a smaller network or fewer steps'}"
    )


def _remedies(config: PPOConfig, needed: MemoryPlan, limit: float) -> list[str]:
    """The mildest settings of each kind that fit."""
    found = []
    share = config.steps_per_update // config.num_blocks // config.minibatches // config.microbatches
    for factor in (2**i for i in range(1, 21)):
        if share % factor == 0 and needed.scaled(microbatches=factor).total <= limit:
            found.append(f"set microbatches={config.microbatches * factor}")
            break
    for factor in (2**i for i in range(1, 21)):
        if config.num_envs // config.chunks % factor == 0 and needed.scaled(chunks=factor).total <= limit:
            found.append(f"set chunks={config.chunks * factor}")
            break
    if not found:
        for factor in (2**i for i in range(1, 21)):
            both = needed.scaled(chunks=factor, microbatches=factor)
            fits = share % factor == 0 and config.num_envs // config.chunks % factor == 0
            if fits and both.total <= limit:
                found.append(f"set chunks={config.chunks * factor} and microbatches={config.microbatches * factor}")
                break
    for factor in (2**i for i in range(1, 31)):
        if config.num_envs % factor:
            break
        if needed.scaled(environments=1 / factor).total <= limit:
            found.append(f"take num_envs={config.num_envs // factor}")
            break
    return found


def gib(size: float) -> str:
    """1.5 GiB, 20 MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 2 else f"{size / 2**20:.0f} MiB"
