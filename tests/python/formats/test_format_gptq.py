"""GPTQ's layouts, against the formulas spelled out bit by bit."""

import pickle

import numpy as np
import pytest

import qcore
from qcore import formats


def code(words, index, bits):
    """Return a number of the bit stream of words."""
    stream = sum((int(word) & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(words))
    return stream >> (bits * index) & (2**bits - 1)


def arrays_of(bits, k=64, n=None, blocks=4, seed=0):
    n = n or (32 if bits == 3 else 16)
    rng = np.random.default_rng(seed)
    qweight = rng.integers(-(2**31), 2**31, (k * bits // 32, n)).astype(np.int32)
    qzeros = rng.integers(-(2**31), 2**31, (blocks, n * bits // 32)).astype(np.int32)
    if bits != 3:
        qzeros &= 0x77777777 if bits > 2 else 0x55555555  # none of them all ones
    else:
        numbers = rng.integers(0, 7, (blocks, n))
        stream = [sum(int(z) << (3 * i) for i, z in enumerate(row)) for row in numbers]
        qzeros = np.array([[each >> (32 * i) & 0xFFFFFFFF for i in range(n * 3 // 32)] for each in stream])
        qzeros = qzeros.astype(np.uint32).view(np.int32)
    return qweight, rng.standard_normal((blocks, n)).astype(np.float16), qzeros


def values_of(qweight, scales, qzeros, g_idx, bits, first):
    out = np.empty((qweight.shape[1], qweight.shape[0] * 32 // bits))
    for (n, k), _ in np.ndenumerate(out):
        p = g_idx[k]
        u = code(qweight[:, n], k, bits)
        z = code(qzeros[p], n, bits) + first
        out[n, k] = (u - z) * float(scales[p, n])
    return out


def shuffled(k, g, seed=3):
    return np.random.default_rng(seed).permutation(np.arange(k) // g).astype(np.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("order", ["none", "sequential", "shuffled"])
def test_every_value_is_the_formats_own(bits, version, order):
    arrays = arrays_of(bits)
    sequence = (np.arange(64) // 16).astype(np.int32)
    g_idx = {"none": None, "sequential": sequence, "shuffled": shuffled(64, 16)}[order]
    weight = formats.from_gptq(*arrays, g_idx, bits=bits, version=version)
    assert isinstance(weight, qcore.ReorderedTensor if order == "shuffled" else qcore.QuantizedTensor)
    assert (weight.shape, weight.bits, weight.block_size) == ((arrays[1].shape[1], 64), bits, 16)
    inner = weight.weight if order == "shuffled" else weight
    kind = "uint8 zero points" if bits == 8 else "uint4 zero points"
    assert inner.encoding == qcore.WeightEncoding(bits, "float16", kind, zero=1 << (bits - 1))
    expected = values_of(*arrays, sequence if g_idx is None else g_idx, bits, 2 - version)
    assert np.array_equal(weight.dequantize().astype(np.float64), expected)
    *back, back_idx = formats.to_gptq(weight, version=version)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(arrays, back, strict=True))
    assert np.array_equal(back_idx, sequence if g_idx is None else g_idx)


def test_a_short_last_block():
    arrays = arrays_of(4, k=56, blocks=4)
    g_idx = shuffled(56, 16)
    expected = values_of(*arrays, g_idx, 4, 0)
    assert np.array_equal(
        formats.from_gptq(*arrays, g_idx, bits=4, version=2).dequantize(), expected.astype(np.float32)
    )
    plain = formats.from_gptq(*arrays, bits=4, version=2, block_size=16)
    assert np.array_equal(plain.dequantize(), values_of(*arrays, np.arange(56) // 16, 4, 0).astype(np.float32))
    with pytest.raises(qcore.QcoreValueError, match="block_size is 32, expected one that gives P = 4"):
        formats.from_gptq(*arrays, bits=4, version=2, block_size=32)
    with pytest.raises(qcore.QcoreValueError, match="K = 40 is no multiple of P = 3: pass block_size or g_idx"):
        formats.from_gptq(*arrays_of(4, k=40, blocks=3), bits=4, version=2)


@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_bits_of_the_plain_weight(bits, compute):
    weight = formats.from_gptq(*arrays_of(bits, k=1024, blocks=8), bits=bits, version=2)
    assert weight.bits_per_weight == bits + (16 + max(bits, 4)) / 128
    plain = weight.plain()
    assert (plain.encoding, plain.bits) == (None, max(bits, 4))
    x = np.random.default_rng(2).standard_normal((5, 1024), dtype=np.float32)
    for rows in (1, 5):
        got = qcore.linear(x[:rows], weight, compute=compute)
        assert np.array_equal(got, qcore.linear(x[:rows], plain, compute=compute))


@pytest.mark.parametrize("bits", [4, 8])
def test_wrapped_zero_points_are_refused_until_named(bits):
    qweight, scales, qzeros = arrays_of(bits)
    qzeros[1, 0] |= 2**bits - 1
    with pytest.raises(qcore.QcoreValueError, match=r"from_gptq: qzeros has \d+ for block 1, column 0.*wrapped_zeros="):
        formats.from_gptq(qweight, scales, qzeros, bits=bits, version=1)
    block = values_of(qweight, scales, np.zeros_like(qzeros), np.arange(64) // 16, bits, 0)[0, 16:32]
    for wrapped, zero in [("zero", 0), ("carry", 2**bits)]:
        weight = formats.from_gptq(qweight, scales, qzeros, bits=bits, version=1, wrapped_zeros=wrapped)
        assert np.array_equal(weight.dequantize()[0, 16:32], (block - zero * float(scales[1, 0])).astype(np.float32))
    formats.from_gptq(qweight, scales, qzeros, bits=bits, version=2)  # where 2^bits - 1 has one meaning


@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_linear_gathers(compute, bits):
    weight = formats.from_gptq(*arrays_of(bits), shuffled(64, 16), bits=bits, version=2)
    x = np.random.default_rng(2).standard_normal((2, 3, 64), dtype=np.float32)
    got = qcore.linear(x, weight, compute=compute)
    assert np.array_equal(got, qcore.linear(x[..., weight.order], weight.weight, compute=compute))
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < (2e-2 if compute.startswith("int8") else 1e-4)
    out = np.empty((2, 3, 16), np.float32)
    assert qcore.linear(x, weight, compute=compute, out=out) is out
    assert np.array_equal(out, got)


def test_linear_refuses_what_it_cannot_gather():
    weight = formats.from_gptq(*arrays_of(4), shuffled(64, 16), bits=4, version=2)
    with pytest.raises(qcore.QcoreValueError, match=r"linear: x has shape \[3, 63\], expected \[..., 64\]"):
        qcore.linear(np.zeros((3, 63), np.float32), weight)
    with pytest.raises(qcore.QcoreValueError, match="linear: stream is given for a ReorderedTensor"):
        qcore.linear(np.zeros((3, 64), np.float32), weight, stream=1)
    with pytest.raises(qcore.QcoreTypeError, match="linear: x is a list"):
        qcore.linear([0.0] * 64, weight)


def test_a_reordered_tensor_is_a_value():
    weight = formats.from_gptq(*arrays_of(4), shuffled(64, 16), bits=4, version=2)
    assert pickle.loads(pickle.dumps(weight)) == weight
    assert weight == qcore.ReorderedTensor(weight.weight, weight.order)
    assert weight != qcore.ReorderedTensor(weight.weight, weight.order[::-1])
    assert weight.to("cpu") is weight
    assert weight.nbytes == weight.weight.nbytes + 8 * 64
    assert weight.bits_per_weight == 8 * weight.nbytes / (16 * 64)
    assert (weight.scheme, weight.device) == ("asymmetric", "cpu")
    assert repr(weight).startswith("ReorderedTensor(QuantizedTensor(shape=[16, 64]")
    with pytest.raises(AttributeError, match="immutable"):
        weight.order = None
    with pytest.raises(ValueError, match="read-only"):
        weight.order[0] = 1


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (np.zeros(64, np.int64), r"order has shape \[64\], expected a permutation of 0..63"),
        (np.arange(63), "expected a permutation"),
        (np.arange(64).reshape(8, 8), r"order has shape \[8, 8\]"),
        (np.arange(64.0), "order has dtype float64, expected integers"),
    ],
)
def test_bad_orders(order, message):
    weight = formats.from_gptq(*arrays_of(4), bits=4, version=2)
    with pytest.raises(qcore.QcoreError, match=message):
        qcore.ReorderedTensor(weight, order)


@pytest.mark.parametrize(
    ("g_idx", "message"),
    [
        (np.arange(64) // 8, r"from_gptq: g_idx has values from 0 to 7, expected 0 to 3"),
        (np.arange(64) // 16 - 1, "g_idx has values from -1 to 2, expected 0 to 3"),
        (np.arange(64) // 32, "g_idx has blocks of 0 to 32 elements, expected P = 4 blocks of 32"),
        (np.minimum(np.arange(64) // 8, 3), "g_idx has blocks of 8 to 40 elements"),
        (np.ones(64, int), "g_idx has blocks of 0 to 64 elements, expected P = 4 blocks of one size"),
        (np.zeros(63, int), r"g_idx has shape \[63\], expected \[64\]"),
        (np.zeros(64), "g_idx has dtype float64, expected int32"),
    ],
)
def test_bad_g_idx(g_idx, message):
    with pytest.raises(qcore.QcoreError, match=message):
        formats.from_gptq(*arrays_of(4), g_idx, bits=4, version=2)


def test_bad_options():
    arrays = arrays_of(4)
    with pytest.raises(qcore.QcoreValueError, match="from_gptq: bits is 5, expected one of 2, 3, 4, 8"):
        formats.from_gptq(*arrays, bits=5, version=2)
    with pytest.raises(qcore.QcoreValueError, match="from_gptq: version is 3, expected one of 1, 2"):
        formats.from_gptq(*arrays, bits=4, version=3)
    with pytest.raises(qcore.QcoreValueError, match="from_gptq: qweight has 8 rows, expected a multiple of 3"):
        formats.from_gptq(*arrays, bits=3, version=2)
    with pytest.raises(qcore.QcoreValueError, match=r"qzeros has shape \[4, 2\], expected \[4, 4\]"):
        formats.from_gptq(*arrays, bits=8, version=2)
    with pytest.raises(
        qcore.QcoreValueError, match="weight has a zero point 0, expected 1 or more, which version 1 can hold"
    ):
        formats.to_gptq(formats.from_gptq(arrays[0], arrays[1], arrays[2] * 0, bits=4, version=2), version=1)
