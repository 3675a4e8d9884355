"""Acting: N environments for T steps, as one scan. Episodes end and begin here, and are counted here."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxppo.config import PPOConfig
from jaxppo.distributions import sample
from jaxppo.environment import EnvironmentSpec, Masked, episode_end, finite, split_mask
from jaxppo.policies import Policy
from jaxppo.randomness import key_for_each
from jaxppo.resets import Resets, make_resets, where_ended
from jaxppo.sharding import in_chunks, place
from jaxppo.types import Array, CriticOutputs, Final, Mean, Metrics, PyTree, Rollout

Observe = Callable[[PyTree], PyTree]


class Carry(NamedTuple):
    """What the environments take from one rollout into the next; all [N, ...].

    state, observation: the environments' own, of a running episode.
    memory: the policy's, before it sees `observation`; reset: whether it starts anew there.
    episode_return, episode_length: of the running episode, in the environment's own rewards. A return of NaN says that
        the episode's first observation was not finite; zeros stand for it, and the episode ends with its first step.
    """

    state: PyTree
    observation: PyTree
    memory: PyTree
    reset: Array
    episode_return: Array
    episode_length: Array


class Lived(NamedTuple):
    """What one step left: all [n, ...], the ends and sums before the episode starts anew."""

    following: Carry
    valid: Array
    ended: Array
    truncated: Array
    final: PyTree
    episode_return: Array
    episode_length: Array


def begin(env: Any, policy: Policy, key: Array, index: Array, group_size: int = 1) -> Carry:
    """First states of the environments `index` [N]; members of a group of consecutive ones get the same."""
    state, observation = jax.vmap(env.reset)(key_for_each(key, index // group_size))
    n = index.shape[0]
    agents = (env.spec.num_agents,) if env.spec.num_agents else ()
    observation, nothing = _start(env.spec, observation)
    zeros = jnp.zeros((n, *agents))
    return Carry(
        state,
        observation,
        policy.initial_memory((n, *agents)),
        jnp.ones((n,), bool),
        zeros + _expand(nothing, zeros),
        jnp.zeros((n,), jnp.int32),
    )


def _start(spec: EnvironmentSpec, observation: PyTree) -> tuple[PyTree, Array]:
    """First observations [N, ...], zeros for those that are not finite; and the first returns [N]: 0, and NaN there."""
    view, mask = split_mask(spec, observation)
    sound = finite(view)

    def repaired(leaf):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.where(_expand(sound, leaf), leaf, jnp.zeros_like(leaf)) if floating else leaf

    view = jax.tree.map(repaired, view)
    return view if mask is None else Masked(view, mask), jnp.where(sound, 0.0, jnp.nan)


def _expand(flag: Array, like: Array) -> Array:
    return flag.reshape(flag.shape + (1,) * (like.ndim - flag.ndim))


def _keep_final(slots: PyTree, used: Array, flag: Array, new: PyTree) -> PyTree:
    """Slots [K, N, ...] with `new` [N, ...] in the next unused slot of the environments where `flag` [N]."""

    def keep(slot, value):
        here = (jnp.arange(slot.shape[0])[:, None] == used) & flag
        return jnp.where(_expand(here, slot), value, slot)

    return jax.tree.map(keep, slots, new)


def num_final_slots(num_steps: int, time_limit: int | None) -> int:
    """Truncations an environment can have in one rollout: they are at least `time_limit` steps apart."""
    return 0 if time_limit is None else math.ceil(num_steps / time_limit)


def resets_of(spec: EnvironmentSpec, config: PPOConfig, mesh: Mesh | None = None) -> Resets:
    """How episodes start anew under `config`, for environments that are drawn for by chunk and device."""
    return make_resets(
        config.reset,
        spec,
        num_envs=config.num_envs,
        pool=config.reset_pool,
        group=config.reset_group,
        spares=config.reset_spares,
        parts=config.chunks * (1 if mesh is None else mesh.size),
    )


def make_collector(
    spec: EnvironmentSpec, policy: Policy, config: PPOConfig, *, keep_distribution: bool, mesh: Mesh | None = None
) -> Any:
    """-> collect(env, parameters, observe, carry, key, index) -> (Carry, Rollout, Metrics).

    `observe` standardises a view; `index` [N] are the global indices of these environments, from which all their
    randomness derives, so any chunking and placement sees the same samples.

    A NaN or infinity in a reward or observation ends the episode: the sample's weight is 0, the environment starts
    anew, and `invalid_samples` counts it. One in a first observation does so with the sample that acts on it.
    """
    resets = resets_of(spec, config, mesh)
    slots = num_final_slots(config.num_steps, spec.time_limit)
    bootstraps = bool(slots) and config.truncation == "bootstrap"  # no other convention looks at final observations

    def collect(env, parameters, observe: Observe, carry: Carry, key, index) -> tuple[Carry, Rollout, Metrics]:
        n = index.shape[0]
        carry = place(mesh, carry, 0)
        pool_key, group_key, step_key = jax.random.split(key, 3)
        supply = resets.prepare(env, pool_key)
        if config.group_size > 1:
            carry = begin(env, policy, group_key, index, config.group_size)

        def live(carry: Carry, index, key):
            """One step of the environments `index` [n]. Returns (Lived, the step of the Rollout, in part)."""
            act_key, env_key, reset_key = jax.random.split(key, 3)
            view, mask = split_mask(spec, carry.observation)
            output = policy.apply(parameters, observe(view), mask, carry.memory, carry.reset)
            action = sample(output.distribution, key_for_each(act_key, index))
            log_prob = output.distribution.log_prob(action)[..., None]
            state, outcome = jax.vmap(env.step)(
                key_for_each(env_key, index), carry.state, policy.to_environment(action)
            )

            # The return is NaN from the start of an episode that began with one: this one check sees it too.
            total = jnp.asarray(carry.episode_return + outcome.reward, jnp.float32)
            valid = finite((total, split_mask(spec, outcome.observation)[0]))
            ended = episode_end(outcome) | ~valid
            agent_valid = _expand(valid, outcome.reward)
            reward = jnp.asarray(jnp.where(agent_valid, outcome.reward, 0.0), jnp.float32)
            terminated = outcome.terminated & agent_valid
            cut = _expand(ended, outcome.reward)

            fresh_state, fresh_observation = resets.draw(env, supply, reset_key, index, ended)
            first_observation, nothing = _start(spec, fresh_observation)
            length = carry.episode_length + 1
            following = Carry(
                where_ended(ended, fresh_state, state),
                where_ended(ended, first_observation, outcome.observation),
                output.memory,
                ended,
                jnp.asarray(jnp.where(cut, _expand(nothing, total), total)),
                jnp.asarray(jnp.where(ended, 0, length)),
            )
            record = Rollout(
                observation=(),
                action=action,
                log_prob=log_prob,
                value=output.value,
                reward=reward,
                continuation=1.0 - terminated,
                trace=1.0 - (terminated | cut),
                weight=agent_valid.astype(jnp.float32),
                reset=(),  # type: ignore[arg-type]
                distribution=output.distribution if keep_distribution else None,
                memory=(),
                last_observation=(),
                last_memory=(),
                last_reset=(),  # type: ignore[arg-type]
                final=None,
                extras={},
            )
            # Termination wins over a limit that falls on the same step.
            truncated = outcome.truncated & valid & ~(terminated.all(-1) if terminated.ndim > 1 else terminated)
            final = (outcome.observation, output.memory) if bootstraps else ()
            return Lived(following, valid, ended, truncated, final, total, length), record

        def step(scan_carry, t):
            carry, used, final = scan_carry
            key = jax.random.fold_in(step_key, t)
            lived, record = in_chunks(lambda carry, index: live(carry, index, key), config.chunks, mesh)(carry, index)
            record = record._replace(observation=carry.observation, reset=carry.reset)
            taken = lived.truncated if slots else jnp.zeros((0,), bool)  # nothing is kept of nothing
            if bootstraps:
                taken = taken & (used < slots)
                final = _keep_final(final, used, taken, lived.final)
                used = used + taken
            episode = lived.ended & lived.valid
            total = lived.episode_return
            metrics = {
                "episode_return": Mean.of(total, _expand(episode, total)),
                "episode_return_square": Mean.of(jnp.square(total), _expand(episode, total)),
                "episode_length": Mean.of(lived.episode_length, episode),
                "invalid_samples": Mean((~lived.valid).sum().astype(jnp.float32), jnp.ones(())),
            }
            return (lived.following, used, final), (record, taken, metrics)

        empty = jax.tree.map(
            lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), (carry.observation, carry.memory)
        )
        first: Any = (carry, jnp.zeros((n,), jnp.int32), empty if bootstraps else (None, None))
        (last, _, final), (record, taken, metrics) = jax.lax.scan(step, first, jnp.arange(config.num_steps))
        rollout = record._replace(
            memory=carry.memory,
            last_observation=last.observation,
            last_memory=last.memory,
            last_reset=last.reset,
            final=Final(final[0], final[1], taken) if slots else None,
        )
        return last, rollout, jax.tree.map(lambda x: x.sum(0), metrics)

    return collect


def critic_outputs(
    spec: EnvironmentSpec,
    policy: Policy,
    parameters: PyTree,
    observe: Observe,
    rollout: Rollout,
    *,
    chunks: int = 1,
    mesh: Mesh | None = None,
) -> CriticOutputs:
    """The critic's outputs while acting, and those of the true next states: one batch for last and final observations.

    Where an episode was cut without a slot the value is held: after a NaN, or where an environment truncates more often
    than its spec announces.
    """
    value = rollout.value

    def evaluate(observation, memory, reset):
        view, mask = split_mask(spec, observation)
        return policy.apply(parameters, observe(view), mask, memory, reset).value

    evaluate = in_chunks(evaluate, chunks, mesh)
    last = evaluate(rollout.last_observation, rollout.last_memory, rollout.last_reset)
    next_value = jnp.concatenate([value[1:], last[None]])
    if rollout.final is not None and rollout.final.observation is not None:
        slots = (rollout.final.observation, rollout.final.memory, None)
        final = evaluate(*slots) if chunks == 1 else jax.lax.map(lambda slot: evaluate(*slot), slots)
        slot = jnp.maximum(jnp.cumsum(rollout.final.taken, axis=0) - 1, 0)
        # One slot is the common case, and needs no gather.
        picked = final if final.shape[0] == 1 else jnp.take_along_axis(final, _expand(slot, value), axis=0)
        next_value = jnp.where(_expand(rollout.final.taken, value), picked, next_value)
    valued = (rollout.trace > 0) | (rollout.continuation == 0)
    if rollout.final is not None and rollout.final.observation is not None:
        valued = valued | _expand(rollout.final.taken, valued)
    next_value = jnp.where(_expand(valued, value), next_value, value)
    return CriticOutputs(value, next_value, jnp.zeros_like(rollout.reward))
