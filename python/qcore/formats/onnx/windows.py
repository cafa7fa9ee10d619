"""A convolution's attributes: strides, dilations, group, pads and auto_pad."""

from __future__ import annotations

from typing import Any

from qcore import _checks, _core
from qcore.formats.onnx.graph import Graph, Node

_AUTO_PAD = {each: each for each in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}


def window_of(graph: Graph, node: Node, kernel: tuple[int, int]) -> dict[str, Any]:
    """stride, padding, dilation and groups of :class:`qcore.static.QConv2d`."""
    stated = _integers(node, "kernel_shape", kernel)
    if stated != kernel:
        raise _core.QcoreValueError(
            f"{node.where}: kernel_shape is {list(stated)}, expected {list(kernel)}, as the weight has"
        )
    stride, dilation = _integers(node, "strides", (1, 1)), _integers(node, "dilations", (1, 1))
    pads = _integers(node, "pads", (0, 0, 0, 0))
    for name, numbers, least in (("strides", stride, 1), ("dilations", dilation, 1), ("pads", pads, 0)):
        if min(numbers) < least:
            raise _core.QcoreValueError(f"{node.where}: {name} is {list(numbers)}, expected numbers from {least} on")
    groups = _checks.integer(node.attributes.get("group", 1), f"{node.where}: group")
    given = node.attributes.get("auto_pad", b"NOTSET")
    name = given.decode(errors="replace") if isinstance(given, bytes) else given
    kind = _checks.choice(name, _AUTO_PAD, f"{node.where}: auto_pad")
    if kind == "VALID":
        pads = (0, 0, 0, 0)
    elif kind != "NOTSET":
        pads = _same(graph, node, kernel, stride, dilation, upper=kind == "SAME_UPPER")
    return {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}


def _same(
    graph: Graph,
    node: Node,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    *,
    upper: bool,
) -> tuple[int, ...]:
    """Return the padding that leaves ceil(size / stride) pixels, an odd one at the end (upper) or the beginning."""
    shape = graph.shape(node.input(0))
    before, after = [], []
    for axis in range(2):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        if stride[axis] == 1:
            total = reach - 1  # whatever the size
        else:
            size = shape[2 + axis] if shape is not None and len(shape) == 4 else None
            if size is None:
                raise _core.QcoreValueError(
                    f"{node.where}: auto_pad is SAME and the size of {node.input(0)!r} is not known in the graph, "
                    "expected a model with fixed image sizes, or one with pads"
                )
            total = max((-(-size // stride[axis]) - 1) * stride[axis] + reach - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if upper else large)
        after.append(large if upper else small)
    return (*before, *after)


def _integers(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = node.attributes.get(name)
    if value is None:
        return default
    if not isinstance(value, (list, tuple)) or len(value) != len(default):
        shown = list(value) if isinstance(value, (list, tuple)) else value
        raise _core.QcoreValueError(f"{node.where}: {name} is {shown!r}, expected {len(default)} integers")
    return tuple(_checks.integer(each, f"{node.where}: {name}") for each in value)
