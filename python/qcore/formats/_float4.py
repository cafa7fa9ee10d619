"""Formats whose codes are e2m1, floats of 4 bits, and whose scales are floats of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import E2M1_CODEBOOK, WeightEncoding

Bytes = NDArray[np.uint8]
MX_BLOCK, NV_BLOCK = 32, 16


def from_mx(codes: Bytes, exponents: Bytes, where: str) -> QuantizedTensor:
    """Return codes [N, K] and scales of e8m0 [N, K / 32], bytes, as an encoded weight: ``2^(e - 127) * e2m1``."""
    _refuse(exponents == 255, "255, which is NaN in e8m0", where)
    return _encoded(codes, exponents, "float8_e8m0fnu", 0.5, MX_BLOCK)


def from_nv(codes: Bytes, scales: Bytes, tensor_scale: float, where: str) -> QuantizedTensor:
    """Return codes [N, K] and scales of e4m3 [N, K / 16], bytes, as an encoded weight.

    The value is ``e4m3 * tensor_scale``, rounded to float32, times e2m1. ``tensor_scale`` is a float32 number.
    """
    _refuse(scales & 0x7F == 0x7F, "a NaN of e4m3", where)
    half = np.float32(tensor_scale) * np.float32(0.5)
    if not np.isfinite(half) or half * 2 != np.float32(tensor_scale):
        raise _core.QcoreValueError(
            f"{where}: global_scale gives scales the factor {tensor_scale}, expected a finite number from 2^-125 on"
        )
    return _encoded(codes, scales, "float8_e4m3fn", float(half), NV_BLOCK)


def _encoded(codes: Bytes, scales: Bytes, kind: Any, tensor_scale: float, block_size: int) -> QuantizedTensor:
    encoding = WeightEncoding(4, kind, codebook=E2M1_CODEBOOK, tensor_scale=tensor_scale)
    return QuantizedTensor.from_encoded(codes, scales, encoding=encoding, block_size=block_size)


def _refuse(bad: NDArray[np.bool_], what: str, where: str) -> None:
    if bad.any():
        row, block = (int(i) for i in np.argwhere(bad)[0])
        raise _core.QcoreValueError(f"{where}: scales has {what}, in row {row}, block {block}, expected numbers")
