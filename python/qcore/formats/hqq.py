"""HQQ's weights, grouped along K (axis=1).

With G = N * K / group_size groups in the order of the matrix:

| array | layout |
|---|---|
| W_q, 8 bits | uint8 [G, group_size] |
| W_q, 4 and 2 bits | uint8 [G * bits / 8, group_size]; rows of [G, group_size] in 8 / bits parts, the first highest |
| W_q, 3 bits | int32 [ceil(G / 10), group_size]; likewise ten parts, from bits 27..29 down; the last may be padded |
| scale, zero | float32, float16 or bfloat16 [G, 1] |

Value: ``(u - zero) * scale``. Source: hqq.core.quantize.Quantizer and hqq.core.bitpack.BitPack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _affine_codec, _inputs, _zero_point_codec
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

_BITS = {2: 2, 3: 3, 4: 4, 8: 8}


def from_hqq(
    weight: Any, scale: Any, zero: Any, *, bits: int, shape: Any, block_size: int, exact: bool = True
) -> QuantizedTensor:
    """Return a weight [N, K] of HQQ, exactly: ``dequantize()`` is ``(u - zero) * scale``, rounded once to float32.

    HQQ itself rounds the difference and the product in the dtype of its computation. Codes stay as they are in an
    encoded weight. Zeros that are integers from 0 to 255 stay, too; others become offsets ``-zero * scale``, which
    float32 holds if both were float16 or bfloat16. Codes of 8 bits become signed then, with the offset
    ``(128 - zero) * scale``.

    Args:
        weight: W_q, with axis=1: uint8, or int32 with 3 bits.
        scale: meta["scale"], float32, float16 or bfloat16, N * K / block_size numbers, finite.
        zero: meta["zero"], the same.
        bits: meta["nbits"]: 2, 3, 4 or 8.
        shape: meta["shape"], N and K.
        block_size: meta["group_size"], a divisor of K.
        exact: False rounds offsets once to float32 where it doesn't hold them.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or there is no exact form.
    """
    where = "from_hqq"
    width = _checks.choice(bits, _BITS, f"{where}: bits")
    size = _checks.integer(block_size, f"{where}: block_size")
    sizes = [_checks.integer(each, f"{where}: shape") for each in shape]
    if len(sizes) != 2 or min(sizes) < 1:
        raise _core.QcoreValueError(f"{where}: shape is {sizes}, expected N and K")
    n, k = sizes
    if size < 1 or k % size:
        raise _core.QcoreValueError(f"{where}: block_size is {size}, expected a divisor of K = {k}")
    groups = n * k // size
    codes = _codes(weight, width, groups, size, f"{where}: weight").reshape(n, k)
    s, z = (_parameters(each, n, k // size, f"{where}: {name}") for each, name in ((scale, "scale"), (zero, "zero")))
    if ((z == np.rint(z)) & (z >= 0) & (z <= 255)).all():
        return _zero_point_codec.decode(codes, z, s, bits=width, block_size=size, where=where, exact=exact)
    wide = -(s.astype(np.float64) * z)
    minima = wide.astype(np.float32)
    if exact and not np.array_equal(minima, wide):
        raise _core.QcoreValueError(f"{where}: {_zero_point_codec.NEEDS_ROUNDING}")
    return _affine_codec.decode(codes, s, minima, bits=width, block_size=size, where=where, exact=exact or width != 8)


def _codes(weight: Any, bits: int, groups: int, size: int, where: str) -> NDArray[np.uint8]:
    """Return uint8 [groups, size]."""
    if bits == 3:
        packed, parts = _inputs.words(weight, where, "[ceil(G / 10), block_size]"), 10
        expected, names = (-(-groups // 10), size), "[ceil(G / 10), block_size]"
    else:
        packed, parts = _inputs.octets(weight, where), 8 // bits  # type: ignore[assignment]
        expected, names = (groups // parts, size), "[G * bits / 8, block_size]"
        if groups % parts:
            raise _core.QcoreValueError(f"{where}: {groups} groups, expected a multiple of {parts} for {bits} bits")
    _inputs.check_shape(packed, expected, where, names)
    mask = packed.dtype.type((1 << bits) - 1)
    runs = [(packed >> packed.dtype.type(bits * (parts - 1 - i)) & mask).astype(np.uint8) for i in range(parts)]
    return np.concatenate(runs)[:groups]


def _parameters(array: Any, n: int, blocks: int, where: str) -> Reals:
    values = _inputs.reals(array, where)
    if values.size != n * blocks:
        raise _core.QcoreValueError(
            f"{where} has shape {list(values.shape)}, expected [{n * blocks}, 1]: one number for each group"
        )
    return values.reshape(n, blocks)
