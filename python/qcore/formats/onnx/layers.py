"""Static operators from what nodes hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core, static
from qcore.formats.onnx.codes import Format, Weight
from qcore.formats.onnx.graph import Graph, Node
from qcore.formats.onnx.windows import window_of

Clamp = tuple[int, int]
Bias = NDArray[np.int32]


def convolution(
    graph: Graph, node: Node, x: Format, weight: Weight, y: Format, bias: Bias | None, clamp: Clamp | None = None
) -> static.QConv2d:
    """Return a node's convolution: its window is in its attributes."""
    kernel: tuple[int, int] = weight.codes.shape[2:]
    made: static.QConv2d = _made(
        static.QConv2d, node, x, weight, y, bias, clamp=clamp, **window_of(graph, node, kernel)
    )
    return made


def product(
    node: Node, x: Format, weight: Weight, y: Format, bias: Bias | None, clamp: Clamp | None = None
) -> static.QLinear:
    made: static.QLinear = _made(static.QLinear, node, x, weight, y, bias, clamp=clamp)
    return made


def check_rank(codes: NDArray[Any], rank: int, names: str, where: str) -> None:
    """Check the rank of a weight before anything is transposed."""
    if codes.ndim != rank:
        raise _core.QcoreValueError(f"{where} has shape {list(codes.shape)}, expected {names}")


def _made(kind: Any, node: Node, x: Format, weight: Weight, y: Format, bias: Bias | None, **options: Any) -> Any:
    try:
        return kind(
            x.scale, x.zero_point, weight.codes, weight.scale, y.scale, y.zero_point, bias,
            w_zero_point=weight.zero_point, x_dtype=x.dtype, y_dtype=y.dtype, **options,
        )  # fmt: skip
    except (_core.QcoreValueError, _core.QcoreTypeError) as error:
        raise type(error)(f"{node.where}: {error}") from error
