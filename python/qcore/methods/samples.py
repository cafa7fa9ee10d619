"""Inputs of layers: checked, and reduced to what the methods need of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _checks, _core

_CHUNK_ROWS = 8192
"""Rows of samples that are converted and multiplied at a time."""
_FLOOR = 1e-4
"""Least importance of an input channel, relative to their mean."""


class Hessian:
    """Accumulates ``x^T x`` of a layer's inputs, the Hessian of its squared error but for a factor of 2.

    ``quantize(method="gptq", hessian=...)`` takes it in the place of samples. Its memory is 4 * K * K bytes, for any
    number of rows, and three times that while rows are added.

    Args:
        features: K, the number of input features of the layer.

    Attributes:
        matrix: float32 [K, K], the sum so far.
        rows: number of rows added.

    Raises:
        QcoreValueError, QcoreTypeError: features is no integer of 1 or more.
        MemoryError: there is no memory for the matrix.

    Example:
        >>> import numpy as np, qcore
        >>> hessian = qcore.Hessian(64)
        >>> for seed in range(4):
        ...     hessian.add(np.random.default_rng(seed).standard_normal((100, 64), dtype=np.float32))
        >>> hessian
        Hessian(features=64, rows=400)
    """

    matrix: npt.NDArray[np.float32]
    rows: int

    def __init__(self, features: int) -> None:
        k = _checks.integer(features, "Hessian: features")
        if k < 1:
            raise _core.QcoreValueError(f"Hessian: features is {k}, expected an integer of 1 or more")
        try:
            self.matrix = np.zeros((k, k), np.float32)
        except (ValueError, MemoryError) as error:
            kind = _core.QcoreValueError if isinstance(error, ValueError) else MemoryError
            raise kind(
                f"Hessian: features is {k}, expected fewer: the matrix of {4 * k * k} bytes does not fit in memory"
            ) from None
        self.rows = 0

    def add(self, samples: Any) -> None:
        """Add inputs of the layer.

        Args:
            samples: numbers [..., K], such as [M, K] or [batch, tokens, K]: an array, or a tensor of torch on any
                device, where the product is computed.

        Raises:
            QcoreValueError: another number of features, or a sum that is no finite float32, as after a NaN. The
                accumulated matrix is as it was before.
        """
        k = len(self.matrix)
        shape = tuple(np.shape(samples)) if not hasattr(samples, "detach") else tuple(samples.shape)
        if len(shape) < 2 or shape[-1] != k:
            raise _core.QcoreValueError(f"Hessian.add: samples has shape {list(shape)}, expected [..., K] with K = {k}")
        rows = samples.detach() if hasattr(samples, "detach") else np.asarray(samples)
        rows = rows.reshape(-1, k)
        if len(rows) == 0:
            return
        total = _product(rows[:_CHUNK_ROWS])
        for start in range(_CHUNK_ROWS, len(rows), _CHUNK_ROWS):
            total += _product(rows[start : start + _CHUNK_ROWS])
        # No element of x^T x is larger than the largest of its diagonal.
        if not np.isfinite(np.diagonal(self.matrix) + np.diagonal(total)).all():
            raise _core.QcoreValueError(
                "Hessian.add: samples holds a NaN, an infinity or numbers whose squares exceed float32, expected "
                "finite values"
            )
        self.matrix += total
        self.rows += len(rows)

    def __repr__(self) -> str:
        return f"Hessian(features={len(self.matrix)}, rows={self.rows})"


def _product(rows: Any) -> npt.NDArray[np.float32]:
    """Return x^T x in float32, of rows [M, K] of NumPy or torch; BLAS computes half of a symmetric product."""
    if hasattr(rows, "detach"):
        wide = rows.float()
        if wide.device.type != "cpu":
            product: npt.NDArray[np.float32] = (wide.t() @ wide).cpu().numpy()
            return product
        rows = wide.numpy()
    x = np.ascontiguousarray(rows, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # Hessian.add raises
        return np.asarray(x.T @ x)


def mean_squares(samples: Any, features: int, where: str) -> npt.NDArray[np.float32]:
    """Return the mean square of each input channel, at least a ten-thousandth of their mean.

    A channel that no sample has used is not free to be wrong.
    """
    x = float_samples(samples, features, where)
    return with_floor(np.square(x).mean(axis=0))


def with_floor(squares: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the mean squares [K] of input channels in float32, at least a ten-thousandth of their mean."""
    floor = _FLOOR * squares.mean()
    result: npt.NDArray[np.float32] = np.maximum(squares, floor if floor > 0 else 1.0).astype(np.float32)
    return result


def float_samples(samples: Any, features: int, where: str) -> npt.NDArray[np.float64]:
    """Return [M, K] in float64, checked."""
    if samples is None:
        raise _core.QcoreTypeError(f"{where} is None, expected an array [M, K] with K = {features}")
    if hasattr(samples, "detach"):
        samples = samples.detach().cpu().double().numpy()
    try:
        x = np.asarray(samples, np.float64)
    except (TypeError, ValueError):
        raise _core.QcoreTypeError(
            f"{where} is a {type(samples).__name__}, expected an array of numbers [M, K] with K = {features}"
        ) from None
    if x.ndim != 2 or x.shape[1] != features or x.shape[0] == 0:
        raise _core.QcoreValueError(
            f"{where} has shape {list(x.shape)}, expected [M, K] with K = {features} and at least one row"
        )
    if not np.isfinite(x).all():
        raise _core.QcoreValueError(f"{where} holds a NaN or an infinity, expected finite values")
    return x
