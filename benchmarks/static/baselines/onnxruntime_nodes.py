"""ONNX Runtime's QLinearConv, whose arrays are NCHW."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation
from ..problem import Codes, Layer
from ..qcore_impl import SCHEME

_LIBRARY = "onnxruntime"


def implementations(layer: Layer) -> list[Implementation]:
    libraries.onnxruntime()
    return [Implementation("ort QLinearConv nchw", _LIBRARY, SCHEME, lambda: Built(layer.weights, 1, _bound))]


def _model(codes: Codes) -> bytes:
    _, onnx = libraries.onnxruntime()
    helper, layer, uint8 = onnx.helper, codes.layer, onnx.TensorProto.UINT8
    constants: dict[str, Any] = {
        "x_scale": np.float32(codes.x_scale),
        "x_zero": np.uint8(codes.x_zero_point),
        "w": codes.weight,
        "w_scale": codes.w_scale,
        "w_zero": np.zeros(len(codes.w_scale), np.int8),
        "y_scale": np.float32(codes.y_scale),
        "y_zero": np.uint8(codes.y_zero_point),
        "bias": codes.bias,
    }
    node = helper.make_node(
        "QLinearConv", ["x", *constants], ["y"], kernel_shape=layer.weight[2:], strides=[layer.stride] * 2,
        pads=[layer.padding] * 4, group=layer.groups,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", uint8, layer.x)],
        [helper.make_tensor_value_info("y", uint8, layer.y)],
        [onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def _bound(codes: Codes) -> Bound:
    runtime, _ = libraries.onnxruntime()
    options = runtime.SessionOptions()
    options.use_per_session_threads = False
    options.intra_op_num_threads = libraries.threads()
    options.inter_op_num_threads = 1
    session = runtime.InferenceSession(_model(codes), options, providers=["CPUExecutionProvider"])
    given = runtime.OrtValue.ortvalue_from_numpy(codes.x)
    out = runtime.OrtValue.ortvalue_from_numpy(np.zeros(codes.layer.y, np.uint8))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", out)

    def result() -> Array:
        session.run_with_iobinding(binding)
        values: Array = out.numpy().copy()  # a view does not keep its OrtValue alive
        return values

    return Bound(lambda _: session.run_with_iobinding(binding), result)
