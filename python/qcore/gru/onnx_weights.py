"""GRU nodes of ONNX models. Source: the operator GRU of https://onnx.ai/onnx/operators/onnx__GRU.html."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore._recurrent.onnx_nodes import arrays_of_node, checked_attributes, open_node
from qcore.gru.direction import Direction


def layer_of_node(model: Any, name: str | None) -> tuple[list[Direction], bool, bool]:
    """Return the directions of a GRU node's layer, batch_first and reverse.

    Arguments and errors are those of :meth:`GruWeights.from_onnx`.
    """
    node = open_node(model, name, "GRU")
    direction, batch_first = checked_attributes(node, ["sigmoid", "tanh"], "sigmoid and tanh")
    form = node.attributes.get("linear_before_reset", 0)
    layer = []
    for w, r, b in arrays_of_node(node, 3, direction):
        bx, br = (None, None) if b is None else np.split(b, 2)
        layer.append(Direction(w, r, bx, br, node.where, linear_before_reset=form))
    return layer, batch_first, direction == "reverse"
