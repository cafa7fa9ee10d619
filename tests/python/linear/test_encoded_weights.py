"""Encoded weights: their values, every kernel that multiplies them, and what is made of them."""

import json
import pickle

import encoded_weights
import numpy as np
import oracle
import pytest
from encoded_weights import ENCODINGS
from linear_calls import BFLOAT_KERNELS, INTEGER_MODES, KERNELS, assert_same, poisoned_run, run

import qcore
from qcore.weight_encoding import pack_bits, unpack_bits

SHAPES = [
    (1, 1, 1),
    (3, 33, 8),
    (17, 96, 32),
    (40, 520, 16),
    (33, 513, 64),
    (16, 300, 512),
    (50, 130, 5),
    (0, 64, 32),
    (5, 0, 32),
]


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(name, shape):
    n, k, g = shape
    made = encoded_weights.make(ENCODINGS[name], n, k, g)
    weight = made.weight
    assert (weight.shape, weight.block_size, weight.encoding) == ((n, k), g, ENCODINGS[name])
    assert_same(weight.codes(), made.codes.astype(np.int8))
    assert np.array_equal(weight.scales(), made.scales)
    assert np.array_equal(weight.offsets(), made.offsets)
    spread = [np.repeat(each, g, axis=1)[:, :k] for each in (made.scales, made.offsets)]
    expected = oracle.fma(spread[0], made.codes, spread[1]) if k and n else np.zeros((n, k), np.float32)
    rounds = name == "zero points"  # offsets that float32 doesn't hold, and zero points outside of int8
    if rounds and k and n:
        wide = made.codes + ENCODINGS[name].zero - np.repeat(made.parts["offsets"].astype(np.int64), g, axis=1)[:, :k]
        expected = oracle.fma(spread[0], wide, np.zeros_like(spread[0]))
    for kernel in [row.name for row in qcore.kernels("dequantize") if row.available]:
        with qcore.force_kernel("dequantize", kernel):
            assert np.array_equal(weight.dequantize(), expected)
    plain = weight.plain()
    assert plain.encoding is None and plain.plain() is plain
    if not rounds:
        assert np.array_equal(plain.dequantize(), expected)
    else:
        bound = 2.0**-23 * np.abs(expected).max(initial=0)
        assert np.allclose(plain.dequantize(), expected, rtol=0, atol=bound)
    assert plain.scheme == weight.scheme


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", [(17, 96, 32), (40, 520, 16), (33, 513, 64), (50, 130, 5), (36, 4128, 32)], ids=str)
def test_every_kernel_has_the_bits_of_the_definition(name, shape):
    n, k, g = shape
    made = encoded_weights.make(ENCODINGS[name], n, k, g)
    x = np.random.default_rng(k).standard_normal((20, k), dtype=np.float32)
    weight = oracle.Quantized(made.codes, made.scales, made.offsets, g)
    for mode in INTEGER_MODES:
        expected = oracle.linear(x, weight, mode, made.weight.scheme == "asymmetric")
        for kernel in KERNELS[mode]:
            for rows in (20,) if kernel == "reference" else (1, 3, 20):
                got = poisoned_run(kernel, x[:rows], made.weight, compute=mode)
                assert_same(got, expected[:rows], kernel, mode, rows)
    expected = oracle.float_linear(x, weight)
    for kernel in KERNELS["float"]:
        for rows in (20,) if kernel == "reference" else (1, 3, 20):
            got = poisoned_run(kernel, x[:rows], made.weight, compute="float")
            assert_same(got, expected[:rows], kernel, rows)
    narrow = x.astype(np.float16).astype("bfloat16")
    for kernel in BFLOAT_KERNELS:
        for rows in (1, 20):
            got = run(kernel, narrow[:rows], made.weight, compute="float")
            exact = narrow[:rows].astype(np.float64) @ made.weight.dequantize().astype(np.float64).T
            assert np.linalg.norm(got.astype(np.float64) - exact) <= 1e-2 * np.linalg.norm(exact)


def test_threads_bias_and_activation():
    made = encoded_weights.make(ENCODINGS["Q4_K"], 700, 1024, 32)
    x = np.random.default_rng(1).standard_normal((5, 1024), dtype=np.float32)
    bias = np.arange(700, dtype=np.float32)
    options = {"activation": "silu", "out_dtype": "float16"}
    before = qcore.get_num_threads()
    for rows in (1, 5):
        expected = run("reference", x[:rows], made.weight, bias, **options)
        for threads in (1, 2, 3):
            qcore.set_num_threads(threads)
            try:
                for kernel in KERNELS["int8"]:
                    assert_same(run(kernel, x[:rows], made.weight, bias, **options), expected, kernel, threads)
            finally:
                qcore.set_num_threads(before)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_are_those_that_were_given(name, shape):
    encoding = ENCODINGS[name]
    made = encoded_weights.make(encoding, *shape)
    parts = made.weight.encoded_parts()
    assert set(parts) == {"codes", "scales", "offsets", "super_scales", "super_offsets"}
    for part, given in parts.items():
        assert (given is None) == (made.parts.get(part) is None)
        assert given is None or (given.dtype == made.parts[part].dtype and np.array_equal(given, made.parts[part]))
    assert qcore.QuantizedTensor.from_encoded(**parts, encoding=encoding, block_size=shape[2]) == made.weight
    for part, bits in encoding.widths().items():
        packed = pack_bits(parts[part], bits)
        assert packed.shape == (shape[0], -(-parts[part].shape[1] * bits // 8))
        values = [sum(int(byte) << 8 * i for i, byte in enumerate(row)) for row in packed]
        assert values == [sum(int(u) << bits * i for i, u in enumerate(row)) for row in parts[part]]
        assert np.array_equal(unpack_bits(packed, bits, parts[part].shape[1]), parts[part])


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_encodings_as_json(encoding):
    text = json.dumps(encoding.to_dict())
    assert qcore.WeightEncoding.from_dict(json.loads(text)) == encoding


@pytest.mark.parametrize(
    "given, message",
    [
        ([], "got list, expected bits and some of"),
        ({}, r"got the names \[\], expected bits"),
        ({"bits": 4, "width": 1}, r"\['bits', 'width'\], expected bits"),
        ({"bits": "4"}, "bits"),
        ({"bits": 4, "codebook": "x" * 16}, "codebook is .*, expected 16 integers"),
        ({"bits": 4, "codebook": [1]}, "codebook has 1 values, expected 16"),
        ({"bits": 4, "scales": ["float32"]}, "scales"),
        ({"bits": 4, "tensor_scale": "1"}, "tensor_scale is '1', expected a number"),
        ({"bits": 4, "tensor_scale": 1e39}, "tensor_scale inf, expected a finite number"),
        ({"bits": 4, "zero": 1.5}, "zero"),
    ],
)
def test_impossible_dictionaries(given, message):
    with pytest.raises(qcore.QcoreError, match=message):
        qcore.WeightEncoding.from_dict(given)


@pytest.mark.parametrize("name", ENCODINGS)
def test_rows_storage_and_pickles(name):
    encoding = ENCODINGS[name]
    a, b = (encoded_weights.make(encoding, n, 130, 20, seed=n).weight for n in (37, 21))
    both = qcore.concatenate([a, b])
    assert both.encoding == encoding
    assert np.array_equal(both.dequantize(), np.concatenate([a.dequantize(), b.dequantize()]))
    assert both.slice_rows(0, 37) == a and both.slice_rows(37, 58) == b
    assert np.array_equal(both.slice_rows(30, 45).dequantize(), both.dequantize()[30:45])
    assert pickle.loads(pickle.dumps(a)) == a
    assert a != b and a != a.plain()
    same = qcore.QuantizedTensor.from_storage(a.storage(), a.shape, bits=a.bits, block_size=20, encoding=encoding)
    assert same == a
    indices = np.array([3, 36, 0, 3])
    assert np.array_equal(qcore.embedding(indices, a), a.dequantize()[indices])
    with pytest.raises(qcore.QcoreValueError, match=r"concatenate: weights\[1\] is .* expected what weights\[0\] is"):
        qcore.concatenate([a, a.plain()])


def test_bytes_are_those_of_the_source():
    sizes = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_XS": 136, "TQ2_0": 66}
    for name, octets in sizes.items():
        g = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16, "TQ2_0": 256}.get(name, 32)
        weight = encoded_weights.make(ENCODINGS[name], 32, 2048, g).weight
        assert weight.nbytes == 32 * 2048 // 256 * octets, name
        assert weight.storage().nbytes <= weight.nbytes + 4 * 64
    for name, octets, g in (
        ("Q4_1", 20, 32),
        ("Q5_1", 24, 32),
        ("IQ4_NL", 18, 32),
        ("MXFP4", 17, 32),
        ("NVFP4", 9, 16),
    ):
        weight = encoded_weights.make(ENCODINGS[name], 32, 2048, g).weight
        assert weight.bits_per_weight == 8 * octets / g


def parts(**changes):
    made = encoded_weights.make(ENCODINGS["Q4_K"], 4, 64, 32)
    return {**made.parts, "encoding": ENCODINGS["Q4_K"], "block_size": 32, **changes}


SYMMETRIC = {"offsets": None, "super_scales": None, "super_offsets": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": "Q4_K"}, "encoding is a str, expected a qcore.WeightEncoding"),
        ({"codes": np.full((4, 64), 16, np.uint8)}, "codes holds 16 in row 0, k 0, expected at most 15 for bits=4"),
        ({"codes": np.zeros((4, 64), np.int8)}, "codes has dtype int8, expected uint8"),
        ({"codes": np.zeros(64, np.uint8)}, r"codes has shape \[64\], expected \[N, K\]"),
        ({"scales": np.full((4, 2), 64, np.uint8)}, "scales holds 64 in row 0, block 0, expected at most 63 for uint6"),
        (
            {"scales": np.full((4, 2), 255, np.uint8), "encoding": ENCODINGS["MXFP4"], **SYMMETRIC},
            "scales holds 255 in row 0, block 0, which is NaN in float8_e8m0fnu, expected numbers",
        ),
        (
            {"scales": np.full((4, 2), 127, np.uint8), "encoding": ENCODINGS["NVFP4"], **SYMMETRIC},
            "scales holds 127 in row 0, block 0, which is NaN in float8_e4m3fn, expected numbers",
        ),
        ({"scales": np.zeros((4, 3), np.uint8)}, r"scales has shape \[4, 3\], expected \[4, 2\]"),
        ({"scales": np.zeros((4, 2), np.float32)}, "scales has dtype float32, expected uint8"),
        ({"offsets": None}, "offsets is missing, expected it because the encoding has offsets"),
        ({"super_scales": None}, "super_scales is missing, expected it because the encoding has integer scales"),
        ({"super_offsets": None}, "super_offsets is missing"),
        (
            {"super_scales": np.full((4, 1), np.inf, np.float16)},
            "row 0, block 0 has the scale .* expected finite numbers",
        ),
        ({"block_size": 0}, "block_size is 0, expected an integer from 1"),
    ],
)
def test_bad_parts(changes, message):
    with pytest.raises(qcore.QcoreError, match=f"^from_encoded: {message}"):
        qcore.QuantizedTensor.from_encoded(**parts(**changes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qcore.WeightEncoding(7), "WeightEncoding: encoding has bits 7, expected 2, 3, 4, 5, 6 or 8"),
        (lambda: qcore.WeightEncoding(8), "WeightEncoding: encoding has bits 8 and zero 0, expected 128"),
        (
            lambda: qcore.WeightEncoding(5, codebook=encoded_weights.E2M1),
            "encoding has a codebook and bits 5, expected at most 4",
        ),
        (lambda: qcore.WeightEncoding(4, codebook=5), "WeightEncoding: codebook is 5, expected 16 integers"),
        (lambda: qcore.WeightEncoding(4, tensor_scale="1"), "WeightEncoding: tensor_scale is '1', expected a number"),
        (lambda: qcore.WeightEncoding(4, codebook=(1, 2)), "WeightEncoding: codebook has 2 values, expected 16"),
        (lambda: qcore.WeightEncoding(4, codebook=(200,) * 16), "WeightEncoding: codebook is 200"),
        (lambda: qcore.WeightEncoding(4, zero=129), "encoding has zero 129, expected 0 to 128"),
        (lambda: qcore.WeightEncoding(4, scales="int8"), "WeightEncoding: scales is 'int8', expected"),
        (
            lambda: qcore.WeightEncoding(4, offsets="float8_e4m3fn"),
            "WeightEncoding: offsets is 'float8_e4m3fn', expected",
        ),
        (
            lambda: qcore.WeightEncoding(4, scales="uint4 zero points"),
            "WeightEncoding: scales is 'uint4 zero points', expected",
        ),
        (
            lambda: qcore.WeightEncoding(4, offsets="uint4 zero points", codebook=encoded_weights.E2M1),
            "encoding has a codebook and zero points, expected one of them",
        ),
        (
            lambda: qcore.WeightEncoding(4, "uint6"),
            "encoding has super_block 0, expected 1 or more with integer scales or offsets",
        ),
        (
            lambda: qcore.WeightEncoding(4, super_block=8),
            "encoding has super_block 8, expected 0 without integer scales",
        ),
        (lambda: qcore.WeightEncoding(4, "uint8", scale_zero=256, super_block=1), "scale_zero 256, expected 0 to 255"),
        (lambda: qcore.WeightEncoding(4, tensor_scale=float("nan")), "tensor_scale nan, expected a finite number"),
    ],
)
def test_impossible_encodings_cannot_be_made(make, message):
    with pytest.raises(qcore.QcoreError, match=message):
        make()


def test_a_codebook_given_as_a_list():
    codebook = list(encoded_weights.E2M1)
    assert qcore.WeightEncoding(4, codebook=codebook) == qcore.WeightEncoding(4, codebook=tuple(codebook))


def test_what_encoded_weights_are_not_for():
    weight = encoded_weights.make(ENCODINGS["Q6_K"], 4, 64, 16).weight
    with pytest.raises(
        qcore.QcoreValueError, match=r"nibbles: the weight is encoded, expected .* call plain\(\) first"
    ):
        weight.nibbles()
    with pytest.raises(
        qcore.QcoreValueError, match=r"encoded_parts: the weight has plain codes of 8 bits, expected an"
    ):
        weight.plain().encoded_parts()
    with pytest.raises(qcore.QcoreValueError, match="from_storage: shape has 4 dimensions, expected"):
        qcore.QuantizedTensor.from_storage(
            weight.storage(), (4, 64, 1, 1), bits=6, block_size=16, encoding=weight.encoding
        )
    with pytest.raises(qcore.QcoreValueError, match="from_storage: storage has shape"):
        qcore.QuantizedTensor.from_storage(weight.storage(), (4, 640), bits=6, block_size=16, encoding=weight.encoding)
