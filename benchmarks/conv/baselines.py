"""Other libraries' convolutions of floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import libraries
from ..implementation import Array, Bound, Built, Implementation, Scheme
from ..static.problem import Layer
from .problem import Floats

FP32 = Scheme(32, "fp32", "fp32")
BF16 = Scheme(16, "bf16", "bf16")


def torch_implementations(layer: Layer) -> list[Implementation]:
    """Yield fp32 in both memory orders, and bf16 channels_last."""
    libraries.torch()
    return [
        _torch(layer, "torch fp32 nchw", FP32, "float32", "contiguous_format"),
        _torch(layer, "torch fp32 channels_last", FP32, "float32", "channels_last"),
        _torch(layer, "torch bf16 channels_last", BF16, "bfloat16", "channels_last"),
    ]


def _torch(layer: Layer, name: str, scheme: Scheme, dtype: str, memory: str) -> Implementation:
    def bind(floats: Floats) -> Bound:
        torch = libraries.torch()
        kind = {"dtype": getattr(torch, dtype), "memory_format": getattr(torch, memory)}
        x, weight = (torch.from_numpy(values).to(**kind) for values in (floats.x, floats.weight))

        def run(_: int) -> object:
            with torch.inference_mode():
                return torch.conv2d(x, weight, stride=layer.stride, padding=layer.padding, groups=layer.groups)

        def result() -> Array:
            values: Array = run(0).float().numpy()  # type: ignore[attr-defined]
            return values

        return Bound(run, result)

    return Implementation(name, "torch", scheme, lambda: Built(layer.weights * scheme.weight_bits // 8, 1, bind))


def onnxruntime_implementations(layer: Layer) -> list[Implementation]:
    """Yield fp32, whose arrays are NCHW."""
    libraries.onnxruntime()
    return [Implementation("ort fp32 nchw", "onnxruntime", FP32, lambda: Built(4 * layer.weights, 1, _onnxruntime))]


def _onnxruntime(floats: Floats) -> Bound:
    runtime, onnx = libraries.onnxruntime()
    helper, layer, kind = onnx.helper, floats.layer, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], kernel_shape=layer.weight[2:], strides=[layer.stride] * 2,
        pads=[layer.padding] * 4, group=layer.groups,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", kind, layer.x)],
        [helper.make_tensor_value_info("y", kind, layer.y)],
        [onnx.numpy_helper.from_array(floats.weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    options = runtime.SessionOptions()
    options.use_per_session_threads = False
    options.intra_op_num_threads = libraries.threads()
    options.inter_op_num_threads = 1
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    out = runtime.OrtValue.ortvalue_from_numpy(np.zeros(layer.y, np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", runtime.OrtValue.ortvalue_from_numpy(floats.x))
    binding.bind_ortvalue_output("y", out)

    def result() -> Array:
        session.run_with_iobinding(binding)
        values: Array = out.numpy().copy()  # a view does not keep its OrtValue alive
        return values

    return Bound(lambda _: session.run_with_iobinding(binding), result)


SOURCES: dict[str, Callable[[Layer], list[Implementation]]] = {
    "torch": torch_implementations,
    "onnxruntime": onnxruntime_implementations,
}
