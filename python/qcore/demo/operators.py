"""Implementations of the layers: NumPy in float, or qcore on quantized weights.

The model asks for its layers by kind and knows nothing else, so a layer changes hands in one method of this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np

import qcore
from qcore import QuantizedTensor, lut
from qcore.static import QConv2d, QLinear

from .data import Floats
from .layers import FixedGru, Function, GatedGru, Layer, PatchConv2d, Product, patch_weight, relu, sigmoid
from .static_layers import StaticLayer

CONV_BLOCK_SIZE = 16
"""At most so many channels share a scale in a convolution, where all taps share it too."""


class Operators(ABC):
    """Makes layers from trained fp32 parameters and counts what their weights occupy (biases stay fp32, uncounted).

    Every layer has a definition in terms of matrix products; who has a better one for a layer overrides its method.
    """

    def __init__(self) -> None:
        self.weight_count = 0
        self.weight_bytes = 0

    @abstractmethod
    def product(self, weight: Floats, bias: Floats, *, with_relu: bool = False) -> Product:
        """Return the product of weight [N, K] and bias [N], which maps [..., K] -> [..., N]."""

    def linear(self, weight: Floats, bias: Floats, *, with_relu: bool = False) -> Layer:
        """Return the layer of weight [N, K] and bias [N], which maps [..., K] -> [..., N]."""
        return self.product(weight, bias, with_relu=with_relu)

    def conv2d(self, weight: Floats, bias: Floats, *, padding: int, with_relu: bool = False) -> Layer:
        """Return the convolution of w and bias [Co], which maps [B, Ci, H, W] -> [B, Co, Ho, Wo] at stride 1."""
        product = self.product(patch_weight(weight), bias, with_relu=with_relu)
        return PatchConv2d(product, (weight.shape[2], weight.shape[3]), padding)

    def gru(self, w: Floats, r: Floats, bias_w: Floats, bias_r: Floats) -> Layer:
        """Return the GRU of w [3H, C], r [3H, H] and biases [3H] in torch's order; it maps [B, T, C] -> [B, H]."""
        return GatedGru(self.product(w, bias_w), self.product(r, bias_r), r.shape[1], *self.gate_functions())

    def gate_functions(self) -> tuple[Function, Function]:
        """Return sigmoid and tanh: qcore's look-up tables."""
        return lut.sigmoid, lut.tanh


class FloatOperators(Operators):
    """fp32 products in NumPy. Without tables: the reference, and what the others are timed against."""

    def __init__(self, tables: bool = False) -> None:
        super().__init__()
        self._tables = tables

    def gate_functions(self) -> tuple[Function, Function]:
        return super().gate_functions() if self._tables else (sigmoid, np.tanh)

    def product(self, weight: Floats, bias: Floats, *, with_relu: bool = False) -> Product:
        self.weight_count += weight.size
        self.weight_bytes += weight.nbytes
        transposed = weight.T
        tables = self._tables

        def apply(x: Floats) -> Floats:
            # One product of [M, K]: given [B, T, K], NumPy would make B small ones.
            y: Floats = x.reshape(-1, x.shape[-1]) @ transposed
            y += bias
            if with_relu and tables:
                lut.relu(y, y)
            elif with_relu:
                relu(y, out=y)
            return y.reshape(*x.shape[:-1], -1)

        return apply


class FixedGruOperators(FloatOperators):
    """Computes all operators in float except the GRU, which is qcore's: `Model.calibrate` chooses its formats."""

    def __init__(self, bits: Literal[8, 16]) -> None:
        super().__init__()
        self._bits = bits

    def gru(self, w: Floats, r: Floats, bias_w: Floats, bias_r: Floats) -> Layer:
        self.weight_count += w.size + r.size
        exponents = len(w) + len(r)  # one per row, a byte each
        self.weight_bytes += (w.size + r.size) * self._bits // 8 + exponents
        return FixedGru(w, r, bias_w, bias_r, self._bits)


class StaticOperators(FixedGruOperators):
    """All in int8: convolutions and linear layers by qcore.static, the GRU by qcore.gru. `Model.calibrate` first."""

    def __init__(self) -> None:
        super().__init__(8)

    def linear(self, weight: Floats, bias: Floats, *, with_relu: bool = False) -> Layer:
        reference = FloatOperators().linear(weight, bias, with_relu=with_relu)
        return self._layer(QLinear.from_float, weight, bias, reference)

    def conv2d(self, weight: Floats, bias: Floats, *, padding: int, with_relu: bool = False) -> Layer:
        reference = FloatOperators().conv2d(weight, bias, padding=padding, with_relu=with_relu)
        return self._layer(QConv2d.from_float, weight, bias, reference, padding=padding)

    def _layer(self, make: Any, weight: Floats, bias: Floats, reference: Layer, **options: Any) -> Layer:
        """Return y's format; after a relu the least value is 0, so that the range of codes does the relu."""
        self.weight_count += weight.size
        self.weight_bytes += weight.size + 4 * len(weight)  # a scale for each output channel

        def from_formats(x_scale: float, x_zero: int, y_scale: float, y_zero: int) -> Any:
            return make(x_scale, x_zero, weight, y_scale, y_zero, bias, **options)

        return StaticLayer(from_formats, reference)


class QcoreOperators(Operators):
    """Weights quantized per block, activations quantized per row or pixel and block as they arrive (`compute="int8"`).

    Convolutions are `qcore.conv2d`, products `qcore.linear`; the GRU has two, with float gates between them, whose
    sigmoid and tanh are look-up tables.
    """

    def __init__(self, bits: Literal[4, 8], block_size: int, method: Literal["rtn", "mse"] = "rtn") -> None:
        super().__init__()
        self._bits = bits
        self._block_size = block_size
        self._method = method

    def _quantized(self, weight: Floats, block_size: int) -> QuantizedTensor:
        quantized = qcore.quantize(
            weight, bits=self._bits, block_size=block_size, method=self._method, scale_dtype="float32"
        )
        self.weight_count += weight.size
        self.weight_bytes += quantized.nbytes
        return quantized

    def conv2d(self, weight: Floats, bias: Floats, *, padding: int, with_relu: bool = False) -> Layer:
        quantized = self._quantized(weight, min(self._block_size, CONV_BLOCK_SIZE))
        activation = "relu" if with_relu else None

        def apply(x: Floats) -> Floats:
            y: Floats = qcore.conv2d(x, quantized, bias, padding=padding, compute="int8", activation=activation)
            return y

        return apply

    def product(self, weight: Floats, bias: Floats, *, with_relu: bool = False) -> Product:
        quantized = self._quantized(weight, self._block_size)
        activation = "relu" if with_relu else None

        def apply(x: Floats) -> Floats:
            y: Floats = qcore.linear(x, quantized, bias, compute="int8", activation=activation)
            return y

        return apply
