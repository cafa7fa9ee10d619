"""Weights whose columns were transformed before they were quantized: their base, and those in another order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _core
from qcore._display import html
from qcore.quantized_tensor import QuantizedTensor


class TransformedTensor(ABC):
    """A QuantizedTensor [N, K] of a matrix with transformed columns; ``linear`` transforms x in the same way."""

    __slots__ = ("weight",)
    __hash__ = None  # type: ignore[assignment]

    weight: QuantizedTensor

    def __init__(self, weight: QuantizedTensor) -> None:
        where = type(self).__name__
        if not isinstance(weight, QuantizedTensor):
            raise _core.QcoreTypeError(f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor")
        if len(weight.shape) != 2:
            raise _core.QcoreValueError(f"{where}: weight has shape {list(weight.shape)}, expected [N, K]")
        object.__setattr__(self, "weight", weight)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: can't set {name!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]."""
        return self.weight.shape

    @property
    def bits(self) -> int:
        """4 or 8; of an encoded weight 2 to 8."""
        return self.weight.bits

    @property
    def block_size(self) -> int:
        """Elements along the transformed K that share a scale."""
        return self.weight.block_size

    @property
    def scheme(self) -> str:
        """'symmetric' or 'asymmetric'."""
        return self.weight.scheme

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and of what describes the transformation."""
        return self.weight.nbytes

    @property
    def bits_per_weight(self) -> float:
        """8 * nbytes / number of weights."""
        return 8 * self.nbytes / (self.shape[0] * self.shape[1])

    @abstractmethod
    def dequantize(self, dtype: Any = "float32") -> npt.NDArray[Any]:
        """Return the matrix in the basis of x; each kind of transformation says how."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return what ``dequantize`` does, for ``numpy.asarray``; it always makes a new array."""
        if copy is False:
            raise _core.QcoreValueError(
                f"{type(self).__name__}.__array__: copy is False, expected None or True: the values are computed from "
                "codes"
            )
        return self.dequantize() if dtype is None else self.dequantize().astype(dtype)

    def _repr_html_(self) -> str:
        return html.weight(self)


class ReorderedTensor(TransformedTensor):
    """Holds a QuantizedTensor [N, K] with its columns in another order, and that order: GPTQ's "act-order".

    Column i of ``weight`` is column ``order[i]`` of the matrix, so that the columns of a block are neighbors;
    ``linear`` gathers x in the same order. Immutable; compares by value; pickles.

    Args:
        weight: [N, K].
        order: integers [K], a permutation of 0..K - 1.

    Raises:
        QcoreValueError, QcoreTypeError: weight is no matrix, or order no permutation of its columns.
    """

    __slots__ = ("order",)

    order: npt.NDArray[np.int64]

    def __init__(self, weight: QuantizedTensor, order: Any) -> None:
        super().__init__(weight)
        where = type(self).__name__
        columns = np.array(order)
        if columns.dtype.kind not in "iu":
            raise _core.QcoreTypeError(f"{where}: order has dtype {columns.dtype}, expected integers")
        columns = columns.astype(np.int64)
        if not np.array_equal(np.sort(columns, axis=None), np.arange(weight.shape[1])) or columns.ndim != 1:
            raise _core.QcoreValueError(
                f"{where}: order has shape {list(columns.shape)}, expected a permutation of 0..{weight.shape[1] - 1}"
            )
        columns.flags.writeable = False
        object.__setattr__(self, "order", columns)

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:<index>'; the order stays in host memory."""
        return self.weight._handle.device

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and of the order."""
        return self.weight.nbytes + self.order.nbytes

    def dequantize(self, dtype: Any = "float32") -> npt.NDArray[Any]:
        """Return the matrix, columns in its own order.

        Args:
            dtype: float32, float16 or bfloat16, as for :meth:`QuantizedTensor.dequantize`.

        Returns:
            An array of NumPy [N, K].

        Raises:
            QcoreValueError: another dtype, or the weight is on another device than the CPU.
        """
        values: npt.NDArray[Any] = self.weight.dequantize(dtype)
        out = np.empty_like(values)
        out[:, self.order] = values
        return out

    def to(self, device: Any) -> ReorderedTensor:
        """Return the tensor on another device, as :meth:`QuantizedTensor.to`.

        Args:
            device: "cpu", "cuda" or "cuda:1".

        Raises:
            CudaError: there is no such CUDA device, or this build has no CUDA backend.
        """
        moved = self.weight.to(device)
        return self if moved is self.weight else ReorderedTensor(moved, self.order)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReorderedTensor):
            return NotImplemented
        return np.array_equal(self.order, other.order) and self.weight == other.weight

    def __reduce__(self) -> tuple[Any, ...]:
        return ReorderedTensor, (self.weight, self.order.tolist())  # numbers, which any unpickler may read

    def __repr__(self) -> str:
        return f"ReorderedTensor({self.weight!r})"
