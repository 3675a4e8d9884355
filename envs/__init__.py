"""Environments: our own small ones, adapters to simulator libraries, wrappers, and the registry that names them all."""

from jaxppo.envs.cartpole import CartPole
from jaxppo.envs.counting import Counting
from jaxppo.envs.leaves import parameters, with_parameters
from jaxppo.envs.lqr import LQR
from jaxppo.envs.memory import Memory
from jaxppo.envs.nan import NaN
from jaxppo.envs.orchard import Orchard
from jaxppo.envs.registry import Listing, listing, make, register
from jaxppo.envs.time_limit import TimeLimitOnly
from jaxppo.envs.wrappers import ActionRepeat, FlattenObservation, FrameStack, RescaleAction, TimeLimit

register("jaxppo/cartpole", CartPole)
register("jaxppo/counting", Counting)
register("jaxppo/lqr", LQR)
register("jaxppo/memory", Memory)
register("jaxppo/nan", NaN)
register("jaxppo/orchard", Orchard)
register("jaxppo/time_limit", TimeLimitOnly)

__all__ = [
    "LQR",
    "ActionRepeat",
    "CartPole",
    "Counting",
    "FlattenObservation",
    "FrameStack",
    "Listing",
    "Memory",
    "NaN",
    "Orchard",
    "RescaleAction",
    "TimeLimit",
    "TimeLimitOnly",
    "listing",
    "make",
    "parameters",
    "register",
    "with_parameters",
]
