"""Proximal policy optimisation: the recipe, top to bottom.

config → policy, collector → state → rollout → advantages → epochs of minibatches → metrics. Everything clever
lives in the rooms that this page calls; every variant is a function in one of them, chosen by name in the
configuration or handed to `ppo` as a keyword. (Schulman et al., 2017, 1707.06347.)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxppo.advantages import ADVANTAGES
from jaxppo.advantages.conventions import apply_truncation, silence_invalid
from jaxppo.config import Hyperparameters, PPOConfig, check_config, check_hyperparameters
from jaxppo.environment import split_mask, strongly_typed
from jaxppo.errors import UserError
from jaxppo.evaluation import Evaluation, play, policy_act
from jaxppo.improvement import improve
from jaxppo.losses import SURROGATES, value_loss
from jaxppo.losses.assembly import Moments, make_surrogate, moments, standardise, weighted_mean
from jaxppo.normalisation import (
    init_observation_statistics,
    init_reward_statistics,
    normalise_observation,
    scale_reward,
    update_observation_statistics,
)
from jaxppo.optimisers import Combine, make_direction, sum_of_gradients
from jaxppo.policies import Policy, feed_forward
from jaxppo.rollout import Carry, begin, critic_outputs, make_collector
from jaxppo.schedules import at_fraction
from jaxppo.sharding import check_mesh
from jaxppo.types import Advantages, Algorithm, Array, Counter, CriticOutputs, Mean, Metrics, Parts, PyTree, Rollout


class TrainState(NamedTuple):
    """All that training is: saved, restored, vmapped and donated as one pytree.

    hyper and env are leaves too: another learning rate or another gravity is another state, not another program.
    statistics: of observations; reward_statistics: of discounted returns, () if unused.
    """

    parameters: PyTree
    optimiser: PyTree
    statistics: PyTree
    reward_statistics: PyTree
    surrogate_state: PyTree
    advantage_state: PyTree
    hyper: Hyperparameters
    env: Any
    carry: Carry
    key: Array
    samples: Counter
    updates: Array


class Samples(NamedTuple):
    """What a gradient step looks at: leaves [T, N, ...], then [B, ...]."""

    view: PyTree
    mask: Array | None
    action: PyTree
    log_prob: Array
    value: Array
    distribution: Any
    advantage: Array
    target: Array
    weight: Array


def ppo(
    config: PPOConfig,
    env: Any,
    *,
    policy: Policy | None = None,
    extra_losses: Sequence[tuple[str, Any]] = (),
    reward_transform: Any = None,
    combine_gradients: Combine = sum_of_gradients,
    mesh: Mesh | None = None,
) -> Algorithm:
    """PPO on `env` as two pure functions. Raises UserError where the parts do not fit, before anything compiles.

    policy: default `feed_forward(config.network, config.distribution, env.spec)`.
    extra_losses: (name, f(parameters, samples, output) -> scalar), added to the loss; f holds its own coefficient.
    reward_transform: rollout -> rewards, before scaling. Reported returns stay the environment's own.
    combine_gradients: (list of gradients, one for each loss term, key) -> gradient; default their sum.
    mesh: devices over which the environments are spread (`jaxppo.sharding.make_mesh`); place the state by `axes`.
    """
    check_config(config)
    check_mesh(mesh, num_envs=config.num_envs, num_blocks=config.num_blocks)
    spec = env.spec
    policy = policy or feed_forward(config.network, config.distribution, spec)
    estimator = ADVANTAGES.get(config.advantage)
    surrogate = make_surrogate(SURROGATES.get(config.surrogate), spec)
    uses_critic = estimator.facts.get("critic", True)
    # A group's advantages have their own scale: standardised again, Dr.GRPO and RLOO would all be GRPO.
    normalise = config.normalise_advantage if estimator.facts.get("standardise", True) else "none"
    if jax.tree.leaves(jax.eval_shape(lambda: policy.initial_memory((1,)))):
        raise UserError("this policy has memory, and PPO here learns from single steps, not yet from sequences")
    for name, _ in extra_losses:
        if name in ("policy", "value", "entropy_bonus"):
            raise UserError(f"extra loss {name!r} has the name of one of PPO's own; choose another")
    if "groups" in estimator.requires and config.group_size < 2:
        raise UserError(f"advantage={config.advantage} compares episodes from one start: set group_size to at least 2")
    collect = make_collector(spec, policy, config, keep_distribution=surrogate.needs_distribution, mesh=mesh)
    index = jnp.arange(config.num_envs)

    def init(key: Array, hyper: Hyperparameters | None = None, environment: Any = None) -> TrainState:
        given = hyper or Hyperparameters()
        check_hyperparameters(given)
        hyper = given.replace(  # type: ignore[attr-defined]
            surrogate=surrogate.entry.resolve(given.surrogate), advantage=estimator.resolve(given.advantage)
        )
        leaves: Hyperparameters = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), hyper)
        start = strongly_typed(env if environment is None else environment)
        parameter_key, begin_key, run_key = jax.random.split(key, 3)
        parameters = policy.init(parameter_key)
        carry = begin(start, policy, begin_key, index, config.group_size)
        now = at_fraction(leaves, jnp.zeros(()))
        state = TrainState(
            parameters=parameters,
            optimiser=make_direction(config.optimiser, now).init(parameters),
            statistics=init_observation_statistics(spec, config.normalise_observation),
            reward_statistics=init_reward_statistics(carry.episode_return.shape) if config.normalise_reward else (),
            surrogate_state=surrogate.init(now.surrogate),
            advantage_state=estimator.facts.get("initial_state", tuple)(),
            hyper=leaves,
            env=start,
            carry=carry,
            key=run_key,
            samples=Counter.zero(),
            updates=jnp.zeros((), jnp.int32),
        )
        return strongly_typed(state)

    def numbers(state: TrainState) -> Hyperparameters:
        return at_fraction(state.hyper, state.samples.fraction_of(float(config.total_steps)))

    def act(state: TrainState, key: Array) -> tuple[Carry, Rollout, Metrics]:
        """A rollout with the current policy."""
        return collect(state.env, state.parameters, observer(state), state.carry, key, index)

    def prepare_rewards(state: TrainState, rollout: Rollout) -> tuple[Rollout, PyTree]:
        """(rollout with the rewards that are learned from, statistics of returns)."""
        hyper, statistics = numbers(state), state.reward_statistics
        reward = rollout.reward if reward_transform is None else reward_transform(rollout)
        reward = reward * hyper.reward_scale
        if config.normalise_reward:
            if config.group_size > 1:  # every rollout starts anew
                statistics = statistics._replace(discounted=jnp.zeros_like(statistics.discounted))
            reward, statistics = scale_reward(statistics, reward, rollout.trace, hyper.gamma, hyper.reward_clip)
        return rollout._replace(reward=reward), statistics

    def criticise(state: TrainState, parameters: PyTree, rollout: Rollout) -> CriticOutputs:
        return critic_outputs(spec, policy, parameters, observer(state), rollout, chunks=config.chunks, mesh=mesh)

    def estimate(state: TrainState, rollout: Rollout, critic: CriticOutputs, key: Array) -> tuple[Advantages, PyTree]:
        """Advantages, targets and weights by the estimator of the configuration; and its state."""
        hyper = numbers(state)
        if uses_critic:
            rollout = silence_invalid(rollout, critic, hyper.gamma)
            rollout, critic = apply_truncation(config.truncation, rollout, critic, hyper.gamma)
        provided = {"gamma": hyper.gamma, "state": state.advantage_state, "key": key, "group_size": config.group_size}
        keywords = {name: provided[name] for name in estimator.keywords}
        result = estimator.function(rollout, critic, **keywords, **hyper.advantage)
        # No stop_gradient: nothing here depends on the parameters that a loss differentiates, and forward-mode
        # derivatives with respect to γ or a reward scale must pass.
        return result if "state" in keywords else (result, state.advantage_state)

    def samples_of(rollout: Rollout, advantages: Advantages) -> Samples:
        view, mask = split_mask(spec, rollout.observation)
        advantage, weight = advantages.advantage, advantages.weight
        if normalise == "batch":
            advantage = standardise(advantage, moments(advantage, weight))
        kept = (rollout.action, rollout.log_prob, rollout.value, rollout.distribution)
        return Samples(view, mask, *kept, advantage, advantages.target, weight)

    def renewed(state: TrainState, parameters: PyTree, rollout: Rollout, key: Array) -> Samples:
        """The samples with advantages by the current critic and policy."""

        def rescore(step):
            observation, action, log_prob, reset = step
            view, mask = split_mask(spec, observation)
            output = policy.apply(parameters, observer(state)(view), mask, rollout.memory, reset)
            return output.value, output.distribution.log_prob(action) - log_prob.sum(-1)

        steps = (rollout.observation, rollout.action, rollout.log_prob, rollout.reset)
        # Chunked, one time step after another: the whole rollout is the largest batch there is.
        value, log_ratio = rescore(steps) if config.chunks == 1 else jax.lax.map(rescore, steps)
        rollout = rollout._replace(value=value)
        critic = criticise(state, parameters, rollout)._replace(log_ratio=log_ratio)
        return samples_of(rollout, estimate(state, rollout, critic, key)[0])

    def terms(state: TrainState, parameters: PyTree, batch: Samples, scale: Moments):
        """(loss terms, diagnostics) on samples [B] of a minibatch whose advantages have the moments `scale`."""
        hyper = numbers(state)
        output = policy.apply(parameters, observer(state)(batch.view), batch.mask, (), None)
        advantage = standardise(batch.advantage, scale) if normalise == "minibatch" else batch.advantage
        entropy = output.distribution.entropy()
        policy_loss, diagnostics = surrogate.loss(
            output.distribution, entropy, batch, advantage, state.surrogate_state, hyper.surrogate
        )
        losses = {
            "policy": policy_loss,
            "entropy_bonus": -hyper.entropy_coefficient * weighted_mean(entropy, batch.weight),
        }
        if uses_critic:
            error = value_loss(
                output.value,
                batch.target,
                batch.value,
                kind=config.value_loss,
                huber_delta=hyper.huber_delta,
                clip=hyper.value_clip if config.clip_value else None,
            )
            losses["value"] = hyper.value_coefficient * weighted_mean(error, batch.weight)
        for name, function in extra_losses:
            losses[name] = function(parameters, batch, output)
        return losses, {**diagnostics, "entropy": weighted_mean(entropy, batch.weight)}

    def summary(minibatch: Samples) -> Moments:
        return moments(minibatch.advantage, minibatch.weight)

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        hyper = numbers(state)
        next_key, act_key, improve_key, estimate_key, renew_key = jax.random.split(state.key, 5)

        carry, rollout, metrics = act(state, act_key)
        rollout, reward_statistics = prepare_rewards(state, rollout)
        critic = criticise(state, state.parameters, rollout)
        advantages, advantage_state = estimate(state, rollout, critic, estimate_key)
        fixed = samples_of(rollout, advantages)
        later = state._replace(advantage_state=advantage_state)

        def batch_for_epoch(parameters, epoch):
            if not config.recompute_advantage:
                return fixed
            return renewed(later, parameters, rollout, jax.random.fold_in(renew_key, epoch))

        parameters, optimiser, diagnostics = improve(
            config,
            hyper,
            state.parameters,
            state.optimiser,
            improve_key,
            batch_for_epoch,
            lambda parameters, batch, scale: terms(state, parameters, batch, scale),
            combine_gradients,
            summarise=summary,
            weigh=lambda samples: samples.weight.sum(),
            mesh=mesh,
        )

        # Averages over the steps of the last epoch that were taken; a skipped one may hold a NaN.
        last_taken = diagnostics["steps_taken"][-1]
        last_epoch = {name: Mean.of(x[-1], last_taken).value for name, x in diagnostics.items()}
        fit = explained_variance(critic.value, advantages) if uses_critic else jnp.zeros(())
        metrics |= summarise(diagnostics) | {
            "explained_variance": Mean(fit, jnp.float32(uses_critic)),
            "weighted_samples": Mean(advantages.weight.sum(), jnp.ones(())),
            "learning_rate": Mean(jnp.asarray(hyper.learning_rate, jnp.float32), jnp.ones(())),
        }
        following = state._replace(
            parameters=parameters,
            optimiser=optimiser,
            statistics=update_observation_statistics(state.statistics, split_mask(spec, rollout.observation)[0]),
            reward_statistics=reward_statistics,
            surrogate_state=surrogate.update_state(state.surrogate_state, last_epoch, hyper.surrogate),
            advantage_state=advantage_state,
            carry=carry,
            key=next_key,
            samples=state.samples.add(config.steps_per_update),
            updates=state.updates + 1,
        )
        return following, metrics

    def evaluate(
        state: TrainState, key: Array, *, mode: bool = True, episodes: int = 64, limit: int | None = None
    ) -> Evaluation:
        player = policy_act(policy, state.parameters, observer(state), mode=mode)
        agents = (spec.num_agents,) if spec.num_agents else ()
        memory = policy.initial_memory((episodes, *agents))
        gamma = at_fraction(state.hyper, jnp.ones(())).gamma
        return play(state.env, player, memory, key, episodes=episodes, gamma=gamma, limit=limit)

    def axes(state: TrainState) -> TrainState:
        nowhere = jax.tree.map(lambda leaf: -1, state)
        statistics = nowhere.reward_statistics
        return nowhere._replace(
            carry=jax.tree.map(lambda leaf: 0, state.carry),
            reward_statistics=statistics._replace(discounted=0) if config.normalise_reward else statistics,
        )

    def dataset(state: TrainState, rollout: Rollout, key: Array) -> Samples:
        rollout, _ = prepare_rewards(state, rollout)
        critic = criticise(state, state.parameters, rollout)
        return samples_of(rollout, estimate(state, rollout, critic, key)[0])

    parts = Parts(act, dataset, terms, summary)
    return Algorithm(init, update, evaluate, policy, config, axes, parts)


def observer(state: TrainState) -> Callable[[PyTree], PyTree]:
    """Standardises views by the statistics of `state`: acting and learning see the same ones."""
    return lambda view: normalise_observation(state.statistics, view)


def summarise(diagnostics: dict[str, Array]) -> Metrics:
    """Averages over the gradient steps [epochs, minibatches] that were taken; counts of those that were not."""
    taken = diagnostics["steps_taken"]
    totals = {"steps_taken", "skipped_updates"}
    metrics = {
        name: Mean(x.sum(), jnp.ones(())) if name in totals else Mean.of(x, taken) for name, x in diagnostics.items()
    }
    # At the first minibatch the policy has not moved: a ratio other than 1 there is a fault, not a diagnostic.
    metrics["first_ratio_deviation"] = Mean(diagnostics["ratio_deviation"][0, 0], jnp.ones(()))
    del metrics["ratio_deviation"]
    return metrics


def explained_variance(value: Array, advantages) -> Array:
    """1 − Var(target − value) / Var(target), over the samples that count; 0 where the targets do not vary."""

    def variance(x):
        mean = weighted_mean(x, advantages.weight)
        return weighted_mean(jnp.square(x - mean), advantages.weight)

    total = variance(advantages.target)
    return jnp.where(total > 1e-12, 1.0 - variance(advantages.target - value) / jnp.maximum(total, 1e-12), 0.0)
