"""What is benchmarked: presets of `jaxppo.presets`, with a goal, a number of seeds and, where there is one, a peer."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxppo.advantages import ADVANTAGES
from jaxppo.losses import SURROGATES
from jaxppo.presets import PRESETS, Preset
from jaxppo.program import configuration
from jaxppo.program.configuration import RunConfig
from jaxppo.schedules import Schedule

YOUNGER: dict[str, Any] = {"microbatches": 1, "chunks": 1}
"""Settings, by flat name, that were added after the first results, each with the value that means what was done before
it: a task that has this value keeps the hash that its results are under."""


@dataclass(frozen=True)
class Task:
    """A preset to be learned and measured."""

    name: str
    """How the task is called on the command line and in the tables."""
    preset: Preset
    """The settings, ours and the peer's."""
    goal: str
    """What counts as learned, for people."""
    threshold: float | None = None
    """The same as a number, where it is one: the least return of the final policy's mode."""
    peer: Literal["rejax", "brax"] | None = None
    """Whose PPO stands beside ours."""
    peer_environment: str = ""
    """The peer's name of the environment."""
    seeds: int = 5
    """Seeds 0 … seeds − 1."""

    def changed(self, **config: Any) -> "Task":
        """This task with other values for fields of `PPOConfig`."""
        return replace(self, preset=replace(self.preset, config={**self.preset.config, **config}))

    @property
    def environment(self) -> str:
        return self.preset.env

    @property
    def total_steps(self) -> int:
        return self.preset.settings()[0].total_steps

    @property
    def gamma(self) -> float:
        return self.preset.settings()[1].gamma


def settings(task: Task) -> dict[str, Any]:
    """Everything that a peer needs to run the same, as plain numbers and words.

    Every value can be expressed by the peer of its task; what a peer does in its own way whatever it is told stands in
    the docstring of its script in `peers/`.
    """
    config, hyper = task.preset.settings()
    rate = hyper.learning_rate
    network = config.network
    same = ("num_envs", "num_steps", "epochs", "minibatches", "clip_value", "distribution", "total_steps")
    same += ("normalise_observation", "normalise_reward")
    numbers = ("gamma", "entropy_coefficient", "value_coefficient", "max_grad_norm", "adam_epsilon", "reward_scale")
    return {
        "name": task.name,
        "environment": task.environment,
        "peer": task.peer,
        "peer_environment": task.peer_environment,
        "episode_limit": task.preset.env_parameters.get("time_limit"),
        **{name: getattr(config, name) for name in same},
        **{name: getattr(hyper, name) for name in numbers},
        "distribution": "categorical" if config.distribution == "auto" else config.distribution,
        "learning_rate": rate.start if isinstance(rate, Schedule) else rate,
        "anneal": isinstance(rate, Schedule),  # linearly to zero over the run
        "gae_lambda": hyper.advantage.get("lam", 0.95),
        "clip": hyper.surrogate.get("epsilon", 0.2),
        "torso": network.torso,
        "channels": network.channels,
        "hidden": network.hidden,
        "activation": network.activation,
    }


def facts(task: Task) -> dict[str, Any]:
    """Every setting of `task` by its flat name, as JSON values: the environment with its parameters, all fields of the
    configuration and all numbers, defaults included, those of the surrogate and the estimator too; and the peer."""
    config, hyper = task.preset.settings()
    run = RunConfig(task.preset.env, dict(task.preset.env_parameters), config=config, hyper=hyper)
    # Written and read once, so that 1 and 1.0, a list and a tuple are the same.
    given = configuration.settings(configuration.from_json(configuration.to_json(run)))
    del given["seed"]
    variant = {f"surrogate_numbers.{n}": v for n, v in SURROGATES.get(config.surrogate).numbers.items()}
    estimator = {f"advantage_numbers.{n}": v for n, v in ADVANTAGES.get(config.advantage).numbers.items()}
    return {**variant, **estimator, **given, "peer": task.peer, "peer_environment": task.peer_environment}


def settings_hash(task: Task) -> str:
    """Twelve hexadecimal digits of everything that changes a training run of `task`: its `facts`, as JSON."""
    found = {name: value for name, value in facts(task).items() if name not in YOUNGER or YOUNGER[name] != value}
    return hashlib.sha256(json.dumps(found, sort_keys=True, allow_nan=False).encode()).hexdigest()[:12]


def _with_peer(peer: Literal["rejax", "brax"], name: str, preset: str, goal: str, threshold=None, seeds=5) -> Task:
    settings = PRESETS[preset]
    return Task(name, settings, goal, threshold, peer, settings.env.split("/")[1], seeds)


PEER = "as high as the peer"

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _with_peer("rejax", "cartpole", "gymnax-cartpole", "≥ 475", 475.0),
        _with_peer("rejax", "pendulum", "pendulum", "≥ −250", -250.0),
        _with_peer("rejax", "acrobot", "acrobot", "≥ −100", -100.0),
        _with_peer("rejax", "mountaincar-continuous", "mountaincar-continuous", "as it is (solved: ≥ 90)"),
        *(
            _with_peer("rejax", f"{game}-{net}", f"{game}-{net}", PEER)
            for game in ("breakout", "asterix", "spaceinvaders")
            for net in ("mlp", "cnn")
        ),
        _with_peer("brax", "inverted_pendulum", "inverted_pendulum", "1000, the most there is, to 1 in 1000", 999.0),
        _with_peer("brax", "reacher", "reacher", PEER),
        _with_peer("brax", "ant", "ant", PEER, seeds=3),
        _with_peer("brax", "halfcheetah", "halfcheetah", PEER, seeds=3),
        *(Task(name, PRESETS[name], "above greedy") for name in ("snake", "maze", "2048", "knapsack")),
        Task("lqr", PRESETS["lqr"], "within 2 % of the optimum"),
    )
}
