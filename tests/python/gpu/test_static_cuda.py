"""static int8 on a CUDA device: the codes of the reference kernel on the CPU, by every row that takes a call.

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


import conv_calls  # noqa: E402
import static_calls  # noqa: E402
from conv_calls import SHAPES  # noqa: E402

from qcore.static import QConv2d, QLinear  # noqa: E402

pytestmark = pytest.mark.gpu

IS_HOPPER = torch.cuda.get_device_capability() == (9, 0)
KERNELS = [row.name for row in qcore.kernels("static") if row.device == "cuda"]
ORDERS = {"channels_last": torch.channels_last, "channels_first": torch.contiguous_format}
# x's dtype and zero point, the weight's, y's
FORMATS = (
    ("uint8", 0, "int8", 0, "uint8", 128),
    ("uint8", 255, "uint8", 131, "int8", -7),
    ("int8", -128, "int8", 0, "int8", 0),
    ("int8", 127, "uint8", 0, "uint8", 255),
)


def reference(layer, x):
    with qcore.force_kernel("static", "reference"):
        return layer(x)


def takes(kernel, case, formats):
    """Return whether a row takes one of the cases of conv_calls.SHAPES."""
    _, (outputs, channels, *_), *_, groups = SHAPES[case]
    if kernel == "simt_depthwise":
        return channels == 1 and outputs == groups and one_part(formats)
    if kernel == "sm90_int8_implicit_gemm":
        return IS_HOPPER and groups == 1 and channels % 128 == 0
    return kernel == "simt" or groups == 1 or (channels >= 8 and outputs // groups >= 8)


def product_rows(channels):
    """Return the rows that multiply by this many channels of one group."""
    tensor_cores = ["sm90_int8_implicit_gemm"] if IS_HOPPER and channels % 128 == 0 else []
    return [*tensor_cores, "sm75_int8_implicit_gemm", "simt"]


def one_part(formats):
    """Return whether random weights less their zero point fit in a byte."""
    return formats[2] == "int8"


def conv_layer(rng, w_shape, formats, **window):
    x_dtype, x_zero, w_dtype, w_zero, y_dtype, y_zero = formats
    weight = static_calls.codes(rng, w_shape, w_dtype)
    w_scale = rng.uniform(0.001, 0.02, w_shape[0]).astype(np.float32)
    bias = rng.integers(-9999, 9999, w_shape[0]).astype(np.int32)
    return QConv2d(
        0.02, x_zero, weight, w_scale, 0.3, y_zero, bias,
        w_zero_point=w_zero, x_dtype=x_dtype, y_dtype=y_dtype, **window,
    )  # fmt: skip


def test_rows():
    assert KERNELS == ["simt_depthwise", "sm90_int8_implicit_gemm", "sm75_int8_implicit_gemm", "simt"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_convolutions(case, formats, order):
    x_shape, w_shape, *_ = SHAPES[case]
    rng = np.random.default_rng([len(case), *map(ord, case)])
    layer = conv_layer(rng, w_shape, formats, **conv_calls.window(case))
    x = torch.from_numpy(static_calls.codes(rng, x_shape, formats[0])).contiguous(memory_format=ORDERS[order])
    expected, moved = reference(layer, x), layer.to("cuda")
    assert moved.device == "cuda:0"
    for kernel in KERNELS:
        if not takes(kernel, case, formats):
            with pytest.raises(qcore.QcoreValueError, match="does not take this call"):
                static_calls.run(kernel, moved, x.cuda())
            continue
        y = static_calls.run(kernel, moved, x.cuda())
        assert y.is_cuda
        assert torch.equal(y.cpu(), expected)
    assert torch.equal(moved(x.cuda()).cpu(), expected)
    assert torch.equal(moved.to("cpu")(x), expected)


@pytest.mark.parametrize("channels", [32, 64, 96, 50, 128])
def test_many_tiles(channels):
    rng = np.random.default_rng(channels)
    layer = conv_layer(rng, (300, channels, 3, 3), FORMATS[0], padding=1)
    x = torch.from_numpy(static_calls.codes(rng, (4, channels, 40, 41), "uint8")).contiguous(
        memory_format=torch.channels_last
    )
    expected = layer(x)
    for kernel in product_rows(channels):
        assert torch.equal(static_calls.run(kernel, layer.to("cuda"), x.cuda()).cpu(), expected)


# x's shape, the weight's and the window: k shared by up to eight thread blocks, taps of several stages, padding,
# results and channels that leave a tile's edge empty, tiles of 128 results, several of them for a thread block.
HOPPER_CASES = {
    "shared-by-eight": ((1, 256, 14, 14), (200, 256, 3, 3), {"padding": 1}),
    "shared-by-two": ((1, 128, 56, 56), (64, 128, 3, 3), {"padding": 1}),
    "one-result": ((1, 128, 3, 3), (40, 128, 3, 3), {}),
    "strided": ((2, 128, 15, 13), (50, 128, 5, 3), {"stride": (2, 1), "padding": (1, 0, 2, 1)}),
    "dilated": ((3, 256, 11, 12), (65, 256, 3, 2), {"dilation": (3, 2), "padding": (2, 1)}),
    "one-tap": ((1, 512, 28, 28), (300, 512, 1, 1), {}),
    "many-results": ((8, 128, 56, 55), (130, 128, 3, 3), {"padding": 1}),
    "many-channels": ((2, 128, 28, 28), (1024, 128, 3, 3), {"padding": 1}),
}


@pytest.mark.skipif(not IS_HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("case", HOPPER_CASES)
def test_hopper_tiles(case, formats, order):
    x_shape, w_shape, window = HOPPER_CASES[case]
    rng = np.random.default_rng([*map(ord, case)])
    layer = conv_layer(rng, w_shape, formats, **window)
    x = torch.from_numpy(static_calls.codes(rng, x_shape, formats[0])).contiguous(memory_format=ORDERS[order])
    expected = layer(x)
    y = static_calls.run("sm90_int8_implicit_gemm", layer.to("cuda"), x.cuda())
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize("channels", [256, 130])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("formats", FORMATS[::2], ids=str)
def test_many_strips(formats, stride, channels):
    """Depthwise windows of several widths, more thread blocks than multiprocessors."""
    rng = np.random.default_rng(channels)
    for kernel_shape in ((3, 3), (5, 5), (7, 3)):
        padding = (kernel_shape[0] // 2, kernel_shape[1] // 2)
        layer = conv_layer(rng, (channels, 1, *kernel_shape), formats, stride=stride, padding=padding, groups=channels)
        x = torch.from_numpy(static_calls.codes(rng, (3, channels, 40, 41), formats[0]))
        for order in ORDERS.values():
            x = x.contiguous(memory_format=order)
            expected = layer(x)
            for kernel in ("simt_depthwise", "simt"):
                assert torch.equal(static_calls.run(kernel, layer.to("cuda"), x.cuda()).cpu(), expected)


@pytest.mark.parametrize(
    "shape", [(1, 17, 5), (16, 384, 96), (3, 70, 4096, 33), (513, 64, 200), (1600, 80, 1100)], ids=str
)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_linear(shape, formats):
    *rows, k, n = shape
    x_dtype, x_zero, w_dtype, w_zero, y_dtype, y_zero = formats
    rng = np.random.default_rng([*shape])
    layer = QLinear(
        0.02, x_zero, static_calls.codes(rng, (n, k), w_dtype), 0.005, 0.3, y_zero, None,
        w_zero_point=w_zero, x_dtype=x_dtype, y_dtype=y_dtype,
    )  # fmt: skip
    x = torch.from_numpy(static_calls.codes(rng, (*rows, k), x_dtype))
    expected = reference(layer, x)
    for kernel in product_rows(k):
        assert torch.equal(static_calls.run(kernel, layer.to("cuda"), x.cuda()).cpu(), expected)
        turned = x.transpose(0, -1).contiguous().transpose(0, -1)
        assert torch.equal(static_calls.run(kernel, layer.to("cuda"), turned.cuda()).cpu(), expected)


def test_into_a_piece_of_a_larger_array():
    rng = np.random.default_rng(5)
    layer = conv_layer(rng, (33, 32, 3, 3), FORMATS[0], padding=1)
    x = torch.from_numpy(static_calls.codes(rng, (2, 32, 9, 7), "uint8"))
    expected = reference(layer, x)
    memory = torch.full((2, 40, 11, 9), 7, dtype=torch.uint8, device="cuda")
    out = memory[:, 3:36, 1:10, 1:8]
    for kernel in product_rows(32):
        assert static_calls.run(kernel, layer.to("cuda"), x.cuda(), out=out) is out
        assert torch.equal(out.cpu(), expected)
        out.fill_(7)
        assert bool((memory == 7).all())


def test_runs_on_the_callers_stream_and_in_graphs():
    rng = np.random.default_rng(6)
    layer = conv_layer(rng, (40, 17, 3, 3), FORMATS[1], padding=1)
    x = torch.from_numpy(static_calls.codes(rng, (1, 17, 9, 7), "uint8"))
    expected, moved, source = reference(layer, x), layer.to("cuda"), x.cuda()
    late = torch.zeros_like(source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(source)
        y = moved(late)
    stream.synchronize()
    assert torch.equal(y.cpu(), expected)

    graph, given, out = torch.cuda.CUDAGraph(), torch.zeros_like(source), torch.empty_like(y)
    with torch.cuda.graph(graph):
        moved(given, out=out)
    given.copy_(source)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), expected)


def test_devices_must_match():
    layer = QLinear(0.1, 0, np.ones((3, 4), np.int8), 0.1, 0.1, 0)
    x = torch.ones(2, 4, dtype=torch.uint8)
    with pytest.raises(qcore.QcoreValueError, match=r"^static.qlinear: x is on cuda:0 and the layer on cpu"):
        layer(x.cuda())
    with pytest.raises(qcore.QcoreValueError, match=r"^static.qlinear: x is on cpu and the layer on cuda:0"):
        layer.to("cuda")(x)
