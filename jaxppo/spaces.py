"""Static descriptions of observations and actions. Hashable, so that they can stand beside a compiled program."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Discrete:
    """One choice out of `n`, as an int32 scalar."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> Any:
        return np.dtype(np.int32)

    @property
    def num_logits(self) -> int:
        return self.n


@dataclass(frozen=True)
class MultiDiscrete:
    """One choice for each component, as an int32 vector [len(nvec)].

    Logits and action masks of the components are concatenated: both have sum(nvec) entries.
    """

    nvec: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def dtype(self) -> Any:
        return np.dtype(np.int32)

    @property
    def num_logits(self) -> int:
        return sum(self.nvec)


@dataclass(frozen=True)
class Box:
    """An array of `shape` and `dtype` between `low` and `high` (inclusive; scalars, or one number an entry, row-major).

    `dtype` is also the one it is stored in: uint8 and bool observations stay narrow in the rollout.
    """

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf
    dtype: Any = np.dtype(np.float32)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each of this shape, float32."""
        low, high = (np.asarray(b, np.float32) for b in (self.low, self.high))
        full = [np.broadcast_to(b if b.ndim == 0 else b.reshape(self.shape), self.shape) for b in (low, high)]
        return full[0], full[1]

    @property
    def bounded(self) -> bool:
        """True where every entry has a finite range."""
        low, high = self.bounds()
        return bool(np.isfinite(low).all() and np.isfinite(high).all())


Space = Discrete | MultiDiscrete | Box
