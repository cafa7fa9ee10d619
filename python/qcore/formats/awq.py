"""AWQ checkpoints, version "gemm".

| array | layout |
|---|---|
| qweight | int32 [K, N / 8]; column n is in word n / 8, where columns 0..7 sit at nibbles 0, 4, 1, 5, 2, 6, 3, 7 |
| qzeros | int32 [P, N / 8], the same order |
| scales | float16 [P, N] |

Value: ``w[k, n] = (u - z) * s``, u and z in 0..15. Source: AutoAWQ's WQLinear_GEMM (arXiv 2306.00978).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats import _bits, _inputs, _outputs, _zero_point_codec
from qcore.quantized_tensor import QuantizedTensor

_NIBBLES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Positions of columns 0..7 in a word."""
_COLUMNS = np.argsort(_NIBBLES)


def from_awq(qweight: Any, scales: Any, qzeros: Any) -> QuantizedTensor:
    """Return a weight [N, K] of an AWQ checkpoint (version "gemm"), exactly.

    Args:
        qweight: int32 [K, N / 8].
        scales: float16 [P, N], finite; the block size is K / P.
        qzeros: int32 [P, N / 8].

    Returns:
        An encoded weight with the codes, scales and zero points of the file; a plain one of 4 bits if all zero points
        are 8. ``dequantize()`` is ``(u - z) * s`` without a rounding.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype.
    """
    where = "from_awq"
    packed = _inputs.words(qweight, f"{where}: qweight", "[K, N / 8]")
    k, n = packed.shape[0], packed.shape[1] * 8
    s = _inputs.reals(scales, f"{where}: scales", ("float16",))
    if s.ndim != 2 or s.shape[1] != n or s.shape[0] == 0 or k % s.shape[0]:
        raise _core.QcoreValueError(
            f"{where}: scales has shape {list(s.shape)}, expected [P, {n}] with P a divisor of K = {k}"
        )
    zeros = _inputs.words(qzeros, f"{where}: qzeros", "[P, N / 8]")
    _inputs.check_shape(zeros, (s.shape[0], n // 8), f"{where}: qzeros", "[P, N / 8]")
    return _zero_point_codec.decode(
        _columns(packed).T, _columns(zeros).T, s.T, bits=4, block_size=k // s.shape[0], where=where
    )


def to_awq(weight: QuantizedTensor) -> tuple[NDArray[np.int32], NDArray[np.float16], NDArray[np.int32]]:
    """Return qweight, scales and qzeros of a 4-bit weight, as :func:`from_awq` takes them.

    Args:
        weight: a QuantizedTensor [N, K] of 4 bits.

    Returns:
        int32 [K, N / 8], float16 [P, N] and int32 [P, N / 8].

    Raises:
        QcoreValueError: the format can't hold the weight exactly: N is no multiple of 8, K none of the block size, a
            scale isn't a float16, or an offset isn't ``scale * (8 - z)`` with z in 0..15.
    """
    where = "to_awq"
    weight = _outputs.matrix(weight, where, (4,), zero_points=True)
    n, k = weight.shape
    _outputs.multiple(n, 8, f"{where}: N")
    _outputs.multiple(k, weight.block_size, f"{where}: K")
    codes, zeros, scales = _zero_point_codec.encode(weight, where)
    halves = _outputs.halves(scales, f"{where}: weight's scales")
    return _words(codes.T), np.ascontiguousarray(halves.T), _words(zeros.T)


def _columns(packed: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Turn words [R, N / 8] into codes [R, N]."""
    nibbles = _bits.codes_of_words(packed, 4).reshape(*packed.shape, 8)
    return nibbles[..., _NIBBLES].reshape(packed.shape[0], -1)


def _words(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    ordered = codes.reshape(codes.shape[0], -1, 8)[..., _COLUMNS]
    return _bits.words_of_codes(ordered.reshape(codes.shape), 4)
