"""MNN's layout, against the formula spelled out bit by bit."""

import numpy as np
import pytest

import qcore
from qcore import formats


def arrays_of(channels, shape, g=16, seed=0):
    rng = np.random.default_rng(seed)
    padded = -(-channels // 8) * 8
    qweight = rng.integers(0, 256, (*shape, padded // 2)).astype(np.uint8)
    parameters = (shape[0], -(-channels // g))
    scales = rng.standard_normal(parameters, dtype=np.float32)
    return qweight, scales, rng.standard_normal(parameters, dtype=np.float32)


def fma(a, b, c):
    """Dequantize with one rounding: the product is exact in a float64, and so is its sum with numbers of this size."""
    return np.float32(float(a) * b + float(c))


def code(octet, channel):
    return (int(octet) & 15 if channel % 2 else int(octet) >> 4) - 8


@pytest.mark.parametrize("channels", [8, 19, 32])
@pytest.mark.parametrize("symmetric", [True, False])
def test_convolution_weights(channels, symmetric):
    qweight, scales, offsets = arrays_of(channels, (4, 3, 2))
    offsets = None if symmetric else offsets
    weight = formats.from_mnn(qweight, scales, offsets, in_channels=channels, block_size=16)
    assert (weight.shape, weight.bits) == ((4, channels, 3, 2), 4)
    assert weight.scheme == ("symmetric" if symmetric else "asymmetric")
    values = weight.dequantize()
    for (co, ci, y, x), got in np.ndenumerate(values):
        o = 0.0 if symmetric else offsets[co, ci // 16]
        assert got == fma(scales[co, ci // 16], code(qweight[co, y, x, ci // 2], ci), o)
    back = formats.to_mnn(weight)
    assert formats.from_mnn(*back, in_channels=channels, block_size=16) == weight
    if channels % 8 == 0:
        assert np.array_equal(back[0], qweight)
    assert np.array_equal(back[1], scales)
    assert (back[2] is None) if symmetric else np.array_equal(back[2], offsets)


@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
def test_matrices_and_linear(compute):
    qweight, scales, offsets = arrays_of(72, (6,))
    weight = formats.from_mnn(qweight, scales, offsets, in_channels=72, block_size=16)
    assert weight.shape == (6, 72)
    x = np.random.default_rng(2).standard_normal((3, 72), dtype=np.float32)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.linalg.norm(qcore.linear(x, weight, compute=compute) - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if compute.startswith("int8") else 1e-4)
    assert formats.to_mnn(weight)[0].shape == (6, 36)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_channels": 20}, r"qweight has shape \[4, 3, 3, 8\], expected \[Co, Kh, Kw, 12\] or \[Co, 12\] for 20"),
        ({"in_channels": 0}, "in_channels is 0 and block_size 8, expected positive numbers"),
        ({"block_size": 16}, r"scales has shape \[4, 2\], expected \[4, 1\]"),
        ({"offsets": np.ones((4, 3), np.float32)}, r"offsets has shape \[4, 3\], expected \[4, 2\]"),
        ({"qweight": np.ones((4, 3, 3, 8), np.int8)}, "qweight has dtype int8, expected uint8"),
        ({"scales": np.full((4, 2), np.inf, np.float32)}, r"scales has inf at index \[0, 0\]"),
    ],
)
def test_bad_arguments(change, message):
    qweight, scales, offsets = arrays_of(16, (4, 3, 3), g=8)
    options = {"qweight": qweight, "scales": scales, "offsets": offsets, "in_channels": 16, "block_size": 8}
    with pytest.raises(qcore.QcoreError, match=f"^from_mnn: {message}"):
        formats.from_mnn(**(options | change))


def test_what_cannot_be_written():
    with pytest.raises(qcore.QcoreValueError, match="to_mnn: weight has 8 bits, expected 4"):
        formats.to_mnn(qcore.quantize(np.ones((2, 8), np.float32), bits=8))
    with pytest.raises(qcore.QcoreTypeError, match="to_mnn: weight is a list, expected a QuantizedTensor"):
        formats.to_mnn([])
