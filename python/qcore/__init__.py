"""qcore: low-precision neural-network operators for any framework.

Shape letters, the same everywhere: M rows of activations (batch x tokens), K input features, N output features, g block
size along K, P = ceil(K / g) blocks.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from qcore import _distribution as _distribution  # first: it explains what the next lines would fail of
from qcore import awq
from qcore._core import CudaError, QcoreError, QcoreTypeError, QcoreValueError, __version__
from qcore.awq.scaling import ChannelScales, awq_scales, fold_scales, smooth_scales
from qcore.conv import conv2d
from qcore.encode import quantize_encoded
from qcore.linear import embedding, grouped_linear, linear
from qcore.methods.samples import Hessian
from qcore.quantized_activations import QuantizedActivations, quantize_activations
from qcore.quantized_tensor import QuantizedTensor, concatenate, quantize
from qcore.reordered_tensor import ReorderedTensor
from qcore.rotation import RotatedTensor, hadamard, quantize_rotated
from qcore.runtime import force_kernel, get_num_threads, info, kernels, last_kernel, set_num_threads
from qcore.weight_encoding import WeightEncoding

if TYPE_CHECKING:
    from qcore import decoder, formats, gru, lstm, lut, static
    from qcore import jax as jax
    from qcore import torch as torch
    from qcore.formats import load, save

__all__ = [
    "ChannelScales",
    "CudaError",
    "Hessian",
    "QcoreError",
    "QcoreTypeError",
    "QcoreValueError",
    "QuantizedActivations",
    "QuantizedTensor",
    "ReorderedTensor",
    "RotatedTensor",
    "WeightEncoding",
    "__version__",
    "awq",
    "awq_scales",
    "concatenate",
    "conv2d",
    "decoder",
    "embedding",
    "fold_scales",
    "force_kernel",
    "formats",
    "get_num_threads",
    "grouped_linear",
    "gru",
    "hadamard",
    "info",
    "kernels",
    "last_kernel",
    "linear",
    "load",
    "lstm",
    "lut",
    "quantize",
    "quantize_activations",
    "quantize_encoded",
    "quantize_rotated",
    "save",
    "set_num_threads",
    "smooth_scales",
    "static",
]
# Not qcore.torch and qcore.jax: they need torch and jax, and `from qcore import *` would hide these names.


def __getattr__(name: str) -> Any:
    """Import a submodule when it is first used: together they take longer to import than the rest."""
    if name in ("decoder", "formats", "gru", "jax", "lstm", "lut", "static", "torch"):
        return importlib.import_module(f"qcore.{name}")
    if name in ("load", "save"):
        return getattr(importlib.import_module("qcore.formats"), name)
    if name == "AwqScales":
        warnings.warn("qcore.AwqScales is called qcore.ChannelScales now", DeprecationWarning, stacklevel=2)
        return ChannelScales
    raise AttributeError(f"module 'qcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "jax", "torch"})
