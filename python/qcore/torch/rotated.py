"""Defines a linear layer that rotates its input before it quantizes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qcore import _core
from qcore._options import Activation, Compute, option_names
from qcore.rotation import RotatedTensor, quantize_rotated
from qcore.torch import operators
from qcore.torch.module import QuantizedModule, autocast, read_config
from qcore.torch.weighted import Linear


class RotatedModuleWeight(RotatedTensor):
    """Holds a module's rotated weight and answers code that reads dtype and device of a float weight.

    Attributes:
        dtype: torch.float32, torch.float16 or torch.bfloat16, the dtype of the float weight that it replaces.
    """

    __slots__ = ("dtype",)

    dtype: torch.dtype

    @classmethod
    def of(cls, module: RotatedLinear) -> RotatedModuleWeight:
        """Return a weight in the memory of a module."""
        made = cls(module.linear.weight, module.rotation_block)
        object.__setattr__(made, "dtype", module.linear.dtype)
        return made

    @property
    def device(self) -> torch.device:
        """Return the device as a ``torch.device``."""
        return torch.device(self.weight.device)


class RotatedLinear(QuantizedModule):
    """Computes a linear layer whose input is rotated by a Hadamard matrix, in the place of ``torch.nn.Linear``.

    The rotation spreads outliers in single channels over all (:func:`qcore.quantize_rotated`). It has CPU kernels only.
    Differentiable with respect to x and bias, as :class:`Linear`.

    Args:
        weight: a RotatedTensor [N, K] of :func:`qcore.quantize_rotated`, on the CPU.
        bias, compute, activation, dtype: as for :class:`Linear`.

    Attributes:
        linear: the :class:`Linear` of the rotated input.
        rotation_block: elements of the input that are rotated together.

    A call takes float32, float16 or bfloat16 [..., K] and returns [..., N] of that dtype, or of autocast's.

    Raises:
        QcoreValueError, QcoreTypeError: weight is no RotatedTensor, or an option is impossible.
    """

    kind = "rotated_linear"

    linear: Linear
    rotation_block: int

    def __init__(
        self,
        weight: RotatedTensor,
        bias: Any = None,
        *,
        compute: Compute = "int8",
        activation: Activation | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(weight, RotatedTensor):
            raise _core.QcoreTypeError(
                f"qcore.torch.RotatedLinear: weight is a {type(weight).__name__}, expected a RotatedTensor: "
                "qcore.quantize_rotated(weight) makes one, from_float(module) does it all"
            )
        self.linear = Linear(weight.weight, bias, compute=compute, activation=activation, dtype=dtype)
        self.rotation_block = weight.rotation_block

    @classmethod
    @option_names("RotatedLinear.from_float")
    def from_float(cls, module: torch.nn.Linear, *, compute: Compute = "int8", **options: Any) -> RotatedLinear:
        """Quantize a ``torch.nn.Linear`` in the rotated basis of its input.

        Args:
            module: float32, float16 or bfloat16, on the CPU.
            compute: as for :func:`qcore.linear`.
            options: those of :func:`qcore.quantize_rotated`.

        Raises:
            QcoreValueError, QcoreTypeError: module is no linear layer or not on the CPU, or an option is impossible.
        """
        if not isinstance(module, torch.nn.Linear):
            raise _core.QcoreTypeError(
                f"RotatedLinear.from_float: module is a {type(module).__name__}, expected a torch.nn.Linear"
            )
        if module.weight.device.type != "cpu":
            raise _core.QcoreValueError(
                f"RotatedLinear.from_float: module is on {module.weight.device}, expected the CPU: the rotation has "
                "CPU kernels only"
            )
        weight = quantize_rotated(module.weight.detach(), **options)
        made = cls(weight, module.bias, compute=compute, dtype=module.weight.dtype)
        made.train(module.training)
        return made

    @property
    def weight(self) -> Any:
        """Return the weight, a RotatedTensor in this module's memory; while torch compiles as ``Linear.weight``."""
        return self.linear.weight if torch.compiler.is_compiling() else RotatedModuleWeight.of(self)

    @property
    def bias(self) -> torch.nn.Parameter | None:
        """Return the bias [N], or None."""
        return self.linear.bias

    @property
    def compute(self) -> Compute:
        """Return the compute mode."""
        return self.linear.compute

    @property
    def in_features(self) -> int:
        """Return K, the number of input features."""
        return self.linear.in_features

    @property
    def out_features(self) -> int:
        """Return N, the number of output features."""
        return self.linear.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``activation(x @ weight.T + bias)``.

        Args:
            x: float32, float16 or bfloat16 [..., K] on the CPU.

        Returns:
            [..., N] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise _core.QcoreValueError(
                f"linear: x has shape {list(x.shape)}, expected its last dimension to be K = {self.in_features} of the "
                f"weight {list(self.linear.shape)}"
            )
        result: torch.Tensor = self.linear(operators.hadamard(autocast(x), self.rotation_block))
        return result

    def config(self) -> dict[str, Any]:
        """Return shape and rotation, which ``load_state_dict`` compares with those of the state."""
        return {"kind": self.kind, "shape": list(self.linear.shape), "rotation_block": self.rotation_block}

    def _configure(self, config: dict[str, Any]) -> None:
        self.rotation_block = config["rotation_block"]

    @classmethod
    def _empty(cls, config: dict[str, Any], state_dict: Mapping[str, torch.Tensor], prefix: str) -> Any:
        module = super()._empty(config, state_dict, prefix)
        below = f"{prefix}linear."
        module.linear = Linear._empty(read_config(state_dict, below), state_dict, below)
        return module

    def extra_repr(self) -> str:
        return f"rotation_block={self.rotation_block}"
