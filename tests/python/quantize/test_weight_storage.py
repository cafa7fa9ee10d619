"""A weight's one block of memory: viewed without a copy, made from nibbles, cut and stacked by rows."""

import gc

import numpy as np
import pytest

import qcore

SHAPES = [(5, 7), (16, 64), (33, 130), (100, 96), (8, 5, 3, 3), (0, 4), (4, 0), (17, 1)]


def weights(shape):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape).astype(np.float32)
    for bits in (4, 8):
        for g in (4, 6, 32, 64):
            for scheme in ("symmetric", "asymmetric"):
                for scale_dtype in ("float32", "float16"):
                    yield qcore.quantize(values, bits=bits, block_size=g, scheme=scheme, scale_dtype=scale_dtype)


def view(weight, storage):
    return qcore.QuantizedTensor.from_storage(
        storage,
        weight.shape,
        bits=weight.bits,
        block_size=weight.block_size,
        scale_dtype=weight.scale_dtype,
        offset_dtype=weight.offset_dtype,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_storage_is_the_memory_itself(shape):
    for weight in weights(shape):
        storage = weight.storage()
        assert storage.dtype == np.uint8 and not storage.flags.writeable
        assert storage.ctypes.data % 64 == 0
        assert weight.nbytes <= storage.nbytes < weight.nbytes + 3 * 64
        seen = view(weight, storage)
        assert seen == weight and seen.nbytes == weight.nbytes
        assert seen.storage().ctypes.data == storage.ctypes.data


def test_a_view_keeps_its_memory():
    weight = next(weights((100, 96)))
    copied = view(weight, weight.storage())
    codes = weight.codes()
    del weight
    gc.collect()
    np.testing.assert_array_equal(copied.codes(), codes)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nibbles_make_the_weight_again(shape):
    for weight in weights(shape):
        if weight.bits == 4:
            offsets = None if weight.offset_dtype is None else weight.offsets().astype(weight.offset_dtype)
            nibbles = np.asfortranarray(weight.nibbles()) if weight.block_size == 32 else weight.nibbles()
            made = qcore.QuantizedTensor.from_parts(
                nibbles,
                weight.scales().astype(weight.scale_dtype),
                offsets,
                bits=4,
                block_size=weight.block_size,
                shape=shape,
            )
            assert made == weight
            assert made.nbytes == weight.nbytes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_cut_and_stacked(shape):
    n = shape[0]
    for weight in weights(shape):
        assert qcore.concatenate([weight.slice_rows(0, n // 3), weight.slice_rows(n // 3, n)]) == weight
        stacked = qcore.concatenate([weight] * 3)
        np.testing.assert_array_equal(stacked.codes(), np.concatenate([weight.codes()] * 3))
        np.testing.assert_array_equal(stacked.scales(), np.concatenate([weight.scales()] * 3))
        for i in range(3):
            assert stacked.slice_rows(i * n, (i + 1) * n) == weight


def test_parameters_of_stacked_weights_stay_narrow_only_if_all_are():
    values = np.random.default_rng(1).standard_normal((8, 64), dtype=np.float32)
    half = qcore.quantize(values, scale_dtype="float16")
    assert qcore.concatenate([half, half]).scale_dtype == "float16"
    mixed = qcore.concatenate([half, qcore.quantize(values, scale_dtype="float32")])
    assert mixed.scale_dtype == "float32"
    assert mixed.slice_rows(0, 8) == half


W = qcore.quantize(np.ones((4, 8), np.float32), bits=8, block_size=4, scale_dtype="float32")
PARTS = (W.codes(), W.scales())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qcore.concatenate([]), ValueError, "concatenate: weights is empty, expected at least one"),
        (
            lambda: qcore.concatenate([W, PARTS[0]]),
            TypeError,
            r"concatenate: weights\[1\] is a ndarray, expected a QuantizedTensor",
        ),
        (
            lambda: qcore.concatenate([W, qcore.quantize(np.ones((4, 8), np.float32), bits=4, block_size=4)]),
            ValueError,
            r"weights\[1\] is \[4, 8\] with bits 4, block_size 4, symmetric, expected what weights\[0\] is but for its "
            r"rows: \[4, 8\] with bits 8",
        ),
        (lambda: W.slice_rows(2, 5), ValueError, "slice_rows: begin is 2 and end 5, expected 0 <= .* <= N = 4"),
        (lambda: W.slice_rows(-1, 2), ValueError, "slice_rows: begin is -1"),
        (
            lambda: view(W, np.zeros(64, np.uint8)),
            ValueError,
            r"from_storage: storage has shape \[64\], expected \[256\]",
        ),
        (lambda: view(W, np.zeros(256, np.int8)), TypeError, "from_storage: storage has dtype int8, expected uint8"),
        (
            lambda: view(W, W.storage().repeat(2)[::2]),
            ValueError,
            "from_storage: storage has a stride of 2, expected contiguous memory",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(W.storage(), [4, 8], bits=5, block_size=4),
            ValueError,
            "from_storage: bits is 5, expected 4 or 8",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(W.storage(), [4], bits=8, block_size=4),
            ValueError,
            "from_storage: shape has 1 dimensions",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(W.storage(), [4, 8], bits=8, block_size=0),
            ValueError,
            "from_storage: block_size is 0, expected an integer from 1 to 2147483647",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(W.storage()[:0], [2**60, 16], bits=8, block_size=4),
            ValueError,
            "from_storage: shape has 1152921504606846976 rows and 16 columns in blocks of 4, expected a weight of less "
            "than 72057594037927936 bytes",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(W.storage()[:0], [16, 8, 2**31, 2**31], bits=8, block_size=4),
            ValueError,
            "from_storage: shape has 16 rows and 8 columns in blocks of 4, expected a weight of less",
        ),
        (
            lambda: qcore.QuantizedTensor.from_storage(
                W.storage(), [4, 8], bits=8, block_size=4, scale_dtype="bfloat16"
            ),
            ValueError,
            "from_storage: scale_dtype is 'bfloat16', expected",
        ),
        (
            lambda: qcore.QuantizedTensor.from_parts(*PARTS, bits=8, block_size=4, shape=[4, 8]),
            ValueError,
            "from_parts: shape is given and bits is 8",
        ),
        (
            lambda: qcore.QuantizedTensor.from_parts(
                np.zeros((4, 3), np.uint8), PARTS[1], bits=4, block_size=4, shape=[4, 8]
            ),
            ValueError,
            r"from_parts: codes has shape \[4, 3\], expected \[4, 4\]",
        ),
        (
            lambda: qcore.QuantizedTensor.from_parts(
                np.zeros((4, 4), np.uint8), PARTS[1], bits=4, block_size=4, shape=[2**60, 8]
            ),
            ValueError,
            "from_parts: shape has 1152921504606846976 rows and 8 columns in blocks of 4, expected a weight of less",
        ),
        (
            lambda: qcore.QuantizedTensor.from_parts(
                np.zeros((4, 4), np.uint8), PARTS[1], bits=4, block_size=4, shape=[2**40, 8]
            ),
            ValueError,
            r"from_parts: codes has shape \[4, 4\], expected \[1099511627776, 4\]",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_memory_at_an_odd_address_is_refused():
    raw = np.zeros(256 + 128, np.uint8)
    begin = -raw.ctypes.data % 64
    with pytest.raises(ValueError, match="from_storage: storage begins at an address that is no multiple of 64"):
        view(W, raw[begin + 8 : begin + 264])
