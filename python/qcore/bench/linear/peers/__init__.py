"""Other libraries' linear layers: a file per library and kind, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...contender import Contender
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

# Contenders of one library stay together: changing libraries costs a pause.
SOURCES: dict[str, Callable[[Weight, int], list[Contender]]] = {
    "torch, floating point": torch_float.contenders,
    "torch, int8": torch_int8.contenders,
    "torch, weight only": torch_weight_only.contenders,
    "torchao": torchao.contenders,
    "onnxruntime, dense": onnxruntime_dense.contenders,
    "onnxruntime, MatMulNBits": onnxruntime_nbits.contenders,
    "openvino": openvino.contenders,
    "mlx": mlx.contenders,
    "ggml": ggml.contenders,
}
