"""Every operator that takes arrays, as a function of a dictionary of arrays of one library."""

import numpy as np

import qcore
from qcore import awq, lut, static
from qcore.gru import Calibrator, Config, GruWeights


def sources():
    """Return inputs of all operators, in NumPy."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "x": normal(3, 70),
        "weight": normal(20, 70),
        "bias": normal(20),
        "gain": normal(70),
        "image": normal(2, 4, 9, 8),
        "bytes": rng.integers(0, 256, (3, 17), dtype=np.uint8),
        "pixels": rng.integers(0, 256, (2, 4, 6, 5), dtype=np.uint8),
        "steps": normal(7, 2, 5),
        "states": normal(1, 2, 8),
        "rows": normal(3, 32),
        "qweight": rng.integers(-(2**31), 2**31, (32, 2), dtype=np.int32),
        "qzeros": rng.integers(-(2**31), 2**31, (2, 2), dtype=np.int32),
        "scales": np.abs(normal(2, 16)).astype(np.float16) / 8,
        "row counts": np.array([1, 2], np.int32),
    }


def operators(device="cpu"):
    """Return {name: function of a dictionary as of :func:`sources`. Weights and layers lie on ``device``."""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    weight = qcore.quantize(normal(20, 70), bits=4, block_size=32, scheme="asymmetric").to(device)
    reordered = qcore.ReorderedTensor(weight, rng.permutation(70))
    kernel = qcore.quantize(normal(6, 2, 3, 3), bits=8, block_size=2).to(device)
    qlinear = static.QLinear.from_float(0.02, 100, normal(9, 17), 0.1, 120, normal(9)).to(device)
    qconv = static.QConv2d.from_float(0.02, 100, normal(6, 4, 3, 3), 0.1, 120, normal(6), padding=1).to(device)
    weights = GruWeights.from_arrays(rng.normal(0, 0.4, (24, 5)), rng.normal(0, 0.3, (24, 8)))
    gru = Calibrator(weights).observe(normal(20, 4, 5)).finish(Config(bits=8))
    square = lut.table("square")
    return {
        "linear": lambda a: qcore.linear(a["x"], weight, a["bias"]),
        "linear, reordered": lambda a: qcore.linear(a["x"], reordered),
        "grouped_linear": lambda a: qcore.grouped_linear(a["x"], weight, a["row counts"]),
        "conv2d": lambda a: qcore.conv2d(a["image"], kernel, a["bias"][:6], groups=2, padding=1),
        "static.qlinear": lambda a: qlinear(a["bytes"]),
        "static.qconv2d": lambda a: qconv(a["pixels"]),
        "gru": lambda a: gru(a["steps"], a["states"]),
        "gru step": lambda a: gru.step(a["steps"][0, ...]),
        "silu": lambda a: lut.silu(a["image"]),
        "a table": lambda a: square(a["image"]),
        "softmax": lambda a: lut.softmax(a["image"], 1),
        "rms_norm": lambda a: lut.rms_norm(a["x"], a["gain"]),
        "awq.dequantize": lambda a: awq.dequantize(a["qweight"], a["scales"], a["qzeros"]),
        "awq.linear": lambda a: awq.linear(a["rows"], a["qweight"], a["scales"], a["qzeros"]),
    }


def _codes_and_scales(weight):
    activations = qcore.quantize_activations(weight, 32)
    return activations.codes, activations.scales


def cpu_operators():
    """Return the operators that run on the CPU only, or return none of the caller's arrays."""
    return {
        "quantize_activations": lambda a: qcore.quantize_activations(a["x"], 16).codes,
        "quantize": lambda a: qcore.quantize(a["weight"], bits=4, block_size=16),
        "quantize with samples": lambda a: qcore.quantize(a["weight"], bits=4, method="awq", samples=a["x"]),
        "from_parts": lambda a: qcore.QuantizedTensor.from_parts(
            *_codes_and_scales(a["weight"]), bits=8, block_size=32
        ),
    }
