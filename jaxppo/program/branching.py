"""What a branch keeps of the run that it starts from: one rule a setting."""

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import jax

from jaxppo.errors import UserError
from jaxppo.program import checkpoint, configuration
from jaxppo.program.configuration import RunConfig

PyTree = Any


class Rule(Enum):
    """Which parts of the state start anew when a setting changes; all others are kept.

    The numbers (`hyper`) and the parameters of the environment (`env`) are always the new ones.
    """

    KEEP = ()
    EPISODES = ("carry", "reward_statistics.discounted")
    RANDOMNESS = ("key", "carry", "reward_statistics.discounted")
    OPTIMISER = ("optimiser",)
    SURROGATE = ("surrogate_state",)
    ADVANTAGE = ("advantage_state",)
    STATISTICS = ("statistics",)
    REWARD_STATISTICS = ("reward_statistics",)
    REFUSE = None


RULES: dict[str, Rule] = {
    "env": Rule.REFUSE,  # other observations and actions
    "env_parameters": Rule.EPISODES,
    "seed": Rule.RANDOMNESS,
    "total_steps": Rule.KEEP,
    "num_envs": Rule.EPISODES,
    "num_steps": Rule.KEEP,
    "epochs": Rule.KEEP,
    "minibatches": Rule.KEEP,
    "microbatches": Rule.KEEP,
    "chunks": Rule.KEEP,
    "blocks": Rule.KEEP,
    "shuffle": Rule.KEEP,
    "distribution": Rule.REFUSE,  # another head
    "surrogate": Rule.SURROGATE,
    "advantage": Rule.ADVANTAGE,
    "group_size": Rule.EPISODES,
    "recompute_advantage": Rule.KEEP,
    "normalise_advantage": Rule.KEEP,
    "normalise_observation": Rule.STATISTICS,
    "normalise_reward": Rule.REWARD_STATISTICS,
    "value_loss": Rule.KEEP,
    "clip_value": Rule.KEEP,
    "truncation": Rule.KEEP,
    "reset": Rule.EPISODES,
    "reset_pool": Rule.EPISODES,
    "reset_group": Rule.EPISODES,
    "reset_spares": Rule.EPISODES,
    "optimiser": Rule.OPTIMISER,
    "network.torso": Rule.REFUSE,
    "network.hidden": Rule.REFUSE,
    "network.channels": Rule.REFUSE,
    "network.activation": Rule.REFUSE,  # the same shapes, but another function
    "network.shared": Rule.REFUSE,
    "network.layer_norm": Rule.REFUSE,
    "network.actor_gain": Rule.REFUSE,  # only matters before the first update
    "network.initial_log_std": Rule.REFUSE,  # likewise
    "network.state_dependent_std": Rule.REFUSE,
    "network.compute": Rule.KEEP,
    "learning_rate": Rule.KEEP,
    "gamma": Rule.KEEP,
    "entropy_coefficient": Rule.KEEP,
    "value_coefficient": Rule.KEEP,
    "max_grad_norm": Rule.KEEP,
    "value_clip": Rule.KEEP,
    "huber_delta": Rule.KEEP,
    "target_kl": Rule.KEEP,
    "reward_scale": Rule.KEEP,
    "reward_clip": Rule.KEEP,
    "adam_epsilon": Rule.KEEP,
    "adam_b1": Rule.KEEP,
    "adam_b2": Rule.KEEP,
    "surrogate_numbers": Rule.KEEP,
    "advantage_numbers": Rule.KEEP,
}

_ALWAYS_NEW = ("hyper", "env")


def changed(run: RunConfig, changes: Mapping[str, str]) -> tuple[RunConfig, tuple[str, ...]]:
    """`run` with other settings, and the flat names of the numbers that went with its surrogate or its estimator.

    Another surrogate or estimator starts from its own defaults: of the run's numbers it keeps none, not even those that
    are called the same, unless `changes` gives them anew. Raises UserError as `configuration.with_settings` does.
    """
    new = configuration.with_settings(run, changes)
    stale = configuration.stale_numbers(run.config, new.config, new.hyper)
    gone = tuple(name for name in stale if name not in changes)
    return dataclasses.replace(new, hyper=configuration.without_numbers(new.hyper, gone)), gone


def rule_of(name: str) -> Rule:
    """The rule of a setting by its flat name; `env_parameters.gravity` follows `env_parameters`.

    Raises UserError for a setting without a rule: a new one has to be given one.
    """
    found = RULES.get(name, RULES.get(name.partition(".")[0]))
    if found is None:
        raise UserError(f"{name} cannot be changed in a branch: it has no rule")
    return found


def renewed_parts(changed: Iterable[str]) -> tuple[str, ...]:
    """The parts of the state that start anew. Raises UserError for a setting that a branch cannot change."""
    parts: dict[str, None] = {}
    for name in changed:
        rule = rule_of(name)
        if rule is Rule.REFUSE:
            raise UserError(f"a branch cannot change {name}: the trained parameters belong to it; start a new run")
        parts |= dict.fromkeys(rule.value)
    return tuple(parts)


def branched_state(arrays: Mapping[str, Any], fresh: PyTree, renewed: Iterable[str], source: str) -> PyTree:
    """`fresh`, a first state under the new settings, with all parts from the checkpoint's `arrays` but the renewed.

    Raises UserError, naming the leaf, where one that has to be kept does not fit.
    """
    new = (*_ALWAYS_NEW, *renewed)

    def is_new(name: str) -> bool:
        return any(name == part or name.startswith(f"{part}.") for part in new)

    kept = {name: array for name, array in arrays.items() if not is_new(name)}
    renewed_arrays = {name: array for name, array in checkpoint.flatten(fresh).items() if is_new(name)}
    return checkpoint.unflatten(jax.eval_shape(lambda: fresh), kept | renewed_arrays, source)
