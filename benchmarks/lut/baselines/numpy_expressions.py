"""NumPy expressions on one thread, in float32 and float16, and NumPy's copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...copying import NUMPY, numpy_copy
from ...implementation import Array, Bound, Implementation
from ..problem import EPSILON, Data, Problem, numpy_dtype

_LIBRARY = "numpy"


def implementations(problem: Problem) -> list[Implementation]:
    numpy_dtype(problem.dtype)
    made = []
    if problem.dtype != "bf16" and problem.function in _EXPRESSIONS:  # gelu has none: NumPy lacks erf
        made.append(problem.implementation("numpy (1 thread)", _LIBRARY, _bound))
    made.append(problem.implementation(NUMPY, _LIBRARY, _copy))
    return made


def _copy(data: Data) -> Bound:
    return Bound(numpy_copy(data.stored.nbytes), lambda: np.empty(0))


def _silu(x: Array, _: Array, out: Array) -> Array:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    return np.divide(x, out, out=out)


def _sigmoid(x: Array, _: Array, out: Array) -> Array:
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    return np.reciprocal(out, out=out)


def _softmax(x: Array, _: Array, out: Array) -> Array:
    np.subtract(x, x.max(-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(-1, keepdims=True, dtype=np.float32).astype(out.dtype)
    return out


def _rms_norm(x: Array, weight: Array, out: Array) -> Array:
    squares = np.square(x, dtype=np.float32).mean(-1, keepdims=True)
    np.multiply(x, (1 / np.sqrt(squares + np.float32(EPSILON))).astype(x.dtype), out=out)
    out *= weight
    return out


_EXPRESSIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "silu": _silu,
    "tanh": lambda x, _, out: np.tanh(x, out=out),
    "sigmoid": _sigmoid,
    "exp": lambda x, _, out: np.exp(x, out=out),
    "softmax": _softmax,
    "rms_norm": _rms_norm,
}


def _bound(data: Data) -> Bound:
    x, weight = data.stored, data.weight.astype(data.stored.dtype)
    out, call = np.empty_like(x), _EXPRESSIONS[data.problem.function]
    return Bound(lambda _: call(x, weight, out), lambda: call(x, weight, out))
