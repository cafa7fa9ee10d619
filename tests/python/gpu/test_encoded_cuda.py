"""Encoded weights on a CUDA device: their own bytes there, and the bits of the CPU (float activations: its bound).

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import pickle

import numpy as np
import pytest

import qcore
from qcore.weight_encoding import ENCODINGS

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

FORMS = {
    **ENCODINGS,
    "awq": (qcore.WeightEncoding(4, "float16", "uint4 zero points", zero=8), 128),
    "gptq of 3 bits": (qcore.WeightEncoding(3, "float16", "uint4 zero points", zero=4), 64),
    "8 bits": (qcore.WeightEncoding(8, "float32", "uint8 zero points", zero=128), 128),
    "float offsets": (qcore.WeightEncoding(5, "float32", "float32"), 48),
    "blocks of 20": (qcore.WeightEncoding(3, "uint8", "uint8", super_block=3), 20),
}
SHAPES = ((33, 512 + 16), (50, 173))
ROWS = (1, 3, 8, 17, 130)


def random_weight(name, n, k, seed=0):
    rng = np.random.default_rng(seed)
    encoding, block_size = FORMS[name]
    widths = encoding.widths()
    parts = {}
    for part, about in encoding.arrays((n, k), block_size).items():
        if about is None:
            parts[part] = None
            continue
        shape, dtype = about
        kind = encoding.scales if part == "scales" else encoding.offsets
        if part == "codes":
            parts[part] = rng.integers(0, 2**encoding.bits, shape, dtype=np.uint8)
        elif dtype != "uint8":
            parts[part] = rng.uniform(-0.02, 0.02, shape).astype(dtype)
        elif kind == "float8_e8m0fnu":
            parts[part] = rng.integers(110, 130, shape, dtype=np.uint8)
        elif kind == "float8_e4m3fn":
            parts[part] = rng.integers(1, 120, shape, dtype=np.uint8)
        else:
            parts[part] = rng.integers(0, 2 ** widths.get(part, 8), shape, dtype=np.uint8)
    return qcore.QuantizedTensor.from_encoded(**parts, encoding=encoding, block_size=block_size)


def expect_same(got, expected):
    got, expected = np.asarray(got, np.float32), np.asarray(expected, np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def rows_of(m, k, special):
    x = np.random.default_rng(m).standard_normal((m, k), dtype=np.float32)
    if special:
        x[0, k // 2], x[-1, k - 1] = np.nan, np.inf
    return x


@pytest.mark.parametrize("name", FORMS)
def test_keeps_its_bytes(name):
    weight = random_weight(name, 40, 200)
    there = weight.to("cuda")
    assert there.encoding == weight.encoding and there.nbytes == weight.nbytes
    assert there == weight and there.to("cpu") == weight
    assert there.slice_rows(3, 21) == weight.slice_rows(3, 21)
    assert qcore.concatenate([there, there]).to("cpu") == qcore.concatenate([weight, weight])
    assert there.plain() == weight.plain()
    assert pickle.loads(pickle.dumps(there)) == weight
    with pytest.raises(qcore.QcoreValueError, match=r"encoded_parts: the weight is on cuda:0, expected cpu"):
        there.encoded_parts()


@pytest.mark.parametrize("compute", ["int8", "int8_asym", "int8_token", "int16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMS)
def test_linear_has_the_bits_of_the_cpu(name, shape, compute):
    weight = random_weight(name, *shape)
    there = weight.to("cuda")
    for m in ROWS:
        x = rows_of(m, shape[1], special=m in (3, 17))
        bias = np.linspace(-1, 1, shape[0], dtype=np.float32)
        got = qcore.linear(torch.from_numpy(x).cuda(), there, torch.from_numpy(bias).cuda(), compute=compute)
        takes = FORMS[name][1] % 16 == 0 and FORMS[name][1] != 48
        short = FORMS[name][1] == 16 and torch.cuda.get_device_capability() >= (8, 0)
        if m <= 8 and takes and compute != "int16":
            assert qcore.last_kernel("linear") == "sm75_gemv_encoded"
        elif short and compute != "int16":
            assert qcore.last_kernel("linear") == "sm80_int8_mma"
        expect_same(got.cpu(), qcore.linear(x, weight, bias, compute=compute))


@pytest.mark.parametrize("compute", ["int8", "int8_asym"])
@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name][1] == 16])
def test_many_rows_of_short_blocks(name, compute):
    """Blocks of 16 in tiles of every size, with stages that are not full and rows and columns that fill no tile."""
    weight = random_weight(name, 1000, 2048 + 48)
    there = weight.to("cuda")
    for m in (16, 61, 200, 520, 2000):
        x = rows_of(m, 2048 + 48, special=m == 61)
        given = torch.from_numpy(x).cuda()
        got = qcore.linear(given, there, compute=compute)
        if torch.cuda.get_device_capability() >= (8, 0):
            assert qcore.last_kernel("linear") == "sm80_int8_mma"
        expect_same(got.cpu(), qcore.linear(x, weight, compute=compute))
        with qcore.force_kernel("linear", "sm75_int8_sliced"):
            expect_same(got.cpu(), qcore.linear(given, there, compute=compute).cpu())


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name][1] in (32, 64, 128)])
def test_some_rows_of_tiles(name):
    """Codes that are read where they lie, from -8 or from 0 on, and others."""
    weight = random_weight(name, 4100, 2048 + 64)
    there = weight.to("cuda")
    for m in (9, 16, 61, 128):
        x = rows_of(m, 2048 + 64, special=m == 61)
        got = qcore.linear(torch.from_numpy(x).cuda(), there, compute="int8")
        wide = torch.cuda.get_device_properties(0).multi_processor_count > 128
        if torch.cuda.get_device_capability() == (9, 0) and wide:
            assert qcore.last_kernel("linear") == "sm90_int8_mma"
        expect_same(got.cpu(), qcore.linear(x, weight, compute="int8"))


@pytest.mark.parametrize("name", FORMS)
def test_linear_with_float_activations_is_within_its_bound(name):
    weight = random_weight(name, 50, 528)
    for m in ROWS:
        x = rows_of(m, 528, special=False)
        got = qcore.linear(torch.from_numpy(x).cuda(), weight.to("cuda"), compute="float").cpu().numpy()
        exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
        bound = 4 * 528 * 2.0**-24 * (np.abs(x) @ np.abs(weight.dequantize()).T) + 1e-6
        assert (np.abs(got - exact) <= 2 * bound).all()


@pytest.mark.parametrize("kernel", ["sm75_gemv_encoded", "sm75_gemv", "sm80_int8_mma", "sm75_int8_sliced", "simt"])
@pytest.mark.parametrize("name", ["q4_k", "q2_k"])
def test_kernels_that_are_asked_for(name, kernel):
    if name == "q2_k" and kernel == "sm75_gemv":
        pytest.skip("it takes block sizes that are multiples of 32")
    weight = random_weight(name, 70, 512)
    x = rows_of(4, 512, special=True)
    with qcore.force_kernel("linear", kernel):
        got = qcore.linear(torch.from_numpy(x).cuda(), weight.to("cuda"), compute="int8")
    expect_same(got.cpu(), qcore.linear(x, weight, compute="int8"))


def test_the_kernel_of_encoded_weights_refuses_others():
    x = torch.zeros(1, 64, device="cuda")
    plain = qcore.quantize(np.eye(64, dtype=np.float32), bits=4, block_size=32).to("cuda")
    with qcore.force_kernel("linear", "sm75_gemv_encoded"):
        with pytest.raises(qcore.QcoreValueError, match="it takes encoded weights"):
            qcore.linear(x, plain, compute="int8")
        with pytest.raises(qcore.QcoreValueError, match="it computes int8 and int8_asym only"):
            qcore.linear(x, random_weight("q6_k", 16, 64).to("cuda"), compute="float")
        with pytest.raises(qcore.QcoreValueError, match="block sizes 16, 32, 64"):
            qcore.linear(x, random_weight("blocks of 20", 16, 64).to("cuda"), compute="int8")
        with pytest.raises(qcore.QcoreValueError, match="it takes M up to 8"):
            qcore.linear(x.expand(9, 64), random_weight("q4_k", 16, 64).to("cuda"), compute="int8")


def test_more_columns_than_a_band():
    """An expanded weight of more than 256 MiB goes through the kernels in bands."""
    weight = random_weight("q4_k", 256, 4096)
    tall = qcore.concatenate([weight] * 270)
    x = rows_of(20, 4096, special=False)
    got = qcore.linear(torch.from_numpy(x).cuda(), tall.to("cuda"), compute="int8").cpu().numpy()
    expect_same(got, np.tile(qcore.linear(x, weight, compute="int8"), (1, 270)))


@pytest.mark.parametrize("name", FORMS)
def test_embedding_and_grouped_linear(name):
    weight = random_weight(name, 48, 173)
    there = weight.to("cuda")
    indices = np.array([0, 47, 13, 13], np.int64)
    expect_same(qcore.embedding(torch.from_numpy(indices).cuda(), there).cpu(), weight.dequantize()[indices])
    x = rows_of(9, 173, special=True)
    counts = np.array([4, 0, 5], np.int64)
    got = qcore.grouped_linear(torch.from_numpy(x).cuda(), there, torch.from_numpy(counts).cuda(), compute="int8")
    expect_same(got.cpu(), qcore.grouped_linear(x, weight, counts, compute="int8"))


def test_modules_keep_the_encoding():
    from qcore.torch import Linear

    weight = random_weight("q6_k", 64, 256)
    layer = Linear(weight, None, compute="int8")
    x = torch.from_numpy(rows_of(3, 256, special=False))
    expected = layer(x)
    moved = layer.to("cuda")
    assert moved.weight.encoding == weight.encoding and moved.packed.nbytes >= weight.nbytes
    expect_same(moved(x.cuda()).cpu(), expected)
    assert moved.to("cpu").weight == weight
