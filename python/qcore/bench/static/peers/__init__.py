"""Other libraries' convolutions: a file per library, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...contender import Contender
from ..problem import Layer
from . import onnxruntime_nodes, torch_quantized

SOURCES: dict[str, Callable[[Layer], list[Contender]]] = {
    "torch": torch_quantized.contenders,
    "onnxruntime": onnxruntime_nodes.contenders,
}
