"""One layer's floats and its exact results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

import qcore

from ..implementation import Array, relative_error
from ..static.problem import Layer, convolved

_MOST_WRONG = 0.5  # 4-bit weights of random numbers are within 0.2


@dataclass
class Floats:
    """A layer's input and weight, random normal numbers."""

    layer: Layer
    x: Array = field(init=False)
    weight: Array = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.layer.operations)
        self.x = generator.standard_normal(self.layer.x, np.float32)
        self.weight = generator.standard_normal(self.layer.weight, np.float32)

    @cached_property
    def truth(self) -> Array:
        return convolved(self.layer, self.x, self.weight)

    def error(self, result: Array) -> float:
        """Return the relative error in the L2 norm. Raises QcoreValueError for a wrong result."""
        if result.shape != self.layer.y:
            raise qcore.QcoreValueError(f"bench: a result has shape {list(result.shape)}, expected {self.layer.y}")
        error = relative_error(result, self.truth)
        if not error <= _MOST_WRONG:
            raise qcore.QcoreValueError(f"bench: a result has a relative error of {error:.3g}")
        return error
