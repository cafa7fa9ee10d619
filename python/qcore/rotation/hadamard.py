"""The fast Walsh-Hadamard transform."""

from __future__ import annotations

from typing import Any

from qcore import _arrays, _checks, _core


def hadamard(x: Any, block: int | None = None, *, out: Any = None, out_dtype: Any = None) -> Any:
    """Rotate each block of a row by the Hadamard matrix: ``x @ H / sqrt(block)``.

    The rotation keeps lengths and products of rows and is its own inverse. It spreads an outlier in one channel over
    its block, with equal parts and different signs. Sums are float32 in a fixed order, so that all kernels give the
    same bits.

    Args:
        x: float32, float16 or bfloat16 [..., K] on the CPU, any strides.
        block: elements that are rotated together, a power of two that divides K; by default the largest.
        out: where to write [..., K], float32, float16 or bfloat16, any strides, no memory in common with x. It is
            returned.
        out_dtype: float32, float16 or bfloat16; x's dtype by default. Not together with ``out``.

    Returns:
        [..., K] in x's library. A NaN or an infinity reaches its block, and so does a sum beyond float32.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected; ``out`` is then
            unchanged.

    Example:
        >>> import numpy as np, qcore
        >>> qcore.hadamard(np.array([[2, 0, 0, 0]], np.float32))
        array([[1., 1., 1., 1.]], dtype=float32)
    """
    dtype = _arrays.floating_dtype(out_dtype, "hadamard: out_dtype")
    backend = _arrays.backend_of(x, "hadamard: x")
    source = backend.readable(x, "hadamard: x")
    shape = tuple(_arrays.shape_of(x, "hadamard: x"))
    features = int(shape[-1]) if shape else 1
    size = largest_block(features) if block is None else _checks.integer(block, "hadamard: block")
    if out is not None:
        if dtype is not None:
            raise _core.QcoreValueError("hadamard: out and out_dtype are both given, expected at most one of them")
        _core.hadamard(source, size, _arrays.backend_of(out, "hadamard: out").writable(out, "hadamard: out"))
        return out
    made = backend.empty(x, shape, dtype, "hadamard: x")
    _core.hadamard(source, size, backend.writable(made, "hadamard: out"))
    return backend.result(made, x)


def largest_block(features: int) -> int:
    """Return the largest power of two that divides K; 1 for K = 0."""
    return features & -features or 1
