"""qcore.quantize, quantize_encoded, QuantizedTensor.dequantize, qcore.quantize_activations and qcore.hadamard."""

from __future__ import annotations

import numpy as np

import qcore

from ..implementation import OURS, Array, Bound, Implementation
from .problem import BLOCK_SIZE, Data, Problem

_CHECKED_ROWS = 4


def implementations(problem: Problem) -> list[Implementation]:
    ways = {
        "quantize": _quantize,
        "encode": _encode,
        "dequantize": _dequantize,
        "activations": _activations,
        "rotate": _rotate,
    }
    bind = ways[problem.way]
    return [problem.implementation(OURS, OURS, bind)]


def _quantize(data: Data) -> Bound:
    bits = data.problem.bits

    def run(_: int) -> qcore.QuantizedTensor:
        return qcore.quantize(data.x, bits=bits, block_size=BLOCK_SIZE, method="rtn", scale_dtype="float32")

    run(0)
    kernel = qcore.last_kernel("quantize") or ""
    return Bound(run, lambda: run(0).dequantize(), lambda: _same_as_reference(data.x, bits), kernel)


def _same_as_reference(x: Array, bits: int) -> bool:
    """Return whether some rows have the reference kernel's bits."""
    rows = np.unique(np.linspace(0, len(x) - 1, _CHECKED_ROWS).astype(int))
    with qcore.force_kernel("quantize", "reference"):
        expected = qcore.quantize(x[rows], bits=bits, block_size=BLOCK_SIZE, method="rtn", scale_dtype="float32")
    made = qcore.quantize(x, bits=bits, block_size=BLOCK_SIZE, method="rtn", scale_dtype="float32")
    same = np.array_equal(made.codes()[rows], expected.codes())
    return same and np.array_equal(made.scales()[rows], expected.scales())


def _encode(data: Data) -> Bound:
    name = data.problem.encoding

    def run(_: int) -> qcore.QuantizedTensor:
        return qcore.quantize_encoded(data.x, name)

    def same() -> bool:
        with qcore.force_kernel("quantize_encoded", "reference"):
            expected = qcore.quantize_encoded(data.x[:_CHECKED_ROWS], name)
        return run(0).slice_rows(0, _CHECKED_ROWS) == expected

    run(0)
    return Bound(run, lambda: run(0).dequantize(), same, qcore.last_kernel("quantize_encoded") or "")


def _dequantize(data: Data) -> Bound:
    codes, scales = data.rounded
    weight = qcore.QuantizedTensor.from_parts(
        codes.reshape(data.x.shape), scales[..., 0], bits=data.problem.bits, block_size=BLOCK_SIZE
    )
    out = weight.dequantize()  # written to before, as the target of the copy beside it is
    return Bound(lambda _: weight.dequantize(out=out), weight.dequantize, kernel=qcore.last_kernel("dequantize") or "")


def _activations(data: Data) -> Bound:
    def result() -> Array:
        activations = qcore.quantize_activations(data.x, BLOCK_SIZE)
        codes, scales = activations.codes, activations.scales
        return np.asarray((codes.reshape(len(codes), -1, BLOCK_SIZE) * scales[..., None]).reshape(codes.shape))

    out = qcore.quantize_activations(data.x, BLOCK_SIZE)
    return Bound(
        lambda _: qcore.quantize_activations(data.x, BLOCK_SIZE, out=out),
        result,
        kernel=qcore.last_kernel("quantize_activations") or "",
    )


def _rotate(data: Data) -> Bound:
    def run(_: int) -> Array:
        return np.asarray(qcore.hadamard(data.x))

    def same() -> bool:
        with qcore.force_kernel("hadamard", "reference"):
            expected = np.asarray(qcore.hadamard(data.x[:_CHECKED_ROWS]))
        return np.array_equal(run(0)[:_CHECKED_ROWS], expected)

    run(0)
    # Rotated twice, the floats are themselves again.
    return Bound(run, lambda: np.asarray(qcore.hadamard(run(0))), same, qcore.last_kernel("hadamard") or "")
