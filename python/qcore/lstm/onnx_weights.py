"""LSTM nodes of ONNX models. Source: the operator LSTM of https://onnx.ai/onnx/operators/onnx__LSTM.html."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import _core
from qcore._recurrent.onnx_nodes import arrays_of_node, checked_attributes, open_node
from qcore.lstm.direction import Direction

_PEEPHOLES = 7
"""Place of P among the node's inputs: X, W, R, B, sequence_lens, initial_h, initial_c, P."""


def layer_of_node(model: Any, name: str | None) -> tuple[list[Direction], bool, bool]:
    """Return the directions of an LSTM node's layer, batch_first and reverse.

    Arguments and errors are those of :meth:`LstmWeights.from_onnx`.
    """
    node = open_node(model, name, "LSTM")
    direction, batch_first = checked_attributes(node, ["sigmoid", "tanh", "tanh"], "sigmoid, tanh and tanh")
    if node.attributes.get("input_forget", 0):
        raise _core.QcoreValueError(
            f"{node.where} has input_forget = 1, expected 0: with 1 the forget gate is 1 - i, another cell"
        )
    if len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES]:
        raise _core.QcoreValueError(
            f"{node.where} has peepholes (input P, {node.inputs[_PEEPHOLES]!r}), expected none: gates that look at the "
            "cell state are another cell"
        )
    layer = []
    for w, r, b in arrays_of_node(node, 4, direction):
        bx, br = (None, None) if b is None else np.split(b, 2)
        w, r, bx, br = (None if part is None else _reordered(part) for part in (w, r, bx, br))
        layer.append(Direction(w, r, bx, br, node.where))
    return layer, batch_first, direction == "reverse"


def _reordered(rows: Any) -> Any:
    """Return rows in ONNX's order i, o, f, c as i, f, c, o."""
    i, o, f, c = np.split(rows, 4)
    return np.concatenate([i, f, c, o])
