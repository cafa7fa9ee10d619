"""linear on a CUDA device: the same bits as the reference kernel on the CPU (gemv and float_mma in float: its bound).

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU, but for
CUTLASS's.
"""

import os
import random
import threading

import numpy as np
import pytest
from linear_kernels import is_in_place, supported, takes

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

COMPUTE = ("float", "int8", "int8_asym", "int16")
# Best first. Not every row takes every problem: see takes().
KERNELS = {
    "float": ("sm90_float_wgmma", "sm80_float_mma", "sm75_gemv", "simt"),
    "int8": ("sm90_int8_mma", "sm75_gemv", "sm90_int8_wgmma", "sm80_int8_mma", "sm75_int8_sliced", "simt"),
    "int8_asym": ("sm75_gemv", "sm90_int8_wgmma", "sm80_int8_mma", "sm75_int8_sliced", "simt"),
    "int16": ("simt",),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TRANSCENDENTAL = ("silu", "gelu", "gelu_tanh", "tanh", "sigmoid")


def block_values(rng, rows, k, g):
    """Return ordinary blocks, and ones that are zero, constant, tiny, one-sided or have an outlier."""
    values = rng.standard_normal((rows, k)).astype(np.float32)
    begins = np.arange(k) // g * g
    kinds = rng.integers(12, size=(rows, k))[:, begins]
    values[kinds == 0] = 0
    values = np.where(kinds == 1, values[:, begins], values)
    values[kinds == 2] *= np.float32(1e-30)
    values[(kinds == 3) & (begins == np.arange(k))] = 1e5
    return np.where(kinds == 4, np.abs(values), values)


def random_weight(rng, n, k, g, bits, scheme):
    values = block_values(rng, n, k, g)
    return qcore.quantize(values, bits=bits, block_size=g, scheme=scheme, method="rtn", scale_dtype="float32")


def strided(x, layout):
    """Return a view with x's values: contiguous, rows apart, or columns first."""
    if layout == "padded":
        wide = torch.full((x.shape[0], x.shape[1] + 5), float("nan"), dtype=x.dtype, device=x.device)
        wide[:, : x.shape[1]] = x
        return wide[:, : x.shape[1]]
    return x.t().contiguous().t() if layout == "transposed" else x


def other_order(kernel, compute):
    """Return whether a kernel adds floats in another order than the reference."""
    return compute == "float" and kernel in ("sm75_gemv", "sm80_float_mma", "sm90_float_wgmma")


def float_bound(x, weight):
    """Bound the difference of two float results, each within 4 * (P + g) * 2^-24 * sum |x w| of the exact one."""
    w, k = np.abs(weight.dequantize().astype(np.float64)), x.shape[-1]
    roundings = -(-k // weight.block_size) + min(weight.block_size, k)
    with np.errstate(invalid="ignore"):
        return 8 * roundings * 2.0**-24 * (np.abs(x.cpu().double().numpy()) @ w.T)


def assert_close_floats(given, expected, x, weight):
    """Check equality except for the order of float sums, and one rounding to the dtype."""
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    rounding = {torch.float32: 2.0**-22, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[given.dtype]
    a, b = given.cpu().double().numpy(), expected.cpu().double().numpy()
    finite = np.isfinite(a) & np.isfinite(b)
    assert (np.isfinite(a) == np.isfinite(b)).all()
    allowed = float_bound(x, weight) + rounding * np.abs(b) + 1e-7
    assert (np.abs(a[finite] - b[finite]) <= allowed[finite]).all()


def reference(x, weight, bias, **options):
    with qcore.force_kernel("linear", "reference"):
        return qcore.linear(x.cpu(), weight, None if bias is None else bias.cpu(), **options)


def assert_same_bits(given, expected):
    given, expected = given.cpu(), expected.cpu()
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    integer = torch.int32 if given.dtype == torch.float32 else torch.int16
    same = given.contiguous().view(integer) == expected.contiguous().view(integer)
    same |= given.isnan() & expected.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ"


def check(rng, m, n, k, g, *, compute, bits, scheme, x_dtype, out_dtype, bias_dtype, activation, layout, special):
    weight = random_weight(rng, n, k, g, bits, scheme)
    values = block_values(rng, m, k, g)
    if special and values.size:
        values.flat[rng.integers(values.size)] = np.nan
        values.flat[rng.integers(values.size)] = np.inf
    x = strided(torch.from_numpy(values).to(x_dtype).cuda(), layout)
    bias_values = torch.from_numpy(rng.standard_normal(n).astype(np.float32))
    bias = None if bias_dtype is None else bias_values.to(bias_dtype).cuda()
    expected = reference(x, weight, bias, compute=compute, activation=activation, out_dtype=out_dtype)
    on_device = weight.to("cuda")
    for kernel in KERNELS[compute]:
        if not takes(kernel, compute, m, k, g, scheme, x_dtype, n, bits, is_in_place(x)):
            if m:  # without rows there is nothing that a kernel could refuse
                with qcore.force_kernel("linear", kernel), pytest.raises(qcore.QcoreValueError):
                    qcore.linear(x, on_device, bias, compute=compute)
            continue
        out = strided(torch.full((m, n), float("nan"), dtype=out_dtype, device="cuda"), layout)
        with qcore.force_kernel("linear", kernel):
            assert qcore.linear(x, on_device, bias, compute=compute, activation=activation, out=out) is out
        assert m == 0 or qcore.last_kernel("linear") == kernel
        # The device's expf and erff are not the host's; the other functions have the same bits everywhere.
        if activation in ("silu", "gelu") or (activation in TRANSCENDENTAL and other_order(kernel, compute)):
            rtol = 1e-5 if out_dtype == torch.float32 else 2e-2
            atol = 1e-5
            if other_order(kernel, compute):
                atol += 1.2 * float(np.nan_to_num(float_bound(x, weight), posinf=0.0).max(initial=0.0))
            torch.testing.assert_close(out.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)
        elif other_order(kernel, compute):
            assert_close_floats(out, expected, x, weight)
        else:
            assert_same_bits(out, expected)


@pytest.mark.parametrize("m", [0, 1, 2, 7, 16, 17, 65])
@pytest.mark.parametrize("n", [1, 3, 8, 9, 63, 65, 1000])
def test_equals_the_reference(m, n):
    rng, choice = np.random.default_rng([m, n]), random.Random(f"{m} {n}")
    for g in (16, 32, 48, 64, 128):
        for k in (1, 31, 33, g - 1, g, g + 1, 300):
            check(
                rng, m, n, k, choice.choice([g, g, g, k]),
                compute=choice.choice(COMPUTE),
                bits=choice.choice([4, 8]),
                scheme=choice.choice(["symmetric", "asymmetric"]),
                x_dtype=choice.choice(DTYPES),
                out_dtype=choice.choice(DTYPES),
                bias_dtype=choice.choice([None, *DTYPES]),
                activation=choice.choice([None, "relu", "relu6", (-0.5, 0.5), *TRANSCENDENTAL]),
                layout=choice.choice(["contiguous", "padded", "transposed"]),
                special=choice.random() < 0.2,
            )  # fmt: skip


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("m", "n", "k", "g"), [(200, 260, 4097, 128), (129, 1000, 512, 512), (64, 513, 300, 16)])
def test_tiles_and_tails(compute, bits, scheme, m, n, k, g):
    check(np.random.default_rng([m, bits]), m, n, k, g, compute=compute, bits=bits, scheme=scheme,
          x_dtype=torch.float16, out_dtype=torch.float32, bias_dtype=torch.float32, activation=None,
          layout="contiguous", special=False)  # fmt: skip


@pytest.mark.parametrize("compute", COMPUTE)
def test_no_features(compute):
    nothing = np.zeros((9, 0), np.float32)
    weight = qcore.quantize(nothing, bits=4, block_size=32, method="rtn", scale_dtype="float32").to("cuda")
    bias = torch.linspace(-1, 1, 9, device="cuda")
    for kernel in KERNELS[compute]:
        if not takes(kernel, compute, 5, 0, 32, "symmetric"):
            continue
        with qcore.force_kernel("linear", kernel):
            y = qcore.linear(torch.empty(5, 0, device="cuda"), weight, bias, compute=compute, activation="relu")
        assert_same_bits(y, bias.relu().expand(5, 9))


def test_leading_axes():
    rng = np.random.default_rng(5)
    weight = random_weight(rng, 20, 96, 32, 4, "asymmetric")
    x = torch.from_numpy(rng.standard_normal((4, 3, 2, 96)).astype(np.float32)).cuda().transpose(0, 2)
    assert_same_bits(qcore.linear(x, weight.to("cuda")), reference(x, weight, None))


def test_weights_travel_unchanged():
    weight = random_weight(np.random.default_rng(6), 33, 100, 32, 4, "asymmetric")
    moved = weight.to("cuda")
    assert str(moved.device).startswith("cuda")
    assert moved.to("cpu") == weight
    assert moved.nbytes == weight.nbytes


@pytest.mark.parametrize("compute", KERNELS)
def test_rows_of_x_may_overlap(compute):
    """Rows that share memory, closer than K to each other, give what a copy of them gives."""
    weight = random_weight(np.random.default_rng(8), 130, 256, 64, 4, "symmetric").to("cuda")
    for m in (4, 70):
        x = torch.randn(256 + 8 * m, device="cuda").half().as_strided((m, 256), (8, 1))
        for kernel in KERNELS[compute]:
            if takes(kernel, compute, m, 256, 64, "symmetric", n=130):
                with qcore.force_kernel("linear", kernel):
                    assert_same_bits(
                        qcore.linear(x, weight, compute=compute), qcore.linear(x.clone(), weight, compute=compute)
                    )


@pytest.mark.parametrize("n", [33, 5000, 9000])
@pytest.mark.parametrize("g", [32, 128])
def test_the_best_kernel_is_chosen(n, g):
    weight = random_weight(np.random.default_rng(7), n, 304, g, 4, "symmetric").to("cuda")
    for m in (3, 6, 8, 9, 16, 17, 64, 65):
        x = torch.ones(m, 304, device="cuda")
        for compute, kernels in KERNELS.items():
            qcore.linear(x, weight, compute=compute)
            assert qcore.last_kernel("linear") == next(
                k for k in kernels if takes(k, compute, m, 304, g, "symmetric", torch.float32, n=n)
            )


@pytest.mark.parametrize("compute", ["int8", "int8_asym"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("g", [32, 64, 96, 128, 256])
def test_fused_tiles(compute, bits, scheme, g):
    """Both sizes of tiles of the fused kernel, whole and partial blocks."""
    rng = np.random.default_rng([g, bits])
    for m, n, k in ((200, 260, 4 * g + 40), (1300, 1300, 3 * g)):
        weight = random_weight(rng, n, k, g, bits, scheme)
        x = torch.from_numpy(block_values(rng, m, k, g)).cuda()
        with qcore.force_kernel("linear", "sm80_int8_mma"):
            y = qcore.linear(x, weight.to("cuda"), compute=compute)
        assert_same_bits(y, reference(x, weight, None, compute=compute))


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="wgmma needs compute capability 9.0")
@pytest.mark.parametrize("compute", ["int8", "int8_asym"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("g", [32, 64, 128, 384])
def test_warpgroups(compute, bits, scheme, g):
    """Each height of tiles, clusters of one and two, more tiles than run at once, rings that turn many times."""
    rng = np.random.default_rng([g, bits])
    for m, n, k in (
        (40, 260, 8 * g + 48),
        (300, 1000, 2100),
        (1300, 1300, 3 * g),
        (2049, 1536, 1024),
        (33, 4100, 5 * g),
    ):
        weight = random_weight(rng, n, k, g, bits, scheme)
        x = torch.from_numpy(block_values(rng, m, k, g)).to(DTYPES[m % 3]).cuda()
        with qcore.force_kernel("linear", "sm90_int8_wgmma"):
            y = qcore.linear(x, weight.to("cuda"), compute=compute)
        assert_same_bits(y, reference(x, weight, None, compute=compute))


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="wgmma needs compute capability 9.0")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("compute", ["int8", "int8_asym"])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_one_block_per_row(bits, compute, scheme):
    """Every height of the tiles of wgmma for rows of one block, each kind of cluster, rings that turn."""
    rng = np.random.default_rng(bits)
    for m, n, k in (
        *((m, 256, 2048) for m in (1, 33, 200, 600)),
        *((m, 4096, 640) for m in (64, 128, 250, 512, 1024)),
        (2300, 2500, 130),
    ):
        weight = random_weight(rng, n, k, k, bits, scheme)
        x = torch.from_numpy(block_values(rng, m, k, k)).to(DTYPES[m % 3]).cuda()
        with qcore.force_kernel("linear", "sm90_int8_wgmma"):
            y = qcore.linear(x, weight.to("cuda"), compute=compute)
        assert_same_bits(y, reference(x, weight, None, compute=compute))


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="int8_mma needs compute capability 9.0")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("block_size", [32, 64, 128, None])
def test_some_rows(bits, scheme, block_size):
    """Every size of tiles of int8_mma, more tiles than run at once, rings that turn many times."""
    rng = np.random.default_rng([block_size or 0, bits])
    for rows, n, k in (
        ((1, 3, 5, 8, 11, 16, 20, 32, 40, 64, 65, 128), 4100, 4096),
        ((7, 16), 200, 11008),
        ((30, 64, 100), 5000, 1000),
        ((8, 13, 32, 50, 128), 33, 40),
    ):
        g = block_size or k  # or one block per row
        weight = random_weight(rng, n, k, g, bits, scheme)
        moved = weight.to("cuda")
        for m in rows:
            if not takes("sm90_int8_mma", "int8", m, k, g, scheme, n=n, bits=bits):
                continue  # sm90_int8_wgmma takes it
            x = torch.from_numpy(block_values(rng, m, k, g)).to(DTYPES[m % 3]).cuda()
            with qcore.force_kernel("linear", "sm90_int8_mma"):
                y = qcore.linear(x, moved)
            assert_same_bits(y, reference(x, weight, None))


# gemv takes float activations on devices before compute capability 8.0 only.
GEMV_COMPUTE = [c for c in COMPUTE if "sm75_gemv" in KERNELS[c] and takes("sm75_gemv", c, 1, 32, 32, "symmetric")]


@pytest.mark.parametrize("compute", GEMV_COMPUTE)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("k", "g"), [(11008, 64), (4100, 32), (4096, 128), (4096, 4096), (2112, 96)])
def test_few_rows(compute, bits, scheme, k, g):
    rng = np.random.default_rng([k, bits])
    weight = random_weight(rng, 200, k, g, bits, scheme)
    moved = weight.to("cuda")
    for m in (1, 2, 4, 8) if compute == "float" else (1, 3, 8, 9, 16):
        if not takes("sm75_gemv", compute, m, k, g, scheme, n=200, bits=bits):
            continue
        x = torch.from_numpy(block_values(rng, m, k, g)).cuda()
        with qcore.force_kernel("linear", "sm75_gemv"):
            y = qcore.linear(x, moved, compute=compute)
        expected = reference(x, weight, None, compute=compute)
        if compute == "float":
            assert_close_floats(y, expected, x, weight)
        else:
            assert_same_bits(y, expected)


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 0), reason="tensor cores multiply fp16 from 8.0 on")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("k", "g"), [(11008, 64), (4104, 32), (4096, 128), (4096, 4096), (2120, 96), (200, 200)])
def test_few_rows_of_halves(bits, k, g):
    rng = np.random.default_rng([k, bits])  # rounds of the warps that are full and not, short last blocks, rows apart
    weight = random_weight(rng, 200, k, g, bits, "symmetric")
    for m in (1, 2, 3, 5, 8):
        dtype = (torch.float16, torch.bfloat16)[m % 2]
        x = torch.from_numpy(block_values(rng, m, k + 16, 16)).to(dtype).cuda()[:, 8 : k + 8]
        with qcore.force_kernel("linear", "sm80_float_mma"):
            y = qcore.linear(x, weight.to("cuda"), compute="float", out_dtype=torch.float32)
        assert_close_floats(y, reference(x, weight, None, compute="float", out_dtype=torch.float32), x, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("g", [32, 64, 96, 128, 4096])
def test_float_tiles(dtype, bits, scheme, g):
    """Every size of tiles of the float kernels, x in place and gathered, more tiles than run at once."""
    rng = np.random.default_rng([g, bits])
    for m, n, k in (
        (5, 100, 1096),
        (20, 260, 1099),
        (40, 300, 2100),
        (90, 200, 1160),
        (90, 4100, 200),
        (200, 4100, 200),
        (1300, 1300, 680),
        (2100, 2500, 200),
    ):
        weight = random_weight(rng, n, k, min(g, k), bits, scheme)
        x = torch.from_numpy(block_values(rng, m, k, min(g, k))).to(dtype).cuda()
        expected = reference(x, weight, None, compute="float", out_dtype=torch.float32)
        for kernel in ("sm90_float_wgmma", "sm80_float_mma"):
            if takes(kernel, "float", m, k, min(g, k), scheme, dtype):
                with qcore.force_kernel("linear", kernel):
                    y = qcore.linear(x, weight.to("cuda"), compute="float", out_dtype=torch.float32)
                assert_close_floats(y, expected, x, weight)


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="wgmma needs compute capability 9.0")
@pytest.mark.parametrize("compute, scheme", [("int8", "symmetric"), ("int8", "asymmetric"), ("float", "symmetric")])
@pytest.mark.parametrize("m", [130, 520])
def test_spread_steps(compute, scheme, m):
    """So much k, and tiles of so many columns, that the last round's steps are spread: twice, and in a graph again."""
    rng = np.random.default_rng(m)
    weight = random_weight(rng, 11000, 4096, 128, 4, scheme)
    on_device = weight.to("cuda")
    x = torch.from_numpy(block_values(rng, m, 4096, 128)).half().cuda()
    kernel, other = (
        ("sm90_float_wgmma", "sm80_float_mma") if compute == "float" else ("sm90_int8_wgmma", "sm80_int8_mma")
    )
    with qcore.force_kernel("linear", other):
        expected = qcore.linear(x, on_device, compute=compute, out_dtype=torch.float32)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    with qcore.force_kernel("linear", kernel):
        first = qcore.linear(x, on_device, compute=compute, out_dtype=torch.float32)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            qcore.linear(x, on_device, compute=compute, out=out)
    if compute == "float":
        assert_close_floats(first, expected, x, weight)
    else:
        assert_same_bits(first, expected)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert_same_bits(out, first)


def test_runs_on_the_callers_stream():
    """x is made late on a side stream: only work on that stream sees it."""
    rng = np.random.default_rng(8)
    weight = random_weight(rng, 64, 256, 64, 8, "symmetric")
    on_device = weight.to("cuda")
    values = torch.from_numpy(rng.standard_normal((16, 256)).astype(np.float32)).cuda()
    expected = reference(values, weight, None)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for explicit in (False, True):
        x = torch.full_like(values, float("nan"))
        out = torch.empty(16, 64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            x.copy_(values)
            if not explicit:
                qcore.linear(x, on_device, out=out)
        if explicit:
            qcore.linear(x, on_device, out=out, stream=stream)
        stream.synchronize()
        assert_same_bits(out, expected)


def test_copies_wait_for_what_the_source_is_made_of():
    """The storage is filled late on a side stream, for which copies on the default stream do not wait by themselves."""
    weight = random_weight(np.random.default_rng(8), 64, 256, 64, 8, "symmetric")
    source = torch.from_dlpack(weight.to("cuda").storage())
    late = torch.zeros_like(source)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        late.copy_(source)
        copied = qcore.QuantizedTensor.from_storage(late, weight.shape, bits=8, block_size=64).to("cpu")
    assert copied == weight


def test_streams_and_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(9)
    weights = [random_weight(rng, 50 + 30 * i, 320, 64, 4, "asymmetric") for i in range(4)]
    moved = [weight.to("cuda") for weight in weights]
    inputs = [torch.from_numpy(rng.standard_normal((40 + i, 320)).astype(np.float32)).cuda() for i in range(4)]
    expected = [reference(x, weight, None, compute="int8_asym") for x, weight in zip(inputs, weights, strict=True)]
    torch.cuda.synchronize()
    failures = []

    def work(i):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                results = [qcore.linear(inputs[i], moved[i], compute="int8_asym") for _ in range(50)]
                torch.cuda.current_stream().synchronize()
            for result in results:
                assert_same_bits(result, expected[i])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes change the device's free memory")
def test_repeated_calls_take_no_more_memory():
    weight = random_weight(np.random.default_rng(10), 512, 512, 64, 4, "symmetric").to("cuda")
    x, out = torch.ones(300, 512, device="cuda"), torch.empty(300, 512, device="cuda")
    for _ in range(3):
        qcore.linear(x, weight, out=out)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        qcore.linear(x, weight, out=out)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free


@pytest.mark.parametrize("compute", COMPUTE)
def test_cuda_graph(compute):
    rng = np.random.default_rng(11)
    scheme = "symmetric" if compute == "int8" else "asymmetric"
    weight = random_weight(rng, 70, 200, 64, 4, scheme)
    on_device = weight.to("cuda")
    for kernel in KERNELS[compute]:
        m = 8 if kernel == "sm75_gemv" else 33
        dtype = torch.float16 if kernel == "sm90_float_wgmma" else torch.float32
        if not takes(kernel, compute, m, 200, 64, scheme, dtype):
            continue
        x, out = torch.zeros(m, 200, dtype=dtype, device="cuda"), torch.empty(m, 70, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with qcore.force_kernel("linear", kernel):
            qcore.linear(x, on_device, out=out, compute=compute)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                qcore.linear(x, on_device, out=out, compute=compute)
        for _ in range(3):
            values = torch.from_numpy(rng.standard_normal((m, 200)).astype(np.float32)).to(dtype)
            x.copy_(values)
            # Calls between replays must not touch the graph's memory.
            qcore.linear(torch.ones(500, 200, dtype=dtype, device="cuda"), on_device, compute=compute)
            graph.replay()
            expected = reference(values, weight, None, compute=compute, out_dtype=torch.float32)
            if other_order(kernel, compute):
                assert_close_floats(out, expected, values, weight)
            else:
                assert_same_bits(out, expected)


def test_devices_must_match():
    weight = qcore.quantize(np.ones((8, 64), np.float32), bits=4, block_size=32, method="rtn", scale_dtype="float32")
    x = torch.ones(2, 64, device="cuda")
    with pytest.raises(qcore.QcoreValueError, match=r"x is on cuda:0 and the weight on cpu"):
        qcore.linear(x, weight)
    with pytest.raises(qcore.QcoreValueError, match=r"x is on cpu and the weight on cuda:0"):
        qcore.linear(x.cpu(), weight.to("cuda"))
    with pytest.raises(qcore.QcoreValueError, match="bias"):
        qcore.linear(x, weight.to("cuda"), torch.ones(8))
    with pytest.raises(qcore.QcoreValueError, match="out"):
        qcore.linear(x, weight.to("cuda"), out=torch.empty(2, 8))


def test_forced_kernels_refuse_what_they_cannot_do():
    weight = qcore.quantize(
        np.ones((8, 64), np.float32), bits=4, block_size=32, method="rtn", scale_dtype="float32"
    ).to("cuda")
    x = torch.ones(2, 64, device="cuda")
    refused = pytest.raises(qcore.QcoreValueError, match="int8 and int8_asym only")
    with qcore.force_kernel("linear", "sm75_int8_sliced"), refused:
        qcore.linear(x, weight, compute="int16")
    with qcore.force_kernel("linear", "sm75_gemv"), pytest.raises(qcore.QcoreValueError, match="it takes M up to 16"):
        qcore.linear(torch.ones(33, 64, device="cuda"), weight)
    odd = qcore.quantize(np.ones((8, 64), np.float32), bits=4, block_size=20, method="rtn", scale_dtype="float32").to(
        "cuda"
    )
    for kernel in ("sm75_gemv", "sm80_int8_mma"):
        with qcore.force_kernel("linear", kernel), pytest.raises(qcore.QcoreValueError, match="multiples of 32"):
            qcore.linear(x, odd)
    with qcore.force_kernel("linear", "reference"), pytest.raises(qcore.QcoreValueError, match="it runs on the CPU"):
        qcore.linear(x, weight)
    with qcore.force_kernel("linear", "simt"), pytest.raises(qcore.QcoreValueError, match="it runs on CUDA devices"):
        qcore.linear(x.cpu(), weight.to("cpu"))


def test_a_device_that_does_not_exist():
    weight = qcore.quantize(np.ones((8, 64), np.float32), bits=4, block_size=32, method="rtn", scale_dtype="float32")
    with pytest.raises(qcore.CudaError, match="there is no device cuda:99"):
        weight.to("cuda:99")
    assert torch.ones(3, device="cuda").sum() == 3  # nothing was left behind


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="the tests are spread over several processes")
def test_every_cuda_kernel_ran():
    """Last in the file: a row that this device supports and no test ran is a failure."""
    rows = [row for row in qcore.kernels("linear") if row.device == "cuda" and row.available and supported(row.name)]
    assert rows
    assert not [row.name for row in rows if row.runs == 0]
