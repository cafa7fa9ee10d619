"""MNN's 4-bit weights.

| array | layout |
|---|---|
| qweight | uint8 [Co, Kh, Kw, ceil8(Ci) / 2], ceil8 to a multiple of 8; an even channel in the high nibble |
| scales, offsets | float32 [Co, P] |

Value: ``s * (nibble - 8) + o``. Source: MNN's weight-only quantization.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _bits, _inputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

_DTYPES = ("float32", "float16")


def from_mnn(qweight: Any, scales: Any, offsets: Any = None, *, in_channels: int, block_size: int) -> QuantizedTensor:
    """Return a weight of MNN, exactly: the codes and parameters are the same.

    Args:
        qweight: uint8 [Co, Kh, Kw, ceil8(Ci) / 2] for a convolution's weight [Co, Ci, Kh, Kw], or [Co, ceil8(Ci) / 2]
            for a matrix [N, K] = [Co, Ci].
        scales: float32 or float16 [Co, P], P = ceil(Ci / block_size); finite.
        offsets: the same, or None for a symmetric weight.
        in_channels: Ci; the padding of qweight hides it.
        block_size: channels that share a scale.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype.
    """
    where = "from_mnn"
    channels = _checks.integer(in_channels, f"{where}: in_channels")
    size = _checks.integer(block_size, f"{where}: block_size")
    packed = _inputs.octets(qweight, f"{where}: qweight")
    if channels < 1 or size < 1:
        raise _core.QcoreValueError(
            f"{where}: in_channels is {channels} and block_size {size}, expected positive numbers"
        )
    width = -(-channels // 8) * 4
    if packed.ndim not in (2, 4) or 0 in packed.shape or packed.shape[-1] != width:
        raise _core.QcoreValueError(
            f"{where}: qweight has shape {list(packed.shape)}, expected [Co, Kh, Kw, {width}] or [Co, {width}] for "
            f"{channels} channels"
        )
    shape = (packed.shape[0], -(-channels // size))
    s = _inputs.reals(scales, f"{where}: scales", _DTYPES)
    _inputs.check_shape(s, shape, f"{where}: scales", "[Co, P]")
    o = None if offsets is None else _inputs.reals(offsets, f"{where}: offsets", _DTYPES)
    if o is not None:
        _inputs.check_shape(o, shape, f"{where}: offsets", "[Co, P]")
    codes = _bits.nibbles(_swapped(packed))[..., :channels].astype(np.int8) - np.int8(8)
    return QuantizedTensor.from_parts(np.moveaxis(codes, -1, 1), s, o, bits=4, block_size=size)


def to_mnn(weight: QuantizedTensor) -> tuple[NDArray[np.uint8], Reals, Reals | None]:
    """Return qweight, scales and offsets (None if symmetric) of a 4-bit weight, as :func:`from_mnn` takes them.

    Padding is code 0. Always exact.

    Args:
        weight: a QuantizedTensor [N, K] or [Co, Ci, Kh, Kw] of 4 bits.

    Returns:
        uint8 [Co, ceil8(Ci) / 2] or [Co, Kh, Kw, ceil8(Ci) / 2], and float32 [Co, P] twice.

    Raises:
        QcoreValueError, QcoreTypeError: not a QuantizedTensor, or one of 8 bits.
    """
    where = "to_mnn"
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor")
    weight = weight.plain()
    if weight.bits != 4:
        raise _core.QcoreValueError(f"{where}: weight has {weight.bits} bits, expected 4")
    unsigned = (np.moveaxis(weight.codes(), 1, -1) + np.int8(8)).astype(np.uint8)
    packed = _bits.pack_nibbles(_bits.padded(unsigned, 8, fill=8))
    return _swapped(packed), weight.scales(), None if weight.scheme == "symmetric" else weight.offsets()


def _swapped(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Swap high and low nibbles."""
    return packed >> np.uint8(4) | packed << np.uint8(4)
