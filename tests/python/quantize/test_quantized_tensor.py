"""QuantizedTensor: its parts, copies, equality and size."""

import copy
import pickle

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qcore

BITS = (4, 8)
SCHEMES = ("symmetric", "asymmetric")


@given(
    shape=st.one_of(
        st.tuples(st.integers(0, 40), st.integers(0, 150)),
        st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 3), st.integers(1, 3)),
    ),
    g=st.integers(1, 160),
    seed=st.integers(0, 99),
)
def test_nibbles_are_the_codes_in_pairs(shape, g, seed):
    w = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    weight = qcore.quantize(w, bits=4, block_size=g, scheme="asymmetric")
    columns = int(np.prod(shape[1:]))
    stored = np.zeros((shape[0], columns + columns % 2), np.uint8)
    stored[:, :columns] = weight.codes().reshape(shape[0], columns) + 8
    nibbles = weight.nibbles()
    assert nibbles.dtype == np.uint8
    np.testing.assert_array_equal(nibbles, stored[:, ::2] | stored[:, 1::2] << 4)


def test_nibbles_need_four_bits():
    weight = qcore.quantize(np.ones((2, 8), np.float32), bits=8)
    with pytest.raises(qcore.QcoreValueError, match="nibbles: the weight has 8 bits, expected 4"):
        weight.nibbles()


def some_weight(bits=4, scheme="asymmetric", seed=8, shape=(20, 70), g=32):
    w = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, scale_dtype="float32")


@pytest.mark.parametrize("shape", [(5, 37), (3, 10, 2, 3)], ids=str)
@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_from_parts_is_lossless(bits, with_offsets, shape):
    rng = np.random.default_rng(9)
    blocks = oracle.block_count(shape[1], 16)
    codes = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape, dtype=np.int8)
    codes.flat[:2] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scales = rng.standard_normal((shape[0], blocks), dtype=np.float32) * np.float32(1e-30)
    scales[0, 0] = 0
    offsets = rng.standard_normal((shape[0], blocks), dtype=np.float32) if with_offsets else None
    weight = qcore.QuantizedTensor.from_parts(codes, scales, offsets, bits=bits, block_size=16)
    assert weight.scheme == ("asymmetric" if with_offsets else "symmetric")
    np.testing.assert_array_equal(weight.codes(), codes)
    np.testing.assert_array_equal(weight.scales(), scales)
    np.testing.assert_array_equal(weight.offsets(), offsets if with_offsets else np.zeros_like(scales))


def test_from_parts_takes_any_strides():
    weight = some_weight()
    codes, scales, offsets = weight.codes(), weight.scales(), weight.offsets()
    again = qcore.QuantizedTensor.from_parts(
        np.asfortranarray(codes), scales[::-1].copy()[::-1], np.asfortranarray(offsets), bits=4, block_size=32
    )
    assert again == weight


@pytest.mark.parametrize("shape", [(20, 70), (4, 9, 3, 3)], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_are_equal(copied, bits, scheme, shape):
    weight = some_weight(bits, scheme, shape=shape)
    again = copied(weight)
    assert again == weight
    assert (again.shape, again.bits, again.block_size, again.scheme) == (shape, bits, 32, scheme)


def test_equality():
    weight = some_weight()
    assert weight == some_weight()
    assert weight != some_weight(seed=9)
    assert weight != some_weight(bits=8)
    assert weight != some_weight(scheme="symmetric")
    assert weight != some_weight(shape=(20, 69))
    assert weight != some_weight(g=35)
    assert weight != "weight"
    parts = {"codes": weight.codes(), "scales": weight.scales(), "offsets": weight.offsets()}
    for name in parts:
        changed = {key: value.copy() for key, value in parts.items()}
        changed[name][-1, -1] = 1 if parts[name][-1, -1] != 1 else 2
        assert qcore.QuantizedTensor.from_parts(**changed, bits=4, block_size=32) != weight
    assert qcore.QuantizedTensor.from_parts(**parts, bits=4, block_size=32) == weight


def test_padding_takes_no_part_in_equality():
    codes, scales = np.zeros((1, 5), np.int8), np.ones((1, 1), np.float32)
    a = qcore.QuantizedTensor.from_parts(codes, scales, bits=4, block_size=64)
    b = qcore.quantize(np.zeros((1, 5), np.float32), bits=4, block_size=64)
    assert a != b  # the scales differ
    assert a == qcore.QuantizedTensor.from_parts(b.codes(), scales, bits=4, block_size=64)


def test_immutable():
    w = np.random.default_rng(10).standard_normal((4, 16), dtype=np.float32)
    weight = qcore.quantize(w, bits=8, block_size=8, scheme="asymmetric")
    before = weight.dequantize()
    for name in ("shape", "bits", "_handle", "other"):
        with pytest.raises(AttributeError, match=f"QuantizedTensor is immutable: can't set '{name}'"):
            setattr(weight, name, 1)
    w[:] = 0
    for part in (weight.codes(), weight.scales(), weight.offsets(), weight.dequantize()):
        part[:] = 0
    np.testing.assert_array_equal(weight.dequantize(), before)
    with pytest.raises(TypeError, match="unhashable"):
        hash(weight)


def test_repr():
    assert repr(qcore.quantize(np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32))) == (
        "QuantizedTensor(shape=[256, 512], bits=4, block_size=32, scheme='symmetric', device='cpu', "
        "4.5 bits per weight)"
    )
    assert repr(some_weight(shape=(2, 3, 1, 1))).startswith("QuantizedTensor(shape=[2, 3, 1, 1], bits=4, block_size=32")


@pytest.mark.parametrize(
    ("bits", "scheme", "g", "expected"),
    [
        (4, "symmetric", 64, 4.5),
        (4, "asymmetric", 64, 5.0),
        (8, "symmetric", 32, 9.0),
        (8, "asymmetric", 128, 8.5),
        (4, "symmetric", 16, 6.0),
        (8, "symmetric", 512, 8.0625),
    ],
)
def test_bits_per_weight(bits, scheme, g, expected):
    w = np.random.default_rng(0).standard_normal((32, 512), dtype=np.float32)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, scale_dtype="float32")
    assert weight.bits_per_weight == expected
    assert weight.nbytes * 8 == expected * 32 * 512
    half = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, scale_dtype="float16")
    assert half.bits_per_weight == bits + (expected - bits) / 2


def test_bits_per_weight_counts_padding():
    weight = some_weight(bits=4, scheme="symmetric", shape=(17, 33), g=32)
    # Two panels of 16 rows; 4 + 1 steps of 64 bytes; two blocks of scales.
    assert weight.nbytes == 2 * 5 * 64 + 2 * 16 * 2 * 4
    assert weight.bits_per_weight == pytest.approx(8 * weight.nbytes / (17 * 33))
    assert qcore.quantize(np.zeros((0, 8), np.float32)).bits_per_weight == 0


def test_to_the_same_device_is_the_same_object():
    weight = some_weight()
    assert weight.device == "cpu"
    assert weight.to("cpu") is weight
    assert weight.to("cpu:0") is weight


def test_results_are_aligned():
    weight = some_weight()
    for part in (weight.codes(), weight.scales(), weight.offsets(), weight.dequantize(), weight.dequantize("bfloat16")):
        assert part.ctypes.data % 64 == 0
