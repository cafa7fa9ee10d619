"""Scales, zero points and weights of quantized nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats import _inputs
from qcore.formats.onnx.graph import Graph

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclass(frozen=True)
class Format:
    """An activation's: the real value of a code is ``scale * (code - zero_point)``."""

    dtype: str
    scale: float
    zero_point: int

    def code(self, value: float) -> int:
        """Return the code that QuantizeLinear gives; infinities are the ends of the range."""
        lo, hi = RANGES[self.dtype]
        with np.errstate(divide="ignore", over="ignore"):
            steps = np.rint(np.float32(value) / np.float32(self.scale))
        return int(np.clip(np.float64(steps) + self.zero_point, lo, hi))


@dataclass(frozen=True)
class Weight:
    """Codes with the output channels first, their scales [1] or [N], and one zero point."""

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    zero_point: int


def format_of(graph: Graph, scale: str, zero_point: str, dtype: str | None, where: str) -> Format:
    """Read the format from two constants by name; ``dtype`` of the codes is needed if there is no zero point."""
    scales = _inputs.reals(graph.required(scale, f"{where}_scale"), f"{where}_scale")
    _check_single(scales, f"{where}_scale")
    zeros = graph.constant(zero_point, f"{where}_zero_point")
    if zeros is not None:
        _check_single(zeros, f"{where}_zero_point")
        dtype = zeros.dtype.name
    elif dtype is None:
        raise _core.QcoreValueError(f"{where} has no zero point and no type in the graph, expected one of them")
    _check_dtype(dtype, where)
    return Format(dtype, float(scales.reshape(-1)[0]), 0 if zeros is None else int(zeros.reshape(-1)[0]))


def weight_of(codes: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any] | None, where: str) -> Weight:
    """Return codes with the output channels first; scale and zero point of one element, [N] or [1, N].

    Zero points that differ among channels go into the codes where that leaves them within int8.
    """
    _check_dtype(codes.dtype.name, where)
    channels = len(codes)
    scales = _channels(_inputs.reals(scale, f"{where}_scale"), channels, f"{where}_scale")
    if zero_point is None:
        return Weight(np.ascontiguousarray(codes), scales, 0)
    if zero_point.dtype != codes.dtype:
        raise _core.QcoreTypeError(
            f"{where}_zero_point has dtype {zero_point.dtype}, expected {codes.dtype}, that of the codes"
        )
    zeros = _channels(zero_point, channels, f"{where}_zero_point")
    if (zeros == zeros[0]).all():
        return Weight(np.ascontiguousarray(codes), scales, int(zeros[0]))
    steps = codes.astype(np.int16) - zeros.astype(np.int16).reshape(-1, *(1,) * (codes.ndim - 1))
    lo, hi = RANGES["int8"]
    if steps.size and (steps.min() < lo or steps.max() > hi):
        raise _core.QcoreValueError(
            f"{where} less its zero points, which differ among channels, is {steps.min()} to {steps.max()}, expected "
            "-128 to 127, or one zero point"
        )
    return Weight(steps.astype(np.int8), scales, 0)


def row_of(array: NDArray[Any], channels: int, where: str, *, broadcast: bool) -> NDArray[Any]:
    """Return [N], from [1, N] or a single element too if these may be broadcast."""
    if array.shape == (channels,) or (broadcast and (array.size == 1 or array.shape == (1, channels))):
        return np.broadcast_to(array.reshape(-1), (channels,))
    raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected [{channels}]")


def _channels(array: NDArray[Any], channels: int, where: str) -> NDArray[Any]:
    if array.size == 1 or array.shape in ((channels,), (1, channels)):
        flat: NDArray[Any] = array.reshape(-1)
        if flat.size:
            return flat
    raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected one number or [{channels}]")


def _check_single(array: NDArray[Any], where: str) -> None:
    if array.size != 1:
        raise _core.QcoreValueError(
            f"{where} has shape {list(array.shape)}, expected one number: activations have one scale and zero point"
        )


def _check_dtype(dtype: str, where: str) -> None:
    if dtype not in RANGES:
        raise _core.QcoreTypeError(f"{where} has dtype {dtype}, expected int8 or uint8")
