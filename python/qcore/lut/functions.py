"""The functions that tables are of, in float64: accurate on all of fp16, and where each of them is defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LIMIT = 65504.0
"""The largest fp16."""
TINY = 2.0**-24
"""The smallest positive fp16."""

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@dataclass(frozen=True)
class Function:
    """A function with its name, where it is defined on fp16, and how its table is reduced."""

    name: str
    evaluate: Callable[[Array], Array]
    """float64 array -> float64 array of its shape."""
    domain: tuple[float, float] = (-LIMIT, LIMIT)
    """Both ends belong to it; f is finite in fp16 throughout."""
    reduction: str | None = None
    """A key of ``qcore.lut.core.REDUCTIONS``; None where there is none."""
    covers_domain: bool = False
    """The plain table's first and last cut are the domain's ends, fp16 or not."""


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x) without overflow, to full relative accuracy on both sides."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def mish(x: Array) -> Array:
    """x * tanh(log(1 + e^x)), the hyperbolic tangent as a quotient of polynomials in e^-|x|."""
    small = np.exp(-np.abs(x))
    below = small * (small + 2.0)
    above = 1.0 + 2.0 * small
    return np.asarray(x * np.where(x < 0, below / (below + 2.0), above / (above + 2.0 * small * small)))


def gelu_tanh(x: Array) -> Array:
    """Return the usual approximation of gelu; (1 + tanh(u)) / 2 is sigmoid(2 u)."""
    return np.asarray(x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def _hardsigmoid(x: Array) -> Array:
    return np.asarray(np.clip(x + 3.0, 0.0, 6.0) / 6.0)


_ALL = (
    Function("silu", lambda x: x * sigmoid(x)),
    Function("gelu", lambda x: 0.5 * x * _erfc(x * -math.sqrt(0.5))),
    Function("gelu_tanh", gelu_tanh),
    Function("sigmoid", sigmoid),
    Function("tanh", np.tanh),
    Function("exp", np.exp, (-LIMIT, 11.0859375), "exp"),
    Function("log", np.log, (TINY, LIMIT), "log"),
    Function("reciprocal", lambda x: 1.0 / x, (257 * TINY, LIMIT), "reciprocal"),
    Function("sqrt", np.sqrt, (0.0, LIMIT), "sqrt"),
    Function("rsqrt", lambda x: 1.0 / np.sqrt(x), (TINY, LIMIT), "rsqrt"),
    Function("mish", mish),
    Function("softplus", softplus),
    Function("elu", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))),
    Function("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
    Function("relu", lambda x: np.maximum(x, 0.0)),
    Function("hardswish", lambda x: x * _hardsigmoid(x)),
    Function("hardsigmoid", _hardsigmoid),
    Function("erf", _erf),
    Function("logit", lambda x: np.log(x) - np.log1p(-x), (TINY, 1.0 - 2.0**-11)),
    Function("square", lambda x: x * x, (-255.875, 255.875)),
    Function("sin", np.sin, (-math.pi, math.pi), "periodic", True),
    Function("cos", np.cos, (-math.pi, math.pi), "periodic", True),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _ALL}
"""By name."""
