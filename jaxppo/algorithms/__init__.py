"""Recipes: each a whole algorithm on one page."""

from jaxppo.algorithms.ppo import TrainState, ppo

__all__ = ["TrainState", "ppo"]
