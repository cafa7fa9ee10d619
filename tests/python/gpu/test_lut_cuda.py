"""lut, softmax and rms_norm on a CUDA device: the bits of the CPU's reference, but for the payload of NaNs.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import os
import threading

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

from qcore import lut  # noqa: E402

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OPERATORS = ("lut", "softmax", "rms_norm")
DIRECT = 1 << 20  # elements from which on 16-bit dtypes take the map of all results, and float32 takes buckets


def cube_table(intervals, segments, dtype):
    cuts = np.linspace(-1, 1, intervals + 1).astype(np.float32)
    lengths = [1] + [segments] * (intervals - 2) + [1]
    ends = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(cuts[:-1], cuts[1:], lengths, strict=True)]
    return lut.Table.from_parts(cuts, (np.append(np.concatenate(ends), 1.0) ** 3 * 65504).astype(dtype))


def tables():
    """Return every table that ships with qcore, and some of other sizes."""
    yield from (
        pytest.param(lut.table(name, range_reduction=reduced), id=f"{name}-{reduced}")
        for name, reduced in qcore._core.builtin_luts()
    )
    for intervals, segments, dtype in ((2, 1, "float16"), (3, 5, "float32"), (11, 7, "float16"), (256, 250, "float32")):
        yield pytest.param(cube_table(intervals, segments, dtype), id=f"cube-{intervals}-{segments}-{dtype}")


def assert_same_bits(given, expected):
    given, expected = given.cpu(), expected.cpu()
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    integer = torch.int32 if given.dtype == torch.float32 else torch.int16
    same = given.contiguous().view(integer) == expected.contiguous().view(integer)
    same |= given.isnan() & expected.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ"


def reference(operator, function, x, **options):
    with qcore.force_kernel(operator, "reference"):
        return function(x.cpu(), **options)


def every_number(dtype):
    """Return all numbers of a 16-bit dtype; for float32 those of both, and random bits."""
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    if dtype != torch.float32:
        return codes.view(dtype)
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 17, dtype=np.uint32).view(np.float32)
    return torch.cat([codes.view(torch.float16).float(), codes.view(torch.bfloat16).float(), torch.from_numpy(bits)])


def rows_of(shape, dtype, seed=0):
    """Return rows with infinities of either sign, with a NaN first and last, and of nothing but -inf."""
    values = torch.from_numpy(4 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    flat = values.view(-1, shape[-1])
    middle = shape[-1] // 2
    for row, (column, value) in enumerate(
        [(middle, -torch.inf), (middle, torch.inf), (0, torch.nan), (-1, torch.nan), (slice(None), -torch.inf)]
    ):
        if row + 1 < len(flat):
            flat[row + 1, column] = value
    return values.to(dtype)


@pytest.mark.parametrize("table", list(tables()))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number(table, dtype):
    x = every_number(dtype)
    expected = reference("lut", table, x)
    given = table(x.cuda())
    assert qcore.last_kernel("lut") == "simt"
    assert given.is_cuda
    assert_same_bits(given, expected)
    repeats = -(-DIRECT // len(x))
    assert_same_bits(table(x.cuda().repeat(repeats)), expected.repeat(repeats))


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_sizes_dtypes_and_places(x_dtype, out_dtype):
    table = lut.table("silu")
    rng = np.random.default_rng(2)
    for count in (0, 1, 7, 8, 9, 1000, 100_003):
        for shift in (0, 1, 8):
            values = torch.from_numpy(5 * rng.standard_normal(count + shift).astype(np.float32)).to(x_dtype)
            out = torch.full((count + 2 * shift + 16,), 77.0, dtype=out_dtype, device="cuda")
            view = out[2 * shift : 2 * shift + count]
            table(values.cuda()[shift:], out=view)
            expected = torch.empty(count, dtype=out_dtype)
            with qcore.force_kernel("lut", "reference"):
                table(values[shift:], out=expected)
            assert_same_bits(view, expected)
            assert bool((out[: 2 * shift] == 77).all())
            assert bool((out[2 * shift + count :] == 77).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype):
    table = lut.table("gelu")
    base = torch.from_numpy(np.random.default_rng(3).standard_normal((9, 34, 21)).astype(np.float32)).to(dtype)
    for view in (lambda a: a.permute(2, 0, 1), lambda a: a[::2, 1:, ::3], lambda a: a[:, :1].expand(9, 34, 21)):
        x = view(base)
        out = torch.full((21, 40, 40), 3.0, dtype=dtype, device="cuda").permute(1, 2, 0)
        target = out[: x.shape[0], : x.shape[1], : x.shape[2]] if x.shape[2] <= 21 else torch.empty_like(x).cuda()
        expected = reference("lut", table, x)
        assert_same_bits(table(view(base.cuda())), expected)
        assert_same_bits(table(view(base.cuda()), out=target), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1000, 100_003, DIRECT + 5])
def test_in_place(dtype, count):
    x = torch.linspace(-9, 9, count).to(dtype)
    on_device = x.cuda()
    assert lut.tanh(on_device, out=on_device) is on_device
    assert_same_bits(on_device, lut.tanh(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 1024, 1025, 4096, 5000, 20_008])
def test_rows(dtype, count):
    x = rows_of((7, count), dtype, count)
    weight = torch.linspace(-1, 1, count)
    for out_dtype in DTYPES:
        for operator, function, options in (
            ("softmax", lut.softmax, {}),
            ("rms_norm", lut.rms_norm, {}),
            ("rms_norm", lut.rms_norm, {"weight": weight.to(out_dtype)}),
        ):
            expected, given = torch.empty(7, count, dtype=out_dtype), torch.empty(7, count, dtype=out_dtype).cuda()
            reference(operator, function, x, out=expected, **options)
            on_device = {name: value.cuda() for name, value in options.items()}
            function(x.cuda(), out=given, **on_device)
            assert qcore.last_kernel(operator) == "simt"
            assert_same_bits(given, expected)
            same = x.cuda()
            function(same, out=same, **on_device)
            assert_same_bits(same, reference(operator, function, x, **options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_axis(dtype):
    x = rows_of((6, 40, 33), dtype)
    for axis in (0, 1, 2, -1, -2):
        expected = reference("softmax", lut.softmax, x, axis=axis)
        assert_same_bits(lut.softmax(x.cuda(), axis), expected)
        assert_same_bits(lut.softmax(x.cuda().permute(1, 2, 0), (axis + 5) % 3), expected.permute(1, 2, 0))
    padded = torch.zeros(40, 72, dtype=dtype, device="cuda")
    padded[:, :64] = x[0, :, :1].expand(40, 64).cuda() + 1
    assert_same_bits(lut.rms_norm(padded[:, :64]), reference("rms_norm", lut.rms_norm, padded[:, :64].cpu()))


def test_many_rows():
    for dtype in DTYPES:
        x = rows_of((3000, 192), dtype)
        assert_same_bits(lut.softmax(x.cuda()), lut.softmax(x))
        x = rows_of((1200, 1536), dtype)
        assert_same_bits(lut.softmax(x.cuda()), lut.softmax(x))
        assert_same_bits(lut.rms_norm(x.cuda()), lut.rms_norm(x))


def test_runs_on_the_callers_stream():
    """x is made late on a side stream: only work on that stream sees it."""
    values = torch.randn(500, 64)
    expected = lut.silu(values), lut.softmax(values), lut.rms_norm(values)
    values = values.cuda()
    stream = torch.cuda.Stream()
    for explicit in (False, True):
        x = torch.full_like(values, float("nan"))
        outs = [torch.empty_like(values) for _ in range(3)]
        torch.cuda.synchronize()

        def work(x=x, outs=outs, **options):
            lut.silu(x, out=outs[0], **options)
            lut.softmax(x, out=outs[1], **options)
            lut.rms_norm(x, out=outs[2], **options)

        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            x.copy_(values)
            if not explicit:
                work()
        if explicit:
            work(stream=stream)
        stream.synchronize()
        for out, wanted in zip(outs, expected, strict=True):
            assert_same_bits(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1000, DIRECT])
def test_cuda_graph_of_a_table_that_is_new(dtype, count):
    """The table reaches the device, and its map is made, while the stream is being captured."""
    table = cube_table(10, 32, "float16")
    x, out = torch.zeros(count, device="cuda", dtype=dtype), torch.empty(count, device="cuda", dtype=dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table(x, out=out)
    for seed in range(3):
        values = torch.from_numpy(np.random.default_rng(seed).uniform(-1.5, 1.5, count).astype(np.float32)).to(dtype)
        x.copy_(values)
        graph.replay()
        assert_same_bits(out, table(values))


def test_cuda_graph_of_rows():
    x, soft, norm = (torch.zeros(40, 300, device="cuda") for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lut.softmax(x, out=soft)
        lut.rms_norm(x, out=norm)
    for seed in range(3):
        values = rows_of((40, 300), torch.float32, seed)
        x.copy_(values)
        graph.replay()
        assert_same_bits(soft, lut.softmax(values))
        assert_same_bits(norm, lut.rms_norm(values))


def test_threads_share_a_new_table():
    table = cube_table(10, 32, "float16")
    x = torch.linspace(-1.2, 1.2, DIRECT).half()
    expected, on_device = table(x), x.cuda()
    torch.cuda.synchronize()
    failures = []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                results = [table(on_device) for _ in range(5)] + [table(on_device[:1000]) for _ in range(5)]
                torch.cuda.current_stream().synchronize()
            for result in results:
                assert_same_bits(result, expected[: len(result)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_devices_must_match():
    x = torch.ones(4, device="cuda")
    with pytest.raises(qcore.QcoreValueError, match="out"):
        lut.silu(x, out=torch.empty(4))
    with pytest.raises(qcore.QcoreValueError, match="weight"):
        lut.rms_norm(x, torch.ones(4))
    with qcore.force_kernel("lut", "reference"), pytest.raises(qcore.QcoreValueError, match="it runs on the CPU"):
        lut.silu(x)
    with qcore.force_kernel("lut", "simt"), pytest.raises(qcore.QcoreValueError, match="it runs on CUDA devices"):
        lut.silu(x.cpu())


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="the tests are spread over several processes")
def test_every_cuda_kernel_ran():
    """Last in the file: a row that no test ran is a failure."""
    for operator in OPERATORS:
        rows = [row for row in qcore.kernels(operator) if row.device == "cuda"]
        assert rows
        assert not [row.name for row in rows if row.runs == 0]
