"""GPTQ: codes column by column, each column's error compensated by the columns after it.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022. The Cholesky
factor and the products of matrices are NumPy's; the columns of a batch are the core's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _checks, _core
from qcore.methods.samples import Hessian, with_floor
from qcore.weight_encoding import WeightEncoding

FloatArray = npt.NDArray[np.float32]

DAMPING = 0.01
"""The default of what is added to the diagonal of the Hessian, relative to its mean."""
_BATCH = 128
"""Columns after which the rest of the weight gets their errors, by one product of matrices."""
_LEAST_UNIT = 32
"""Columns between two choices of scales, unless blocks are larger."""
_FACTORIZED_AT_ONCE = 128
"""Rows of a positive definite matrix that LAPACK factorizes and inverts."""


@dataclass(frozen=True)
class Factor:
    """Holds what GPTQ needs of a layer's inputs; one serves all rows of a weight.

    Attributes:
        upper: float32 [K, K], upper triangular: ``upper.T @ upper`` is the inverse of the damped Hessian with a mean
            diagonal of 1, its rows and columns in the order of ``order``.
        importance: float32 [K], what a column's squared error counts when scales are chosen: the square of the part of
            its input channel that the channels quantized after it cannot compensate.
        order: int64 [K], the order in which columns are quantized; None for their own.
    """

    upper: FloatArray
    importance: FloatArray
    order: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Form:
    """Holds the options of a weight as the core takes them."""

    bits: int
    block_size: int
    symmetric: bool
    half_scales: bool


def factorize(matrix: npt.NDArray[Any], damping: float, act_order: bool, where: str) -> Factor:
    """Return the factor of a Hessian.

    A channel that is zero in all samples has no covariance with any other: its column is rounded to nearest.

    Args:
        matrix: any multiple of x^T x, [K, K] in float32 or float64, symmetric.
        damping: what is added to the diagonal, relative to its mean.
        act_order: whether columns are quantized by falling mean square of their input.
        where: operator and argument for messages.

    Raises:
        QcoreValueError: the damped matrix is not positive definite.
    """
    diagonal = np.diagonal(matrix).astype(np.float64)
    order = np.argsort(-diagonal, kind="stable").astype(np.int64) if act_order else None
    mean = float(diagonal.mean()) or 1.0
    diagonal[diagonal == 0] = mean
    diagonal = diagonal / mean + damping  # the result does not depend on the number of samples or on their unit
    # With J the reversal of rows: J H J = L L^T gives H^-1 = U^T U for the upper triangular U = J L^-1 J.
    backwards = slice(None, None, -1) if order is None else order[::-1]
    rows = matrix[backwards]
    inverse = np.array(rows[:, backwards], np.float64)
    inverse /= mean
    np.fill_diagonal(inverse, diagonal[backwards])
    try:
        _invert_cholesky(inverse)
    except np.linalg.LinAlgError:
        raise _core.QcoreValueError(
            f"{where} is not positive definite with damping={damping:g}, expected a larger damping or more samples"
        ) from None
    upper = inverse[::-1, ::-1].astype(np.float32, order="C")
    importance = np.empty(len(upper), np.float32)
    importance[slice(None) if order is None else order] = with_floor(np.diagonal(upper).astype(np.float64) ** -2.0)
    return Factor(upper, importance, order)


def check_options(damping: Any, act_order: Any, where: str) -> float:
    """Return the damping if both options are possible; ``where`` begins the name of an argument in messages.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    share = _checks.number(damping, f"{where}damping")
    if not 0 <= share < math.inf:
        raise _core.QcoreValueError(f"{where}damping is {damping!r}, expected a finite number of 0 or more")
    if not isinstance(act_order, (bool, np.bool_)):
        raise _core.QcoreTypeError(f"{where}act_order is {act_order!r}, expected True or False")
    return share


def factor_of(
    samples: Any,
    features: int,
    *,
    hessian: Any = None,
    damping: float = DAMPING,
    act_order: bool = False,
    where: str = "quantize: samples",
) -> Factor:
    """Return what GPTQ needs of samples [M, K] or of a Hessian, checked; pieces of a weight's rows share it.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    share = check_options(damping, act_order, "quantize: ")
    if hessian is None:
        shape = list(getattr(samples, "shape", np.shape(samples)))
        if len(shape) != 2 or shape[1] != features or 0 in shape:
            raise _core.QcoreValueError(f"{where} has shape {shape}, expected [M, K] with K = {features}")
        accumulated = Hessian(features)
        try:
            accumulated.add(samples)
        except _core.QcoreValueError:
            raise _core.QcoreValueError(
                f"{where} holds a NaN, an infinity or numbers whose squares exceed float32, expected finite values"
            ) from None
        return factorize(accumulated.matrix, share, bool(act_order), where)
    if samples is not None:
        raise _core.QcoreValueError("quantize: samples and hessian are given, expected one of them with method='gptq'")
    where = "quantize: hessian"
    matrix, rows = (hessian.matrix, hessian.rows) if isinstance(hessian, Hessian) else (_matrix(hessian), 1)
    if matrix.shape != (features, features):
        raise _core.QcoreValueError(f"{where} has shape {list(matrix.shape)}, expected [K, K] with K = {features}")
    if rows == 0:
        raise _core.QcoreValueError(f"{where} has no rows, expected one or more: Hessian.add(samples)")
    return factorize(matrix, share, bool(act_order), where)


def _matrix(hessian: Any) -> npt.NDArray[Any]:
    """Return a caller's x^T x, checked for everything but its number of features."""
    where = "quantize: hessian"
    matrix = hessian.detach().cpu().numpy() if hasattr(hessian, "detach") else np.asarray(hessian)
    if matrix.dtype not in (np.float32, np.float64):
        raise _core.QcoreTypeError(f"{where} has dtype {matrix.dtype}, expected float32 or float64, or a Hessian")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise _core.QcoreValueError(f"{where} has shape {list(matrix.shape)}, expected [K, K]")
    if not np.isfinite(matrix).all():
        raise _core.QcoreValueError(f"{where} holds a NaN or an infinity, expected finite values")
    largest = float(np.abs(matrix).max(initial=0.0))
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-4 * largest) or (np.diagonal(matrix) < 0).any():
        raise _core.QcoreValueError(
            f"{where} is not symmetric or has a negative number on its diagonal, expected x^T x of samples"
        )
    return matrix


def quantize_columns(weight: FloatArray, factor: Factor, form: Form) -> _core.QuantizedTensor:
    """Return the quantized weight.

    Without an order, the scales of a block are chosen when its columns have got the errors of all columns before them
    (of blocks below 32 columns, of those up to 32 columns before). With an order, they are chosen from the float weight
    before the first column ("static groups"), so that blocks stay consecutive columns.

    Args:
        weight: [N, K], finite; overwritten.
        factor: of the layer's inputs.
        form: bits, block size and so on.

    Raises:
        QcoreValueError: compensated weights exceed float32.
    """
    n, k = weight.shape
    g = min(form.block_size, k)
    blocks = -(-k // g)
    codes = np.empty((n, k), np.int8)
    scales = np.empty((n, blocks), np.float32)
    offsets = None if form.symmetric else np.empty((n, blocks), np.float32)
    solver = _Solver(weight, factor, form, g, codes, scales, offsets)
    if factor.order is None:
        solver.run()
    else:
        solver.choose_scales(0, k)
        solver.weight = np.ascontiguousarray(weight[:, factor.order])
        solver.codes = np.empty_like(codes)
        solver.run()
        codes[:, factor.order] = solver.codes
    if form.bits in (4, 8):
        return _core.from_parts(codes, scales, offsets, form.bits, form.block_size)
    kind: Any = "float16" if form.half_scales else "float32"
    encoding = WeightEncoding(form.bits, kind, None if form.symmetric else kind, zero=2 ** (form.bits - 1))
    unsigned = (codes.astype(np.int16) + encoding.zero).astype(np.uint8)
    stored = [None if each is None else each.astype(kind) for each in (scales, offsets)]
    return _core.from_encoded(encoding._native(), unsigned, stored[0], stored[1], None, None, form.block_size)


@dataclass
class _Solver:
    """Holds a weight while its columns are quantized."""

    weight: FloatArray
    factor: Factor
    form: Form
    block_size: int
    codes: npt.NDArray[np.int8]
    scales: FloatArray
    offsets: FloatArray | None

    @np.errstate(over="ignore", invalid="ignore")  # _check_finite raises
    def run(self) -> None:
        """Quantize all columns in the order of the factor."""
        k = self.weight.shape[1]
        is_static = self.factor.order is not None
        blocks = (np.arange(k) if self.factor.order is None else self.factor.order) // self.block_size
        upper = self.factor.upper
        for units in _batches(k, self.block_size, is_static):
            first, last = units[0][0], units[-1][1]
            errors = np.ascontiguousarray(self.weight[:, first:last])
            for begin, end in units:
                if not is_static and begin % self.block_size == 0:
                    self.weight[:, begin:last] = errors[:, begin - first :]
                    self.choose_scales(begin, max(end, min(k, begin + self.block_size)))
                part = np.ascontiguousarray(errors[:, begin - first : end - first])
                _check_finite(part, begin)
                codes = np.empty(part.shape, np.int8)
                _core.gptq_columns(
                    part,
                    np.ascontiguousarray(upper[begin:end, begin:end]),
                    self.scales,
                    self.offsets,
                    np.ascontiguousarray(blocks[begin:end]),
                    codes,
                    self.form.bits,
                )
                self.codes[:, begin:end] = codes
                errors[:, begin - first : end - first] = part
                if end < last:
                    errors[:, end - first :] -= part @ upper[begin:end, end:last]
            if last < k:
                self.weight[:, last:] -= errors @ upper[first:last, last:]

    def choose_scales(self, begin: int, end: int) -> None:
        """Choose the scales of the blocks of columns [begin, end) by the search of ``method="awq"``."""
        _check_finite(self.weight[:, begin:end], begin)
        found = _core.quantize(
            self.weight[:, begin:end],
            self.form.bits,
            self.block_size,
            self.form.symmetric,
            _core.Method.awq,
            self.form.half_scales,
            self.factor.importance[begin:end],
        )
        first = begin // self.block_size
        parameters = np.empty((len(self.weight), found.blocks), np.float32)
        found.scales(parameters)
        self.scales[:, first : first + found.blocks] = parameters
        if self.offsets is not None:
            found.offsets(parameters)
            self.offsets[:, first : first + found.blocks] = parameters


def _check_finite(columns: FloatArray, begin: int) -> None:
    """Raise QcoreValueError if the errors of earlier columns have made one of these infinite."""
    if not np.isfinite(columns).all():
        raise _core.QcoreValueError(
            f"quantize: compensated weights of columns {begin} to {begin + columns.shape[1] - 1} exceed float32, "
            "expected a larger damping"
        )


def _batches(k: int, block_size: int, is_static: bool) -> Iterator[list[tuple[int, int]]]:
    """Yield the columns of each batch as units [begin, end), before each of which scales may be chosen.

    Neither a unit nor a batch begins within a block of up to 128 columns; batches within larger blocks are cut at
    multiples of 128 from the block's begin.
    """
    if is_static:
        for begin in range(0, k, _BATCH):
            yield [(begin, min(k, begin + _BATCH))]
    elif block_size > _BATCH:
        for block in range(0, k, block_size):
            stop = min(k, block + block_size)
            for begin in range(block, stop, _BATCH):
                yield [(begin, min(stop, begin + _BATCH))]
    else:
        unit = -(-_LEAST_UNIT // block_size) * block_size
        step = max(1, _BATCH // unit) * unit
        for first in range(0, k, step):
            last = min(k, first + step)
            yield [(begin, min(last, begin + unit)) for begin in range(first, last, unit)]


def _invert_cholesky(matrix: npt.NDArray[np.float64]) -> None:
    """Replace a positive definite matrix by the inverse of its lower Cholesky factor, by halves and in place.

    Products of matrices are most of the work, which BLAS shares among threads better than LAPACK's factorization.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    k = len(matrix)
    if k <= _FACTORIZED_AT_ONCE:
        matrix[:] = np.tril(np.linalg.inv(np.linalg.cholesky(matrix)))
        return
    half = k // 2
    first, last, below = matrix[:half, :half], matrix[half:, half:], matrix[half:, :half]
    _invert_cholesky(first)
    lower = below @ first.T
    last -= lower @ lower.T
    _invert_cholesky(last)
    np.negative(last @ (lower @ first), out=below)
    matrix[:half, half:] = 0
