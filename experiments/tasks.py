"""What is benchmarked, and with which settings: one table for ours and for the peers.

The names of the settings are those of `jaxppo.config`. Every value can be expressed by the peer of its task, so that
both sides run the same numbers; what a peer does in its own way whatever it is told stands in the docstring of its
script in `peers/`.
This module imports nothing but the standard library: the peers' virtual environments know nothing of jaxppo.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Task:
    """One environment with the settings that it is learned with."""

    name: str
    """How the task is called on the command line and in the tables."""
    environment: str
    """The name that `jaxppo.make` knows."""
    total_steps: int
    """Environment steps; both sides round up to whole updates."""
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
    episode_limit: int | None = None
    """Time limit where the library leaves it to the caller (brax)."""
    num_envs: int = 64
    num_steps: int = 128
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = 3e-4
    anneal: bool = True
    """Learning rate falls linearly to zero over the run (brax's own PPO has no such schedule)."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    """Times half the squared error."""
    clip_value: bool = True
    """Clip the critic's step by `clip` (rejax always does, brax never here)."""
    max_grad_norm: float = 0.5
    """Rejax clips each entry of the gradient by it, ours and brax the global norm."""
    adam_epsilon: float = 1e-8
    """Optax's default, which both peers take."""
    torso: Literal["mlp", "cnn"] = "mlp"
    """`cnn`: 3×3 convolution without padding, then the dense layers of `hidden`; `mlp` flattens."""
    channels: tuple[int, ...] = (16,)
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    distribution: Literal["categorical", "gaussian", "tanh_gaussian"] = "categorical"
    normalise_observation: bool = False
    normalise_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_scale: float = 1.0


def settings_hash(task: Task) -> str:
    """Twelve hexadecimal digits of everything that changes a training run of `task`."""
    settings = asdict(replace(task, goal="", seeds=0))
    del settings["threshold"]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def _minatar(game: str) -> tuple[Task, Task]:
    """A MinAtar game with a flat network (settings of PureJaxRL) and with the small CNN of the MinAtar paper."""
    flat = Task(
        f"{game.lower()}-mlp",
        f"gymnax/{game}-MinAtar",
        5_000_000,
        "as high as the peer",
        peer="rejax",
        peer_environment=f"{game}-MinAtar",
        learning_rate=5e-3,
        entropy_coefficient=0.01,
        activation="relu",
    )
    small = replace(flat, name=f"{game.lower()}-cnn", total_steps=2_000_000, learning_rate=1e-3, torso="cnn")
    return flat, replace(small, hidden=(128,))


def _brax(name: str, total_steps: int, goal: str, threshold: float | None = None, **settings) -> Task:
    """A brax task on the spring backend; brax's PPO has a tanh-Gaussian head and a constant learning rate."""
    return Task(
        name,
        f"brax/{name}",
        total_steps,
        goal,
        threshold,
        peer="brax",
        peer_environment=name,
        episode_limit=1000,
        **dict(num_steps=32, anneal=False, clip_value=False, activation="silu", distribution="tanh_gaussian")
        | dict(normalise_observation=True)
        | settings,
    )


_CLASSIC = dict(peer="rejax", num_envs=32, learning_rate=1e-3)
_JUMANJI = dict(peer=None, num_steps=64, learning_rate=1e-3, entropy_coefficient=0.01)
_CONTINUOUS = dict(distribution="gaussian", normalise_reward=True)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cartpole",
            "gymnax/CartPole-v1",
            500_000,
            "≥ 475",
            475.0,
            peer_environment="CartPole-v1",
            num_steps=64,
            minibatches=4,
            entropy_coefficient=0.01,
            **_CLASSIC,
        ),
        Task(
            "pendulum",
            "gymnax/Pendulum-v1",
            1_000_000,
            "≥ −250",
            -250.0,
            peer_environment="Pendulum-v1",
            num_steps=64,
            epochs=10,
            gamma=0.95,
            **_CLASSIC,
            **_CONTINUOUS,
        ),
        Task(
            "acrobot",
            "gymnax/Acrobot-v1",
            500_000,
            "≥ −100",
            -100.0,
            peer_environment="Acrobot-v1",
            entropy_coefficient=0.01,
            **_CLASSIC,
        ),
        Task(
            "mountaincar-continuous",
            "gymnax/MountainCarContinuous-v0",
            500_000,
            "as it is (solved: ≥ 90)",
            peer_environment="MountainCarContinuous-v0",
            **_CLASSIC,
            **_CONTINUOUS,
        ),
        *_minatar("Breakout"),
        *_minatar("Asterix"),
        *_minatar("SpaceInvaders"),
        _brax("inverted_pendulum", 1_000_000, "1000, the most there is", 1000.0),
        _brax("reacher", 5_000_000, "as high as the peer", gamma=0.95, reward_scale=5.0),
        _brax("ant", 3_000_000, "as high as the peer", seeds=3, gamma=0.97, entropy_coefficient=1e-3),
        _brax("halfcheetah", 3_000_000, "as high as the peer", seeds=3, gamma=0.97, entropy_coefficient=1e-3),
        Task("snake", "jumanji/Snake-v1", 2_000_000, "above greedy", torso="cnn", hidden=(128,), **_JUMANJI),
        Task("maze", "jumanji/Maze-v0", 2_000_000, "above greedy", hidden=(128, 128), **_JUMANJI),
        Task("2048", "jumanji/Game2048-v1", 2_000_000, "above greedy", normalise_reward=True, **_JUMANJI),
        Task("knapsack", "jumanji/Knapsack-v1", 2_000_000, "above greedy", gamma=1.0, hidden=(128, 128), **_JUMANJI),
        Task("lqr", "jaxppo/lqr", 2_000_000, "within 2 % of the optimum", epochs=10, clip_value=False, **_CONTINUOUS),
    )
}
