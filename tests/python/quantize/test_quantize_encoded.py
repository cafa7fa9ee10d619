"""quantize_encoded: rounding to nearest against an oracle in NumPy, searches against dense grids."""

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore.formats import from_gguf, to_gguf
from qcore.weight_encoding import ENCODINGS

E8M0, E4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
INTEGERS = {"uint4": 15, "uint6": 63, "uint8": 255}
OTHERS = {
    "3 bits, zero points of 4 bits": (qcore.WeightEncoding(3, "float16", "uint4 zero points"), 32),
    "8 bits, zero points of 8 bits": (qcore.WeightEncoding(8, "float32", "uint8 zero points", zero=128), 48),
    "6 bits, bfloat16": (qcore.WeightEncoding(6, "bfloat16", "bfloat16"), 20),
    "2 bits, float32": (qcore.WeightEncoding(2, "float32", zero=2), 8),
    "4 bits, integer scales, float16 offsets": (qcore.WeightEncoding(4, "uint6", "float16", super_block=4), 16),
    "5 bits, float16 scales, integer offsets": (qcore.WeightEncoding(5, "float16", "uint4", super_block=3), 16),
}
CASES = {**ENCODINGS, **OTHERS}


def weights(n=40, k=600, seed=0):
    """Return ordinary blocks and ones that are zero, constant, tiny, one-sided or have an outlier."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, k)).astype(np.float32) * 0.02
    for row in range(n):
        for begin in range(0, k, 16):
            block, kind = values[row, begin : begin + 16], rng.integers(16)
            if kind == 0:
                block[:] = 0
            elif kind == 1:
                block[:] = block[0]
            elif kind == 2:
                block[3] *= 20
            elif kind == 3:
                block[:] = np.abs(block)
            elif kind == 4:
                block[:] = -np.abs(block)
    return values


def numbers_of(encoding):
    if encoding.codebook is not None:
        return np.array(sorted(set(encoding.codebook[: 2**encoding.bits])), np.float32)
    return np.arange(2**encoding.bits, dtype=np.float32) - encoding.zero


def nearest(values, scale, offset, numbers):
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / np.float32(scale)
    if scale == 0 or not np.isfinite(inverse):
        inverse = np.float32(0)
    x = (values - np.float32(offset)) * inverse
    distance = np.abs(x.astype(np.float64)[:, None] - numbers)
    best = distance.argmin(axis=1)
    if len(numbers) > 16 or (np.diff(numbers) == 1).all():  # integers: the even one of two
        best = np.clip(np.rint(np.clip(x, numbers[0], numbers[-1])) - numbers[0], 0, len(numbers) - 1).astype(int)
    return numbers[best]


def oracle(values, encoding, size):
    """Round to nearest: decoded values [N, K], one block after the other, in float32."""
    numbers = numbers_of(encoding)
    lowest, highest = numbers[0], numbers[-1]
    result = np.zeros_like(values)
    blocks = -(-values.shape[1] // size)
    together = encoding.super_block or 1
    for row in range(len(values)):
        for first in range(0, blocks, together):
            pieces = [values[row, p * size : (p + 1) * size] for p in range(first, min(first + together, blocks))]
            wanted = [ideal(piece, encoding, lowest, highest) for piece in pieces]
            scale_unit = offset_unit = None
            if encoding.scales in INTEGERS:
                largest = max((s for s, _ in wanted), key=abs)
                scale_unit = np.float32(
                    np.float16(largest / np.float32(INTEGERS[encoding.scales] - encoding.scale_zero))
                )
            if encoding.offsets in INTEGERS:
                deepest = min(min(o for _, o in wanted), np.float32(0))
                offset_unit = np.float32(np.float16(-deepest / np.float32(INTEGERS[encoding.offsets])))
            for i, (piece, (scale, offset)) in enumerate(zip(pieces, wanted, strict=True)):
                shift = None  # of a zero point
                if scale_unit is not None:
                    ratio = 0.0 if scale_unit == 0 else float(scale) / float(scale_unit)
                    number = np.rint(np.clip(encoding.scale_zero + ratio, 0, INTEGERS[encoding.scales]))
                    scale = scale_unit * np.float32(number - encoding.scale_zero)
                if offset_unit is not None:
                    ratio = 0.0 if offset_unit == 0 else -float(offset) / float(offset_unit)
                    offset = -(offset_unit * np.float32(np.rint(np.clip(ratio, 0, INTEGERS[encoding.offsets]))))
                elif encoding.offsets is not None and "zero" in encoding.offsets:
                    most = 15 if "4" in encoding.offsets else 255
                    ratio = 0.0 if scale == 0 else float(offset) / float(scale)
                    shift = encoding.zero - np.rint(np.clip(encoding.zero - ratio, 0, most))
                    offset = scale * np.float32(shift)
                q = nearest(piece, scale, offset, numbers)
                exact = np.float64(scale) * (q + shift) if shift is not None else np.float64(scale) * q + offset
                begin = (first + i) * size
                result[row, begin : begin + len(piece)] = exact.astype(np.float32)
    return result


def ideal(piece, encoding, lowest, highest):
    """Return the scale and the offset that clip nothing, rounded if their type is a float."""
    lo, hi = piece.min(), piece.max()
    zero = np.float32(0)
    if encoding.offsets is None:
        scale = zero
        if highest > 0:
            scale = max(scale, hi / highest)
        if lowest < 0:
            scale = max(scale, lo / lowest)
        offset = zero
        if encoding.scales == "float8_e8m0fnu" and scale > 0:
            exponent = np.floor(np.log2(max(hi, -lo))) - np.floor(
                np.log2(max(highest, -lowest) * encoding.tensor_scale)
            )
            return np.float32(2.0**exponent * encoding.tensor_scale), zero
        if encoding.scales == "float8_e8m0fnu":
            return np.float32(2.0**-127 * encoding.tensor_scale), zero
    else:
        if encoding.offsets in INTEGERS or "zero" in encoding.offsets:
            lo = min(lo, zero)
        if "zero" in encoding.offsets:
            hi = max(hi, zero)
        levels = highest - lowest
        scale = max(hi / levels - lo / levels, zero)
        offset = np.float32(float(lo) - float(scale) * float(lowest))
        if piece.min() == piece.max() and encoding.offsets in FLOATS:
            stored = np.float32(FLOATS[encoding.offsets](piece.min()))
            if stored == piece.min() or encoding.scales in INTEGERS:
                return zero, stored
    if encoding.scales == "float8_e4m3fn":
        ratio = np.float32(scale / np.float32(encoding.tensor_scale))
        scale = np.float32(E4M3(ratio)) * np.float32(encoding.tensor_scale)
    elif encoding.scales in FLOATS:
        scale = np.float32(FLOATS[encoding.scales](scale))
    if encoding.offsets in FLOATS:
        offset = np.float32(FLOATS[encoding.offsets](offset))
    return scale, offset


def squared_error(weight, values, importance=1.0):
    return float((importance * np.square(weight.dequantize().astype(np.float64) - values)).sum())


@pytest.mark.parametrize("name", CASES)
def test_rounding_to_nearest_equals_the_oracle(name):
    encoding, size = CASES[name]
    values = weights()
    made = qcore.quantize_encoded(values, encoding, size, method="rtn")
    assert made.encoding == encoding
    assert made.block_size == size
    expected = oracle(values, encoding, size)
    same = made.dequantize() == expected
    assert same.mean() > 0.999, f"{(~same).sum()} of {same.size} differ"
    # Where the last bit of a parameter differs, so does the value, by no more than that.
    assert np.abs(made.dequantize() - expected).max() <= 2.0**-9 * np.abs(expected).max()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_search_is_never_worse_than_rounding(name, dtype):
    encoding, size = CASES[name]
    values = weights(seed=1).astype(dtype)
    nearest_error = squared_error(qcore.quantize_encoded(values, encoding, size, method="rtn"), values)
    made = qcore.quantize_encoded(values, encoding, size)
    assert squared_error(made, values) < nearest_error * 0.995
    assert made == qcore.quantize_encoded(np.asfortranarray(values), encoding, size)


@pytest.mark.parametrize("method", ["rtn", "mse"])
@pytest.mark.parametrize(
    "row", [row for row in qcore.kernels("quantize_encoded") if row.available], ids=lambda r: r.name
)
def test_every_kernel_has_the_bits_of_the_reference(row, method):
    for seed, (encoding, size) in enumerate(CASES.values()):
        values = weights(33, 777, seed=seed)
        with qcore.force_kernel("quantize_encoded", "reference"):
            expected = qcore.quantize_encoded(values, encoding, size, method=method)
        with qcore.force_kernel("quantize_encoded", row.name):
            assert qcore.quantize_encoded(values, encoding, size, method=method) == expected
        assert qcore.last_kernel("quantize_encoded") == row.name


@pytest.mark.parametrize("name", ["q5_0", "iq4_nl", "nf4", "2 bits, float32"])
def test_symmetric_search_comes_near_a_dense_grid(name):
    encoding, size = CASES[name]
    numbers = numbers_of(encoding)
    values = weights(8, 2 * size, seed=2)
    made = qcore.quantize_encoded(values, encoding, size)
    best = 0.0
    for block in values.reshape(-1, size).astype(np.float64):
        if not block.any():
            continue
        extreme = block[np.abs(block).argmax()]
        ends = [extreme / numbers[0], extreme / numbers[-1]]
        scales = np.concatenate([end * np.linspace(0.3, 1.1, 1500) for end in ends])
        scales = scales.astype(FLOATS[encoding.scales]).astype(np.float64)
        scales = scales[scales != 0]
        ratio = block / scales[:, None]
        at = np.clip(np.searchsorted((numbers[1:] + numbers[:-1]) / 2, ratio), 0, len(numbers) - 1)
        best += np.square(scales[:, None] * numbers[at] - block).sum(axis=1).min()
    assert squared_error(made, values) <= 1.02 * best


def test_a_search_with_offsets_comes_near_a_dense_grid():
    size = CASES["q4_1"][1]
    values = weights(4, 2 * size, seed=3)
    made = qcore.quantize_encoded(values, "q4_1")
    best = 0.0
    for block in values.reshape(-1, size).astype(np.float64):
        lo, span = block.min(), block.max() - block.min()
        if span == 0:
            continue
        scales = (span / 15 * np.linspace(0.6, 1.05, 150)).astype(np.float16).astype(np.float64)[:, None, None]
        offsets = (lo + span * np.linspace(-0.05, 0.35, 150)).astype(np.float16).astype(np.float64)[None, :, None]
        decoded = scales * np.clip(np.rint((block - offsets) / scales), 0, 15) + offsets
        best += np.square(decoded - block).sum(axis=2).min()
    assert squared_error(made, values) <= 1.03 * best


@pytest.mark.parametrize("name", ["q2_k", "q4_k", "q6_k", "iq4_xs", "mxfp4", "nvfp4", "q5_1"])
def test_samples_weigh_errors(name):
    rng = np.random.default_rng(4)
    values, x = weights(seed=4), rng.standard_normal((50, 600)).astype(np.float32)
    x[:, ::7] *= 10
    importance = np.square(x.astype(np.float64)).mean(axis=0)
    plain = qcore.quantize_encoded(values, name)
    weighed = qcore.quantize_encoded(values, name, samples=x)
    assert squared_error(weighed, values, importance) < 0.95 * squared_error(plain, values, importance)
    assert weighed == qcore.quantize_encoded(values, name, method="awq", samples=x)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in ("nvfp4", "nf4")])
def test_files_take_what_was_quantized(name, tmp_path):
    made = qcore.quantize_encoded(weights(6, 512, seed=5), name)
    to_gguf(tmp_path / "w.gguf", {"w": made}, kind=name.upper())
    assert from_gguf(tmp_path / "w.gguf", "w") == made


def test_nvfp4_takes_its_tensor_scale_from_the_weight():
    values = weights(8, 256, seed=6)
    made = qcore.quantize_encoded(values, "nvfp4")
    assert made.encoding.tensor_scale == pytest.approx(np.abs(values).max() / (448 * 12))
    fixed = qcore.quantize_encoded(values, ENCODINGS["nvfp4"][0], 16)
    assert fixed.encoding.tensor_scale == 0.5
    assert squared_error(made, values) < squared_error(fixed, values)


@pytest.mark.parametrize("name", CASES)
def test_special_blocks(name):
    """Zeros stay zeros; values from 1e-38 to 100, single columns and nothing at all give finite weights."""
    encoding, size = CASES[name]
    assert not qcore.quantize_encoded(np.zeros((3, 100), np.float32), encoding, size).dequantize().any()
    rng = np.random.default_rng(7)
    for magnitude in (1e-38, 1e-20, 1e-6, 1.0, 100.0):
        for shape in ((17, 1), (1, size + 1), (2, 3 * size)):
            for method in ("rtn", "mse"):
                values = (rng.standard_normal(shape) * magnitude).astype(np.float32)
                result = qcore.quantize_encoded(values, encoding, size, method=method).dequantize()
                assert np.isfinite(result).all()
                assert np.abs(result).max() <= 2.1 * np.abs(values).max()
    for shape in ((0, 64), (5, 0), (0, 0)):
        assert qcore.quantize_encoded(np.zeros(shape, np.float32), encoding, size).shape == shape


def test_linear_multiplies_what_was_quantized():
    values, x = weights(33, 512, seed=8), np.random.default_rng(8).standard_normal((3, 512)).astype(np.float32)
    for name in ("q3_k", "q4_k", "iq4_nl", "mxfp4", "nf4"):
        made = qcore.quantize_encoded(values, name)
        expected = x.astype(np.float64) @ made.dequantize().T.astype(np.float64)
        np.testing.assert_allclose(qcore.linear(x, made, compute="float"), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"encoding": "q7_k"}, qcore.QcoreValueError, "encoding is 'q7_k', expected one of 'q2_k'"),
        ({"encoding": 4}, qcore.QcoreValueError, "encoding is 4, expected one of"),
        ({"encoding": qcore.WeightEncoding(4)}, qcore.QcoreValueError, "block_size is None, expected an integer"),
        ({"block_size": 0}, qcore.QcoreValueError, "block_size is 0, expected an integer from 1"),
        ({"block_size": 1.5}, qcore.QcoreTypeError, "block_size is 1.5"),
        ({"method": "gptq"}, qcore.QcoreValueError, "method is 'gptq', expected one of 'rtn', 'mse', 'awq'"),
        ({"method": "awq"}, qcore.QcoreValueError, "samples is missing"),
        ({"method": "rtn", "samples": np.ones((2, 64))}, qcore.QcoreValueError, "samples is given"),
        ({"samples": np.ones((2, 63))}, qcore.QcoreValueError, "samples has shape"),
        ({"weight": np.ones((4, 8, 8), np.float32)}, qcore.QcoreValueError, r"weight has shape \[4, 8, 8\]"),
        ({"weight": np.ones((4, 8), np.int8)}, qcore.QcoreTypeError, "weight has dtype int8"),
        (
            {"weight": np.full((4, 8), np.nan, np.float32)},
            qcore.QcoreValueError,
            r"weight holds a NaN or an infinity, the first at index \[0, 0\]",
        ),
        ({"weight": np.full((4, 64), 1e9, np.float32)}, qcore.QcoreValueError, "cannot hold the scale or the offset"),
        ({"weight": [[1.0]]}, qcore.QcoreTypeError, "weight is a list"),
    ],
)
def test_errors_name_the_argument(arguments, error, words):
    given = {"weight": np.ones((4, 64), np.float32), "encoding": "q4_k"} | arguments
    with pytest.raises(error, match=f"quantize_encoded: .*{words}|quantize_encoded: {words}"):
        qcore.quantize_encoded(**given)
