"""Depthwise conv2d on images whose rows are packed into a ring, piece by piece: every kernel against the reference."""

import ml_dtypes
import numpy as np
import pytest
from conv_calls import CPU_KERNELS, MODES, channels_last, refusal, run
from linear_calls import assert_same

import qcore

KERNELS = [kernel for kernel in CPU_KERNELS if kernel.startswith("depthwise")]

# x's shape, the kernel's, stride, padding (top, left, bottom, right), dilation
IMAGES = {
    "rows-that-wrap": ((2, 70, 33, 20), (3, 3), 1, (1, 1, 1, 1), 1),
    "wide": ((1, 40, 5, 211), (3, 3), 1, (1, 1, 1, 1), 1),
    "planes-beyond-a-ring": ((1, 300, 4, 150), (3, 3), 1, (1, 1, 1, 1), 1),
    "no-padding": ((1, 48, 30, 31), (3, 3), 1, (0, 0, 0, 0), 1),
    "one-sided-padding": ((1, 32, 25, 18), (2, 3), 1, (3, 0, 0, 2), 1),
    "strided": ((1, 48, 41, 29), (3, 3), 2, (1, 1, 1, 1), 1),
    "dilated": ((1, 32, 30, 27), (3, 3), 1, (2, 2, 2, 2), 2),
    "small-images": ((9, 32, 5, 4), (3, 3), 1, (1, 1, 1, 1), 1),
    "pixels": ((50, 32, 1, 1), (3, 3), 1, (1, 1, 1, 1), 1),
    "rows-of-kernel-in-padding": ((1, 32, 2, 60), (7, 3), 1, (6, 1, 6, 1), 1),
}


def arrays(case, dtype):
    (images, channels, height, width), kernel, *_ = IMAGES[case]
    rng = np.random.default_rng([11, *map(ord, case)])
    x = rng.standard_normal((images, channels, height, width), dtype=np.float32).astype(dtype)
    x[0, 1, 0, 0], x[-1, channels - 1, -1, -1] = np.nan, np.inf
    x[0, :, 0, -1] = 1e-40 if dtype == np.float32 else 0
    return x, rng.standard_normal((channels, 1, *kernel), dtype=np.float32)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("case", IMAGES)
def test_every_kernel_has_the_bits_of_the_reference(case, dtype, scheme):
    x, values = arrays(case, dtype)
    channels = x.shape[1]
    _, _, stride, padding, dilation = IMAGES[case]
    weight = qcore.quantize(values, bits=8, scheme=scheme)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels, "activation": (-2, 3)}
    bias = np.linspace(-1, 1, channels, dtype=np.float32)
    ran = set()
    for mode in MODES:
        wanted = run("reference", x, weight, bias, compute=mode, **options)
        for kernel in KERNELS:
            for image in (x, channels_last(x)):
                if refusal(kernel, image, weight, compute=mode, **options) is None:
                    assert_same(run(kernel, image, weight, bias, compute=mode, **options), wanted, kernel, mode)
                    ran.add(kernel)
    assert ran == set(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS)
def test_threads_and_other_strides(kernel):
    x, values = arrays("rows-that-wrap", np.float32)
    weight = qcore.quantize(values, bits=8, scale_dtype="float16")
    channels = x.shape[1]
    wanted = run("reference", x, weight, padding=1, groups=channels)
    before = qcore.get_num_threads()
    try:
        for threads in (1, 2, 5):
            qcore.set_num_threads(threads)
            for image in (x, channels_last(x), x[:, :, ::-1].copy()[:, :, ::-1], x.repeat(2, axis=1)[:, ::2]):
                assert_same(run(kernel, image, weight, padding=1, groups=channels), wanted, kernel, threads)
    finally:
        qcore.set_num_threads(before)


@pytest.mark.parametrize("kernel", KERNELS)
def test_results_of_another_dtype_and_nan(kernel):
    """bfloat16 results of two vectors are rounded together unless one is a NaN."""
    x, values = arrays("no-padding", np.float32)
    weight = qcore.quantize(values, bits=8)
    channels = x.shape[1]
    wanted = run("reference", x, weight, groups=channels)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        out = channels_last(np.zeros(wanted.shape, dtype))
        run(kernel, channels_last(x), weight, groups=channels, out=out)
        assert np.isnan(out.astype(np.float32)).any()
        assert_same(out, run("reference", x, weight, groups=channels, out=np.zeros(wanted.shape, dtype)), kernel)
