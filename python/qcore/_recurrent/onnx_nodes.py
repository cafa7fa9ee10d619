"""GRU and LSTM nodes of ONNX models: their attributes and constants."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from qcore import _core

_DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclasses.dataclass(frozen=True)
class Node:
    """A node with its attributes and the model's constants; ``where`` is what errors begin with."""

    where: str
    attributes: dict[str, Any]
    inputs: list[str]
    constants: dict[str, Any]


def open_node(model: Any, name: str | None, kind: str) -> Node:
    """Return a model's node.

    Args:
        model: a path, or a loaded ModelProto.
        name: the node's name; None if the model has one node of the kind.
        kind: "GRU" or "LSTM".

    Raises:
        QcoreValueError, QcoreTypeError: the package onnx is missing, this is no model, or which node is unclear.
        OSError: the file can't be read.
    """
    op = kind.lower()
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise _core.QcoreTypeError(
            f"{op} weights: reading ONNX models needs the package onnx: pip install 'libqcore[formats]'"
        ) from error
    if isinstance(model, (str, os.PathLike)):
        try:
            model = onnx.load(os.fspath(model))
        except OSError:
            raise
        except Exception as error:  # protobuf's own errors
            raise _core.QcoreValueError(f"{op} weights: {os.fspath(model)} is not an ONNX model: {error}") from error
    graph = getattr(model, "graph", None)
    if graph is None:
        raise _core.QcoreTypeError(f"{op} weights: model is a {type(model).__name__}, expected a path or a ModelProto")
    found = _chosen(graph, name, kind)
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in found.attribute}
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    return Node(f"{op} weights: node {found.name!r}", attributes, list(found.input), constants)


def _chosen(graph: Any, name: str | None, kind: str) -> Any:
    op = kind.lower()
    nodes = [each for each in graph.node if each.op_type == kind]
    names = ", ".join(repr(each.name) for each in nodes) or "none"
    if name is None:
        if len(nodes) != 1:
            raise _core.QcoreValueError(
                f"{op} weights: the model has {len(nodes)} {kind} nodes, expected node= one of: {names}"
            )
        return nodes[0]
    matching = [each for each in nodes if each.name == name]
    if len(matching) != 1:
        raise _core.QcoreValueError(f"{op} weights: node is {name!r}, expected one {kind} node out of: {names}")
    return matching[0]


def checked_attributes(node: Node, functions: list[str], described: str) -> tuple[str, bool]:
    """Return (direction, batch_first), if the rest is what the cells compute.

    Args:
        node: the node.
        functions: the activations of one direction, in lower case.
        described: the same for the error.
    """
    direction = node.attributes.get("direction", b"forward").decode()
    if direction not in _DIRECTIONS:
        raise _core.QcoreValueError(f"{node.where} has direction {direction!r}, expected {' or '.join(_DIRECTIONS)}")
    given = [each.decode().lower() for each in node.attributes.get("activations", [])]
    if given and given != functions * (len(given) // len(functions)):
        raise _core.QcoreValueError(f"{node.where} has activations {given}, expected {described}")
    if "clip" in node.attributes:
        raise _core.QcoreValueError(f"{node.where} clips at {node.attributes['clip']}, expected no clip")
    return direction, node.attributes.get("layout", 0) == 1


def arrays_of_node(node: Node, gates: int, direction: str) -> list[tuple[Any, Any, Any]]:
    """Return W [gates * H, C], R [gates * H, H] and B [2 * gates * H], or None for B, of each direction."""
    w, r, b = (constant_of(node, index, name) for index, name in enumerate("WRB", 1))
    directions = 2 if direction == "bidirectional" else 1
    shapes = ", ".join(f"{name} {None if each is None else list(each.shape)}" for name, each in (("W", w), ("R", r)))
    if w is None or r is None or w.ndim != 3 or r.ndim != 3 or w.shape[:2] != (directions, gates * r.shape[2]):
        raise _core.QcoreValueError(
            f"{node.where} has {shapes}, expected [{directions}, {gates}H, C] and [{directions}, {gates}H, H]"
        )
    if b is not None and b.shape != (directions, 2 * gates * r.shape[2]):
        raise _core.QcoreValueError(f"{node.where} has B {list(b.shape)}, expected [{directions}, {2 * gates}H]")
    return [(w[side], r[side], None if b is None else b[side]) for side in range(directions)]


def constant_of(node: Node, index: int, name: str) -> Any:
    """Return an input's array, None if the node does not have it; errors call it `name`."""
    if len(node.inputs) <= index or not node.inputs[index]:
        return None
    if node.inputs[index] not in node.constants:
        raise _core.QcoreValueError(
            f"{node.where} computes its {name} ({node.inputs[index]!r}), expected an initializer"
        )
    return node.constants[node.inputs[index]]
