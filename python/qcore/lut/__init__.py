"""Activations and other functions by piecewise-linear look-up tables: the same bits on every CPU and GPU.

One function per name (``silu(x)``, ``exp(x)``, ...), :func:`qcore.lut.table` for the tables behind them and for any
Python callable, :func:`fit` for all the options, :func:`softmax` and :func:`rms_norm` built on tables.

Source of the scheme: NLI (ICLR 2026, arXiv 2602.02988); what differs is in docs/luts.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from qcore import _core
from qcore.lut.builtin import names, table
from qcore.lut.core import evaluate
from qcore.lut.fitting import FitReport, fit
from qcore.lut.rows import rms_norm, softmax
from qcore.lut.table import Table


def _function(name: str, formula: str) -> Callable[..., Any]:
    @functools.cache
    def handle() -> _core.LutTable:
        return table(name)._handle

    def apply(x: Any, out: Any = None, *, stream: Any = None) -> Any:
        return evaluate(handle(), x, out, stream)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"""Compute ``{formula}`` element by element with a piecewise-linear table.

        Args:
            x: float32, float16 or bfloat16, any shape and strides, CPU or CUDA.
            out: where to write: x's shape and device, float32, float16 or bfloat16; x itself, or without memory in
                common with it. By default a new array of x's dtype.
            stream: CUDA stream; the caller's library's current one by default.

        Returns:
            ``out``, or an array of x's library. Results lie within +-65504; NaN gives NaN.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.

        Source: docs/luts.md has the definition and this table's error.
        """
    return apply


silu = _function("silu", "x * sigmoid(x)")
gelu = _function("gelu", "x * (1 + erf(x / sqrt(2))) / 2")
gelu_tanh = _function("gelu_tanh", "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x))")
tanh = _function("tanh", "tanh(x)")
exp = _function("exp", "exp(x)")
log = _function("log", "log(x), NaN for x < 0, -65504 for 0")
reciprocal = _function("reciprocal", "1 / x")
sqrt = _function("sqrt", "sqrt(x), NaN for x < 0")
rsqrt = _function("rsqrt", "1 / sqrt(x), NaN for x < 0")
mish = _function("mish", "x * tanh(log(1 + exp(x)))")
softplus = _function("softplus", "log(1 + exp(x))")
elu = _function("elu", "x if x > 0 else exp(x) - 1")
leaky_relu = _function("leaky_relu", "x if x > 0 else 0.01 * x")
relu = _function("relu", "max(x, 0)")
hardswish = _function("hardswish", "x * clip(x + 3, 0, 6) / 6")
hardsigmoid = _function("hardsigmoid", "clip(x + 3, 0, 6) / 6")
erf = _function("erf", "erf(x)")
logit = _function("logit", "log(x / (1 - x)), x in (0, 1)")
square = _function("square", "x * x")
sin = _function("sin", "sin(x)")
cos = _function("cos", "cos(x)")

__all__ = [
    "FitReport",
    "Table",
    "cos",
    "elu",
    "erf",
    "exp",
    "fit",
    "gelu",
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "logit",
    "mish",
    "names",
    "reciprocal",
    "relu",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "table",
    "tanh",
]
