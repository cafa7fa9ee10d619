"""One case: a function on an array, its inputs and its true results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from qcore.lut.functions import FUNCTIONS
from qcore.lut.grid import FLOOR

from ..implementation import Array, Bound, Built, Implementation, Scheme, Unavailable

FUNCTION_NAMES = ("silu", "gelu", "tanh", "sigmoid", "exp", "softmax", "rms_norm")
ROW_FUNCTIONS = ("softmax", "rms_norm")
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
EPSILON = 1e-6

_LONGEST_ROW = 4096
_CHECKED_ROWS, _CHECKED_ELEMENTS = 16, 1 << 16
_SPREAD, _LARGEST = 2.0, 10.0  # of inputs: exp of them stays within fp16


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """bf16 is ml_dtypes's."""
    if dtype != "bf16":
        return np.dtype({"fp32": np.float32, "fp16": np.float16}[dtype])
    try:
        bfloat16: np.dtype[np.generic] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return bfloat16
    except ImportError as error:
        raise Unavailable(f"bf16 arrays need ml_dtypes, which is not installed ({error})") from error


@dataclass(frozen=True)
class Problem:
    """A function, a dtype and a size."""

    function: str
    dtype: str
    elements: int

    @property
    def name(self) -> str:
        if self.by_rows:
            return f"{self.function} {self.dtype} {'x'.join(str(extent) for extent in self.shape)}"
        return f"{self.function} {self.dtype} {self.elements}"

    @property
    def by_rows(self) -> bool:
        return self.function in ROW_FUNCTIONS

    @property
    def shape(self) -> tuple[int, ...]:
        """[elements], or [rows, K]."""
        if not self.by_rows:
            return (self.elements,)
        k = min(_LONGEST_ROW, self.elements)
        return (self.elements // k, k)

    @property
    def moved_bytes(self) -> int:
        """Read and written by one call."""
        return 2 * self.elements * ITEM_BYTES[self.dtype]

    def implementation(self, name: str, library: str, bind: Callable[[Data], Bound]) -> Implementation:
        scheme = Scheme(8 * ITEM_BYTES[self.dtype], self.dtype, "fp32")
        return Implementation(name, library, scheme, lambda: Built(self.moved_bytes, 1, bind))


@dataclass
class Data:
    """Inputs of a problem: x in float32, each number exact in the problem's dtype."""

    problem: Problem
    x: Array = field(init=False)
    weight: Array = field(init=False)  # [K], of rms_norm

    def __post_init__(self) -> None:
        generator = np.random.default_rng(len(self.problem.function))
        x = generator.standard_normal(self.problem.shape, np.float32)
        x *= np.float32(_SPREAD)
        np.clip(x, -_LARGEST, _LARGEST, out=x)
        weight = generator.uniform(0.5, 1.5, self.problem.shape[-1]).astype(np.float32)
        self.x, self.weight = _exact(x, self.problem.dtype), _exact(weight, self.problem.dtype)

    @cached_property
    def stored(self) -> Array:
        """x in the problem's dtype."""
        return self.x.astype(numpy_dtype(self.problem.dtype))

    @cached_property
    def sample(self) -> tuple[Array, Array]:
        """(where, true results there, float64)."""
        if self.problem.by_rows:
            where = np.unique(np.linspace(0, len(self.x) - 1, _CHECKED_ROWS).astype(int))
        else:
            where = np.unique(np.linspace(0, len(self.x) - 1, _CHECKED_ELEMENTS).astype(int))
        return where, self._truth(self.x[where].astype(np.float64))

    def _truth(self, x: Array) -> Array:
        if self.problem.function == "softmax":
            powers = np.exp(x - x.max(-1, keepdims=True))
            return np.asarray(powers / powers.sum(-1, keepdims=True))
        if self.problem.function == "rms_norm":
            return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * self.weight.astype(np.float64))
        return FUNCTIONS[self.problem.function].evaluate(x)

    def error(self, result: Array) -> float | None:
        """Mean of |y - f| / max(|f|, 2^-14) over the sample; None for what computes nothing."""
        if result.size == 0:
            return None
        where, truth = self.sample
        y = result.reshape(self.problem.shape)[where].astype(np.float64)
        return float(np.mean(np.abs(y - truth) / np.maximum(np.abs(truth), FLOOR)))


def _exact(x: Array, dtype: str) -> Array:
    """Round to the dtype, in float32; bf16 without a library that has its type."""
    if dtype == "fp32":
        return x
    if dtype == "fp16":
        return x.astype(np.float16).astype(np.float32)
    return np.asarray((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
