"""The arrays of MatMulNBits nodes, against the formula bit by bit; models and ONNX Runtime are in interop/."""

import numpy as np
import pytest

import qcore
from qcore.formats.onnx import matmul_nbits as nbits

ATTRIBUTES = {"N": 5, "K": 70, "bits": 4, "block_size": 16}
P = 5


def code(row, index, bits):
    """Return the nibbles of a row of bytes, the low one first."""
    return int(row[index]) if bits == 8 else int(row[index // 2]) >> (4 * (index % 2)) & 15


def arrays_of(bits, zeros, dtype=np.float16, seed=0):
    rng = np.random.default_rng(seed)
    B = rng.integers(0, 256, (5, P, 2 * bits)).astype(np.uint8)
    scales = (rng.standard_normal((5, P)) * 0.02).astype(dtype)
    packed = rng.integers(0, 256, (5, -(-P * bits // 8))).astype(np.uint8)
    halves = (rng.integers(0, 2 ** (bits + 1), (5, P)) / 2).astype(dtype)
    return B, scales, {"absent": None, "packed": packed, "float": halves, "integers": np.floor(halves)}[zeros]


def values_of(B, scales, zeros, bits):
    out = np.empty((5, 70))
    for (n, k), _ in np.ndenumerate(out):
        p = k // 16
        if zeros is None:
            z = 1 << (bits - 1)
        else:
            z = code(zeros[n], p, bits) if zeros.dtype == np.uint8 else float(zeros[n, p])
        out[n, k] = (code(B[n, p], k % 16, bits) - z) * float(scales[n, p])
    return out


def tensor_of(B, scales, zeros, bits, **options):
    return nbits.tensor_of(B, scales, zeros, attributes=ATTRIBUTES | {"bits": bits}, where="node", **options)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["absent", "packed", "float", "integers"])
@pytest.mark.parametrize("flat", [False, True])
def test_every_value_is_the_formula(bits, zeros, flat):
    arrays = arrays_of(bits, zeros)
    given = (arrays[0], *(None if each is None else each.reshape(-1) for each in arrays[1:])) if flat else arrays
    weight = tensor_of(*given, bits)
    assert (weight.shape, weight.bits, weight.block_size) == ((5, 70), bits, 16)
    assert weight.scheme == ("symmetric" if zeros == "absent" else "asymmetric")
    assert np.array_equal(weight.dequantize(), values_of(*arrays, bits).astype(np.float32))


def test_four_bits_with_float32_scales():
    B, scales, zeros = arrays_of(4, "packed", np.float32)
    exact = tensor_of(B, scales, zeros, 4)
    assert (exact.bits, exact.encoding.scales, exact.encoding.offsets) == (4, "float32", "uint4 zero points")
    expected = values_of(B, scales, zeros, 4).astype(np.float32)
    assert np.array_equal(exact.dequantize(), expected)
    assert exact.plain().bits == 8 and np.array_equal(exact.plain().dequantize(), expected)  # u - z
    rounded = tensor_of(B, scales, zeros, 4, exact=False)
    assert rounded.bits == 4 and rounded.encoding is None
    assert 0 < np.abs(rounded.dequantize() - exact.dequantize()).max() <= 2.0**-20 * np.abs(scales).max()
    plain = tensor_of(B, scales, None, 4)
    assert (plain.bits, plain.scheme) == (4, "symmetric")


def test_eight_bits_with_float32_scales():
    B, scales, zeros = arrays_of(8, "packed", np.float32)
    exact = tensor_of(B, scales, zeros, 8)
    assert (exact.bits, exact.encoding.scales, exact.encoding.offsets) == (8, "float32", "uint8 zero points")
    expected = values_of(B, scales, zeros, 8)
    assert np.array_equal(exact.dequantize(), expected.astype(np.float32))
    halves = exact.dequantize("float16")
    assert np.array_equal(halves, expected.astype(np.float32).astype(np.float16))
    assert np.array_equal(qcore.embedding(np.array([4, 0]), exact), expected[[4, 0]].astype(np.float32))
    rounded = tensor_of(B, scales, zeros, 8, exact=False)
    for each in (rounded, exact.plain()):
        assert each.encoding is None
        assert np.abs(each.dequantize() - expected).max() <= 2.0**-16 * np.abs(scales).max()
    near = zeros // 2 + 64  # 64 to 191: codes within 64 to 191 differ by an int8
    B = B // 2 + np.uint8(64)
    assert np.array_equal(tensor_of(B, scales, near, 8).dequantize(), values_of(B, scales, near, 8).astype(np.float32))
    with pytest.raises(qcore.QcoreValueError, match="pass exact=False"):
        tensor_of(B, scales, np.full((5, P), 7.3, np.float32), 8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["absent", "packed"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_round_trip(bits, zeros, dtype):
    B, scales, packed = arrays_of(bits, zeros, dtype)
    weight = tensor_of(B, scales, packed, bits)
    back = nbits.arrays_of(weight, "test")
    assert np.array_equal(back["scales"], scales.astype(np.float32))
    again = tensor_of(back["B"], back["scales"], back.get("zero_points"), bits)
    assert np.array_equal(again.dequantize(), weight.dequantize())
    assert np.array_equal(back["B"][:, :4], B[:, :4])
    assert ("zero_points" in back) == (zeros == "packed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 2}, "node: bits is 2, expected one of 4, 8"),
        ({"block_size": 24}, "node has N = 5, K = 70 and block_size = 24, expected positive ones and a power of 2"),
        ({"N": 0}, "node has N = 0"),
        ({"K": 10**12}, r"node: B has shape \[5, 5, 8\], expected \[5, 62500000000, 8\]"),
        ({"K": 1.5}, "node: K is 1.5, expected an integer"),
        ({"block_size": 32}, r"node: B has shape \[5, 5, 8\], expected \[5, 3, 16\]"),
    ],
)
def test_bad_attributes(change, message):
    with pytest.raises(qcore.QcoreError, match=message):
        nbits.tensor_of(*arrays_of(4, "packed"), attributes=ATTRIBUTES | change, where="node")


def test_bad_arrays():
    B, scales, zeros = arrays_of(4, "packed")
    with pytest.raises(qcore.QcoreValueError, match=r"node: scales has shape \[5, 4\], expected \[5, 5\] or \[25\]"):
        tensor_of(B, scales[:, :4], zeros, 4)
    with pytest.raises(
        qcore.QcoreValueError, match=r"node: zero_points has shape \[5, 2\], expected \[5, 3\] or \[15\]"
    ):
        tensor_of(B, scales, zeros[:, :2], 4)
    with pytest.raises(qcore.QcoreTypeError, match="node: zero_points has dtype int8"):
        tensor_of(B, scales, zeros.view(np.int8), 4)
    with pytest.raises(qcore.QcoreTypeError, match="node: B has dtype int8, expected uint8"):
        tensor_of(B.view(np.int8), scales, zeros, 4)
    with pytest.raises(qcore.QcoreValueError, match="node has no scales"):
        tensor_of(B, None, zeros, 4)


def test_what_the_format_cannot_hold():
    w = np.random.default_rng(1).standard_normal((5, 70), dtype=np.float32)
    with pytest.raises(qcore.QcoreValueError, match="test: block_size is 48, expected a power of 2 from 16 on"):
        nbits.arrays_of(qcore.quantize(w, block_size=48), "test")
    with pytest.raises(qcore.QcoreValueError, match=r"test: weight has scale .* the format has no other offsets"):
        nbits.arrays_of(qcore.quantize(w, block_size=16, scheme="asymmetric"), "test")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["absent", "packed", "float"])
@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
def test_linear(bits, zeros, compute):
    weight = tensor_of(*arrays_of(bits, zeros), bits)
    x = np.random.default_rng(2).standard_normal((3, 70), dtype=np.float32)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.linalg.norm(qcore.linear(x, weight, compute=compute) - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if compute.startswith("int8") else 1e-4)
