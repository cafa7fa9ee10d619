"""Chooses scales and codes of 3, 5 and 6 bits, which become encoded weights.

The core searches blocks of 4 and 8 bits. This is the same search in NumPy: clipped ranges, of which the best is refined
by least squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _core
from qcore.weight_encoding import WeightEncoding

FloatArray = npt.NDArray[np.float32]
Arrays = tuple[npt.NDArray[np.int8], FloatArray, "FloatArray | None"]

BITS = (3, 5, 6)
_RANGES = {bits: np.linspace(low, 1.0, count) for bits, low, count in ((3, 0.4, 19), (5, 0.65, 15), (6, 0.75, 11))}
"""Clipped ranges that are tried, relative to that of the block. Wider codes lose more by clipping."""
_REFINEMENTS = 2
_PIECE = 1 << 15
"""Elements that are searched at once, so that they stay in the second-level cache."""
_LARGEST = {True: float(np.finfo(np.float16).max), False: float(np.finfo(np.float32).max)}


def search(
    weight: FloatArray,
    importance: FloatArray | None,
    *,
    bits: int,
    block_size: int,
    symmetric: bool,
    half: bool,
    rounds: bool = False,
) -> Arrays:
    """Return codes, scales and offsets of the smallest squared error found in each block.

    Args:
        weight: [N, K], finite.
        importance: [K], what the squared error of a column counts; None for 1.
        bits: 3, 5 or 6.
        block_size: elements along K that share a scale.
        symmetric: whether there are no offsets; codes are then within [-2^(bits-1), 2^(bits-1) - 1], else within
            [0, 2^bits - 1].
        half: whether scales and offsets are rounded to float16.
        rounds: whether the whole range of a block is used, as by method "rtn", without a search.

    Returns:
        int8 [N, K], float32 [N, P] and float32 [N, P] or None, P = ceil(K / block_size).

    Raises:
        QcoreValueError: the weight holds a NaN or an infinity, or float16 can't hold a scale or an offset.
    """
    n, k = weight.shape
    if not np.isfinite(weight).all():
        raise _core.QcoreValueError("quantize: weight holds a NaN or an infinity, expected finite values")
    g = max(1, min(block_size, k))
    blocks = -(-k // g)
    padding = blocks * g - k
    counted = np.ones(k, np.float32) if importance is None else np.asarray(importance, np.float32)
    weighing = np.pad(counted, (0, padding)).reshape(blocks, g)
    codes = np.empty((n, k), np.int8)
    scales = np.empty((n, blocks), np.float32)
    offsets = None if symmetric else np.empty((n, blocks), np.float32)
    step = max(1, _PIECE // max(1, blocks * g))
    for begin in range(0, n if k else 0, step):
        rows = slice(begin, min(n, begin + step))
        # The last column is repeated, with importance 0: it does not change a block's range.
        values = np.pad(weight[rows], ((0, 0), (0, padding)), mode="edge").reshape(-1, g)
        block = _Blocks(values, np.tile(weighing, (len(values) // max(1, blocks), 1)), bits, symmetric, half)
        block.try_ranges((1.0,) if rounds else _RANGES[bits], signed=not rounds)
        if not rounds:
            block.refine()
        with np.errstate(invalid="ignore"):  # an offset that float16 can't hold, for which this raises below
            codes[rows] = block.codes.reshape(-1, blocks * g)[:, :k]
        scales[rows] = block.scales.reshape(-1, blocks)
        if offsets is not None:
            offsets[rows] = block.offsets.reshape(-1, blocks)
    largest = max(float(np.abs(each).max(initial=0.0)) for each in (scales, offsets) if each is not None)
    if not largest <= _LARGEST[half]:
        raise _core.QcoreValueError(
            f"quantize: a scale or an offset is {largest:g} after rounding, expected numbers that "
            f"{'float16' if half else 'float32'} holds: scale_dtype='float32' or smaller weights"
        )
    return codes, scales, offsets


class _Blocks:
    """Holds blocks [B, g] and the best codes and parameters that were found for them."""

    def __init__(self, values: FloatArray, importance: FloatArray, bits: int, symmetric: bool, half: bool) -> None:
        self.values, self.importance = values, importance
        self.symmetric, self.half = symmetric, half
        self.lowest = -(2 ** (bits - 1)) if symmetric else 0
        self.highest = self.lowest + 2**bits - 1
        self.errors = np.full(len(values), np.inf, np.float32)
        self.codes = np.zeros(values.shape, np.float32)
        self.scales = np.zeros(len(values), np.float32)
        self.offsets = np.zeros(len(values), np.float32)

    def try_ranges(self, ranges: Any, signed: bool) -> None:
        """Try scales for shares of each block's range; ``signed`` also uses the lowest code of symmetric blocks."""
        low, high = self.values.min(axis=1), self.values.max(axis=1)
        if not self.symmetric:
            for share in ranges:
                cut = (1 - share) / 2 * (high - low)
                self._try(share * (high - low) / self.highest, low + cut)
            return
        none = np.zeros_like(low)
        extreme = np.where(-low >= high, low, high)
        self._try(np.abs(extreme) / self.highest, none)
        for share in ranges if signed else ():
            self._try(share * extreme / self.lowest, none)

    def refine(self) -> None:
        """Replace parameters by those of least squares for the codes, where that makes the error smaller."""
        for _ in range(_REFINEMENTS):
            weighed = self.importance * self.codes
            squares = np.einsum("ij,ij->i", weighed, self.codes)
            products = np.einsum("ij,ij->i", weighed, self.values)
            if self.symmetric:
                self._try(_ratio(products, squares), np.zeros_like(squares))
                continue
            total, codes = self.importance.sum(axis=1), weighed.sum(axis=1)
            values = np.einsum("ij,ij->i", self.importance, self.values)
            scales = _ratio(total * products - codes * values, total * squares - codes**2)
            self._try(scales, _ratio(values - scales * codes, total))

    def _try(self, scales: FloatArray, offsets: FloatArray) -> None:
        """Keep these parameters in the blocks whose error they make smaller."""
        if self.half:
            with np.errstate(over="ignore"):  # search raises then
                scales = scales.astype(np.float16).astype(np.float32)
                offsets = offsets.astype(np.float16).astype(np.float32)
        scales, offsets = scales.astype(np.float32), offsets.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            codes = encode(self.values, scales[:, None], offsets[:, None], self.lowest, self.highest)
            difference = codes * scales[:, None]
            difference += offsets[:, None]
            difference -= self.values
            errors = np.einsum("ij,ij,ij->i", difference, difference, self.importance)
        better = errors < self.errors
        better |= np.isinf(self.errors) & ~np.isfinite(errors)  # so that search sees what overflowed
        self.errors = np.where(better, errors, self.errors)
        self.codes[better] = codes[better]
        self.scales[better], self.offsets[better] = scales[better], offsets[better]


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    result: FloatArray = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return result


def encode(values: Any, scales: Any, offsets: Any, lowest: int, highest: int) -> FloatArray:
    """Return the nearest codes as float32; zeros where the scale has no finite inverse."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    codes = (values - offsets) * inverse
    np.rint(codes, out=codes)
    found: FloatArray = np.clip(codes, lowest, highest, out=codes)
    return found


def gptq_columns(
    weight: FloatArray,
    upper: FloatArray,
    scales: FloatArray,
    offsets: FloatArray | None,
    blocks: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int8],
    bits: int,
) -> None:
    """Quantize columns one after the other, as the core's ``gptq_columns`` does for 4 and 8 bits.

    Args:
        weight: [N, B]; becomes each column's error.
        upper: [B, B], of :class:`qcore.methods.gptq.Factor`.
        scales: [N, P].
        offsets: [N, P], or None.
        blocks: [B], the block of each column.
        codes: [N, B], written.
        bits: 3, 5 or 6.
    """
    half = 2 ** (bits - 1)
    lowest, highest = (-half, half - 1) if offsets is None else (0, 2 * half - 1)
    none = np.zeros(len(weight), np.float32)
    for j, block in enumerate(blocks):
        offset = none if offsets is None else offsets[:, block]
        column = encode(weight[:, j], scales[:, block], offset, lowest, highest)
        codes[:, j] = column
        error = (weight[:, j] - (scales[:, block] * column + offset)) / upper[j, j]
        weight[:, j] = error
        weight[:, j + 1 :] -= error[:, None] * upper[j, j + 1 :]


def encoded(
    codes: npt.NDArray[np.int8],
    scales: FloatArray,
    offsets: FloatArray | None,
    *,
    bits: int,
    block_size: int,
    half: bool,
) -> _core.QuantizedTensor:
    """Return the encoded weight of codes and parameters as :func:`search` returns them."""
    zero = 2 ** (bits - 1) if offsets is None else 0
    kind: Any = "float16" if half else "float32"
    encoding = WeightEncoding(bits=bits, scales=kind, offsets=None if offsets is None else kind, zero=zero)
    unsigned = (codes + np.int8(zero)).astype(np.uint8)
    stored = [None if each is None else each.astype(kind) for each in (scales, offsets)]
    return _core.from_encoded(encoding._native(), unsigned, stored[0], stored[1], None, None, block_size)
