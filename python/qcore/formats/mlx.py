"""MLX's quantization: modes "affine", "mxfp4" and "nvfp4".

| array | layout |
|---|---|
| weight | uint32 [N, K * bits / 32]; code k is bits k * bits .. of its row's bit stream, lowest bits first |
| scales, biases | [N, P], float32, float16 or bfloat16 |
| scales of mxfp4 and nvfp4 | uint8 [N, P], e8m0 for blocks of 32 or e4m3 for blocks of 16; no biases |

Value: ``s * u + b``, u in 0..2^bits - 1; of mxfp4 ``2^(s - 127) * e2m1``, of nvfp4 ``s * e2m1``, times
``global_scale / 2688`` if there is one. Source: mlx.core.quantize.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _affine_codec, _bits, _float4, _inputs, _outputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

_WIDTHS = {bits: bits for bits in (2, 3, 4, 5, 6, 8)}
_FLOAT4_BLOCKS = {"mxfp4": _float4.MX_BLOCK, "nvfp4": _float4.NV_BLOCK}
_MODES = {mode: mode for mode in ("affine", *_FLOAT4_BLOCKS)}
_GLOBAL_UNIT = np.float32(448 * 6)
"""The largest product of a number of e4m3 and one of e2m1, which has the value global_scale."""


def from_mlx(
    weight: Any,
    scales: Any,
    biases: Any = None,
    *,
    bits: int = 4,
    block_size: int,
    exact: bool = True,
    mode: str = "affine",
    global_scale: Any = None,
) -> QuantizedTensor:
    """Return a weight [N, K] of MLX, exactly: ``dequantize()`` is ``s * u + b``, rounded once to float32.

    MLX itself computes in the dtype of the scales, with a rounding after the product and one after the sum. Codes of 2
    to 6 bits and their parameters stay as they are, in an encoded weight. Codes of 8 bits become signed, with the
    offset ``b + 128 * s``, if float32 holds that exactly for all blocks; if not, they need ``exact=False``.

    Args:
        weight: uint32 [N, K * bits / 32].
        scales: float32, float16 or bfloat16 [N, P], finite; with another mode than "affine" uint8.
        biases: the same; none with another mode.
        bits: 2, 3, 4, 5, 6 or 8; 4 with another mode.
        block_size: MLX's group_size; 32 with "mxfp4" and 16 with "nvfp4".
        exact: False rounds those offsets once to float32: 4-bit codes then always stay in 4 bits.
        mode: "affine", "mxfp4" or "nvfp4". The last two keep the bytes of the file in an encoded weight.
        global_scale: one float32 number, with "nvfp4" only: values are ``global_scale / 2688`` times as large.

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
    if _checks.choice(mode, _MODES, f"{where}: mode") != "affine":
        if biases is not None:
            raise _core.QcoreValueError(f"{where}: biases are given, expected None with mode={mode!r}")
        return _float4_weight(packed, scales, width, size, mode, global_scale)
    if biases is None or global_scale is not None:
        name, state = ("biases", "missing") if biases is None else ("global_scale", "given")
        raise _core.QcoreValueError(f"{where}: {name} is {state}, expected biases alone with mode='affine'")
    s = _inputs.reals(scales, f"{where}: scales")
    _inputs.check_shape(s, (n, k // size), f"{where}: scales", "[N, K / block_size]")
    b = _inputs.reals(biases, f"{where}: biases")
    _inputs.check_shape(b, s.shape, f"{where}: biases", "[N, K / block_size]")
    return _affine_codec.decode(
        _bits.codes_of_words(packed, width), s, b, bits=width, block_size=size, where=where, exact=exact
    )


def _float4_weight(
    packed: NDArray[np.uint32], scales: Any, bits: int, block_size: int, mode: str, global_scale: Any
) -> QuantizedTensor:
    where = "from_mlx"
    if (bits, block_size) != (4, _FLOAT4_BLOCKS[mode]):
        raise _core.QcoreValueError(
            f"{where}: bits is {bits} and block_size {block_size}, expected 4 and {_FLOAT4_BLOCKS[mode]} with "
            f"mode={mode!r}"
        )
    codes = _bits.codes_of_words(packed, 4)
    numbers = _inputs.octets(scales, f"{where}: scales")
    expected = (codes.shape[0], codes.shape[1] // block_size)
    _inputs.check_shape(numbers, expected, f"{where}: scales", "[N, K / block_size]")
    if mode == "mxfp4":
        if global_scale is not None:
            raise _core.QcoreValueError(f"{where}: global_scale is given, expected None with mode='mxfp4'")
        return _float4.from_mx(codes, numbers, where)
    factor = np.float32(1)
    if global_scale is not None:
        factor = _inputs.number(global_scale, f"{where}: global_scale") / _GLOBAL_UNIT
    return _float4.from_nv(codes, numbers, float(factor), where)


def to_mlx(weight: QuantizedTensor) -> tuple[NDArray[np.uint32], Reals, Reals]:
    """Return weight, scales and biases of a 4- or 8-bit weight, as :func:`from_mlx` takes them; parameters are float32.

    Args:
        weight: a QuantizedTensor [N, K] of 4 or 8 bits.

    Returns:
        uint32 [N, K * bits / 32] and float32 [N, P] twice.

    Raises:
        QcoreValueError: the format can't hold the weight exactly: K is no multiple of 32 / bits and of the block size,
            or a bias, ``offset - 2^(bits - 1) * scale``, is no float32 number.
    """
    where = "to_mlx"
    weight = _outputs.matrix(weight, where)
    k = weight.shape[1]
    _outputs.multiple(k, 32 // weight.bits, f"{where}: K")
    _outputs.multiple(k, weight.block_size, f"{where}: K")
    codes, scales, minima = _affine_codec.encode(weight, where)
    return _bits.words_of_codes(codes, weight.bits).view(np.uint32), scales, minima
