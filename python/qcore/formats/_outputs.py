"""Checks of weights that are to be written in a format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor


def matrix(weight: Any, where: str, bits: tuple[int, ...] = (4, 8)) -> QuantizedTensor:
    """Return a QuantizedTensor [N, K] of one of ``bits``."""
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor")
    if len(weight.shape) != 2:
        raise _core.QcoreValueError(f"{where}: weight has shape {list(weight.shape)}, expected [N, K]")
    if weight.bits not in bits:
        expected = " or ".join(str(each) for each in bits)
        raise _core.QcoreValueError(f"{where}: weight has {weight.bits} bits, expected {expected}")
    return weight


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
