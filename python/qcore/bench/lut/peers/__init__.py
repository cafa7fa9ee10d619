"""Other libraries' functions: a file per library, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from ...contender import Contender
from ..problem import Problem
from . import numpy_expressions, onnxruntime_nodes, torch_functions

SOURCES: dict[str, Callable[[Problem], list[Contender]]] = {
    "torch": torch_functions.contenders,
    "numpy": numpy_expressions.contenders,
    "onnxruntime": onnxruntime_nodes.contenders,
}
