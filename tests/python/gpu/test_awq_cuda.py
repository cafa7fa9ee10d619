"""awq on a CUDA device: the bits of the CPU's reference, and products within the rounding of fp32 sums.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)


import awq_oracle as oracle  # noqa: E402

from qcore import awq, formats  # noqa: E402

pytestmark = pytest.mark.gpu

# (K, N, g): a single word, odd groups, K = g, groups of one row, several blocks of each.
SHAPES = [(1, 8, 1), (8, 8, 8), (30, 24, 10), (35, 40, 7), (96, 8, 96), (256, 520, 128), (600, 2056, 200)]


def weight_of(k, n, group_size, scales=None):
    return tuple(map(torch.from_numpy, oracle.make(k, n, group_size, scales=scales)))


def ordinary(k, n, group_size):
    return weight_of(k, n, group_size, oracle.ordinary_scales(k, n, group_size))


def on_device(weight):
    return tuple(array.cuda() for array in weight)


def reference(weight, **options):
    with qcore.force_kernel("awq", "reference"):
        return awq.dequantize(*weight, **options)


def assert_same_bits(given, expected):
    given, expected = given.cpu().contiguous(), expected.contiguous()
    same = given.view(torch.int16) == expected.view(torch.int16)
    same |= given.isnan() & expected.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("transpose", [False, True])
def test_bits(shape, transpose):
    weight = weight_of(*shape)
    expected = reference(weight, transpose=transpose)
    given = awq.dequantize(*on_device(weight), transpose=transpose)
    assert given.is_cuda
    assert qcore.last_kernel("awq") == ("simt_lop3" if not transpose or shape[2] % 8 == 0 else "simt_arithmetic")
    assert_same_bits(given, expected)
    with qcore.force_kernel("awq", "simt_arithmetic"):
        assert_same_bits(awq.dequantize(*on_device(weight), transpose=transpose), expected)


@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("transpose", [False, True])
def test_places(shift, transpose):
    """Into a piece of a larger array, aligned and not; nothing around it changes."""
    k, n = 128, 264
    weight = weight_of(k, n, 64)
    rows, columns = (n, k) if transpose else (k, n)
    memory = torch.full((rows + 2, columns + 16), 77.0, dtype=torch.float16, device="cuda")
    out = memory[1:-1, shift : shift + columns]
    assert awq.dequantize(*on_device(weight), transpose=transpose, out=out) is out
    assert qcore.last_kernel("awq") == ("simt_arithmetic" if shift == 1 else "simt_lop3")
    assert_same_bits(out, reference(weight, transpose=transpose))
    out.fill_(77)
    assert bool((memory == 77).all())


def test_strides():
    weight = weight_of(96, 72, 24)
    apart = tuple(torch.cat([a, a], 1)[:, : a.shape[1]] for a in on_device(weight))
    assert_same_bits(awq.dequantize(*apart), reference(weight))
    turned = tuple(a.t().contiguous().t() for a in on_device(weight))
    w = awq.dequantize(*turned)
    assert qcore.last_kernel("awq") == "simt_arithmetic"
    assert_same_bits(w, reference(weight))


def assert_close(y, x, weight):
    matrix = torch.from_numpy(oracle.exact(*(a.numpy() for a in weight)))
    x = x.cpu().double()
    expected = x @ matrix
    group = len(matrix) // len(weight[1])
    largest = x.abs() @ (23 * weight[1].abs().double().repeat_interleave(group, 0))
    rounding = torch.finfo(y.dtype).eps
    # float_mma multiplies by 16-bit activations: x is rounded to fp16 where it is fp32.
    bound = (len(matrix) * 2.0**-24 + (2.0**-10 if y.dtype == torch.float32 else 0)) * largest
    assert bool(((y.cpu().double() - expected).abs() <= bound + rounding * expected.abs() + 1e-7).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("m", [1, 4, 40, 200])
def test_linear(dtype, m):
    weight = ordinary(256, 520, 64)
    x = torch.randn(m, 256).to(dtype).cuda()
    bias = torch.randn(520, device="cuda").half()
    packed = awq.Weight(*on_device(weight))
    y = awq.linear(x, *on_device(weight))
    assert y.dtype == dtype
    assert_close(y, x, weight)
    assert torch.equal(packed(x), y)
    assert torch.equal(packed(x, bias), awq.linear(x, *on_device(weight), bias))


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="wgmma needs compute capability 9.0")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "m, k, n, group",
    [
        (33, 4096, 520, 128),
        (70, 512, 4096, 256),
        (130, 4096, 11008, 128),
        (520, 1152, 1304, 64),
        (1030, 512, 4096, 128),
        (700, 640, 2056, 32),
    ],
)
def test_many_rows_take_zero_points_from_the_codes(m, k, n, group, dtype):
    """Tiles of every height, whole and spread steps, scales of 0 and subnormal ones, x that is not finite."""
    scales = oracle.ordinary_scales(k, n, group)
    scales[0, ::7], scales[-1, 1::7] = 0, np.float16(6e-8)
    weight = weight_of(k, n, group, scales)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(dtype).cuda()
    packed = awq.Weight(*on_device(weight))
    y = packed(x)
    assert qcore.last_kernel("linear") == "sm90_float_wgmma"
    here = packed.packed.to("cpu")
    matrix = torch.from_numpy(here.dequantize()).cuda().double().t()
    exact, largest = x.double() @ matrix, x.double().abs() @ matrix.abs()
    bound = 4 * (k // group + group) * 2.0**-24 * largest + torch.finfo(dtype).eps * exact.abs() + 1e-7
    assert bool(((y.double() - exact).abs() <= bound).all())
    # The same bits however the weight has come to the device.
    for moved in (here.to("cuda"), formats.from_awq(*(a.numpy() for a in weight)).to("cuda")):
        assert torch.equal(qcore.linear(x, moved, compute="float"), y)
        assert qcore.last_kernel("linear") == "sm90_float_wgmma"
    x[3, 5], x[-1, -1] = float("inf"), float("nan")
    special = packed(x)
    with qcore.force_kernel("linear", "simt"):
        expected = packed(x)
    assert torch.equal(special[3].isnan(), expected[3].isnan())
    assert torch.equal(special[3].isfinite(), expected[3].isfinite())
    assert bool(special[-1].isnan().all())
    rest = [row for row in range(m) if row not in (3, m - 1)]
    assert torch.equal(special[rest], y[rest])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack(shape):
    weight = ordinary(*shape)
    assert awq.Weight(*on_device(weight)).packed.to("cpu") == awq.Weight(*weight).packed


def test_runs_on_the_callers_stream():
    """The weight is made late on a side stream: only work on that stream sees it."""
    weight = ordinary(128, 264, 64)
    x = torch.randn(3, 128)
    expected = reference(weight)
    late = tuple(torch.zeros_like(a) for a in on_device(weight))
    sources, device_x = on_device(weight), x.cuda()
    out = torch.empty(128, 264, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for target, source in zip(late, sources, strict=True):
            target.copy_(source)
        awq.dequantize(*late, out=out)
        y = awq.linear(device_x, *late)
        packed = awq.Weight(*late)
    stream.synchronize()
    assert_same_bits(out, expected)
    assert_close(y, x, weight)
    assert packed.packed.to("cpu") == awq.Weight(*weight).packed


def test_cuda_graph():
    """dequantize and linear on raw arrays can be captured: what they need belongs to the graph."""
    given = on_device(ordinary(128, 264, 64))
    x = torch.zeros(3, 128, device="cuda", dtype=torch.float16)
    out = torch.empty(128, 264, dtype=torch.float16, device="cuda")
    y = torch.empty(3, 264, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        awq.dequantize(*given, out=out)
        awq.linear(x, *given, out=y)
    for seed in range(3):
        weight = oracle.make(128, 264, 64, seed, scales=oracle.ordinary_scales(128, 264, 64, seed))
        weight = tuple(map(torch.from_numpy, weight))
        for target, source in zip(given, weight, strict=True):
            target.copy_(source)
        x.copy_(torch.from_numpy(np.random.default_rng(seed).standard_normal((3, 128)).astype(np.float16)))
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(out, reference(weight))
        assert_close(y, x, weight)


def test_devices_must_match():
    qweight, scales, qzeros = weight_of(64, 16, 32)
    with pytest.raises(qcore.QcoreValueError, match=r"^awq.dequantize: scales is on cpu, expected cuda:0 like qweight"):
        awq.dequantize(qweight.cuda(), scales, qzeros.cuda())
    with pytest.raises(qcore.QcoreValueError, match=r"^awq.linear: x is on cpu, expected cuda:0 like qweight"):
        awq.linear(torch.ones(1, 64), qweight.cuda(), scales.cuda(), qzeros.cuda())
