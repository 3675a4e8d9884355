"""Settings that are known to learn: a name, its environment, and what differs from the defaults.

A preset is used when it is asked for (`--preset NAME`) or when `--env` names its environment; flags override it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxppo.config import Hyperparameters, PPOConfig
from jaxppo.errors import UserError, unknown
from jaxppo.schedules import Schedule


@dataclass(frozen=True)
class Preset:
    """What differs from the defaults. `network`, `surrogate` and `advantage` hold overrides of their own.

    config, hyper: by field name of `PPOConfig` and `Hyperparameters`.
    env_parameters: as in `jaxppo.envs.make(env, **env_parameters)`.
    """

    env: str
    config: Mapping[str, Any] = field(default_factory=dict)
    hyper: Mapping[str, Any] = field(default_factory=dict)
    env_parameters: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    def settings(self) -> tuple[PPOConfig, Hyperparameters]:
        """The whole configuration and numbers."""
        config = PPOConfig()
        changes = {**self.config}
        if "network" in changes:
            changes["network"] = replace(config.network, **changes["network"])
        return replace(config, **changes), replace(Hyperparameters(), **self.hyper)


# Without scaled rewards the critic, whose targets lie near 100, swallows the clipped gradient: two of five seeds ended
# near 500, against all five with them (300k steps).
_CARTPOLE = Preset(
    "jaxppo/cartpole",
    config={"total_steps": 500_000, "num_envs": 32, "num_steps": 64, "normalise_reward": True},
    hyper={"learning_rate": Schedule(1e-3, 0.0), "entropy_coefficient": 0.01},
    summary="balance a pole on a cart; reaches the limit of 500",
)

# The settings of `experiments/tasks.py`, whose results are in docs/results/ppo.md. Whatever both we and a peer can do
# is the same for both, so some are not our defaults: Adam's ε of optax, the value clipped as the policy is.
_SHARED_CONFIG: dict[str, Any] = {"num_envs": 64, "num_steps": 128, "minibatches": 8, "clip_value": True}
_SHARED_HYPER: dict[str, Any] = {"learning_rate": Schedule(1e-3, 0.0), "adam_epsilon": 1e-8}


def _task(
    env: str,
    total_steps: int,
    summary: str,
    *,
    network: Mapping[str, Any] | None = None,
    hyper: Mapping[str, Any] | None = None,
    env_parameters: Mapping[str, Any] | None = None,
    **config: Any,
) -> Preset:
    return Preset(
        env,
        config={**_SHARED_CONFIG, "total_steps": total_steps, "network": dict(network or {}), **config},
        hyper={**_SHARED_HYPER, **(hyper or {})},
        env_parameters=dict(env_parameters or {}),
        summary=summary,
    )


_CLASSIC: dict[str, Any] = {"num_envs": 32}
_ENTROPY: dict[str, Any] = {"entropy_coefficient": 0.01}
_SMALL_CNN: dict[str, Any] = {"torso": "cnn", "channels": (16,), "hidden": (128,)}


def _minatar(game: str) -> dict[str, Preset]:
    """A MinAtar game with a flat network (PureJaxRL's settings) and with the small CNN of the MinAtar paper."""
    env, name = f"gymnax/{game}-MinAtar", game.lower()
    return {
        f"{name}-mlp": _task(
            env,
            5_000_000,
            "MinAtar with a flat network: fast",
            network={"torso": "mlp", "activation": "relu"},
            hyper={"learning_rate": Schedule(5e-3, 0.0), **_ENTROPY},
        ),
        f"{name}-cnn": _task(
            env,
            2_000_000,
            "MinAtar with a small CNN",
            network={**_SMALL_CNN, "activation": "relu"},
            hyper=_ENTROPY,
        ),
    }


def _brax(name: str, total_steps: int, summary: str, config: Mapping[str, Any] | None = None, **hyper: Any) -> Preset:
    """A brax task on the spring backend; the learning rate is constant, as brax's own PPO has it."""
    return _task(
        f"brax/{name}",
        total_steps,
        summary,
        network={"torso": "mlp", "activation": "silu"},
        hyper={"learning_rate": 3e-4, **hyper},
        env_parameters={"time_limit": 1000},
        **{
            "num_steps": 32,
            "clip_value": False,
            "distribution": "tanh_gaussian",
            "normalise_observation": True,
            **(config or {}),
        },
    )


def _jumanji(name: str, summary: str, network: Mapping[str, Any], **changes: Any) -> Preset:
    return _task(
        f"jumanji/{name}",
        2_000_000,
        summary,
        network=network,
        hyper={**_ENTROPY, **changes.pop("hyper", {})},
        num_steps=64,
        **changes,
    )


PRESETS: dict[str, Preset] = {
    "demo": replace(
        _CARTPOLE,
        config={**_CARTPOLE.config, "total_steps": 300_000},
        summary="what `make demo` trains, in well under a minute",
    ),
    "cartpole": _CARTPOLE,
    "gymnax-cartpole": _task(
        "gymnax/CartPole-v1",
        500_000,
        "the same task in gymnax",
        network={"torso": "mlp"},
        hyper=_ENTROPY,
        num_envs=32,
        num_steps=64,
        minibatches=4,
    ),
    "pendulum": _task(
        "gymnax/Pendulum-v1",
        1_000_000,
        "swing a pendulum up and hold it",
        network={"torso": "mlp"},
        hyper={"gamma": 0.95},
        num_steps=64,
        epochs=10,
        distribution="gaussian",
        normalise_reward=True,
        **_CLASSIC,
    ),
    "acrobot": _task(
        "gymnax/Acrobot-v1",
        500_000,
        "swing two links above a bar",
        network={"torso": "mlp"},
        hyper=_ENTROPY,
        **_CLASSIC,
    ),
    "mountaincar-continuous": _task(
        "gymnax/MountainCarContinuous-v0",
        500_000,
        "climb out of a valley; exploration is the difficulty",
        network={"torso": "mlp"},
        distribution="gaussian",
        normalise_reward=True,
        **_CLASSIC,
    ),
    **_minatar("Breakout"),
    **_minatar("Asterix"),
    **_minatar("SpaceInvaders"),
    "inverted_pendulum": _brax(
        "inverted_pendulum",
        5_000_000,
        "balance; 1000 at most",
        {"num_envs": 256, "epochs": 4, "minibatches": 8},
        reward_scale=0.1,
        entropy_coefficient=0.003,
    ),
    "reacher": _brax("reacher", 5_000_000, "reach a point with two joints", gamma=0.95, reward_scale=5.0),
    "ant": _brax("ant", 3_000_000, "walk on four legs", gamma=0.97, entropy_coefficient=1e-3),
    "halfcheetah": _brax("halfcheetah", 3_000_000, "run on two legs in a plane", gamma=0.97, entropy_coefficient=1e-3),
    "snake": _jumanji("Snake-v1", "eat and grow", {"torso": "cnn", "hidden": (128,)}),
    "maze": _jumanji("Maze-v0", "find the way in generated mazes", {"torso": "mlp", "hidden": (128, 128)}),
    "2048": _jumanji("Game2048-v1", "merge tiles", {"torso": "mlp"}, normalise_reward=True),
    "knapsack": _jumanji(
        "Knapsack-v1", "pack what is worth most", {"torso": "mlp", "hidden": (128, 128)}, hyper={"gamma": 1.0}
    ),
    "orchard": _task(
        "jaxppo/orchard",
        800_000,
        "catch what falls on a small board, and avoid the stones",
        network={"torso": "mlp", "activation": "relu", "hidden": (128,)},
        hyper={"learning_rate": Schedule(2.5e-3, 0.0), **_ENTROPY},
        clip_value=False,
        normalise_reward=True,
    ),
    "lqr": _task(
        "jaxppo/lqr",
        2_000_000,
        "stabilise two joined pendulums; the optimum is known",
        network={"torso": "mlp"},
        hyper={"reward_scale": 0.1},
        epochs=10,
        clip_value=False,
        distribution="gaussian",
    ),
}


def register(name: str, preset: Preset) -> Preset:
    """Makes `--preset name` known. Raises UserError where it is already."""
    if name in PRESETS:
        raise UserError(f"preset {name!r} is registered already")
    PRESETS[name] = preset
    return preset


def find(name: str) -> Preset:
    """The preset of that name. Raises UserError with the nearest names."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def preset_of(env: str) -> Preset | None:
    """The first preset of the environment `env`, the demonstration aside; None where there is none."""
    return next((preset for name, preset in PRESETS.items() if preset.env == env and name != "demo"), None)
