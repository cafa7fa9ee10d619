"""Layers of compressed-tensors (llm-compressor, vLLM): formats "mxfp4-pack-quantized" and "nvfp4-pack-quantized".

| array | layout |
|---|---|
| weight_packed | uint8 [N, K / 2]; k is e2m1 in byte k / 2, the even one in the low half |
| weight_scale | mxfp4: uint8 [N, K / 32], exponents of e8m0; nvfp4: e4m3 [N, K / 16] |
| weight_global_scale | nvfp4: float32 [1] |

Value: ``2^(e - 127) * e2m1`` of mxfp4, ``e4m3 / global_scale * e2m1`` of nvfp4. Source: compressed_tensors.compressors,
mxfp4 and nvfp4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats import _bits, _float4, _inputs
from qcore.quantized_tensor import QuantizedTensor


def from_compressed_tensors_mxfp4(weight: Any, scales: Any) -> QuantizedTensor:
    """Read a weight [N, K] of "mxfp4-pack-quantized", exactly, as an encoded weight with the bytes of the file.

    Args:
        weight: uint8 [N, K / 2], "weight_packed".
        scales: uint8 [N, K / 32], "weight_scale", or float8_e8m0fnu.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or a scale is NaN.
    """
    where = "from_compressed_tensors_mxfp4"
    codes = _codes(weight, _float4.MX_BLOCK, where)
    exponents = _inputs.small_floats(scales, f"{where}: scales", "float8_e8m0fnu")
    _check_scales(exponents, codes, _float4.MX_BLOCK, where)
    return _float4.from_mx(codes, exponents, where)


def from_compressed_tensors_nvfp4(weight: Any, scales: Any, global_scale: Any) -> QuantizedTensor:
    """Read a weight [N, K] of "nvfp4-pack-quantized" as an encoded weight with the bytes of the file.

    Its scales are ``e4m3 * (1 / global_scale)``, where compressed-tensors has ``e4m3 / global_scale``: a value may
    differ from the format's by 2^-22 of itself, by nothing if ``1 / global_scale`` is a float32 number.

    Args:
        weight: uint8 [N, K / 2], "weight_packed".
        scales: float8_e4m3fn [N, K / 16], "weight_scale", or its bytes as uint8.
        global_scale: one float32 number, "weight_global_scale"; positive.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or a scale is NaN.
    """
    where = "from_compressed_tensors_nvfp4"
    codes = _codes(weight, _float4.NV_BLOCK, where)
    numbers = _inputs.small_floats(scales, f"{where}: scales", "float8_e4m3fn")
    _check_scales(numbers, codes, _float4.NV_BLOCK, where)
    factor = _inputs.number(global_scale, f"{where}: global_scale")
    if not factor > 0:
        raise _core.QcoreValueError(f"{where}: global_scale is {factor}, expected a positive number")
    with np.errstate(over="ignore"):
        tensor_scale = np.float32(1) / factor
    return _float4.from_nv(codes, numbers, float(tensor_scale), where)


def _codes(weight: Any, block_size: int, where: str) -> NDArray[np.uint8]:
    """Return uint8 [N, K]."""
    packed = _inputs.octets(weight, f"{where}: weight")
    _inputs.matrix(packed, f"{where}: weight", "[N, K / 2]")
    if packed.shape[1] * 2 % block_size:
        raise _core.QcoreValueError(
            f"{where}: weight has rows of {packed.shape[1]} bytes, expected a multiple of {block_size // 2}"
        )
    return _bits.nibbles(packed)


def _check_scales(scales: NDArray[Any], codes: NDArray[np.uint8], block_size: int, where: str) -> None:
    expected = (codes.shape[0], codes.shape[1] // block_size)
    _inputs.check_shape(scales, expected, f"{where}: scales", f"[N, K / {block_size}]")
