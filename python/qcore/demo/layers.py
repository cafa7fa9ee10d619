"""The layers of the model in NumPy, written around matrix products.

A convolution is a product over image patches and a GRU is two products and some gates, so each layer takes its
products from outside: in float, or from quantized weights. Data are fp32; images are NCHW, sequences [B, T, C].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import qcore
from qcore.gru import Calibrator, Config, GruWeights, QuantGRU

from .data import Floats

Layer = Callable[[Floats], Floats]
Product = Callable[[Floats], Floats]  # [..., K] -> [..., N], the weight and the bias inside
Function = Callable[[Floats], Floats]  # element by element


def relu(x: Floats, out: Floats | None = None) -> Floats:
    y: Floats = np.maximum(x, np.float32(0), out=out)
    return y


def sigmoid(x: Floats) -> Floats:
    half = np.float32(0.5)
    y: Floats = half * np.tanh(half * x) + half  # tanh saturates where exp would overflow
    return y


def patches(x: Floats, kernel: tuple[int, int], padding: int) -> Floats:
    """Gather windows (im2col): [B, Ci, H, W] -> [B, Ho, Wo, Kh*Kw*Ci], stride 1, zeros outside the image.

    Channels come last, so that a run of Kw*Ci values is copied at once and a block of channels shares a scale.
    """
    nhwc = np.pad(x.transpose(0, 2, 3, 1), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = sliding_window_view(nhwc, kernel, axis=(1, 2))  # [B, Ho, Wo, Ci, Kh, Kw], a view
    columns = windows.transpose(0, 1, 2, 4, 5, 3)
    return columns.reshape(*columns.shape[:3], -1)


def patch_weight(weight: Floats) -> Floats:
    """Turn [Co, Ci, Kh, Kw] into [Co, Kh*Kw*Ci], the order of `patches`."""
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(weight.shape[0], -1)


class PatchConv2d:
    """[B, Ci, H, W] -> [B, Co, Ho, Wo] as one product of `patches` and `patch_weight`."""

    def __init__(self, product: Product, kernel: tuple[int, int], padding: int) -> None:
        self._product = product
        self._kernel = kernel
        self._padding = padding

    def __call__(self, x: Floats) -> Floats:
        y = self._product(patches(x, self._kernel, self._padding))
        return y.transpose(0, 3, 1, 2)


class GatedGru:
    """[B, T, C] -> [B, H], the state after the last step, with torch.nn.GRU's gates in its order [r, z, n].

    The recurrent bias of n sits inside the reset gate's product, so the two products keep their own biases.
    """

    def __init__(
        self,
        input_product: Product,
        recurrent_product: Product,
        hidden_size: int,
        sigmoid: Function = sigmoid,
        tanh: Function = np.tanh,
    ) -> None:
        self._input_product = input_product  # [B, T, C] -> [B, T, 3H], all steps at once
        self._recurrent_product = recurrent_product  # [B, H] -> [B, 3H]
        self._hidden_size = hidden_size
        self._sigmoid = sigmoid
        self._tanh = tanh

    def __call__(self, x: Floats) -> Floats:
        size = self._hidden_size
        from_input = self._input_product(x)
        h = np.zeros((len(x), size), np.float32)
        for t in range(x.shape[1]):
            from_x, from_h = from_input[:, t], self._recurrent_product(h)
            gates = self._sigmoid(from_x[:, : 2 * size] + from_h[:, : 2 * size])
            r, z = gates[:, :size], gates[:, size:]
            n = self._tanh(from_x[:, 2 * size :] + r * from_h[:, 2 * size :])
            h = n + z * (h - n)
        return h


class Calibrated(ABC):
    """A layer that needs samples before it is called."""

    @abstractmethod
    def calibrate(self, x: Floats) -> None:
        """Choose formats for what samples ``x`` of the layer's input make necessary."""

    @abstractmethod
    def __call__(self, x: Floats) -> Floats: ...


class FixedGru(Calibrated):
    """[B, T, C] -> [B, H], the state after the last step, by qcore.gru in integers.

    w [3H, C], r [3H, H] and biases [3H] in torch's gate order.
    """

    def __init__(self, w: Floats, r: Floats, bias_w: Floats, bias_r: Floats, bits: int) -> None:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        parameters = dict(zip(names, (w, r, bias_w, bias_r), strict=True))
        self._weights = GruWeights.from_state_dict(parameters, batch_first=True)
        self._bits = bits
        self._gru: QuantGRU | None = None

    def calibrate(self, x: Floats) -> None:
        self._gru = Calibrator(self._weights).observe(x).finish(Config(bits=self._bits, pipeline="fused"))

    def __call__(self, x: Floats) -> Floats:
        if self._gru is None:
            raise qcore.QcoreValueError("demo: the GRU was called before calibrate(x), expected samples first")
        last: Floats = self._gru(x)[1][0]
        return last


def rows_as_steps(x: Floats) -> Floats:
    """Turn [B, C, H, W] into [B, H, W*C]: each image row becomes one time step."""
    return x.transpose(0, 2, 3, 1).reshape(x.shape[0], x.shape[2], -1)
