"""gru on a CUDA device: the integers of the CPU's reference, by every kernel.

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

from qcore import _core  # noqa: E402
from qcore.gru import Calibrator, Config, Direction, GruWeights  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [row.name for row in qcore.kernels("gru") if row.device == "cuda"]
CONFIGS = {
    "int8": Config(bits=8),
    "int8-fused": Config(bits=8, pipeline="fused"),
    "int16": Config(bits=16),
    "int16-fused": Config(bits=16, pipeline="fused", rounding="half_even"),
    "weights8": Config(bits=16, widths={"weights": 7}),
    "weights16": Config(bits=8, widths={"weights": 11, "z": 5, "r_pre": 9}, rounding="half_even"),
    "narrow": Config(bits=8, widths={"x": 3, "h": 6, "weights": 2, "wx": 7, "rh": 9, "g": 2}, pipeline="fused"),
    "wide-x": Config(bits=8, widths={"x": 13}),
}


def direction(c, h, rng, form=1):
    scale = 1.5 / np.sqrt(h)
    shapes = (3 * h, c), (3 * h, h), (3 * h,), (3 * h,)
    return Direction(*(rng.uniform(-scale, scale, shape) for shape in shapes), linear_before_reset=form)


def quantized(c, h, config, *, layers=1, directions=1, seed=0, batch_first=False, form=1):
    rng = np.random.default_rng(seed)
    sizes = [c] + [directions * h] * (layers - 1)
    weights = GruWeights(
        [[direction(size, h, rng, form) for _ in range(directions)] for size in sizes], batch_first=batch_first
    )
    return Calibrator(weights, "minmax").observe(rng.normal(0, 1, (3, 5, c))).finish(config)


def floats(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32))


def reference(q, x, h0=None, **options):
    with qcore.force_kernel("gru", "reference"):
        return q(x, h0, **options)


def assert_same(given, expected):
    for name, got, wanted in zip(("y", "last", "gates"), given, expected, strict=False):
        assert got.is_cuda
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        wrong = got.cpu() != wanted
        assert not bool(wrong.any()), f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ"


def codes_of(q, x):
    form = q.format("x")
    codes = np.empty(tuple(x.shape), form.dtype)
    _core.quantize_fixed(x, form.row(), codes)
    return torch.from_numpy(codes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(
    ("steps", "batch", "c", "h"),
    [
        (1, 1, 1, 1),
        (5, 3, 7, 17),
        (9, 8, 64, 64),
        (20, 1, 128, 256),
        (6, 33, 30, 100),
        (1, 20, 30, 100),
        (40, 5, 20, 128),
        (4, 64, 128, 512),
        (3, 150, 9, 33),
        (12, 128, 17, 144),
    ],
)
def test_integers(kernel, config, steps, batch, c, h):
    many = h == 512 and config.width("weights") > 8
    if kernel == "sm75_persistent" and (steps == 1 or batch > 128 or many):
        pytest.skip("the kernel does not take it")
    q = quantized(c, h, config)
    x, h0 = floats(steps, batch, c), floats(1, batch, h, seed=2)
    with qcore.force_kernel("gru", kernel):
        given = q(x.cuda(), h0.cuda(), gates=True)
        assert qcore.last_kernel("gru") == kernel
        assert_same(given, reference(q, x, h0, gates=True))
        codes = codes_of(q, x)
        assert_same(q(codes.cuda()), reference(q, codes))


@pytest.mark.parametrize("config", ["int8", "int8-fused", "int16", "int16-fused", "weights16", "narrow"])
@pytest.mark.parametrize(
    ("steps", "batch", "c", "h"), [(1, 1, 1, 1), (5, 3, 7, 17), (20, 1, 128, 256), (3, 150, 9, 33)]
)
def test_reset_before_the_product(config, steps, batch, c, h):
    """Steps of several launches: linear_before_reset is 0."""
    q = quantized(c, h, CONFIGS[config], form=0)
    x, h0 = floats(steps, batch, c), floats(1, batch, h, seed=2)
    given = q(x.cuda(), h0.cuda(), gates=True)
    assert qcore.last_kernel("gru") == "sm75_stepwise"
    assert_same(given, reference(q, x, h0, gates=True))
    with (
        qcore.force_kernel("gru", "sm75_persistent"),
        pytest.raises(qcore.QcoreValueError, match="linear_before_reset is 0"),
    ):
        q(x.cuda())


def test_reset_before_the_product_in_layers_streams_and_graphs():
    q = quantized(16, 48, CONFIGS["int8"], layers=2, directions=2, form=0)
    x, lengths = floats(300, 6, 16).half(), torch.tensor([300, 0, 5, 1, 10, 3], dtype=torch.int32)
    assert_same(q(x.cuda(), lengths=lengths.cuda(), gates=True), reference(q, x, lengths=lengths, gates=True))
    held = x.cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = q(held)
    for seed in range(3):
        values = floats(300, 6, 16, seed=seed).half()
        held.copy_(values)
        graph.replay()
        assert_same(outputs, reference(q, values))
    q = quantized(16, 48, CONFIGS["int16"], layers=2, form=0)
    y, _ = reference(q, x)
    state = None
    for step in range(5):
        y_t, state = q.step(x[step].cuda(), state)
        assert_same((y_t,), (y[step],))


@pytest.mark.parametrize("kernel", KERNELS)
def test_layers_directions_lengths_and_dtypes(kernel):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for batch_first in (False, True):
            q = quantized(12, 40, CONFIGS["int8"], layers=2, directions=2, batch_first=batch_first)
            x = floats(11, 6, 12).to(dtype)
            x = x.transpose(0, 1) if batch_first else x
            lengths = torch.tensor([11, 0, 5, 1, 10, 3], dtype=torch.int32)
            with qcore.force_kernel("gru", kernel):
                given = q(x.cuda(), lengths=lengths.cuda(), gates=True)
            assert_same(given, reference(q, x, lengths=lengths, gates=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_long_and_large(kernel):
    """More steps than one part of scratch memory holds; a state that fits in no cluster."""
    q = quantized(200, 64, CONFIGS["int8"])
    x = floats(8000, 128, 200, seed=3).half().cuda()
    with qcore.force_kernel("gru", kernel):
        y, last = q(x)
    rows = [0, 1, 127]
    assert_same((y[:, rows], last[:, rows]), reference(q, x[:, rows].cpu()))
    large = quantized(40, 1100, CONFIGS["int16-fused"])
    x = floats(3, 2, 40)
    given = large(x.cuda())
    assert qcore.last_kernel("gru") == "sm75_stepwise"
    assert_same(given, reference(large, x))


def test_streaming_is_the_same():
    q = quantized(16, 48, CONFIGS["int8"], layers=2)
    x = floats(7, 4, 16)
    y, last = reference(q, x)
    state = None
    for step in range(7):
        y_t, state = q.step(x[step].cuda(), state)
        assert_same((y_t,), (y[step],))
    expected = reference(q, x[:1], None)[1]
    restarted = q.step(x[0].cuda(), state, reset=torch.ones(4, dtype=torch.bool, device="cuda"))
    assert restarted[1].is_cuda
    assert last.shape == expected.shape
    assert_same((restarted[0],), (reference(q, x[:1])[0][0],))


@pytest.mark.parametrize("kernel", KERNELS)
def test_runs_on_the_callers_stream(kernel):
    """x is made late on a side stream: only work on that stream sees it."""
    q = quantized(16, 48, CONFIGS["int8"])
    values = floats(30, 4, 16)
    expected = reference(q, values)
    values = values.cuda()
    stream = torch.cuda.Stream()
    for explicit in (False, True):
        x = torch.full_like(values, float("nan"))
        torch.cuda.synchronize()
        with qcore.force_kernel("gru", kernel):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                x.copy_(values)
                given = None if explicit else q(x)
            if explicit:
                given = q(x, stream=stream)
        stream.synchronize()
        assert_same(given, expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", ["int8", "int16-fused"])
def test_cuda_graph_of_a_layer_that_is_new(kernel, config):
    """The layer reaches the device while the stream is being captured."""
    q = quantized(16, 80, CONFIGS[config])
    x = torch.zeros(12, 5, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with qcore.force_kernel("gru", kernel), torch.cuda.graph(graph):
        outputs = q(x)
    for seed in range(3):
        values = floats(12, 5, 16, seed=seed)
        x.copy_(values)
        graph.replay()
        assert_same(outputs, reference(q, values))


def test_threads_share_a_new_layer():
    q = quantized(16, 48, CONFIGS["int8"])
    x = floats(20, 4, 16)
    expected, on_device = reference(q, x), x.cuda()
    torch.cuda.synchronize()
    failures = []

    def work():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                results = [q(on_device) for _ in range(5)]
                torch.cuda.current_stream().synchronize()
            for result in results:
                assert_same(result, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("bits", [8, 16])
def test_fixed_codes(bits):
    form = quantized(16, 48, Config(bits=bits)).format("x")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = (3 * floats(5, 40, 33)).to(dtype)
        codes = torch.empty(x.shape, dtype=torch.int8 if bits == 8 else torch.int16)
        _core.quantize_fixed(x, form.row(), codes)
        on_device = torch.zeros_like(codes, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        _core.quantize_fixed(x.cuda().transpose(0, 1), form.row(), on_device.transpose(0, 1), stream)
        assert torch.equal(on_device.cpu(), codes)
        back, expected = torch.zeros_like(x, device="cuda"), torch.zeros_like(x)
        _core.dequantize_fixed(codes, form.row(), expected)
        _core.dequantize_fixed(on_device, form.row(), back, stream)
        assert torch.equal(back.cpu(), expected)
    x = torch.tensor([float("nan"), float("inf"), -float("inf")], device="cuda")
    codes = torch.zeros(3, dtype=torch.int8 if bits == 8 else torch.int16, device="cuda")
    _core.quantize_fixed(x, form.row(), codes, torch.cuda.current_stream().cuda_stream)
    assert codes.tolist() == [form.zero_point, form.highest, form.lowest]


def test_devices_must_match():
    q = quantized(16, 48, CONFIGS["int8"])
    x = floats(3, 2, 16)
    with pytest.raises(qcore.QcoreValueError, match="h0"):
        q(x.cuda(), floats(1, 2, 48))
    with pytest.raises(qcore.QcoreValueError, match="lengths"):
        q(x.cuda(), lengths=torch.tensor([1, 2], dtype=torch.int32))
    with qcore.force_kernel("gru", "reference"), pytest.raises(qcore.QcoreValueError, match="it runs on the CPU"):
        q(x.cuda())
    for kernel in KERNELS:
        with qcore.force_kernel("gru", kernel), pytest.raises(qcore.QcoreValueError, match="it runs on CUDA devices"):
            q(x)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="the tests are spread over several processes")
def test_every_cuda_kernel_ran():
    """Last in the file: a row that no test ran is a failure."""
    rows = [row for row in qcore.kernels("gru") if row.device == "cuda"]
    assert rows
    assert not [row.name for row in rows if row.runs == 0]
