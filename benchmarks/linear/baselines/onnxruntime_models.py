"""Models of one layer for ONNX Runtime, and sessions that hold copies of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built
from ..weight import Weight


def model(nodes: Sequence[Any], weight: Weight, constants: dict[str, Array]) -> bytes:
    """Make a model from X [M, K] to Y [M, N], both fp32, with any M."""
    _, onnx = libraries.onnxruntime()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "layer",
        [helper.make_tensor_value_info("X", float32, ["M", weight.k])],
        [helper.make_tensor_value_info("Y", float32, ["M", weight.n])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def sessions(serialized: bytes, weight: Weight, weight_bytes: int, copies: int) -> Built:
    runtime, _ = libraries.onnxruntime()

    def session() -> Any:
        options = runtime.SessionOptions()
        options.use_per_session_threads = False
        options.intra_op_num_threads = libraries.threads()
        options.inter_op_num_threads = 1
        return runtime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])

    made = [session() for _ in range(copies)]

    def bind(x: Array) -> Bound:
        given = runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x))
        out = runtime.OrtValue.ortvalue_from_numpy(np.zeros((len(x), weight.n), np.float32))
        bindings = []
        for one in made:
            binding = one.io_binding()
            binding.bind_ortvalue_input("X", given)
            binding.bind_ortvalue_output("Y", out)
            bindings.append(binding)

        def run(copy: int) -> object:
            return made[copy].run_with_iobinding(bindings[copy])

        def result() -> Array:
            run(0)
            values: Array = out.numpy().copy()  # a view does not keep its OrtValue alive
            return values

        return Bound(run, result)

    return Built(weight_bytes, copies, bind)
