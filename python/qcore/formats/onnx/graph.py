"""A model's graph: who makes a value, who takes it, which values are constants, and what is known of their types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core

STANDARD_DOMAINS = ("", "ai.onnx")
_PLAIN_CONSTANTS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def package() -> Any:
    """Return the module onnx.

    Raises:
        QcoreTypeError: it is not installed.
    """
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as error:
        raise _core.QcoreTypeError(
            "onnx: ONNX models need the package onnx: pip install 'libqcore[formats]'"
        ) from error
    return onnx


class Node:
    """A node, and how errors name it."""

    def __init__(self, proto: Any) -> None:
        self.op_type, self.domain = str(proto.op_type), str(proto.domain)
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.name = proto.name or (self.outputs[0] if self.outputs else "")
        self.where = f"from_onnx: node {self.name!r}"
        self._proto = proto

    @property
    def is_standard(self) -> bool:
        return self.domain in STANDARD_DOMAINS

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        try:
            return {each.name: package().helper.get_attribute_value(each) for each in self._proto.attribute}
        except Exception as error:  # whatever a broken attribute leads to
            raise _core.QcoreValueError(f"{self.where} has an attribute that can't be read: {error}") from error

    def input(self, index: int) -> str:
        """Return an input's name; empty if it is not given."""
        return str(self.inputs[index]) if index < len(self.inputs) else ""

    def output(self) -> str:
        if not self.outputs or not self.outputs[0]:
            raise _core.QcoreValueError(f"{self.where} ({self.op_type}) has no output, expected one")
        return str(self.outputs[0])


class Graph:
    """The main graph of a model. Graphs inside of its nodes (If, Loop) are not looked at."""

    def __init__(self, model: Any) -> None:
        graph = model.graph
        self._model = model
        self.nodes = [Node(each) for each in graph.node]
        self._tensors = {each.name: each for each in graph.initializer}
        self._inputs = {each.name for each in graph.input}
        self.outputs = {each.name for each in graph.output}
        self._producers: dict[str, Node] = {}
        self._twice: dict[str, Node] = {}
        self._consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in filter(None, node.outputs):
                if name in self._producers:
                    self._twice[name] = node
                self._producers[name] = node
            for name in filter(None, node.inputs):
                self._consumers.setdefault(name, []).append(node)

    def producer(self, name: str) -> Node | None:
        self._check_single(name)
        return self._producers.get(name)

    def consumers(self, name: str) -> list[Node]:
        self._check_single(name)
        return self._consumers.get(name, [])

    def _check_single(self, name: str) -> None:
        if name in self._twice:
            raise _core.QcoreValueError(f"{self._twice[name].where} makes {name!r}, which another node makes too")

    def is_constant(self, name: str) -> bool:
        node = self.producer(name)
        return name in self._tensors or (node is not None and node.is_standard and node.op_type == "Constant")

    def is_computed(self, name: str) -> bool:
        """Return whether a node or the model's caller makes the value."""
        return not self.is_constant(name) and (name in self._producers or name in self._inputs)

    def constant(self, name: str, where: str) -> NDArray[Any] | None:
        """Return a constant's array; None if no name is given."""
        if not name:
            return None
        if not self.is_constant(name):
            raise _core.QcoreValueError(f"{where} is {name!r}, which is no initializer, expected a constant")
        try:
            array: NDArray[Any] = self._array(name)
        except _core.QcoreValueError:
            raise
        except Exception as error:  # whatever broken raw data leads to
            raise _core.QcoreValueError(f"{where} is {name!r}, which can't be read: {error}") from error
        return array

    def required(self, name: str, where: str) -> NDArray[Any]:
        """Return a constant's array that must be there."""
        array = self.constant(name, where)
        if array is None:
            raise _core.QcoreValueError(f"{where} is not given, expected a constant")
        return array

    def _array(self, name: str) -> Any:
        if name in self._tensors:
            return package().numpy_helper.to_array(self._tensors[name])
        attributes = self._producers[name].attributes
        if "value" in attributes:
            return package().numpy_helper.to_array(attributes["value"])
        for attribute, dtype in _PLAIN_CONSTANTS.items():
            if attribute in attributes:
                return np.asarray(attributes[attribute], dtype)
        raise _core.QcoreValueError(f"{self._producers[name].where} has {sorted(attributes)}, expected a tensor")

    @cached_property
    def _types(self) -> dict[str, Any]:
        """Tensor types by value, those that the model states and those that follow from them."""
        try:
            graph = package().shape_inference.infer_shapes(self._model).graph
        except Exception:  # larger than 2 GB, or no valid graph: what is stated has to do
            graph = self._model.graph
        values = [*graph.value_info, *graph.input, *graph.output]
        return {each.name: each.type.tensor_type for each in values if each.type.HasField("tensor_type")}

    def dtype(self, name: str) -> str | None:
        """Return a value's type by NumPy's name for it, as far as the graph tells."""
        if name in self._tensors:
            number = self._tensors[name].data_type
        elif name in self._types:
            number = self._types[name].elem_type
        else:
            return None
        try:
            return str(package().TensorProto.DataType.Name(number)).lower() if number else None
        except ValueError:
            return None

    def shape(self, name: str) -> list[int | None] | None:
        """Return a value's extents, None where one is not known, as far as the graph tells."""
        if name not in self._types or not self._types[name].HasField("shape"):
            return None
        sizes = self._types[name].shape.dim
        return [int(each.dim_value) if each.HasField("dim_value") else None for each in sizes]


def graph_of(model: Any) -> Graph:
    """Return the graph of a path or an ``onnx.ModelProto``."""
    onnx = package()
    if isinstance(model, (str, os.PathLike)):
        try:
            model = onnx.load(os.fspath(model))
        except OSError:
            raise
        except Exception as error:  # protobuf's own errors
            raise _core.QcoreValueError(f"from_onnx: {os.fspath(model)} is not an ONNX model: {error}") from error
    if getattr(model, "graph", None) is None:
        raise _core.QcoreTypeError(f"from_onnx: model is a {type(model).__name__}, expected a path or a ModelProto")
    return Graph(model)
