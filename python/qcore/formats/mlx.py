"""MLX's affine quantization.

| array | layout |
|---|---|
| weight | uint32 [N, K * bits / 32]; code k is bits k * bits .. of its row's bit stream, lowest bits first |
| scales, biases | [N, P], float32, float16 or bfloat16 |

Value: ``s * u + b``, u in 0..2^bits - 1. Source: mlx.core.quantize, mode "affine".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _affine_codec, _bits, _inputs, _outputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

_WIDTHS = {bits: bits for bits in (2, 3, 4, 5, 6, 8)}


def from_mlx(
    weight: Any, scales: Any, biases: Any, *, bits: int, block_size: int, exact: bool = True
) -> QuantizedTensor:
    """Return a weight [N, K] of MLX, exactly: ``dequantize()`` is ``s * u + b``, rounded once to float32.

    MLX itself computes in the dtype of the scales, with a rounding after the product and one after the sum. Codes of 2
    and 3 bits are kept in 4, those of 5 and 6 in 8. Codes of 4 and 8 bits become signed, with the offset ``b + 8 * s``
    (``b + 128 * s``), if float32 holds that exactly for all blocks; if not, 4-bit codes stay as they are in 8 bits, and
    8-bit ones need ``exact=False``.

    Args:
        weight: uint32 [N, K * bits / 32].
        scales: float32, float16 or bfloat16 [N, P], finite.
        biases: the same.
        bits: 2, 3, 4, 5, 6 or 8.
        block_size: MLX's group_size.
        exact: False rounds those offsets once to float32: 4-bit codes then always stay in 4 bits.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or there is no exact form.
    """
    where = "from_mlx"
    width = _checks.choice(bits, _WIDTHS, f"{where}: bits")
    size = _checks.integer(block_size, f"{where}: block_size")
    packed = _inputs.words(weight, f"{where}: weight", "[N, K * bits / 32]")
    n, k = packed.shape[0], packed.shape[1] * 32 // width
    if size < 1 or k % size or packed.shape[1] * 32 % width:
        raise _core.QcoreValueError(
            f"{where}: block_size is {size}, expected a divisor of K = {k}, which rows of {packed.shape[1]} words with "
            f"{width} bits have"
        )
    s = _inputs.reals(scales, f"{where}: scales")
    _inputs.check_shape(s, (n, k // size), f"{where}: scales", "[N, K / block_size]")
    b = _inputs.reals(biases, f"{where}: biases")
    _inputs.check_shape(b, s.shape, f"{where}: biases", "[N, K / block_size]")
    return _affine_codec.decode(_codes(packed, width), s, b, bits=width, block_size=size, where=where, exact=exact)


def to_mlx(weight: QuantizedTensor) -> tuple[NDArray[np.uint32], Reals, Reals]:
    """weight, scales and biases of a 4- or 8-bit weight, as :func:`from_mlx` takes them; parameters are float32.

    Args:
        weight: a QuantizedTensor [N, K] of 4 or 8 bits.

    Returns:
        uint32 [N, K * bits / 32] and float32 [N, P] twice.

    Raises:
        QcoreValueError: the format can't hold the weight exactly: K is no multiple of 32 / bits and of the block size,
            or a bias, ``offset - 2^(bits - 1) * scale``, is no float32 number.
    """
    where = "to_mlx"
    k = _outputs.matrix(weight, where).shape[1]
    _outputs.multiple(k, 32 // weight.bits, f"{where}: K")
    _outputs.multiple(k, weight.block_size, f"{where}: K")
    codes, scales, minima = _affine_codec.encode(weight, where)
    return _bits.words_of_codes(codes, weight.bits).view(np.uint32), scales, minima


def _codes(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    if bits in (4, 8):
        return _bits.codes_of_words(packed, bits)
    stream = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little").reshape(len(packed), -1, bits)
    return np.packbits(stream, axis=-1, bitorder="little")[..., 0]
