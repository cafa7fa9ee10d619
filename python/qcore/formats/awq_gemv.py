"""AWQ checkpoints, version "gemv".

| array | layout |
|---|---|
| qweight | int32 [N, K / 8], nibble k % 8 |
| qzeros | int32 [N, Zw], nibble p % 8; Zw = ceil(P / 8) rounded up to a multiple of 1, 2, 4 for g >= 128, 64, 32 |
| scales | float16 [N, 8 Zw] |

Value: ``w[n, k] = (u - z) * s``, u and z in 0..15. Source: AutoAWQ's WQLinear_GEMV (arXiv 2306.00978).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _bits, _inputs, _outputs, _zero_point_codec
from qcore.quantized_tensor import QuantizedTensor


def from_awq_gemv(qweight: Any, scales: Any, qzeros: Any, *, block_size: int) -> QuantizedTensor:
    """Return a weight [N, K] of an AWQ checkpoint (version "gemv"), exactly.

    Args:
        qweight: int32 [N, K / 8].
        scales: float16 [N, 8 Zw]; columns from P = K / block_size on are not used.
        qzeros: int32 [N, Zw].
        block_size: 32 or more, a divisor of K; the arrays' padding hides it.

    Returns:
        An encoded weight with the codes, scales and zero points of the file; a plain one of 4 bits if all zero points
        are 8. ``dequantize()`` is ``(u - z) * s`` without a rounding.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype.
    """
    where = "from_awq_gemv"
    size = _checks.integer(block_size, f"{where}: block_size")
    packed = _inputs.words(qweight, f"{where}: qweight", "[N, K / 8]")
    n, k = packed.shape[0], packed.shape[1] * 8
    width = _zero_words(k, size, where)
    zeros = _inputs.words(qzeros, f"{where}: qzeros", "[N, Zw]")
    _inputs.check_shape(zeros, (n, width), f"{where}: qzeros", "[N, Zw]")
    s = _inputs.reals(scales, f"{where}: scales", ("float16",))
    _inputs.check_shape(s, (n, 8 * width), f"{where}: scales", "[N, 8 Zw]")
    blocks = k // size
    return _zero_point_codec.decode(
        _bits.codes_of_words(packed, 4),
        _bits.codes_of_words(zeros, 4)[:, :blocks],
        np.ascontiguousarray(s[:, :blocks]),
        bits=4,
        block_size=size,
        where=where,
    )


def to_awq_gemv(weight: QuantizedTensor) -> tuple[NDArray[np.int32], NDArray[np.float16], NDArray[np.int32]]:
    """Return qweight, scales and qzeros of a 4-bit weight, as :func:`from_awq_gemv` takes them; padding is zero.

    Args:
        weight: a QuantizedTensor [N, K] of 4 bits.

    Returns:
        int32 [N, K / 8], float16 [N, 8 Zw] and int32 [N, Zw].

    Raises:
        QcoreValueError: the format can't hold the weight exactly: K is no multiple of 8 and of the block size, the
            block size is below 32, a scale isn't a float16, or an offset isn't ``scale * (8 - z)`` with z in 0..15.
    """
    where = "to_awq_gemv"
    weight = _outputs.matrix(weight, where, (4,), zero_points=True)
    k = weight.shape[1]
    _outputs.multiple(k, 8, f"{where}: K")
    width = _zero_words(k, weight.block_size, where)
    codes, zeros, scales = _zero_point_codec.encode(weight, where)
    halves = _outputs.halves(scales, f"{where}: weight's scales")
    return (
        _bits.words_of_codes(codes, 4),
        _bits.padded(halves, 8 * width),
        _bits.words_of_codes(_bits.padded(zeros, 8 * width), 4),
    )


def _zero_words(k: int, block_size: int, where: str) -> int:
    """Return the number of words of zeros per row (Zw)."""
    if block_size < 32 or k % block_size:
        raise _core.QcoreValueError(
            f"{where}: block_size is {block_size}, expected 32 or more and a divisor of K = {k}"
        )
    multiple = 1 if block_size >= 128 else 2 if block_size >= 64 else 4
    return -(-(k // block_size) // (8 * multiple)) * multiple
