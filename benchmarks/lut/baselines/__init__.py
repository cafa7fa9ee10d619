"""Other libraries' functions: a file per library, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...implementation import Implementation
from ..problem import Problem
from . import numpy_expressions, onnxruntime_nodes, torch_functions

SOURCES: dict[str, Callable[[Problem], list[Implementation]]] = {
    "torch": torch_functions.implementations,
    "numpy": numpy_expressions.implementations,
    "onnxruntime": onnxruntime_nodes.implementations,
}
