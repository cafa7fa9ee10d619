"""ONNX Runtime's GRU node (with linear_before_reset = 1: torch's cell) or LSTM node in fp32.

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

    node = layer.cell.upper()
    return [
        implementation(f"ort {node} fp32", _whole, _streamed),
        implementation(f"ort {node} fp32, bound", _whole_bound, _streamed_bound),
    ]


def _model(layer: Layer) -> bytes:
    """Make a model from X [T, B, C] and states [1, B, H] to Y [T, 1, B, H] and the last states [1, B, H]."""
    _, onnx = libraries.onnxruntime()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    states, attributes = _states(layer), {"hidden_size": layer.hidden}
    w, r, bx, br = layer.arrays
    if layer.cell == "lstm":
        w, r, bx, br = (_input_output_forget_cell(array, layer.hidden) for array in (w, r, bx, br))
    else:
        attributes["linear_before_reset"] = 1  # ONNX's gate order is ours: z, r, h
    constants = {"W": w[None], "R": r[None], "B": np.concatenate([bx, br])[None]}
    inputs, outputs = ["X", "W", "R", "B", "", *states], ["Y", *(f"Y_{name}" for name in states)]
    graph = helper.make_graph(
        [helper.make_node(layer.cell.upper(), inputs, outputs, **attributes)],
        layer.cell,
        [
            helper.make_tensor_value_info("X", float32, ["T", "B", layer.inputs]),
            *(helper.make_tensor_value_info(name, float32, [1, "B", layer.hidden]) for name in states),
        ],
        [
            helper.make_tensor_value_info("Y", float32, ["T", 1, "B", layer.hidden]),
            *(helper.make_tensor_value_info(f"Y_{name}", float32, [1, "B", layer.hidden]) for name in states),
        ],
        [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


def _states(layer: Layer) -> tuple[str, ...]:
    """Return the names of the states that a step passes to the next."""
    return ("H", "C") if layer.cell == "lstm" else ("H",)


def _input_output_forget_cell(rows: Array, size: int) -> Array:
    """Return the rows of gates i, f, g, o in ONNX's order."""
    i, f, g, o = (rows[gate * size : (gate + 1) * size] for gate in range(4))
    return np.concatenate([i, o, f, g])


def _zeros(data: Sequences) -> dict[str, Array]:
    shape = (1, data.batch, data.layer.hidden)
    return {name: np.zeros(shape, np.float32) for name in _states(data.layer)}


def _session(serialized: bytes) -> Any:
    runtime, _ = libraries.onnxruntime()
    options = runtime.SessionOptions()
    options.use_per_session_threads = False
    options.intra_op_num_threads = libraries.threads()
    options.inter_op_num_threads = 1
    return runtime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _binding(session: Any, x: Any, first: dict[str, Any], y: Any, last: dict[str, Any]) -> Any:
    binding = session.io_binding()
    binding.bind_ortvalue_input("X", x)
    binding.bind_ortvalue_output("Y", y)
    for name in first:
        binding.bind_ortvalue_input(name, first[name])
        binding.bind_ortvalue_output(f"Y_{name}", last[name])
    return binding


def _values(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: _value(array) for name, array in arrays.items()}


def _value(array: Array) -> Any:
    runtime, _ = libraries.onnxruntime()
    return runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _whole_bound(session: Any, data: Sequences) -> Bound:
    steps, batch, _ = data.x.shape
    size = data.layer.hidden
    y = _value(np.zeros((steps, 1, batch, size), np.float32))
    binding = _binding(session, _value(data.x), _values(_zeros(data)), y, _values(_zeros(data)))

    def result() -> Array:
        session.run_with_iobinding(binding)
        values: Array = y.numpy()[:, 0].copy()  # a view does not keep its OrtValue alive
        return values

    return Bound(lambda _: session.run_with_iobinding(binding), result)


def _whole(session: Any, data: Sequences) -> Bound:
    zeros = _zeros(data)

    def run(_: int) -> list[Array]:
        found: list[Array] = session.run(None, {"X": data.x, **zeros})
        return found

    return Bound(run, lambda: run(0)[0][:, 0])


def _streamed(session: Any, data: Sequences) -> Bound:
    zeros = _zeros(data)
    steps = [np.ascontiguousarray(data.x[t : t + 1]) for t in range(len(data.x))]
    state, at = zeros, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, *last = session.run(None, {"X": steps[at], **state})
        state = dict(zip(zeros, last, strict=True))
        return y

    def result() -> Array:
        carried, found = zeros, []
        for x_t in steps:
            y, *last = session.run(None, {"X": x_t, **carried})
            carried = dict(zip(zeros, last, strict=True))
            found.append(y[0, 0])
        return np.stack(found)

    return Bound(run, result)


def _streamed_bound(session: Any, data: Sequences) -> Bound:
    """Make a binding per step; the states alternate between two arrays."""
    batch, size = data.batch, data.layer.hidden
    states = [_values(_zeros(data)) for _ in range(2)]
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
        for name, zeros in _zeros(data).items():
            states[0][name].update_inplace(zeros)
        found = []
        for _ in range(count):
            run(0)
            found.append(y.numpy()[0, 0].copy())
        return np.stack(found)

    return Bound(run, result)
