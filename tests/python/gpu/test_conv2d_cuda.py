"""conv2d on a CUDA device: the same bits as the reference kernel on the CPU, by every row that takes a call.

The rows of floats on tensor cores are within the bound of a float sum.

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
from conv_calls import MODES, SHAPES  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [row.name for row in qcore.kernels("conv2d") if row.device == "cuda"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ORDERS = {"channels_last": torch.channels_last, "channels_first": torch.contiguous_format}
CAN_MULTIPLY = torch.cuda.get_device_capability() >= (8, 0)
IS_HOPPER = torch.cuda.get_device_capability() == (9, 0)


def reference(x, weight, bias, **options):
    with qcore.force_kernel("conv2d", "reference"):
        return qcore.conv2d(x.cpu(), weight, None if bias is None else bias.cpu(), **options)


def assert_same_bits(given, expected):
    given, expected = given.cpu().contiguous(), expected.contiguous()
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    integer = torch.int32 if given.dtype == torch.float32 else torch.int16
    same = given.view(integer) == expected.view(integer)
    same |= given.isnan() & expected.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ"


def takes(kernel, case, mode, order, scheme):
    """Return whether a row takes one of the cases of conv_calls.SHAPES, x and out being in the same order."""
    _, w_shape, block_size, stride, padding, _, groups = SHAPES[case]
    if kernel == "simt":
        return True
    if kernel == "simt_depthwise":
        return w_shape[1] == 1 and w_shape[0] == groups
    if kernel == "linear_cuda":
        product = w_shape[2:] == (1, 1) and stride == 1 and padding == 0 and groups == 1
        return product and order == "channels_last"
    if kernel == "sm90_float_implicit_gemm":
        return False  # of 16-bit x and symmetric weights, which these cases have not together: see test_hopper_floats
    modes = ("float",) if kernel == "sm80_float_implicit_gemm" else ("int8", "int8_asym")
    blocks = -(-w_shape[1] // block_size)
    if kernel == "sm90_int8_implicit_gemm":
        block = min(block_size, w_shape[1])
        whole_blocks = w_shape[1] % block == 0 and (block in (32, 64) or block % 128 == 0)
        return IS_HOPPER and mode in modes and groups == 1 and whole_blocks and hopper_takes(w_shape[1], mode, scheme)
    whole_panels = groups == 1 or w_shape[0] // groups % 16 == 0
    return CAN_MULTIPLY and mode in modes and whole_panels and (blocks == 1 or block_size % 32 == 0)


def hopper_takes(channels, mode, scheme):
    """Return whether sm90_int8_implicit_gemm does: with offsets the copy engine takes 64 channels at a time."""
    return channels % 64 == 0 or (mode == "int8" and scheme == "symmetric")


def other_order(kernel, mode):
    """Return whether a row adds in another order than the definition; linear's float rows do, too."""
    return kernel == "sm80_float_implicit_gemm" or (kernel == "linear_cuda" and mode == "float")


def test_rows():
    assert KERNELS == [
        "linear_cuda",
        "simt_depthwise",
        "sm90_int8_implicit_gemm",
        "sm80_int8_implicit_gemm",
        "sm90_float_implicit_gemm",
        "sm80_float_implicit_gemm",
        "simt",
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SHAPES)
def test_every_row_gives_the_references_bits(case, mode, order):
    block_size = SHAPES[case][2]
    ran = []
    for seed, (bits, scheme) in enumerate([(8, "symmetric"), (4, "asymmetric")]):
        x, w = conv_calls.arrays(case, seed)
        weight = qcore.quantize(w, bits=bits, block_size=block_size, scheme=scheme, method="rtn", scale_dtype="float32")
        x = torch.from_numpy(x).to(DTYPES[seed]).contiguous(memory_format=ORDERS[order])
        bias = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(w), dtype=np.float32))
        options = {"compute": mode, "activation": ("silu", (-0.5, 6.0))[seed], **conv_calls.window(case)}
        expected = reference(x, weight, bias, **options)
        for kernel in KERNELS:
            if not takes(kernel, case, mode, order, scheme):
                with pytest.raises(qcore.QcoreValueError, match="does not take this call"):
                    conv_calls.run(kernel, x.cuda(), weight.to("cuda"), bias.cuda(), **options)
                continue
            y = conv_calls.run(kernel, x.cuda(), weight.to("cuda"), bias.cuda(), **options)
            assert y.is_cuda
            if other_order(kernel, mode):
                scale = expected.float().abs().max()
                assert float((y.cpu().float() - expected.float()).abs().max()) <= 2e-2 * float(scale)
            elif options["activation"] == "silu":
                # expf of the device may differ from the CPU's in the last place.
                assert torch.allclose(y.cpu().float(), expected.float(), rtol=1e-5, atol=1e-6, equal_nan=True)
            else:
                assert_same_bits(y, expected)
            ran.append(kernel)
        taking = [kernel for kernel in KERNELS if takes(kernel, case, mode, order, scheme)]
        # All of these cases have few tiles, for which sm90_int8_implicit_gemm is faster with integers.
        few = taking[0] == "linear_cuda" and "sm90_int8_implicit_gemm" in taking
        first = "sm90_int8_implicit_gemm" if few else taking[0]
        qcore.conv2d(x.cuda(), weight.to("cuda"), bias.cuda(), **options)
        assert qcore.last_kernel("conv2d") == first
    assert ran


@pytest.mark.parametrize("kernel", ["sm90_int8_implicit_gemm", "sm80_int8_implicit_gemm", "simt"])
@pytest.mark.parametrize("block_size", [32, 64, 128, 96, 200])
@pytest.mark.parametrize("mode", ["int8", "int8_asym"])
def test_many_tiles(kernel, block_size, mode):
    """More tiles than multiprocessors, strips of every width of blocks, more channels than a tile."""
    if kernel == "sm80_int8_implicit_gemm" and not CAN_MULTIPLY:
        pytest.skip("needs compute capability 8.0")
    if kernel == "sm90_int8_implicit_gemm" and not IS_HOPPER:
        pytest.skip("needs compute capability 9.0")
    channels = 200
    if kernel == "sm90_int8_implicit_gemm":
        channels = {32: 192, 64: 192, 128: 256, 96: 64, 200: 128}[block_size]  # whole blocks, or less than one
    rng = np.random.default_rng(block_size)
    w = rng.standard_normal((150, channels, 3, 3), dtype=np.float32)
    x = torch.from_numpy(rng.standard_normal((3, channels, 30, 31), dtype=np.float32)).contiguous(
        memory_format=torch.channels_last
    )
    for bits, scheme in ((8, "asymmetric"), (4, "symmetric")):
        weight = qcore.quantize(w, bits=bits, block_size=block_size, scheme=scheme, method="rtn", scale_dtype="float32")
        options = {"compute": mode, "padding": 1}
        expected = qcore.conv2d(x, weight, **options)
        assert_same_bits(conv_calls.run(kernel, x.cuda(), weight.to("cuda"), **options), expected)


# x's shape, the weight's, block size and the window: tiles of products of warps and of warpgroups, blocks of taps that
# share a stage, blocks of several stages, windows of every kind, results that leave a tile's edge empty.
HOPPER_CASES = {
    "one-result": ((1, 64, 3, 3), (40, 64, 3, 3), 32, {}),
    "few-results": ((1, 128, 7, 7), (130, 128, 3, 3), 64, {"padding": 1}),
    "strided": ((2, 96, 15, 13), (50, 96, 3, 3), 32, {"stride": (2, 1), "padding": (1, 0, 2, 1)}),
    "strided-taps": ((2, 192, 15, 13), (50, 192, 3, 3), 64, {"stride": (2, 1), "padding": (1, 0, 2, 1)}),
    "pairs-of-tiles": ((16, 128, 32, 32), (128, 128, 3, 3), 64, {"padding": 1}),
    "dilated": ((3, 128, 11, 12), (65, 128, 3, 2), 128, {"dilation": (3, 2), "padding": (2, 1)}),
    "beyond-the-kernel": ((1, 32, 3, 4), (16, 32, 2, 2), 32, {"padding": (5, 4, 3, 6)}),
    "beyond-with-offsets": ((1, 64, 3, 4), (16, 64, 2, 2), 32, {"padding": (5, 4, 3, 6)}),
    "one-tap-strided": ((2, 256, 14, 14), (200, 256, 1, 1), 64, {"stride": 2}),
    "long-blocks": ((1, 512, 9, 9), (96, 512, 3, 3), 256, {"padding": 1}),
    "short-weight": ((1, 64, 20, 21), (64, 64, 3, 3), 128, {"padding": 1}),
    "many-results": ((4, 64, 56, 55), (130, 64, 3, 3), 32, {"padding": 1}),
    "many-channels": ((2, 128, 28, 28), (512, 128, 3, 3), 128, {"padding": 1}),
}


@pytest.mark.skipif(not IS_HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["int8", "int8_asym"])
@pytest.mark.parametrize("case", HOPPER_CASES)
def test_hopper_tiles(case, mode, order):
    """Checks both widths of codes and kinds of weights, every dtype of x and out, and what lies around out."""
    x_shape, w_shape, block_size, window = HOPPER_CASES[case]
    rng = np.random.default_rng([*map(ord, case)])
    w = rng.standard_normal(w_shape, dtype=np.float32)
    x = torch.from_numpy(rng.standard_normal(x_shape, dtype=np.float32))
    x[0, :, 0, 0] = 0
    x[-1, 1, -1, -1] = float("nan")
    bias = torch.from_numpy(rng.standard_normal(len(w), dtype=np.float32))
    for i, (bits, scheme) in enumerate([(8, "symmetric"), (4, "symmetric"), (8, "asymmetric"), (4, "asymmetric")]):
        if not hopper_takes(w_shape[1], mode, scheme):
            continue
        weight = qcore.quantize(w, bits=bits, block_size=block_size, scheme=scheme, method="rtn", scale_dtype="float32")
        given = x.to(DTYPES[i % 3]).contiguous(memory_format=ORDERS[order])
        options = {"compute": mode, **window}
        expected = qcore.conv2d(given, weight, bias, **options)
        n, c, h, wide = expected.shape
        for dtype in DTYPES:
            rounded = qcore.conv2d(given, weight, bias, out=torch.empty_like(expected, dtype=dtype), **options)
            # Off alignment, between poisoned neighbors, in the order of x.
            if order == "channels_first":
                memory = torch.full((n, c + 2, h + 1, wide + 3), 7.0, device="cuda", dtype=dtype)
                out = memory[:, 1 : 1 + c, :h, 2 : 2 + wide]
            else:
                memory = torch.full((n, h + 1, wide + 3, c + 3), 7.0, device="cuda", dtype=dtype)
                out = memory[:, :h, 2 : 2 + wide, 1 : 1 + c].permute(0, 3, 1, 2)
            for target in (out, torch.empty_like(expected, device="cuda", dtype=dtype)):
                options_with_out = {**options, "out": target}
                y = conv_calls.run(
                    "sm90_int8_implicit_gemm", given.cuda(), weight.to("cuda"), bias.cuda(), **options_with_out
                )
                assert y is target
                assert_same_bits(y, rounded)
            out.fill_(7)
            assert bool((memory == 7).all())


def conv2d_of_torch(x, w, bias, padding=0, **window):
    """Return torch's conv2d, which takes no padding of four sides."""
    if isinstance(padding, tuple) and len(padding) == 4:
        top, left, bottom, right = padding
        x, padding = torch.nn.functional.pad(x, (left, right, top, bottom)), 0
    return torch.nn.functional.conv2d(x, w, bias, padding=padding, **window)


@pytest.mark.skipif(not IS_HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", [case for case, (_, (_, k, *_), *_) in HOPPER_CASES.items() if k % 64 == 0])
def test_hopper_floats(case, bits):
    """Checks both dtypes of x, every dtype of out, and what lies around out, against sums in float64."""
    x_shape, w_shape, block_size, window = HOPPER_CASES[case]
    rng = np.random.default_rng([*map(ord, case)])
    weight = qcore.quantize(
        rng.standard_normal(w_shape, dtype=np.float32), bits=bits, block_size=block_size, method="rtn"
    )
    moved, bias = weight.to("cuda"), torch.from_numpy(rng.standard_normal(w_shape[0], dtype=np.float32)).cuda()
    x = torch.from_numpy(rng.standard_normal(x_shape, dtype=np.float32)).cuda()
    w = torch.from_numpy(weight.dequantize()).cuda().double()
    for dtype in (torch.float16, torch.bfloat16):
        given = x.to(dtype).contiguous(memory_format=torch.channels_last)
        exact = conv2d_of_torch(given.double(), w, bias.double(), **window)
        n, c, h, wide = exact.shape
        for out_dtype in DTYPES:
            memory = torch.full((n, h + 1, wide + 3, c + 3), 7.0, device="cuda", dtype=out_dtype)
            pieces = memory[:, :h, 2 : 2 + wide, 1 : 1 + c].permute(0, 3, 1, 2)
            whole = torch.empty_like(exact, dtype=out_dtype, memory_format=torch.channels_last)
            for out in (pieces, whole):
                options = {"compute": "float", "out": out, **window}
                y = conv_calls.run("sm90_float_implicit_gemm", given, moved, bias, **options)
                assert y is out
                error = float((y.double() - exact).abs().max()) / float(exact.abs().max())
                assert error <= {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[out_dtype]
            pieces.fill_(7)
            assert bool((memory == 7).all())


@pytest.mark.skipif(not IS_HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize(
    ("channels", "block_size", "groups", "mode", "reason"),
    [
        (64, 32, 2, "int8", "it takes one group"),
        (80, 32, 1, "int8", "it takes whole blocks of 32, 64 or a multiple of 128 channels"),
        (96, 96, 1, "int8", "it takes whole blocks of 32, 64 or a multiple of 128 channels"),
        (64, 32, 1, "int16", "it computes int8 and int8_asym only"),
        (64, 32, 1, "float", "it computes int8 and int8_asym only"),
    ],
)
def test_hopper_tiles_say_what_they_refuse(channels, block_size, groups, mode, reason):
    w = np.ones((64, channels // groups, 3, 3), dtype=np.float32)
    weight = qcore.quantize(w, bits=8, block_size=block_size, method="rtn", scale_dtype="float32").to("cuda")
    x = torch.ones((1, channels, 5, 5), device="cuda")
    with pytest.raises(qcore.QcoreValueError, match=reason):
        conv_calls.run("sm90_int8_implicit_gemm", x, weight, compute=mode, groups=groups)


def test_into_a_piece_of_a_larger_array():
    x, w = conv_calls.arrays("3x3")
    weight = qcore.quantize(w, bits=8, block_size=16, method="rtn", scale_dtype="float32")
    expected = reference(torch.from_numpy(x), weight, None, padding=1)
    memory = torch.full((2, 40, 11, 9), 7.0, device="cuda")
    out = memory[:, 3:36, 1:10, 1:8]
    for kernel in ("sm90_int8_implicit_gemm", "sm80_int8_implicit_gemm", "simt"):
        if takes(kernel, "3x3", "int8", "channels_first", "symmetric"):
            assert conv_calls.run(kernel, torch.from_numpy(x).cuda(), weight.to("cuda"), padding=1, out=out) is out
            assert_same_bits(out, expected)
            out.fill_(7)
            assert bool((memory == 7).all())


def test_runs_on_the_callers_stream_and_in_graphs():
    x, w = conv_calls.arrays("3x3-short-block")
    weight = qcore.quantize(w, bits=8, block_size=32, method="rtn", scale_dtype="float32")
    moved = weight.to("cuda")
    late = torch.zeros(x.shape, device="cuda")
    source = torch.from_numpy(x).cuda()
    expected = reference(torch.from_numpy(x), weight, None, padding=1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(source)
        y = qcore.conv2d(late, moved, padding=1)
    stream.synchronize()
    assert_same_bits(y, expected)

    graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(source)
    out = torch.empty_like(y)
    with torch.cuda.graph(graph):
        qcore.conv2d(given, moved, padding=1, compute="int8_asym", out=out)
    given.copy_(source)
    graph.replay()
    torch.cuda.synchronize()
    assert_same_bits(out, reference(torch.from_numpy(x), weight, None, padding=1, compute="int8_asym"))


def test_devices_must_match():
    x, w = conv_calls.arrays("1x1")
    weight = qcore.quantize(w, bits=8, block_size=32, method="rtn", scale_dtype="float32")
    with pytest.raises(qcore.QcoreValueError, match=r"^conv2d: x is on cuda:0 and the weight on cpu"):
        qcore.conv2d(torch.from_numpy(x).cuda(), weight)
    with pytest.raises(qcore.QcoreValueError, match=r"^conv2d: bias is on cpu, expected cuda:0 like x"):
        qcore.conv2d(torch.from_numpy(x).cuda(), weight.to("cuda"), torch.zeros(len(w)))


@pytest.mark.skipif(not IS_HOPPER, reason="needs compute capability 9.0")
@pytest.mark.parametrize(
    ("x_shape", "outputs", "block_size", "mode", "kernel"),
    [
        ((1, 256, 28, 28), 512, 64, "int8", "sm90_int8_implicit_gemm"),
        ((1, 1024, 14, 14), 256, 64, "int8_asym", "sm90_int8_implicit_gemm"),
        ((1, 256, 14, 14), 1024, 64, "int8", "linear_cuda"),  # 56 tiles
        ((1, 64, 56, 56), 64, 64, "int8", "sm90_int8_implicit_gemm"),  # one block per row
        ((8, 64, 56, 56), 64, 64, "int8", "linear_cuda"),
        ((1, 256, 28, 28), 512, 64, "int16", "linear_cuda"),
        ((1, 256, 28, 28), 512, 64, "float", "linear_cuda"),
        ((1, 2048, 7, 7), 512, 64, "float", "sm80_float_implicit_gemm"),
        ((1, 512, 7, 7), 512, 64, "float", "linear_cuda"),
    ],
)
def test_hopper_choice_for_1x1_windows(x_shape, outputs, block_size, mode, kernel):
    rng = np.random.default_rng(outputs)
    w = rng.standard_normal((outputs, x_shape[1], 1, 1), dtype=np.float32)
    weight = qcore.quantize(w, bits=8, block_size=block_size, method="rtn").to("cuda")
    x = torch.from_numpy(rng.standard_normal(x_shape, dtype=np.float32)).half().cuda()
    qcore.conv2d(x.contiguous(memory_format=torch.channels_last), weight, compute=mode)
    assert qcore.last_kernel("conv2d") == kernel


@pytest.mark.parametrize("mode", ["float", "int8", "int8_asym"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_depthwise_calls_one_after_the_other(dtype, mode):
    """Check that a call which may start early takes the results of the one in front of it."""
    rng = np.random.default_rng(3)
    weights = [
        qcore.quantize(
            rng.standard_normal((96, 1, 3, 3), dtype=np.float32) / 3, bits=8, method="rtn", scale_dtype="float32"
        )
        for _ in range(6)
    ]
    x = torch.from_numpy(rng.standard_normal((2, 96, 21, 20), dtype=np.float32)).to(dtype)
    given = expected = x.contiguous(memory_format=torch.channels_last)
    given = given.cuda()
    moved = [weight.to("cuda") for weight in weights]
    for weight in moved:
        given = qcore.conv2d(given, weight, padding=1, groups=96, compute=mode)
    for weight in weights:
        expected = reference(expected, weight, None, padding=1, groups=96, compute=mode)
    assert_same_bits(given, expected)
