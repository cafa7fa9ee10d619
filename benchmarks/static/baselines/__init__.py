"""Other libraries' convolutions: a file per library, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...implementation import Implementation
from ..problem import Layer
from . import onnxruntime_nodes, torch_quantized

SOURCES: dict[str, Callable[[Layer], list[Implementation]]] = {
    "torch": torch_quantized.implementations,
    "onnxruntime": onnxruntime_nodes.implementations,
}
