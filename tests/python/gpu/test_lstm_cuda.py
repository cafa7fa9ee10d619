"""lstm on a CUDA device: the integers of the CPU's reference, by every kernel.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import os

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

qt = pytest.importorskip("qcore.torch")
from qcore.lstm import Calibrator, Config, LstmWeights  # noqa: E402
from qcore.lstm.direction import Direction  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [row.name for row in qcore.kernels("lstm") if row.device == "cuda"]
CONFIGS = {
    "int8": Config(bits=8),
    "int16": Config(bits=16),
    "int16-half-even": Config(bits=16, rounding="half_even"),
    "interp": Config(bits=16, tables="interp"),
    "weights8": Config(bits=16, widths={"weights": 7}),
    "weights16": Config(bits=8, widths={"weights": 11, "i": 5, "f_pre": 9}, rounding="half_even"),
    "narrow": Config(bits=8, widths={"x": 3, "h": 6, "weights": 2, "wx": 7, "rh": 9, "g": 2}),
    "wide-x": Config(bits=8, widths={"x": 13}),
}


def quantized(c, h, config, *, layers=1, bidirectional=False, seed=0, batch_first=False):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = torch.nn.LSTM(c, h, layers, bidirectional=bidirectional, batch_first=batch_first)
    return Calibrator(LstmWeights.from_torch(module), "minmax").observe(floats(3, 5, c).numpy()).finish(config)


def with_form(c, h, config, form, *, layers=1):
    """Return an LSTM with a projection to 24, with peepholes, or with both: its steps are several launches."""
    rng = np.random.default_rng(3)
    made = []
    size = h if form == "peepholes" else 24
    for inputs in [c] + [size] * (layers - 1):
        shapes = (4 * h, inputs), (4 * h, size), (4 * h,), (4 * h,)
        parts = [rng.uniform(-1, 1, shape) / np.sqrt(h) for shape in shapes]
        options = {"projection": rng.uniform(-1, 1, (24, h)) / np.sqrt(h)} if form != "peepholes" else {}
        if form != "projection":
            options["peepholes"] = rng.uniform(-1, 1, (3, h))
        made.append([Direction(*parts, **options)])
    return Calibrator(LstmWeights(made), "minmax").observe(rng.normal(0, 1, (3, 5, c))).finish(config)


FORMS = ["projection", "peepholes", "both"]


def floats(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32))


def on_device(*arrays):
    return [array.cuda() for array in arrays]


def reference(q, *arguments, **options):
    with qcore.force_kernel("lstm", "reference"):
        return q(*arguments, **options)


def assert_same(given, expected):
    for name, got, wanted in zip(("y", "h", "c"), given, expected, strict=False):
        assert got.is_cuda
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        wrong = got.cpu() != wanted
        assert not bool(wrong.any()), f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ"


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
    many = h * h * config.width("weights") > 8 * 512 * 512
    if kernel == "sm75_persistent" and (steps == 1 or batch > 128 or many or config.rounding == "half_even"):
        pytest.skip("the kernel does not take it")
    q = quantized(c, h, config)
    x, h0, c0 = floats(steps, batch, c), floats(1, batch, h, seed=2), floats(1, batch, h, seed=3)
    with qcore.force_kernel("lstm", kernel):
        given = q(*on_device(x, h0, c0))
        assert qcore.last_kernel("lstm") == kernel
    assert_same(given, reference(q, x, h0, c0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", ["int8", "int16", "int16-half-even", "weights16", "narrow"])
@pytest.mark.parametrize(
    ("steps", "batch", "c", "h"), [(1, 1, 1, 1), (5, 3, 7, 17), (20, 1, 128, 256), (3, 150, 9, 33)]
)
def test_projections_and_peepholes(form, config, steps, batch, c, h):
    q = with_form(c, h, CONFIGS[config], form)
    x, h0, c0 = floats(steps, batch, c), floats(1, batch, q.output_size, seed=2), floats(1, batch, h, seed=3)
    given = q(*on_device(x, h0, c0))
    assert qcore.last_kernel("lstm") == "sm75_stepwise"
    assert_same(given, reference(q, x, h0, c0))
    with (
        qcore.force_kernel("lstm", "sm75_persistent"),
        pytest.raises(qcore.QcoreValueError, match="peepholes or a projection"),
    ):
        q(x.cuda())


@pytest.mark.parametrize("form", FORMS)
def test_projections_and_peepholes_in_layers_streams_and_graphs(form):
    q = with_form(16, 48, CONFIGS["int8"], form, layers=2)
    x, lengths = floats(300, 6, 16).half(), torch.tensor([300, 0, 5, 1, 10, 3], dtype=torch.int32)
    assert_same(q(x.cuda(), lengths=lengths.cuda()), reference(q, x, lengths=lengths))
    state = None
    y, *_ = reference(q, x)
    for step in range(5):
        y_t, state = q.step(x[step].cuda(), state)
        assert_same((y_t,), (y[step],))
    held = x.cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = q(held)
    for seed in range(3):
        values = floats(300, 6, 16, seed=seed).half()
        held.copy_(values)
        graph.replay()
        assert_same(outputs, reference(q, values))


@pytest.mark.parametrize("kernel", KERNELS)
def test_layers_directions_lengths_and_dtypes(kernel):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for batch_first in (False, True):
            q = quantized(12, 40, CONFIGS["int8"], layers=2, bidirectional=True, batch_first=batch_first)
            x = floats(11, 6, 12).to(dtype)
            x = x.transpose(0, 1) if batch_first else x
            lengths = torch.tensor([11, 0, 5, 1, 10, 3], dtype=torch.int32)
            with qcore.force_kernel("lstm", kernel):
                given = q(x.cuda(), lengths=lengths.cuda())
            assert_same(given, reference(q, x, lengths=lengths))


@pytest.mark.parametrize("kernel", KERNELS)
def test_long_and_large(kernel):
    """More steps than one part of scratch memory holds; a state that fits in no cluster."""
    q = quantized(200, 64, CONFIGS["int8"])
    x = floats(6000, 128, 200, seed=3).half().cuda()
    with qcore.force_kernel("lstm", kernel):
        given = q(x)
    rows = [0, 1, 127]
    assert_same([array[:, rows] for array in given], reference(q, x[:, rows].cpu()))
    large = quantized(40, 1100, CONFIGS["int16"])
    x = floats(3, 2, 40)
    given = large(x.cuda())
    assert qcore.last_kernel("lstm") == "sm75_stepwise"
    assert_same(given, reference(large, x))


def test_streaming_is_the_same():
    q = quantized(16, 48, CONFIGS["int8"], layers=2)
    x = floats(7, 4, 16)
    y, *_ = reference(q, x)
    state = None
    for step in range(7):
        y_t, state = q.step(x[step].cuda(), state)
        assert_same((y_t,), (y[step],))
    restarted, (h, c) = q.step(x[0].cuda(), state, reset=torch.ones(4, dtype=torch.bool, device="cuda"))
    assert h.is_cuda
    assert c.is_cuda
    assert_same((restarted,), (y[0],))


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
        with qcore.force_kernel("lstm", kernel):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                x.copy_(values)
                given = None if explicit else q(x)
            if explicit:
                given = q(x, stream=stream)
        stream.synchronize()
        assert_same(given, expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cuda_graph_of_a_layer_that_is_new(kernel):
    """The layer reaches the device while the stream is being captured."""
    q = quantized(16, 80, CONFIGS["int8"])
    x = torch.zeros(12, 5, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with qcore.force_kernel("lstm", kernel), torch.cuda.graph(graph):
        outputs = q(x)
    for seed in range(3):
        values = floats(12, 5, 16, seed=seed)
        x.copy_(values)
        graph.replay()
        assert_same(outputs, reference(q, values))


def test_module():
    """qcore.torch.LSTM on the device, its state buffer there too."""
    module = torch.nn.LSTM(16, 48, 2)
    x = floats(9, 4, 16)
    ours = qt.LSTM.from_float(module, samples=x)
    expected, (h, c) = ours(x)
    y, states = ours.cuda()(x.cuda())
    assert_same((y, *states), (expected, h, c))


def test_devices_must_match():
    q = quantized(16, 48, CONFIGS["int8"])
    x = floats(3, 2, 16)
    with pytest.raises(qcore.QcoreValueError, match="c0"):
        q(x.cuda(), None, floats(1, 2, 48))
    with qcore.force_kernel("lstm", "reference"), pytest.raises(qcore.QcoreValueError, match="it runs on the CPU"):
        q(x.cuda())
    for kernel in KERNELS:
        with qcore.force_kernel("lstm", kernel), pytest.raises(qcore.QcoreValueError, match="it runs on CUDA devices"):
            q(x)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="the tests are spread over several processes")
def test_every_cuda_kernel_ran():
    """Last in the file: a row that no test ran is a failure."""
    rows = [row for row in qcore.kernels("lstm") if row.device == "cuda"]
    assert rows
    assert not [row.name for row in rows if row.runs == 0]
