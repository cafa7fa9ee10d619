"""awq.dequantize and awq.Weight: every kernel gives the bits of the oracle, at any size, stride and place."""

import awq_oracle as oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_calls import assert_same

import qcore
from qcore import awq

KERNELS = [row.name for row in qcore.kernels("awq") if row.device == "cpu" and row.available]
FAST = [name for name in KERNELS if name != "reference"]
POISON = np.float16(1234)

# (K, N, g): a single word, odd groups, K = g, groups of one row, more than one chunk of columns, tiles with a rest, of
# one row and of all but one, beyond 32 rows, 128 rows and 128 columns.
SHAPES = [
    (1, 8, 1),
    (8, 8, 8),
    (30, 24, 10),
    (35, 40, 7),
    (12, 16, 1),
    (96, 8, 96),
    (128, 136, 128),
    (256, 72, 32),
    (300, 2056, 300),
    (64, 4104, 16),
    (400, 48, 200),
    (33, 120, 33),
    (31, 128, 31),
    (258, 264, 129),
    (127, 184, 127),
]


def run(kernel, *weight, **options):
    with qcore.force_kernel("awq", kernel):
        out = awq.dequantize(*weight, **options)
    assert qcore.last_kernel("awq") == kernel
    return out


def poisoned(rows, columns, kernel, weight, shift, transpose):
    """dequantize into a piece of a larger array, nothing of which may change around it."""
    memory = np.full((rows + 2, columns + 24), POISON)
    out = memory[1:-1, shift : shift + columns]
    assert run(kernel, *weight, out=out, transpose=transpose) is out
    guard = np.ones(memory.shape, bool)
    guard[1:-1, shift : shift + columns] = False
    assert (memory[guard] == POISON).all()
    return out


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits(kernel, shape):
    weight = oracle.make(*shape)
    expected = oracle.dequantize(*weight)
    assert_same(run(kernel, *weight), expected)
    assert_same(run(kernel, *weight, transpose=True), expected.T)
    k, n, _ = shape
    for shift in (0, 1, 8, 16):
        assert_same(poisoned(k, n, kernel, weight, shift, False), expected, shift)
        assert_same(poisoned(n, k, kernel, weight, shift, True), expected.T, shift)


@given(
    st.sampled_from(KERNELS),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(1, 20),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_shape(kernel, group_size, groups, words, transpose, seed):
    weight = oracle.make(group_size * groups, 8 * words, group_size, seed)
    expected = oracle.dequantize(*weight)
    assert_same(run(kernel, *weight, transpose=transpose), expected.T if transpose else expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_code_zero_and_scale(kernel):
    """All 256 differences with each of a set of scales: powers of two, subnormals, the largest, infinities and NaN."""
    bits = np.r_[0:1100:7, 0x7800:0x7C01:13, 0x7BFF, 0x7C00, 0x7E00, 0x8000, 0x8001, 0xFBFF, 0xFC00].astype(np.uint16)
    bits = np.resize(bits, (len(bits) + 7) // 8 * 8)
    scales = np.tile(bits.view(np.float16), (16, 1))
    columns = len(bits) // 8
    qweight = np.tile((np.arange(16, dtype=np.int64) * 0x11111111).astype(np.uint32), 16)
    qzeros = (np.arange(16, dtype=np.int64) * 0x11111111).astype(np.uint32)
    qweight, qzeros = (np.repeat(words.view(np.int32)[:, None], columns, 1) for words in (qweight, qzeros))
    assert_same(run(kernel, qweight, scales, qzeros), oracle.dequantize(qweight, scales, qzeros))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("k", "n", "g"), [(2048, 2064, 64), (1600, 2640, 200), (2112, 2056, 1056)])
def test_past_the_caches(kernel, k, n, g):
    """Groups of whole lines, groups that end within one, and tiles that do."""
    weight = oracle.make(k, n, g)
    with qcore.force_kernel("awq", "reference"):
        expected = awq.dequantize(*weight)
    rows = np.r_[0:3, k - 3 : k]
    group = rows // g
    some = tuple(a[rows] if len(a) == k else a[group] for a in weight)
    assert_same(expected[rows], oracle.dequantize(*some))
    assert_same(run(kernel, *weight), expected)
    assert_same(run(kernel, *weight, transpose=True), expected.T)
    shifted = np.full(k * n + 5, POISON)[5:].reshape(k, n)
    assert_same(run(kernel, *weight, out=shifted), expected)
    wide = n + -n % 32  # rows are whole lines apart, and begin within one as NumPy's own arrays do
    for shift in (8, 16, 24):
        memory = lines(k * wide + 32)
        out = memory[shift : shift + k * wide].reshape(k, wide)[:, :n]
        assert_same(run(kernel, *weight, out=out), expected)
        out[...] = POISON
        assert (memory == POISON).all()
    for apart in (32, 5):  # whole lines, so that stores still go past the caches, and not
        memory = lines(n * (k + apart)).reshape(n, k + apart)
        run(kernel, *weight, out=memory[:, :k], transpose=True)
        assert_same(memory[:, :k], expected.T)
        assert (memory[:, k:] == POISON).all()


def lines(count):
    """Poison from the start of a line of the caches."""
    memory = np.full(count + 32, POISON)
    start = -memory.ctypes.data % 64 // 2
    return memory[start : start + count]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(kernel, threads):
    weight = oracle.make(640, 264, 128)
    before = qcore.get_num_threads()
    try:
        qcore.set_num_threads(threads)
        assert_same(run(kernel, *weight), oracle.dequantize(*weight))
    finally:
        qcore.set_num_threads(before)


def strided(array, row_step=3):
    """Return the same values, rows apart and backwards."""
    memory = np.zeros((row_step * len(array), array.shape[1] + 3), array.dtype)
    view = memory[::-row_step, : array.shape[1]]
    view[...] = array
    return view


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_apart(kernel):
    weight = oracle.make(96, 72, 24)
    assert_same(run(kernel, *map(strided, weight)), oracle.dequantize(*weight))


def test_columns_apart_go_to_the_reference():
    weight = oracle.make(96, 72, 24)
    apart = [np.asfortranarray(a) for a in weight]
    assert_same(awq.dequantize(*apart), oracle.dequantize(*weight))
    assert qcore.last_kernel("awq") == "reference"
    out = np.full((96, 144), POISON)
    awq.dequantize(*weight, out=out[:, ::2])
    assert qcore.last_kernel("awq") == "reference"
    assert_same(out[:, ::2], oracle.dequantize(*weight))
    assert (out[:, 1::2] == POISON).all()
    for kernel in FAST:
        with qcore.force_kernel("awq", kernel), pytest.raises(qcore.QcoreValueError, match="contiguous"):
            awq.dequantize(*apart)


def test_a_transposed_out_is_the_transpose():
    weight = oracle.make(96, 72, 24)
    out = np.empty((72, 96), np.float16)
    awq.dequantize(*weight, out=out.T)
    assert_same(out, oracle.dequantize(*weight).T)
    assert qcore.last_kernel("awq") == KERNELS[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_pack_is_exact(shape, layout):
    weight = oracle.make(*shape)
    packed = awq.Weight(*map(layout, weight)).packed
    qweight, scales, qzeros = weight
    codes, zeros = oracle.unpack(qweight) - 8, oracle.unpack(qzeros)
    assert packed == qcore.QuantizedTensor.from_parts(
        codes.T.astype(np.int8),
        scales.T.astype(np.float32),
        ((8 - zeros).astype(np.float32) * scales.astype(np.float32)).T,
        bits=4,
        block_size=shape[2],
    )


def test_weight_is_immutable_and_says_what_it_is():
    weight = awq.Weight(*oracle.make(64, 16, 32))
    assert repr(weight) == "awq.Weight(K=64, N=16, group_size=32, device='cpu')"
    with pytest.raises(AttributeError, match="immutable"):
        weight.packed = None


QWEIGHT, SCALES, QZEROS = oracle.make(64, 16, 32)
VALUE, TYPE = qcore.QcoreValueError, qcore.QcoreTypeError


@pytest.mark.parametrize(
    ("weight", "kind", "message"),
    [
        ((QWEIGHT.astype(np.int64), SCALES, QZEROS), TYPE, "qweight has dtype int64, expected int32"),
        ((QWEIGHT.astype(np.int16), SCALES, QZEROS), TYPE, "qweight has dtype int16, expected int32"),
        ((QWEIGHT, SCALES.astype(np.float32), QZEROS), TYPE, "scales has dtype float32, expected float16"),
        ((QWEIGHT, SCALES, QZEROS.view(np.int16)), TYPE, "qzeros has dtype int16, expected int32"),
        ((QWEIGHT[0], SCALES, QZEROS), VALUE, "qweight has shape [2], expected [K, N/8] with both at least 1"),
        ((QWEIGHT[:0], SCALES, QZEROS), VALUE, "qweight has shape [0, 2], expected [K, N/8] with both at least 1"),
        (
            (QWEIGHT, SCALES[:, :12], QZEROS),
            VALUE,
            "scales has shape [2, 12], expected [K/g, N] with N = 8 * 2 = 16 of qweight [64, 2]",
        ),
        (
            (QWEIGHT[:63], SCALES, QZEROS),
            VALUE,
            "scales has shape [2, 16], expected [K/g, N] with K/g a divisor of K = 63",
        ),
        (
            (QWEIGHT, SCALES[:0], QZEROS[:0]),
            VALUE,
            "scales has shape [0, 16], expected [K/g, N] with K/g a divisor of K = 64",
        ),
        ((QWEIGHT, SCALES, QZEROS[:1]), VALUE, "qzeros has shape [1, 2], expected [2, 2]"),
        (([1], SCALES, QZEROS), TYPE, "qweight is a list, expected an array"),
    ],
)
def test_errors_of_the_weight(weight, kind, message):
    out = np.full((64, 16), POISON)
    calls = {
        "awq.dequantize": lambda: awq.dequantize(*weight, out=out),
        "awq.Weight": lambda: awq.Weight(*weight),
        "awq.linear": lambda: awq.linear(np.ones((1, 64), np.float32), *weight, out=out[:1].astype(np.float32)),
    }
    for op, call in calls.items():
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value).startswith(f"{op}: {message}")
    assert (out == POISON).all()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"out": np.zeros((16, 64), np.float16)}, VALUE, "out has shape [16, 64], expected [64, 16]"),
        (
            {"out": np.zeros((64, 16), np.float16), "transpose": True},
            VALUE,
            "out has shape [64, 16], expected [16, 64]",
        ),
        ({"out": np.zeros((64, 16), np.float32)}, TYPE, "out has dtype float32, expected float16"),
        ({"out": np.broadcast_to(np.zeros(16, np.float16), (64, 16))}, VALUE, "out is read-only"),
        ({"transpose": 1}, TYPE, "transpose is 1, expected True or False"),
        ({"stream": "main"}, TYPE, "stream is 'main', expected a stream object or its address"),
    ],
)
def test_errors_of_dequantize(options, kind, message):
    with pytest.raises(kind) as caught:
        awq.dequantize(QWEIGHT, SCALES, QZEROS, **options)
    assert str(caught.value).startswith(f"awq.dequantize: {message}")
    if "out" in options:
        assert not options["out"].any()


def test_out_shares_no_memory_with_the_weight():
    memory = np.zeros((64, 16), np.float16)
    with pytest.raises(VALUE, match=r"^awq.dequantize: out overlaps scales in memory"):
        awq.dequantize(QWEIGHT, memory[:2], QZEROS, out=memory)


def test_pack_refuses_scales_that_are_not_finite():
    scales = SCALES.copy()
    scales[1, 5] = np.inf
    with pytest.raises(VALUE, match=r"^awq.Weight: scales holds inf at group 1, column 5, expected finite numbers$"):
        awq.Weight(QWEIGHT, scales, QZEROS)
