"""MatMulNBits nodes of ONNX models.

| input | layout |
|---|---|
| B | uint8 [N, P, g * bits / 8], low nibble first along K; the last block is padded |
| scales | float32, float16 or bfloat16 [N, P] or [N * P] |
| zero_points | uint8 [N, ceil(P * bits / 8)], low nibble first, or floats [N, P]; flat or not; 2^(bits - 1) if absent |

Value: ``(u - z) * s``. Source: the operator com.microsoft.MatMulNBits of ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _affine_codec, _bits, _inputs, _outputs, _zero_point_codec
from qcore.formats.onnx.graph import Graph, Node, package
from qcore.quantized_tensor import QuantizedTensor

OPERATOR, DOMAIN = "MatMulNBits", "com.microsoft"
IR_VERSION, OPSET = 10, 21
"""The oldest versions with all that the models need, so that old readers open them."""


def weight_of(graph: Graph, node: Node, *, exact: bool) -> QuantizedTensor:
    """Return the weight [N, K] of a node; its bias is not part of it."""
    inputs = {each: node.input(i) for i, each in enumerate(("A", "B", "scales", "zero_points", "g_idx", "bias"))}
    if inputs["g_idx"]:
        raise _core.QcoreValueError(f"{node.where} has g_idx, expected blocks in the order of K")
    arrays = {each: graph.constant(inputs[each], f"{node.where}: {each}") for each in ("B", "scales", "zero_points")}
    return tensor_of(**arrays, attributes=node.attributes, where=node.where, exact=exact)


def tensor_of(
    B: Any, scales: Any, zero_points: Any, *, attributes: Mapping[str, Any], where: str, exact: bool = True
) -> QuantizedTensor:
    """Make a weight of a node's arrays (zero_points may be None) and attributes N, K, bits (4) and block_size."""
    n, k, bits, size = (
        _checks.integer(attributes.get(each, 4 if each == "bits" else 0), f"{where}: {each}")
        for each in ("N", "K", "bits", "block_size")
    )
    _checks.choice(bits, {4: 4, 8: 8}, f"{where}: bits")
    if n < 1 or k < 1 or size < 16 or size & (size - 1):
        raise _core.QcoreValueError(
            f"{where} has N = {n}, K = {k} and block_size = {size}, expected positive ones and a power of 2 from 16 on"
        )
    if B is None or scales is None:
        raise _core.QcoreValueError(f"{where} has no {'B' if B is None else 'scales'}, expected a constant")
    blocks = -(-k // size)
    packed = _inputs.octets(B, f"{where}: B")
    _inputs.check_shape(packed, (n, blocks, size * bits // 8), f"{where}: B", "[N, P, block_size * bits / 8]")
    codes = _bits.nibbles(packed) if bits == 4 else packed
    codes = codes.reshape(n, -1)[:, :k]
    s = _table(_inputs.reals(scales, f"{where}: scales"), n, blocks, f"{where}: scales")
    zeros = _zeros(zero_points, n, blocks, bits, f"{where}: zero_points")
    if zeros.dtype == np.uint8 or ((zeros == np.rint(zeros)) & (zeros >= 0) & (zeros < 1 << bits)).all():
        return _zero_point_codec.decode(codes, zeros, s, bits=bits, block_size=size, where=where, exact=exact)
    wide = -(s.astype(np.float64) * zeros)
    minima = wide.astype(np.float32)
    if exact and not np.array_equal(minima, wide):
        raise _core.QcoreValueError(f"{where}: {_zero_point_codec.NEEDS_ROUNDING}")
    return _affine_codec.decode(codes, s, minima, bits=bits, block_size=size, where=where, exact=exact)


def _table(array: NDArray[Any], n: int, columns: int, where: str) -> NDArray[Any]:
    if array.shape not in ((n, columns), (n * columns,)):
        raise _core.QcoreValueError(
            f"{where} has shape {list(array.shape)}, expected [{n}, {columns}] or [{n * columns}]"
        )
    return array.reshape(n, columns)


def _zeros(zero_points: Any, n: int, blocks: int, bits: int, where: str) -> NDArray[Any]:
    """Return uint8 or float32 [N, P]."""
    if zero_points is None:
        return np.full((n, blocks), 1 << (bits - 1), np.uint8)
    array = _inputs.host(zero_points, where)
    if array.dtype != np.uint8:
        return _table(_inputs.reals(array, where), n, blocks, where)
    packed = _table(array, n, -(-blocks * bits // 8), where)
    return (_bits.nibbles(packed) if bits == 4 else packed)[:, :blocks]


def to_onnx(weights: Mapping[str, QuantizedTensor]) -> Any:
    """Make an ``onnx.ModelProto`` with one MatMulNBits node per weight [N, K], float32 scales and packed zero points.

    Node ``name`` has the input ``name.x`` [M, K] and the output ``name.y`` [M, N].

    Args:
        weights: QuantizedTensors [N, K] by node name.

    Raises:
        QcoreValueError, QcoreTypeError: a weight has no exact form: the block size is no power of 2 from 16 on, or an
            offset isn't ``scale * (2^(bits - 1) - z)`` with z in 0..2^bits - 1.
    """
    onnx = package()
    layers, constants = [], []
    for name, weight in weights.items():
        arrays = arrays_of(weight, f"to_onnx: {name}")
        layers.append(Layer(name, (weight.shape[0], weight.shape[1]), weight.bits, weight.block_size, tuple(arrays)))
        constants += [onnx.numpy_helper.from_array(array, f"{name}.{each}") for each, array in arrays.items()]
    return model_of(layers, constants)


@dataclass(frozen=True)
class Layer:
    """A MatMulNBits node."""

    name: str
    shape: tuple[int, int]
    bits: int
    block_size: int
    arrays: tuple[str, ...]
    """Return the arrays "B", "scales" and "zero_points", which are the constants NAME.B and so on."""


def model_of(layers: Sequence[Layer], constants: Sequence[Any]) -> Any:
    """Return an ``onnx.ModelProto`` with these nodes side by side and these TensorProtos."""
    onnx = package()
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    nodes, inputs, outputs = [], [], []
    for layer in layers:
        name, (n, k) = layer.name, layer.shape
        operands = [f"{name}.x", *(f"{name}.{each}" for each in layer.arrays)]
        attributes = {"N": n, "K": k, "bits": layer.bits, "block_size": layer.block_size}
        nodes.append(helper.make_node(OPERATOR, operands, [f"{name}.y"], name=name, domain=DOMAIN, **attributes))
        inputs.append(helper.make_tensor_value_info(f"{name}.x", real, ["M", k]))
        outputs.append(helper.make_tensor_value_info(f"{name}.y", real, ["M", n]))
    graph = helper.make_graph(nodes, "qcore", inputs, outputs, initializer=constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="qcore")


def arrays_of(weight: QuantizedTensor, where: str) -> dict[str, NDArray[Any]]:
    """Return B, scales and, unless all are in the middle, zero_points of a weight."""
    weight = _outputs.matrix(weight, where, zero_points=True)
    n, bits, size = weight.shape[0], weight.bits, weight.block_size
    if size < 16 or size & (size - 1):
        raise _core.QcoreValueError(f"{where}: block_size is {size}, expected a power of 2 from 16 on")
    codes, zeros, scales = _zero_point_codec.encode(weight, where)
    middle = 1 << (bits - 1)
    filled = _bits.padded(codes, size, fill=middle).reshape(n, -1, size)
    arrays = {"B": _bits.pack_nibbles(filled) if bits == 4 else filled, "scales": scales}
    if (zeros != middle).any():
        arrays["zero_points"] = _bits.pack_nibbles(_bits.padded(zeros, 2)) if bits == 4 else zeros
    return arrays
