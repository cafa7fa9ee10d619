"""ONNX Runtime's GRU node in fp32, with linear_before_reset = 1: torch's cell.

It is called with arrays, and with inputs and outputs bound beforehand, which saves it allocations and copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme
from ..problem import Layer, Sequences

Bind = Callable[[Any, Sequences], Bound]


def implementations(layer: Layer) -> list[Implementation]:
    libraries.onnxruntime()

    def implementation(name: str, whole: Bind, streamed: Bind) -> Implementation:
        def build() -> Built:
            session = _session(_model(layer))
            return Built(4 * layer.weights, 1, lambda data: (streamed if data.streamed else whole)(session, data))

        return Implementation(name, "onnxruntime", Scheme(32, "fp32", "fp32"), build)

    return [
        implementation("ort GRU fp32", _whole, _streamed),
        implementation("ort GRU fp32, bound", _whole_bound, _streamed_bound),
    ]


def _model(layer: Layer) -> bytes:
    """From X [T, B, C] and initial_h [1, B, H] to Y [T, 1, B, H] and Y_h [1, B, H]."""
    _, onnx = libraries.onnxruntime()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    w, r, bx, br = layer.arrays  # ONNX's gate order is z, r, h
    constants = {"W": w[None], "R": r[None], "B": np.concatenate([bx, br])[None]}
    size = layer.hidden
    graph = helper.make_graph(
        [helper.make_node("GRU", ["X", "W", "R", "B", "", "H"], ["Y", "Y_h"], hidden_size=size, linear_before_reset=1)],
        "gru",
        [
            helper.make_tensor_value_info("X", float32, ["T", "B", layer.inputs]),
            helper.make_tensor_value_info("H", float32, [1, "B", size]),
        ],
        [
            helper.make_tensor_value_info("Y", float32, ["T", 1, "B", size]),
            helper.make_tensor_value_info("Y_h", float32, [1, "B", size]),
        ],
        [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


def _session(serialized: bytes) -> Any:
    runtime, _ = libraries.onnxruntime()
    options = runtime.SessionOptions()
    options.use_per_session_threads = False
    options.intra_op_num_threads = libraries.threads()
    options.inter_op_num_threads = 1
    return runtime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _binding(session: Any, x: Any, h0: Any, y: Any, last: Any) -> Any:
    binding = session.io_binding()
    binding.bind_ortvalue_input("X", x)
    binding.bind_ortvalue_input("H", h0)
    binding.bind_ortvalue_output("Y", y)
    binding.bind_ortvalue_output("Y_h", last)
    return binding


def _value(array: Array) -> Any:
    runtime, _ = libraries.onnxruntime()
    return runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _whole_bound(session: Any, data: Sequences) -> Bound:
    steps, batch, _ = data.x.shape
    size = data.layer.hidden
    x, h0 = _value(data.x), _value(np.zeros((1, batch, size), np.float32))
    y, last = _value(np.zeros((steps, 1, batch, size), np.float32)), _value(np.zeros((1, batch, size), np.float32))
    binding = _binding(session, x, h0, y, last)

    def result() -> Array:
        session.run_with_iobinding(binding)
        values: Array = y.numpy()[:, 0].copy()  # a view does not keep its OrtValue alive
        return values

    return Bound(lambda _: session.run_with_iobinding(binding), result)


def _whole(session: Any, data: Sequences) -> Bound:
    h0 = np.zeros((1, data.batch, data.layer.hidden), np.float32)

    def run(_: int) -> list[Array]:
        found: list[Array] = session.run(None, {"X": data.x, "H": h0})
        return found

    return Bound(run, lambda: run(0)[0][:, 0])


def _streamed(session: Any, data: Sequences) -> Bound:
    zeros = np.zeros((1, data.batch, data.layer.hidden), np.float32)
    steps = [np.ascontiguousarray(data.x[t : t + 1]) for t in range(len(data.x))]
    state, at = zeros, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, state = session.run(None, {"X": steps[at], "H": state})
        return y

    def result() -> Array:
        carried, found = zeros, []
        for x_t in steps:
            y, carried = session.run(None, {"X": x_t, "H": carried})
            found.append(y[0, 0])
        return np.stack(found)

    return Bound(run, result)


def _streamed_bound(session: Any, data: Sequences) -> Bound:
    """Make a binding per step; the state alternates between two arrays."""
    batch, size = data.batch, data.layer.hidden
    states = [_value(np.zeros((1, batch, size), np.float32)) for _ in range(2)]
    y = _value(np.zeros((1, 1, batch, size), np.float32))
    count = len(data.x) // 2 * 2
    bindings = [_binding(session, _value(data.x[t : t + 1]), states[t % 2], y, states[1 - t % 2]) for t in range(count)]
    at = 0

    def run(_: int) -> object:
        nonlocal at
        session.run_with_iobinding(bindings[at])
        at = (at + 1) % count
        return y

    def result() -> Array:
        nonlocal at
        at = 0
        states[0].update_inplace(np.zeros((1, batch, size), np.float32))
        found = []
        for _ in range(count):
            run(0)
            found.append(y.numpy()[0, 0].copy())
        return np.stack(found)

    return Bound(run, result)
