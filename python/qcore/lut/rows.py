"""Softmax and RMSNorm over rows, with tables for their functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore import _arrays, _checks, _core


def _call(op: str, x: Any, out: Any, stream: Any, run: Callable[[Any, Any, int], None]) -> Any:
    """Call run(x, out, stream) as the core takes them; out or a new array like x."""
    x_backend = _arrays.backend_of(x, f"{op}: x")
    source = x_backend.readable(x, f"{op}: x")
    address = x_backend.stream(x) if stream is None else _arrays.stream_address(stream, x_backend, x, f"{op}: stream")
    if out is not None:
        run(source, _arrays.backend_of(out, f"{op}: out").writable(out, f"{op}: out"), address)
        return out
    out, target = x_backend.new_like(x, f"{op}: out")
    run(source, target, address)
    return x_backend.result(out, x)


def softmax(x: Any, axis: int = -1, *, out: Any = None, stream: Any = None) -> Any:
    """Compute ``exp(x - max(x)) / sum(exp(x - max(x)))`` along an axis, with the tables of exp and reciprocal.

    Args:
        x: float32, float16 or bfloat16, at least one axis, any strides, CPU or CUDA.
        axis: which axis, negative ones count from the last.
        out: where to write, as for :class:`Table`.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or an array of x's dtype and library. A row with a NaN, or with +inf, or of nothing but -inf, is NaN.
        Exponentials and sums are float32; sums have 32 partial sums and are the same on every device.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.
    """
    number = _checks.integer(axis, "softmax: axis", bits=32)
    return _call("softmax", x, out, stream, lambda source, target, at: _core.softmax(source, number, target, at))


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6, *, out: Any = None, stream: Any = None) -> Any:
    """Compute ``x * rsqrt(mean(x * x) + eps) * weight`` along the last axis, with the table of rsqrt.

    Args:
        x: float32, float16 or bfloat16 [..., K], any strides, CPU or CUDA.
        weight: float32, float16 or bfloat16 [K], or None for ones.
        eps: 0 to 1e30.
        out: where to write, as for :class:`Table`; no memory in common with weight.
        stream: CUDA stream; the caller's library's current one by default.

    Returns:
        ``out``, or an array of x's dtype and library. Squares and sums are float32, as in :func:`softmax`.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
        CudaError: a CUDA call failed.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467.
    """
    epsilon = _checks.number(eps, "rms_norm: eps")
    if weight is not None:
        weight = _arrays.readable(weight, "rms_norm: weight")
    return _call(
        "rms_norm",
        x,
        out,
        stream,
        lambda source, target, at: _core.rms_norm(source, weight, epsilon, target, at),
    )
