"""Range-reduced tables: what they are of, and the points at which the inputs of fp16 look them up.

The final result is ``scale * table(point)``, plus a number that does not depend on the table for the logarithm: see
``reduce_and_look_up`` in src/numerics/lut_eval.h, which this follows step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ROOT_HALF_BITS = 0x3F3504F3
_LOG2E = np.float32(1.44269504088896340736)
_INVERSE_TWO_PI = np.float32(0.15915494309189533577)


@dataclass(frozen=True)
class Reduced:
    """Arguments of a table, and the factors by which its errors grow."""

    points: Array  # float32 [n]
    scales: Array  # float64 [n]: what an error of the table is multiplied by in the result


@dataclass(frozen=True)
class Reduction:
    """One of the reductions, for one function."""

    function: Callable[[Array], Array]
    """Function that the table approximates, in float64."""
    low: float
    high: float
    """The table's ends, fp32."""
    exact: tuple[float, ...]
    """Inner points that must be cuts, with an exact entry."""
    reduce: Callable[[Array], Reduced]
    """Function from x, float32 [n], to the table's arguments."""
    skips_zero: bool = False
    """0 is not looked up."""


def _bits(x: Array) -> Array:
    return x.astype(np.float32).view(np.int32)


def _from_bits(bits: Array) -> Array:
    return bits.astype(np.int32).view(np.float32)


def _exp(x: Array) -> Reduced:
    z = np.clip(x * _LOG2E, np.float32(-127), np.float32(127))
    n = np.floor(z)
    return Reduced(z - n, np.ldexp(1.0, n.astype(np.int32)))


def _log(x: Array) -> Reduced:
    bits = _bits(x)
    e = (bits - _ROOT_HALF_BITS) >> 23
    return Reduced(_from_bits(bits - (e << 23)), np.ones(len(x)))


def _reciprocal(x: Array) -> Reduced:
    bits = _bits(np.abs(x))
    return Reduced(_from_bits((bits & 0x7FFFFF) | 0x3F800000), np.ldexp(1.0, 127 - (bits >> 23)))


def _even_exponent(x: Array) -> tuple[Array, Array]:
    bits = _bits(x)
    h = ((bits >> 23) - 127) >> 1
    return _from_bits(bits - (h << 24)), h


def _sqrt(x: Array) -> Reduced:
    m, h = _even_exponent(x)
    return Reduced(m, np.ldexp(1.0, h))


def _rsqrt(x: Array) -> Reduced:
    m, h = _even_exponent(x)
    return Reduced(m, np.ldexp(1.0, -h))


def _periodic(x: Array) -> Reduced:
    # In float64 2 pi in two parts keeps what the three parts in fp32 keep.
    k = np.rint(x * _INVERSE_TWO_PI).astype(np.float64)
    points = (x.astype(np.float64) - k * 6.28318548202514648438) + k * 1.74845553146951715462e-7
    return Reduced(points.astype(np.float32), np.ones(len(x)))


_ROOT_HALF = float(_from_bits(np.array([_ROOT_HALF_BITS]))[0])
_PERIOD_END = 3.150390625  # beyond pi by more than fp32 may be wrong about the number of periods in 65504

REDUCTIONS: dict[str, Reduction] = {
    "exp": Reduction(np.exp2, 0.0, 1.0, (), _exp),
    "log": Reduction(np.log, _ROOT_HALF, 2.0 * _ROOT_HALF, (1.0,), _log),
    "reciprocal": Reduction(lambda m: 1.0 / m, 1.0, 2.0, (), _reciprocal),
    "sqrt": Reduction(np.sqrt, 1.0, 4.0, (), _sqrt, True),
    "rsqrt": Reduction(lambda m: 1.0 / np.sqrt(m), 1.0, 4.0, (), _rsqrt),
    "sin": Reduction(np.sin, -_PERIOD_END, _PERIOD_END, (0.0,), _periodic),
    "cos": Reduction(np.cos, -_PERIOD_END, _PERIOD_END, (0.0,), _periodic),
}
"""By the name of the function."""
