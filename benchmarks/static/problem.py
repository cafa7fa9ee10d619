"""One layer, its codes and its exact results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

import qcore

from ..implementation import Array

# Mean distance of codes, beyond which a result is another one. torch's fbgemm, which x86 takes for depthwise layers, is
# some 2 off where weights use all of 8 bits: its sums of two products saturate.
_MOST_WRONG = 5.0


@dataclass(frozen=True)
class Layer:
    """x [N, Ci, H, W], weight [Co, Ci / groups, Kh, Kw]."""

    x: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def name(self) -> str:
        x, weight = ("x".join(map(str, shape)) for shape in (self.x, self.weight))
        window = f"s{self.stride}" + (f" g{self.groups}" if self.groups > 1 else "")
        return f"{x} w{weight} {window}"

    @property
    def y(self) -> tuple[int, int, int, int]:
        rows, columns = (
            (extent + 2 * self.padding - kernel) // self.stride + 1
            for extent, kernel in zip(self.x[2:], self.weight[2:], strict=True)
        )
        return self.x[0], self.weight[0], rows, columns

    @property
    def weights(self) -> int:
        return int(np.prod(self.weight))

    @property
    def operations(self) -> int:
        return 2 * int(np.prod(self.y)) * int(np.prod(self.weight[1:]))


@dataclass
class Codes:
    """Parameters of a layer and its input: uint8 codes, int8 weights with a scale per channel, int32 bias."""

    layer: Layer
    x: Array = field(init=False)
    weight: Array = field(init=False)
    w_scale: Array = field(init=False)
    bias: Array = field(init=False)
    x_scale: float = 0.02
    x_zero_point: int = 120
    y_scale: float = field(init=False)
    y_zero_point: int = 110

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.layer.operations)
        self.x = generator.integers(0, 256, self.layer.x).astype(np.uint8)
        self.weight = generator.integers(-127, 128, self.layer.weight).astype(np.int8)
        channels, count = self.layer.weight[0], int(np.prod(self.layer.weight[1:]))
        self.w_scale = generator.uniform(0.005, 0.015, channels).astype(np.float32)
        self.bias = generator.integers(-20000, 20000, channels).astype(np.int32)
        self.y_scale = float(np.float32(self.x_scale * 0.01 * 74 * 74 * count**0.5 / 50))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Return the arguments of qcore.static's layers, in their order."""
        return (
            self.x_scale, self.x_zero_point, self.weight, self.w_scale, self.y_scale, self.y_zero_point, self.bias,
        )  # fmt: skip

    @cached_property
    def truth(self) -> Array:
        """The codes, from exact sums."""
        sums = convolved(self.layer, self.x.astype(np.float64) - self.x_zero_point, self.weight)
        sums = (sums.transpose(0, 2, 3, 1) + self.bias).astype(np.float32)
        multiplier = np.float32(self.x_scale) * self.w_scale / np.float32(self.y_scale)
        codes = np.clip(np.rint(sums * multiplier) + self.y_zero_point, 0, 255)
        return np.asarray(codes.transpose(0, 3, 1, 2))

    def error(self, result: Array) -> float:
        """Mean distance of codes. Raises QcoreValueError for what is another result."""
        if result.shape != self.layer.y:
            raise qcore.QcoreValueError(f"bench: a result has shape {list(result.shape)}, expected {self.layer.y}")
        error = float(np.abs(result.astype(np.float64) - self.truth).mean())
        if not error <= _MOST_WRONG:
            raise qcore.QcoreValueError(f"bench: a result's codes are {error:.3g} from the exact ones on average")
        return error


def convolved(layer: Layer, x: Array, weight: Array) -> Array:
    """Return the convolution of x with the layer's window, in float64."""
    padding, stride, groups, per_group = layer.padding, layer.stride, layer.groups, layer.weight[1]
    n, channels, rows, columns = layer.y
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2]).transpose(0, 2, 3, 1)
    acc = np.zeros((n, rows, columns, groups, channels // groups))
    weight = weight.astype(np.float64).reshape(groups, channels // groups, per_group, *layer.weight[2:])
    for i in range(layer.weight[2]):
        for j in range(layer.weight[3]):
            tap = x[:, i : i + stride * rows : stride, j : j + stride * columns : stride][:, :rows, :columns]
            split = tap.reshape(n, rows, columns, groups, 1, per_group)
            acc += (split @ weight[..., i, j].transpose(0, 2, 1))[..., 0, :]
    return acc.reshape(n, rows, columns, channels).transpose(0, 3, 1, 2)


def channels_last(x: Array) -> Array:
    """Return the same array in other memory."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
