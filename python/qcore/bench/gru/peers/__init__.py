"""Other libraries' GRUs: a file per library and kind, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...contender import Contender
from ..problem import Layer
from . import onnxruntime_gru, torch_dynamic, torch_float

SOURCES: dict[str, Callable[[Layer], list[Contender]]] = {
    "torch, floating point": torch_float.contenders,
    "torch, quantize_dynamic": torch_dynamic.contenders,
    "onnxruntime": onnxruntime_gru.contenders,
}
