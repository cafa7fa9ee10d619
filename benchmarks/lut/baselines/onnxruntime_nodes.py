"""ONNX Runtime's nodes in float32; its CPU provider has none of them in the other dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Implementation
from ..problem import EPSILON, Data, Problem

_LIBRARY = "onnxruntime"
_MICROSOFT = "com.microsoft"
_NODES: dict[str, tuple[str, str, dict[str, float]]] = {
    "silu": ("QuickGelu", _MICROSOFT, {"alpha": 1.0}),
    "gelu": ("Gelu", _MICROSOFT, {}),
    "tanh": ("Tanh", "", {}),
    "sigmoid": ("Sigmoid", "", {}),
    "exp": ("Exp", "", {}),
    "softmax": ("Softmax", "", {"axis": -1}),
    "rms_norm": ("SimplifiedLayerNormalization", "", {"axis": -1, "epsilon": EPSILON}),
}


def implementations(problem: Problem) -> list[Implementation]:
    if problem.dtype != "fp32":
        return []
    libraries.onnxruntime()
    return [problem.implementation(f"ort {_NODES[problem.function][0]}", _LIBRARY, _bound)]


def _model(data: Data) -> bytes:
    _, onnx = libraries.onnxruntime()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    name, domain, attributes = _NODES[data.problem.function]
    operands = ["X", "W"] if data.problem.function == "rms_norm" else ["X"]
    constants = [onnx.numpy_helper.from_array(data.weight, "W")] if len(operands) == 2 else []
    graph = helper.make_graph(
        [helper.make_node(name, operands, ["Y"], domain=domain, **attributes)],
        "function",
        [helper.make_tensor_value_info("X", float32, list(data.x.shape))],
        [helper.make_tensor_value_info("Y", float32, list(data.x.shape))],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def _session(serialized: bytes) -> Any:
    runtime, _ = libraries.onnxruntime()
    options = runtime.SessionOptions()
    options.use_per_session_threads = False
    options.intra_op_num_threads = libraries.threads()
    options.inter_op_num_threads = 1
    return runtime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _bound(data: Data) -> Bound:
    runtime, _ = libraries.onnxruntime()
    session = _session(_model(data))
    given = runtime.OrtValue.ortvalue_from_numpy(data.x)
    out = runtime.OrtValue.ortvalue_from_numpy(np.zeros_like(data.x))
    binding = session.io_binding()
    binding.bind_ortvalue_input("X", given)
    binding.bind_ortvalue_output("Y", out)

    def result() -> Array:
        session.run_with_iobinding(binding)
        values: Array = out.numpy().copy()  # a view does not keep its OrtValue alive
        return values

    return Bound(lambda _: session.run_with_iobinding(binding), result)
