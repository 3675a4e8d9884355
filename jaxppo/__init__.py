"""On-policy reinforcement learning in JAX: the whole training loop as one pure function.

import jax, jaxppo
from jaxppo.envs import make

train = jaxppo.make_train(jaxppo.PPOConfig(), make("jaxppo/cartpole"))
state, metrics = jax.jit(train)(jax.random.key(0))
"""

from jaxppo.advantages import register_advantage
from jaxppo.algorithms.ppo import TrainState, ppo
from jaxppo.config import Hyperparameters, NetworkConfig, PPOConfig
from jaxppo.environment import Environment, EnvironmentSpec, Masked, Step
from jaxppo.errors import UserError
from jaxppo.losses import SurrogateInputs, register_surrogate
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
    "register_advantage",
    "register_surrogate",
]
