"""Other libraries' linear layers: a file per library and kind, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...implementation import Implementation
from ..weight import Weight
from . import (
    ggml,
    mlx,
    onnxruntime_dense,
    onnxruntime_nbits,
    openvino,
    torch_float,
    torch_int8,
    torch_weight_only,
    torchao,
)

# Implementations of one library stay together: changing libraries costs a pause.
SOURCES: dict[str, Callable[[Weight, int], list[Implementation]]] = {
    "torch, floating point": torch_float.implementations,
    "torch, int8": torch_int8.implementations,
    "torch, weight only": torch_weight_only.implementations,
    "torchao": torchao.implementations,
    "onnxruntime, dense": onnxruntime_dense.implementations,
    "onnxruntime, MatMulNBits": onnxruntime_nbits.implementations,
    "openvino": openvino.implementations,
    "mlx": mlx.implementations,
    "ggml": ggml.implementations,
}
