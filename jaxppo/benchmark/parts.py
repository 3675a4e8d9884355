"""The work of one update, part by part, each a program of its own at the sizes of the whole.

A part does what any implementation must do, by itself and as tightly as we know: its time is a floor. Parts repeat as
the update does (T environment steps; epochs × minibatches gradient steps; chunks and microbatches alike), and their
results are outputs, so that no compiler leaves anything out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.config import PPOConfig
from jaxppo.distributions import sample
from jaxppo.environment import episode_end, split_mask
from jaxppo.minibatches import make_deal
from jaxppo.optimisers import optimiser_step
from jaxppo.randomness import key_for_each
from jaxppo.resets import where_ended
from jaxppo.rollout import resets_of
from jaxppo.schedules import at_fraction
from jaxppo.sharding import in_chunks
from jaxppo.types import Algorithm


class Part(NamedTuple):
    """run: the work of one update. once: one step of it, whose kernels are counted.

    arguments: those of `run`, and those of `once`.
    """

    run: Callable[..., Any]
    once: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], tuple[Any, ...]]


def make_parts(algorithm: Algorithm, state: Any) -> dict[str, Part]:
    """environment, sampling, forward, advantages, shuffle, gradient, optimiser: from a state of `algorithm`."""
    config: PPOConfig = algorithm.config
    spec = state.env.spec
    policy = algorithm.policy
    key = jax.random.key(0)
    index = jnp.arange(config.num_envs)
    steps, gradient_steps = jnp.arange(config.num_steps), jnp.arange(config.epochs * config.minibatches)
    carry = state.carry
    _, rollout, _ = jax.jit(algorithm.parts.act)(state, key)
    samples = jax.jit(algorithm.parts.dataset)(state, rollout, key)
    pieces = config.minibatches * config.microbatches
    microbatch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: config.steps_per_update // pieces], samples)
    resets = resets_of(spec, config)

    def environment_step(env, supply, current, action, t):
        """Keys, step, reset where an episode ended; keeps what a rollout keeps of it."""
        env_key, reset_key = jax.random.split(jax.random.fold_in(key, t))

        def chunk(current, action, index):
            state, observation = current
            following, outcome = jax.vmap(env.step)(key_for_each(env_key, index), state, policy.to_environment(action))
            ended = episode_end(outcome)
            fresh = resets.draw(env, supply, reset_key, index, ended)
            kept = (observation, outcome.reward, outcome.terminated, ended)
            return where_ended(ended, fresh, (following, outcome.observation)), kept

        return in_chunks(chunk, config.chunks)(current, action, index)

    def environment(env, carry, actions):
        supply = resets.prepare(env, key)

        def step(current, inputs):
            return environment_step(env, supply, current, *inputs)

        last, kept = jax.lax.scan(step, (carry.state, carry.observation), (actions, steps))
        return last, kept

    def environment_once(env, carry, action):
        return environment_step(env, resets.prepare(env, key), (carry.state, carry.observation), action, 0)

    def forward_once(parameters, observation):
        def chunk(observation, memory, reset):
            view, mask = split_mask(spec, observation)
            output = policy.apply(parameters, view, mask, memory, reset)
            return output.distribution, output.value

        return in_chunks(chunk, config.chunks)(observation, carry.memory, carry.reset)

    def forward(parameters, observations):
        """One batch of N for each time step."""
        return jax.lax.scan(lambda c, x: (c, forward_once(parameters, x)), 0, observations)[1]

    def sampling_once(distribution, t):
        def chunk(distribution, index):
            action = sample(distribution, key_for_each(jax.random.fold_in(key, t), index))
            return action, distribution.log_prob(action)

        return in_chunks(chunk, config.chunks)(distribution, index)

    def sampling(distributions):
        return jax.lax.scan(lambda c, x: (c, sampling_once(*x)), 0, (distributions, steps))[1]

    def advantages(state, rollout):
        return algorithm.parts.dataset(state, rollout, key)

    def shuffle(samples, first):
        def epoch(dealt, e):
            deal = make_deal(config, samples)
            epoch_key = jax.random.fold_in(key, e)
            return jax.lax.scan(lambda _, i: (deal(epoch_key, i, pieces), None), dealt, jnp.arange(pieces))[0], None

        return jax.lax.scan(epoch, first, jnp.arange(config.epochs))[0]

    def shuffle_once(samples):
        return make_deal(config, samples)(key, jnp.int32(0), pieces)

    def gradient_once(state, parameters, microbatch):
        def loss(p):
            values, _ = algorithm.parts.terms(state, p, microbatch, algorithm.parts.summary(microbatch))
            return sum(values.values())

        return jax.grad(loss)(parameters)

    def gradient(state, microbatch):
        """Forward, loss and backward on one microbatch after another; moving the parameters keeps them apart."""

        def step(parameters, _):
            moved = jax.tree.map(lambda p, g: p - 1e-8 * g, parameters, gradient_once(state, parameters, microbatch))
            return moved, None

        return jax.lax.scan(step, state.parameters, jnp.arange(config.epochs * pieces))[0]

    def optimiser_once(state, parameters, optimiser):
        hyper = at_fraction(state.hyper, jnp.zeros(()))
        return optimiser_step(config, hyper, parameters, optimiser, parameters, jnp.bool_(True))[:2]

    def optimiser(state):
        def step(current, _):
            return optimiser_once(state, *current), None

        return jax.lax.scan(step, (state.parameters, state.optimiser), gradient_steps)[0]

    now = jax.tree.map(lambda x: x[0], (rollout.observation, rollout.action))
    distributions, _ = jax.jit(forward)(state.parameters, rollout.observation)
    of_now = jax.tree.map(lambda x: x[0], distributions)
    acting, learning = (state.env, carry), (state, state.parameters)
    return {
        "environment": Part(environment, environment_once, ((*acting, rollout.action), (*acting, now[1]))),
        "forward": Part(forward, forward_once, ((state.parameters, rollout.observation), (state.parameters, now[0]))),
        "sampling": Part(sampling, sampling_once, ((distributions,), (of_now, 0))),
        "advantages": Part(advantages, advantages, ((state, rollout), (state, rollout))),
        "shuffle": Part(shuffle, shuffle_once, ((samples, microbatch), (samples,))),
        "gradient": Part(gradient, gradient_once, ((state, microbatch), (*learning, microbatch))),
        "optimiser": Part(optimiser, optimiser_once, ((state,), (*learning, state.optimiser))),
    }
