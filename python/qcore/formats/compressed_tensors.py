"""Layers of compressed-tensors (llm-compressor, vLLM): formats "pack-quantized" and "int-quantized".

| array | layout |
|---|---|
| weight_packed | int32 [N, ceil(K * bits / 32)]; k is in word k * bits / 32, lowest bits first, plus 2^(bits - 1) |
| weight | int8 [N, K], of "int-quantized" instead |
| weight_scale | float32, float16 or bfloat16 [N, P], P = 1 for a scale per channel; or one number |
| weight_zero_point | of an asymmetric weight: packed int32 [ceil(N * bits / 32), P], or int8 [N, P] beside ``weight`` |
| weight_shape | integers [2]: N and K |
| weight_g_idx | integers [K], the group of every k, of "actorder": "group" |

Value: ``w[n, k] = (q - z) * s``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _bits, _inputs, _zero_point_codec
from qcore.formats.gptq import order_of
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor

_BITS = {4: 4, 8: 8}


def from_compressed_tensors(
    weight: Any,
    scales: Any,
    zero_points: Any = None,
    *,
    bits: int,
    shape: Any = None,
    g_idx: Any = None,
    block_size: int | None = None,
) -> QuantizedTensor | ReorderedTensor:
    """Read a weight [N, K] of compressed-tensors, exactly.

    Args:
        weight: int32 [N, ceil(K * bits / 32)], "weight_packed", or int8 [N, K], "weight".
        scales: float32, float16 or bfloat16 [N, P], or one number for all.
        zero_points: of an asymmetric weight, packed like ``weight`` but along N, or int8 [N, P].
        bits: 4 or 8.
        shape: N and K, "weight_shape"; by default that of ``weight``.
        g_idx: integers [K], or None for groups in the order of k. Another order gives a ReorderedTensor.
        block_size: elements of K in a group; K / P by default.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or the weight has no exact form.
    """
    where = "from_compressed_tensors"
    width = _checks.choice(bits, _BITS, f"{where}: bits")
    codes = _codes(weight, width, shape, where)
    n, k = codes.shape
    given = _inputs.host(scales, f"{where}: scales")
    s = _inputs.reals(given, f"{where}: scales")
    if s.size == 1:
        s = np.full((n, 1), s.reshape(-1)[0], np.float32)
    if s.ndim != 2 or s.shape[0] != n or s.shape[1] == 0:
        raise _core.QcoreValueError(f"{where}: scales has shape {list(s.shape)}, expected [{n}, P]")
    zeros = _zeros(zero_points, width, s.shape, where)
    order, size = order_of(g_idx, k, s.shape[1], block_size, where)
    if order is not None:
        codes = codes[:, order]
    middle = 1 << (width - 1)
    unsigned = codes.astype(np.int16) + middle
    tensor = _zero_point_codec.decode(
        unsigned.astype(np.uint8),
        zeros + middle,
        s,
        bits=width,
        block_size=size,
        where=where,
        bfloat16_first=given.dtype != np.float16,
    )
    return tensor if order is None else ReorderedTensor(tensor, order)


def _codes(weight: Any, bits: int, shape: Any, where: str) -> NDArray[np.int8]:
    """Return int8 [N, K]."""
    array = _inputs.host(weight, f"{where}: weight")
    if array.dtype == np.int8:
        _inputs.matrix(array, f"{where}: weight", "[N, K]")
        return array
    words = _inputs.words(array, f"{where}: weight", "[N, K * bits / 32]")
    n, most = words.shape[0], words.shape[1] * 32 // bits
    k = most
    if shape is not None:
        given = shape if isinstance(shape, (tuple, list)) else _inputs.host(shape, f"{where}: shape").reshape(-1)
        sizes = [int(size) for size in given]
        if len(sizes) != 2 or sizes[0] != n or not most - 32 // bits < sizes[1] <= most:
            raise _core.QcoreValueError(
                f"{where}: shape is {sizes}, expected [{n}, K] with K of {words.shape[1]} words of {bits} bits"
            )
        k = sizes[1]
    return _signed(_bits.codes_of_words(words, bits)[:, :k], bits)


def _signed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int8]:
    return (codes.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)


def _zeros(zero_points: Any, bits: int, shape: tuple[int, ...], where: str) -> NDArray[np.int16]:
    """Return signed zero points [N, P]."""
    if zero_points is None:
        return np.zeros(shape, np.int16)
    at = f"{where}: zero_points"
    array = _inputs.host(zero_points, at)
    if array.dtype == np.int8:
        if array.size == 1:
            return np.full(shape, int(array.reshape(-1)[0]), np.int16)
        _inputs.check_shape(array, shape, at, "[N, P]")
        return array.astype(np.int16)
    words = _inputs.words(array, at, "[N * bits / 32, P]")
    _inputs.check_shape(words, (-(-shape[0] * bits // 32), shape[1]), at, "[N * bits / 32, P]")
    codes = _bits.codes_of_words(np.ascontiguousarray(words.T), bits)[:, : shape[0]]
    return _signed(codes, bits).T.astype(np.int16)
