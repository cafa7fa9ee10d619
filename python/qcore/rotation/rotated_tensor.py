"""Weights in a rotated basis of their input."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qcore import _checks, _core
from qcore._options import named_arguments
from qcore.methods.samples import Hessian
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.reordered_tensor import TransformedTensor
from qcore.rotation.hadamard import hadamard, largest_block


class RotatedTensor(TransformedTensor):
    """Holds the QuantizedTensor [N, K] of a weight with rotated rows: ``linear`` rotates x before it quantizes x.

    Made by :func:`quantize_rotated`. ``x @ w.T`` is ``hadamard(x) @ hadamard(w).T``, but the rotated x has no outliers
    in single channels. Immutable; compares by value; pickles.

    Args:
        weight: [N, K], of the rotated rows, ``hadamard(w, rotation_block)``.
        rotation_block: elements along K that are rotated together, a power of two that divides K.

    Raises:
        QcoreValueError, QcoreTypeError: weight is no matrix, or rotation_block no such power.
    """

    __slots__ = ("rotation_block",)

    rotation_block: int

    def __init__(self, weight: QuantizedTensor, rotation_block: int) -> None:
        super().__init__(weight)
        block = checked_block(rotation_block, weight.shape[1], f"{type(self).__name__}: rotation_block")
        object.__setattr__(self, "rotation_block", block)

    @property
    def device(self) -> str:
        """'cpu': the rotation has no CUDA kernel."""
        return str(self.weight.device)

    def dequantize(self, dtype: Any = "float32") -> npt.NDArray[Any]:
        """Return the matrix [N, K] in the basis of x, which is that of the float weight.

        Args:
            dtype: float32, float16 or bfloat16, as for :meth:`QuantizedTensor.dequantize`.

        Returns:
            An array of NumPy [N, K].

        Raises:
            QcoreValueError, QcoreTypeError: another dtype.
        """
        rotated: npt.NDArray[Any] = hadamard(self.weight.dequantize(), self.rotation_block, out_dtype=dtype)
        return rotated

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RotatedTensor):
            return NotImplemented
        return self.rotation_block == other.rotation_block and self.weight == other.weight

    def __reduce__(self) -> tuple[Any, ...]:
        return RotatedTensor, (self.weight, self.rotation_block)

    def __repr__(self) -> str:
        return f"RotatedTensor({self.weight!r}, rotation_block={self.rotation_block})"


def checked_block(block: Any, features: int, where: str) -> int:
    """Return a block of the rotation if it is a power of two that divides K."""
    size = _checks.integer(block, where)
    if size < 1 or size & (size - 1) or features % size:
        raise _core.QcoreValueError(f"{where} is {size}, expected a power of two that divides K = {features}")
    return size


@named_arguments("quantize_rotated")
def quantize_rotated(
    weight: Any, *, rotation_block: int | None = None, samples: Any = None, hessian: Any = None, **options: Any
) -> RotatedTensor:
    """Rotate the rows of a weight by the Hadamard matrix and quantize them.

    For layers whose inputs have outliers in some channels: with integer activations these take the codes' range from
    all others in their block. ``linear`` rotates x in front of the product, at log2(rotation_block) additions for each
    element (as QuaRot does before down projections: Ashkboos et al., 2024).

    Args:
        weight: float32, float16 or bfloat16 [N, K] on the CPU, any strides, finite.
        rotation_block: elements along K that are rotated together, a power of two that divides K; by default the
            largest: 4096 for K = 4096, 256 for K = 11008.
        samples: inputs of the layer as they come, numbers [M, K], for methods that take them.
        hessian: for method "gptq" as for :func:`qcore.quantize`, of inputs as they come.
        options: ``bits``, ``block_size``, ``scheme``, ``method``, ``scale_dtype``, ``damping`` and ``act_order`` of
            :func:`qcore.quantize`.

    Raises:
        QcoreValueError, QcoreTypeError: as :func:`qcore.quantize`; the weight is no matrix; rotation_block is no power
            of two that divides K.

    Example:
        >>> import numpy as np, qcore
        >>> weight = np.random.default_rng(0).standard_normal((8, 96), dtype=np.float32)
        >>> qcore.quantize_rotated(weight, bits=4, block_size=32).rotation_block
        32
    """
    if not hasattr(weight, "shape"):
        raise _core.QcoreTypeError(
            f"quantize_rotated: weight is a {type(weight).__name__}, expected an array [N, K] (numpy, torch, jax, ...)"
        )
    shape = list(weight.shape)
    if len(shape) != 2:
        raise _core.QcoreValueError(f"quantize_rotated: weight has shape {shape}, expected [N, K]")
    block = largest_block(shape[1])
    if rotation_block is not None:
        block = checked_block(rotation_block, shape[1], "quantize_rotated: rotation_block")
    quantize(weight, method="rtn", scale_dtype="float32")  # the weight's own errors, by its index
    if samples is not None:
        given = samples.detach().cpu().numpy() if hasattr(samples, "detach") else np.asarray(samples)
        if given.ndim != 2 or given.shape[1] != shape[1]:
            raise _core.QcoreValueError(
                f"quantize_rotated: samples has shape {list(given.shape)}, expected [M, K] with K = {shape[1]}"
            )
        samples = hadamard(given.astype(np.float32), block)
    if hessian is not None:
        hessian = _rotated_hessian(hessian, shape[1], block)
    rotated = hadamard(weight, block, out_dtype="float32")
    return RotatedTensor(quantize(rotated, samples=samples, hessian=hessian, **options), block)


def _rotated_hessian(hessian: Any, features: int, block: int) -> Any:
    """Return R^T H R for the rotation R of the inputs."""
    given = hessian.matrix if isinstance(hessian, Hessian) else hessian
    matrix = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if matrix.shape != (features, features) or matrix.dtype.kind != "f":
        raise _core.QcoreValueError(
            f"quantize_rotated: hessian is {matrix.dtype} {list(matrix.shape)}, expected floats [K, K] with "
            f"K = {features}"
        )
    wide = hadamard(hadamard(matrix.astype(np.float32), block).T, block)
    made = np.asarray((wide + wide.T) / 2, np.float32)  # exactly symmetric again
    if not isinstance(hessian, Hessian):
        return made
    rotated = Hessian(features)
    rotated.matrix, rotated.rows = made, hessian.rows
    return rotated
