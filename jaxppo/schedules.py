"""Hyperparameters that change over training, counted in samples, never in optimiser calls."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

Array = jax.Array


@struct.dataclass
class Schedule:
    """A straight line from `start` to `end` over the fraction `duration` of all samples, constant afterwards.

    Its numbers are leaves: schedules can be swept, vmapped and differentiated like any hyperparameter.
    """

    start: Any
    end: Any
    duration: Any = 1.0

    def at(self, fraction: Array) -> Array:
        """The value after `fraction` [0, 1] of the samples."""
        position = jnp.clip(fraction / self.duration, 0.0, 1.0)
        return self.start + (self.end - self.start) * position

    @classmethod
    def parse(cls, text: str) -> "float | Schedule":
        """A number, or `start:end` or `start:end:duration` as a schedule."""
        parts = [float(part) for part in text.split(":")]
        if len(parts) > 3:
            raise ValueError(f"{text!r} is not NUMBER, START:END or START:END:DURATION")
        return parts[0] if len(parts) == 1 else cls(*parts)

    def __str__(self) -> str:
        tail = "" if self.duration == 1.0 else f":{self.duration}"
        return f"{self.start}:{self.end}{tail}"


def at_fraction(hyper: Any, fraction: Array) -> Any:
    """`hyper` with every schedule in it replaced by its value after `fraction` of the samples."""

    def resolve(leaf):
        return leaf.at(fraction) if isinstance(leaf, Schedule) else leaf

    return jax.tree.map(resolve, hyper, is_leaf=lambda leaf: isinstance(leaf, Schedule))
