"""Other libraries' recurrent layers: a file per library and kind, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...implementation import Implementation
from ..problem import Layer
from . import onnxruntime_node, torch_dynamic, torch_float

SOURCES: dict[str, Callable[[Layer], list[Implementation]]] = {
    "torch, floating point": torch_float.implementations,
    "torch, quantize_dynamic": torch_dynamic.implementations,
    "onnxruntime": onnxruntime_node.implementations,
}
