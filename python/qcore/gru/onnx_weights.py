"""GRU nodes of ONNX models. Source: the operator GRU of https://onnx.ai/onnx/operators/onnx__GRU.html."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qcore import _core
from qcore.gru.direction import Direction


def layer_of_node(model: Any, node: str | None) -> tuple[list[Direction], bool]:
    """Return the directions of a GRU node's layer, and batch_first.

    Arguments and errors are those of :meth:`GruWeights.from_onnx`.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise _core.QcoreTypeError(
            "gru weights: reading ONNX models needs the package onnx: pip install 'libqcore[formats]'"
        ) from error
    if isinstance(model, (str, os.PathLike)):
        try:
            model = onnx.load(os.fspath(model))
        except OSError:
            raise
        except Exception as error:  # protobuf's own errors
            raise _core.QcoreValueError(f"gru weights: {os.fspath(model)} is not an ONNX model: {error}") from error
    graph = getattr(model, "graph", None)
    if graph is None:
        raise _core.QcoreTypeError(f"gru weights: model is a {type(model).__name__}, expected a path or a ModelProto")
    found = _chosen(graph, node)
    where = f"gru weights: node {found.name!r}"
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in found.attribute}
    direction, batch_first = _checked(attributes, where)
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    w, r, b = (_constant(found, constants, index, name, where) for index, name in enumerate("WRB", 1))
    directions = 2 if direction == "bidirectional" else 1
    shapes = ", ".join(f"{name} {None if each is None else list(each.shape)}" for name, each in (("W", w), ("R", r)))
    if w is None or r is None or w.ndim != 3 or r.ndim != 3 or w.shape[:2] != (directions, 3 * r.shape[2]):
        raise _core.QcoreValueError(f"{where} has {shapes}, expected [{directions}, 3H, C] and [{directions}, 3H, H]")
    if b is not None and b.shape != (directions, 6 * r.shape[2]):
        raise _core.QcoreValueError(f"{where} has B {list(b.shape)}, expected [{directions}, 6H]")
    layer = []
    for side in range(directions):
        bx, br = (None, None) if b is None else np.split(b[side], 2)
        layer.append(Direction(w[side], r[side], bx, br, where))
    return layer, batch_first


def _chosen(graph: Any, name: str | None) -> Any:
    nodes = [each for each in graph.node if each.op_type == "GRU"]
    names = ", ".join(repr(each.name) for each in nodes) or "none"
    if name is None:
        if len(nodes) != 1:
            raise _core.QcoreValueError(
                f"gru weights: the model has {len(nodes)} GRU nodes, expected node= one of: {names}"
            )
        return nodes[0]
    matching = [each for each in nodes if each.name == name]
    if len(matching) != 1:
        raise _core.QcoreValueError(f"gru weights: node is {name!r}, expected one GRU node out of: {names}")
    return matching[0]


def _checked(attributes: dict[str, Any], where: str) -> tuple[str, bool]:
    """Return (direction, batch_first), if the rest is what the cell computes."""
    if attributes.get("linear_before_reset", 0) != 1:
        raise _core.QcoreValueError(
            f"{where} has linear_before_reset = 0, expected 1: with 0 the reset gate multiplies h before its product "
            "with R, with 1 (torch's cell, and qcore's) the product's result; the weights of one do not serve the other"
        )
    direction = attributes.get("direction", b"forward").decode()
    if direction not in ("forward", "bidirectional"):
        raise _core.QcoreValueError(f"{where} has direction {direction!r}, expected 'forward' or 'bidirectional'")
    functions = [each.decode().lower() for each in attributes.get("activations", [])]
    if functions and functions != ["sigmoid", "tanh"] * (len(functions) // 2):
        raise _core.QcoreValueError(f"{where} has activations {functions}, expected sigmoid and tanh")
    if "clip" in attributes:
        raise _core.QcoreValueError(f"{where} clips at {attributes['clip']}, expected no clip")
    return direction, attributes.get("layout", 0) == 1


def _constant(node: Any, constants: dict[str, Any], index: int, name: str, where: str) -> Any:
    if len(node.input) <= index or not node.input[index]:
        return None
    if node.input[index] not in constants:
        raise _core.QcoreValueError(f"{where} computes its {name} ({node.input[index]!r}), expected an initializer")
    return constants[node.input[index]]
