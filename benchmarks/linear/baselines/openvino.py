"""OpenVINO's MatMul over compressed weights; how it quantizes activations is its own choice.

Changing compiled models costs it a change of thread pools, so all copies of the weight are layers of one model, and a
run computes each of them once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, copies_for
from ..weight import Weight, pairs


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    openvino = libraries.openvino()
    blocks = [_implementation(openvino, weight, rotated_bytes, 4, block_size) for block_size in (32, 64, 128)]
    return [*blocks, _implementation(openvino, weight, rotated_bytes, 8, None)]


def _implementation(
    openvino: Any, weight: Weight, rotated_bytes: int, bits: int, block_size: int | None
) -> Implementation:
    def build() -> Built:
        layers = _Layers(openvino, weight)
        nbytes = layers.bytes(block_size)
        copies = copies_for(nbytes, rotated_bytes)
        x = layers.ops.parameter([-1, weight.k], np.float32, name="X")
        outputs = [layers.layer(x, copy, block_size) for copy in range(copies)]
        settings = {
            "INFERENCE_NUM_THREADS": libraries.threads(),
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(openvino.Model(outputs, [x], "layers"), "CPU", settings)
        request = compiled.create_infer_request()

        def bind(x: Array) -> Bound:
            request.set_input_tensor(0, openvino.Tensor(np.ascontiguousarray(x)))

            def run(_copy: int) -> object:
                return request.infer()

            def result() -> Array:
                run(0)
                values: Array = request.get_output_tensor(0).data.copy()
                return values

            return Bound(run, result)

        return Built(nbytes, 1, bind, calls_per_run=copies, close=layers.close)

    kind = f"g{block_size} zp" if block_size else "per channel"
    scheme = Scheme(bits, "int8, dynamic", "int8", block_size, offsets=block_size is not None)
    return Implementation(f"openvino {bits}b {kind}", "openvino", scheme, build)


class _Layers:
    """Copies of one layer. Their rows are rotated against each other, so that no two constants are equal."""

    def __init__(self, openvino: Any, weight: Weight) -> None:
        self._openvino, self._weight = openvino, weight
        self.ops = openvino.opset13
        self._nibble_arrays: list[Array] = []  # the model refers to their memory

    def close(self) -> None:
        self._nibble_arrays.clear()

    def bytes(self, block_size: int | None) -> int:
        elements = self._weight.n * self._weight.k
        return elements + 4 * self._weight.n if block_size is None else elements // 2 + elements // block_size * 9 // 2

    def layer(self, x: Any, copy: int, block_size: int | None) -> Any:
        weight = self._channels(copy) if block_size is None else self._blocks(copy, block_size)
        return self.ops.matmul(x, weight, False, True)

    def _channels(self, copy: int) -> Any:
        ops = self.ops
        codes, scales = (np.roll(part, copy, axis=0) for part in self._weight.per_channel())
        return ops.multiply(ops.convert(ops.constant(codes), "f32"), ops.constant(scales[:, None]))

    def _blocks(self, copy: int, block_size: int) -> Any:
        ops, blocks = self.ops, self._weight.per_block(4, block_size, offsets=True)
        codes, zeros, scales = (
            np.roll(part, copy, axis=0) for part in (blocks.codes, blocks.zero_points, blocks.scales)
        )
        centered = ops.subtract(
            ops.convert(self._nibbles(pairs(codes), codes.shape), "f32"),
            ops.convert(self._nibbles(pairs(zeros.reshape(-1)), (*zeros.shape, 1)), "f32"),
        )
        scaled = ops.multiply(centered, ops.constant(scales[:, :, None]))
        return ops.reshape(scaled, ops.constant(np.array([self._weight.n, self._weight.k])), False)

    def _nibbles(self, packed: Array, shape: tuple[int, ...]) -> Any:
        self._nibble_arrays.append(np.ascontiguousarray(packed))
        tensor = self._openvino.Tensor(self._nibble_arrays[-1], list(shape), self._openvino.Type.u4)
        return self.ops.constant(tensor)
