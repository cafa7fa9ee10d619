"""ONNX Runtime's fp32 MatMul, and its dynamic int8 with per-channel weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import libraries
from ...implementation import Array, Built, Implementation, Scheme, copies_for
from ..weight import Weight
from .onnxruntime_models import model, sessions

_LIBRARY = "onnxruntime"


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    _, onnx = libraries.onnxruntime()
    node = onnx.helper.make_node

    def build_float() -> Built:
        nbytes = 4 * weight.n * weight.k
        serialized = model([node("MatMul", ["X", "W"], ["Y"])], weight, {"W": weight.values.T})
        return sessions(serialized, weight, nbytes, copies_for(nbytes, rotated_bytes))

    def build_int8(nodes: Callable[[], list[object]]) -> Built:
        codes, scales = weight.per_channel()
        constants: dict[str, Array] = {"W": codes.T, "scale": scales, "zero": np.zeros(weight.n, np.int8)}
        nbytes = codes.nbytes + scales.nbytes
        return sessions(model(nodes(), weight, constants), weight, nbytes, copies_for(nbytes, rotated_bytes))

    def fused() -> list[object]:
        return [node("DynamicQuantizeMatMul", ["X", "W", "scale", "zero"], ["Y"], domain="com.microsoft")]

    def in_two() -> list[object]:
        quantized = ["xq", "xs", "xz"]
        operands = ["xq", "W", "xs", "scale", "xz", "zero"]
        return [
            node("DynamicQuantizeLinear", ["X"], quantized),
            node("MatMulIntegerToFloat", operands, ["Y"], domain="com.microsoft"),
        ]

    int8 = Scheme(8, "uint8 per tensor", "int8")
    return [
        Implementation("ort MatMul fp32", _LIBRARY, Scheme(32, "fp32", "fp32"), build_float),
        Implementation("ort DynamicQuantizeMatMul", _LIBRARY, int8, lambda: build_int8(fused)),
        Implementation("ort DQL + MatMulIntegerToFloat", _LIBRARY, int8, lambda: build_int8(in_two)),
    ]
