"""On-policy reinforcement learning in JAX: the whole training loop as one pure function.

import jax, jaxppo
from jaxppo.envs import make

train = jaxppo.make_train(jaxppo.PPOConfig(), make("jaxppo/cartpole"))
state, metrics = jax.jit(train)(jax.random.key(0))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxppo.advantages import register_advantage
    from jaxppo.algorithms.ppo import TrainState, ppo
    from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig
    from jaxppo.environment import Environment, EnvironmentSpec, Masked, Step
    from jaxppo.errors import UserError
    from jaxppo.losses import SurrogateInputs, ratio, register_surrogate
    from jaxppo.schedules import Schedule
    from jaxppo.training import EvaluationPlan, make_chunk, make_train
    from jaxppo.types import Advantages, Algorithm, CriticOutputs, Mean, Rollout

__version__ = "0.1.0"

__all__ = [
    "Advantages",
    "Algorithm",
    "CriticOutputs",
    "Environment",
    "EnvironmentSpec",
    "EvaluationPlan",
    "Hyperparameters",
    "Masked",
    "Mean",
    "NetworkConfig",
    "PPOConfig",
    "Rollout",
    "Schedule",
    "Step",
    "SurrogateInputs",
    "TrainState",
    "UserError",
    "make_chunk",
    "make_train",
    "ppo",
    "ratio",
    "register_advantage",
    "register_surrogate",
]

# Imported at first use, so that `jaxppo --help` does not wait for JAX, and the program can set up JAX before it loads.
_ROOMS = {
    "advantages": ("register_advantage",),
    "algorithms.ppo": ("TrainState", "ppo"),
    "config": ("Hyperparameters", "NetworkConfig", "PPOConfig"),
    "environment": ("Environment", "EnvironmentSpec", "Masked", "Step"),
    "errors": ("UserError",),
    "losses": ("SurrogateInputs", "ratio", "register_surrogate"),
    "schedules": ("Schedule",),
    "training": ("EvaluationPlan", "make_chunk", "make_train"),
    "types": ("Advantages", "Algorithm", "CriticOutputs", "Mean", "Rollout"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'jaxppo' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"jaxppo.{_ROOM_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
