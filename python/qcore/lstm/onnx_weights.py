"""LSTM nodes of ONNX models. Source: the operator LSTM of https://onnx.ai/onnx/operators/onnx__LSTM.html."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import _core
from qcore._recurrent.onnx_nodes import Node, arrays_of_node, checked_attributes, constant_of, open_node
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
    arrays = arrays_of_node(node, 4, direction)
    peepholes = _peepholes(node, len(arrays), arrays[0][1].shape[1])
    layer = []
    for (w, r, b), p in zip(arrays, peepholes, strict=True):
        bx, br = (None, None) if b is None else np.split(b, 2)
        w, r, bx, br = (None if part is None else _reordered(part) for part in (w, r, bx, br))
        layer.append(Direction(w, r, bx, br, node.where, peepholes=p))
    return layer, batch_first, direction == "reverse"


def _peepholes(node: Node, directions: int, size: int) -> list[Any]:
    """Return [3, H] of i, f and o of each direction, None without peepholes; ONNX has [3H] of i, o and f."""
    given = constant_of(node, _PEEPHOLES, "P")
    if given is None:
        return [None] * directions
    if given.shape != (directions, 3 * size):
        raise _core.QcoreValueError(
            f"{node.where} has P {list(given.shape)}, expected {[directions, 3 * size]} of i, o and f"
        )
    return [each.reshape(3, size)[[0, 2, 1]] for each in given]


def _reordered(rows: Any) -> Any:
    """Return rows in ONNX's order i, o, f, c as i, f, c, o."""
    i, o, f, c = np.split(rows, 4)
    return np.concatenate([i, f, c, o])
