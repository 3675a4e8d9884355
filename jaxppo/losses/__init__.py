"""Losses: policy surrogates, value losses. See `surrogates` for how to add one."""

from jaxppo.losses.surrogates import SURROGATES, SurrogateInputs, ratio, register_surrogate
from jaxppo.losses.values import value_loss

__all__ = ["SURROGATES", "SurrogateInputs", "ratio", "register_surrogate", "value_loss"]
