"""Hadamard rotation of a layer's input: outliers of single channels are spread over all, which then quantize well."""

from qcore.rotation.hadamard import hadamard
from qcore.rotation.rotated_tensor import RotatedTensor, quantize_rotated

__all__ = ["RotatedTensor", "hadamard", "quantize_rotated"]
