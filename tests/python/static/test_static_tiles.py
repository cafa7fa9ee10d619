"""static.*: sizes at the edges of every kernel's tiles, memory without alignment, and pages that end with an array."""

import conv_calls
import numpy as np
import pytest
import static_calls
from guarded_memory import before_a_guard
from static_calls import CPU_KERNELS, codes, run

from qcore.static import QConv2d, qconv2d, qlinear


def scales(channels, count, seed=0):
    """w_scale, y_scale with results that fill y's range."""
    w_scale = np.random.default_rng(seed).uniform(0.001, 0.01, channels).astype(np.float32)
    return w_scale, 0.02 * 0.005 * 74 * 74 * max(count, 1) ** 0.5 / 60


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("pixels", range(1, 14))
def test_pixels_and_channels_out(kernel, pixels):
    rng = np.random.default_rng(pixels)
    x = codes(rng, (pixels, 36), "uint8")
    weight = codes(rng, (70, 36), "int8")
    w_scale, y_scale = scales(70, 36)
    wanted = static_calls.linear(x, 0.02, 120, weight, w_scale, y_scale, 110)
    for n in range(1, 71):
        y = run(kernel, qlinear, x, 0.02, 120, weight[:n], w_scale[:n], y_scale, 110)
        np.testing.assert_array_equal(y, wanted[:, :n])


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_channels_in(kernel, dtype):
    rng = np.random.default_rng(1)
    w_scale, y_scale = scales(18, 300)
    for channels in range(1, 71):
        x = codes(rng, (1, channels, 3, 5), dtype)
        weight = codes(rng, (18, channels, 2, 3), "int8")
        arguments = (0.02, -7 if dtype == "int8" else 200, weight, w_scale, y_scale, 12)
        wanted = static_calls.conv2d(x, *arguments, padding=1)
        for layout in (x, conv_calls.channels_last(x)):
            np.testing.assert_array_equal(run(kernel, qconv2d, layout, *arguments, padding=1), wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_single_channels(kernel, dtype):
    rng = np.random.default_rng(2)
    for channels in [*range(1, 36), 47, 48, 63, 64, 65, 70, 129]:
        kernel_size = tuple(rng.integers(1, 7, 2))
        options = {
            "stride": tuple(map(int, rng.integers(1, 4, 2))),
            "dilation": tuple(map(int, rng.integers(1, 4, 2))),
            "padding": tuple(map(int, rng.integers(0, 9, 4))),
            "groups": channels,
        }
        x = codes(rng, (2, channels, *rng.integers(16, 24, 2)), dtype)
        weight = codes(rng, (channels, 1, *kernel_size), "int8")
        w_scale, y_scale = scales(channels, weight[0].size)
        arguments = (0.02, 3, weight, w_scale, y_scale, 50)
        wanted = static_calls.conv2d(x, *arguments, **options)
        for layout in (x, conv_calls.channels_last(x)):
            np.testing.assert_array_equal(run(kernel, qconv2d, layout, *arguments, **options), wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_rows_wider_than_the_buffer_of_single_channels(kernel):
    rng = np.random.default_rng(3)
    x = codes(rng, (1, 20, 5, 300), "uint8")
    weight = codes(rng, (20, 1, 5, 5), "int8")
    arguments = (0.02, 99, weight, *scales(20, 25), 128)
    for stride in (1, 2):
        options = {"padding": 2, "stride": stride, "groups": 20}
        wanted = static_calls.conv2d(x, *arguments, **options)
        np.testing.assert_array_equal(run(kernel, qconv2d, x, *arguments, **options), wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups"),
    [
        ((1, 64, 6, 6), (20, 64, 3, 3), 1),
        ((1, 64, 6, 6), (20, 64, 1, 1), 1),
        ((1, 3, 9, 17), (20, 3, 3, 3), 1),
        ((1, 8, 6, 6), (70, 8, 3, 3), 1),
        ((2, 30, 6, 18), (30, 10, 3, 3), 3),
        ((2, 37, 6, 6), (37, 1, 3, 3), 37),
        ((1, 64, 6, 6), (64, 1, 3, 3), 64),
        ((1, 4, 1, 1), (3, 4, 1, 1), 1),
    ],
)
def test_nothing_is_read_or_written_beyond_an_array(kernel, x_shape, w_shape, groups):
    rng = np.random.default_rng(4)
    x, weight = codes(rng, x_shape, "uint8"), codes(rng, w_shape, "int8")
    arguments = (0.02, 120, weight, *scales(w_shape[0], weight[0].size), 110)
    padding = w_shape[2] // 2
    wanted = static_calls.conv2d(x, *arguments, padding=padding, groups=groups)
    for axes, back in (((0, 1, 2, 3), (0, 1, 2, 3)), ((0, 2, 3, 1), (0, 3, 1, 2))):
        x_placed = before_a_guard(x.transpose(axes)).transpose(back)
        y_placed = before_a_guard(np.zeros_like(wanted).transpose(axes)).transpose(back)
        run(kernel, qconv2d, x_placed, *arguments, padding=padding, groups=groups, out=y_placed)
        np.testing.assert_array_equal(y_placed, wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_any_address(kernel):
    rng = np.random.default_rng(5)
    weight = codes(rng, (33, 12, 3, 3), "int8")
    layer = QConv2d(0.02, 120, weight, *scales(33, 108), 110, padding=1)
    x = codes(rng, (1, 7, 5, 12), "uint8")
    wanted = layer(x.transpose(0, 3, 1, 2))
    for shift in range(1, 65, 7):
        moved = np.empty(x.size + shift, np.uint8)[shift:].reshape(x.shape)
        moved[...] = x
        out = np.zeros(wanted.size + shift + 1, np.uint8)
        y = out[shift:-1].reshape(1, 7, 5, 33).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(run(kernel, layer, moved.transpose(0, 3, 1, 2), out=y), wanted)
        assert out[:shift].sum() == 0
        assert out[-1] == 0


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("y_dtype", ["uint8", "int8"])
def test_sums_far_beyond_the_codes(kernel, y_dtype):
    """Sum near int32's ends, which a large multiplier takes out of its range: saturated, not wrapped."""
    x = np.array([[255] * 64, [0] * 64, [128] * 64], np.uint8)
    weight = np.stack([np.full(64, 127), np.full(64, -128), np.tile([127, -128], 32)]).astype(np.int8)
    for y_scale in (1e-6, 1e-3, 1.0, 1e20):
        for zero in (0, 255):
            bias = np.array([2**31 - 1 - 64 * 255 * 128, -(2**31) + 1 + 64 * 255 * 128, 0], np.int32)
            arguments = (1.0, zero, weight, 1.0, y_scale, 100, bias)
            y = run(kernel, qlinear, x, *arguments, y_dtype=y_dtype)
            np.testing.assert_array_equal(y, static_calls.linear(x, *arguments, y_dtype=y_dtype))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("step", [2048, 4096])
def test_long_rows_that_share_cache_sets(kernel, step):
    rng = np.random.default_rng(6)
    x = codes(rng, (13, step), "uint8")[:, :1024]
    weight = codes(rng, (257, 1024), "int8")
    arguments = (0.02, 120, weight, *scales(257, 1024), 110)
    np.testing.assert_array_equal(run(kernel, qlinear, x, *arguments), static_calls.linear(x, *arguments))
