"""Checks of weights that are to be written in a format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor


def matrix(weight: Any, where: str, bits: tuple[int, ...] = (4, 8), *, zero_points: bool = False) -> QuantizedTensor:
    """Return a QuantizedTensor [N, K] as a plain one, of one of ``bits``.

    With ``zero_points`` an encoded weight stays that has zero points, or neither those nor offsets, and signed codes of
    the whole range of its bits: the format stores what it has.
    """
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor")
    if len(weight.shape) != 2:
        raise _core.QcoreValueError(f"{where}: weight has shape {list(weight.shape)}, expected [N, K]")
    if zero_points and weight.bits in bits and _has_zero_points(weight):
        return weight
    plain: QuantizedTensor = weight.plain()
    if plain.bits not in bits:
        expected = " or ".join(str(each) for each in bits)
        raise _core.QcoreValueError(f"{where}: weight has {plain.bits} bits, expected {expected}")
    return plain


def _has_zero_points(weight: QuantizedTensor) -> bool:
    encoding = weight.encoding
    return (
        encoding is not None
        and encoding.codebook is None
        and encoding.zero == 1 << (encoding.bits - 1)
        and (encoding.offsets is None or encoding.offsets.endswith("zero points"))
    )


def multiple(extent: int, of: int, where: str) -> None:
    if extent % of:
        raise _core.QcoreValueError(f"{where} is {extent}, expected a multiple of {of}")


def halves(values: Reals, where: str) -> NDArray[np.float16]:
    """Return the values as float16, without loss."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16)
    bad = np.argwhere(rounded.astype(np.float32) != values)
    if len(bad):
        row, block = (int(i) for i in bad[0])
        raise _core.QcoreValueError(
            f"{where} has {values[row, block]} in row {row}, block {block}, expected numbers that float16 holds "
            "exactly: qcore.quantize(..., scale_dtype='float16') makes such scales"
        )
    return rounded
