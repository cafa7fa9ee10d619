"""Defines the operations that transformers' loader applies to the tensors of a packed or a float weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.core_model_loading import ConversionOps

if TYPE_CHECKING:
    from qcore.transformers.quantizer import QcoreQuantizer


class _Operation(ConversionOps):  # type: ignore[misc, unused-ignore]
    """Passes weights to the quantizer, which all copies of an operation share: the loader makes one per weight."""

    def __init__(self, quantizer: QcoreQuantizer) -> None:
        self.hf_quantizer = quantizer  # by this name the loader knows that tensors keep their dtypes

    def __deepcopy__(self, memo: Any) -> _Operation:
        return self

    @property
    def reverse_op(self) -> ConversionOps:
        """Return itself: the quantizer removes it from the model before anything is saved."""
        return self


class ReadPacked(_Operation):
    """Reads a packed weight from its file; the loader's own tensors, views of the file, are not read."""

    def convert(self, input_dict: dict[str, Any], *args: Any, full_layer_name: str, **options: Any) -> dict[str, Any]:
        """Return a placeholder for the weight, which the quantizer keeps.

        Args:
            input_dict: the loader's tensors.
            args: patterns of names, not used.
            full_layer_name: name of the weight in the model.
            options: what else the loader says, not used.
        """
        return {full_layer_name: self.hf_quantizer.read_packed(full_layer_name)}


class Quantize(_Operation):
    """Quantizes float weights."""

    def convert(self, input_dict: dict[str, Any], *args: Any, **options: Any) -> dict[str, Any]:
        """Return placeholders for the weights that the quantizer keeps, and all other tensors.

        Args:
            input_dict: tensors, or lists of one, by their names in the model.
            args: patterns of names, not used.
            options: what else the loader says, not used.
        """
        found: dict[str, Any] = {}
        for name in list(input_dict):
            value = input_dict.pop(name)
            tensor = value[0] if isinstance(value, list) else value
            found[name] = self.hf_quantizer.quantize_float(name, tensor)
        return found


class DeferExperts(_Operation):
    """Leaves the merging of the tensors of single experts to the quantizer, which reads them one after the other.

    Args:
        quantizer: the quantizer.
        operations: those of the loader, for the experts that the quantizer leaves.
    """

    def __init__(self, quantizer: QcoreQuantizer, operations: list[ConversionOps]) -> None:
        super().__init__(quantizer)
        self.operations = operations

    def convert(self, input_dict: dict[str, Any], *args: Any, full_layer_name: str, **options: Any) -> dict[str, Any]:
        """Return an empty tensor, for :class:`Quantize` after it, or what the loader's operations make.

        Args:
            input_dict: the loader's tensors.
            args: patterns of names, not used.
            full_layer_name: name of the parameter in the model.
            options: what else the loader says.
        """
        if self.hf_quantizer.reads_experts(full_layer_name):
            input_dict.clear()
            return {full_layer_name: torch.empty(0)}
        for operation in self.operations:
            input_dict = operation.convert(input_dict, *args, full_layer_name=full_layer_name, **options)
        return input_dict


def placeholder(rows: int, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor [rows, 0], which stands for a packed weight until the model is loaded.

    transformers ties it, moves it to its device and counts it as initialized.
    """
    return torch.empty((rows, 0), device=device, dtype=dtype)
