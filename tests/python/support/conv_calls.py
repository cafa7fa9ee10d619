"""Shared by the tests of conv2d: the kernels of this machine, cases, and calls of one kernel."""

import numpy as np

import qcore

MODES = ("float", "int8", "int8_asym", "int16")
# The kernel of AMX for bf16 x only multiplies it as it is, in an order of its own: see test_linear_bfloat.py.
CPU_KERNELS = [
    row.name for row in qcore.kernels("conv2d") if row.device == "cpu" and row.available and row.name != "float_amx"
]

# x's shape, the weight's, block size, stride, padding, dilation, groups
SHAPES = {
    "3x3": ((2, 32, 9, 7), (33, 32, 3, 3), 16, 1, 1, 1, 1),
    "3x3-short-block": ((1, 45, 6, 5), (17, 45, 3, 3), 32, 1, 1, 1, 1),
    "strided": ((1, 24, 17, 16), (16, 24, 3, 3), 8, (4, 2), (1, 0), 1, 1),
    "dilated": ((1, 20, 12, 11), (5, 20, 3, 2), 20, 1, (2, 1), (3, 2), 1),
    "padding-beyond-kernel": ((1, 16, 3, 4), (8, 16, 2, 2), 16, 1, (5, 4, 3, 6), 1, 1),
    "1x1": ((2, 64, 5, 6), (48, 64, 1, 1), 32, 1, 0, 1, 1),
    "1x1-strided": ((1, 40, 7, 7), (19, 40, 1, 1), 16, 2, 0, 1, 1),
    "1xN": ((1, 12, 4, 20), (6, 12, 1, 7), 12, 1, (0, 3), 1, 1),
    "Nx1": ((1, 12, 20, 4), (6, 12, 5, 1), 5, (2, 1), (2, 0), 1, 1),
    "few-channels": ((1, 3, 15, 14), (16, 3, 7, 7), 3, 2, 3, 1, 1),
    "one-channel": ((3, 1, 8, 8), (4, 1, 3, 3), 16, 1, 1, 1, 1),
    "grouped": ((1, 24, 6, 6), (36, 8, 3, 3), 8, 1, 1, 1, 3),
    "grouped-odd": ((1, 15, 7, 5), (35, 3, 2, 3), 2, 1, (1, 0, 0, 1), 1, 5),
    "depthwise": ((2, 37, 9, 8), (37, 1, 3, 3), 1, 1, 1, 1, 37),
    "depthwise-whole-panels": ((1, 64, 6, 15), (64, 1, 3, 3), 1, 1, 1, 1, 64),
    "depthwise-strided": ((1, 64, 11, 10), (64, 1, 5, 3), 64, 2, (2, 1), 1, 64),
    "depthwise-multiplied": ((1, 10, 7, 7), (30, 1, 3, 3), 4, 1, 1, 1, 10),
    "one-result": ((1, 70, 3, 3), (130, 70, 3, 3), 64, 1, 0, 1, 1),
}


def window(case):
    _, _, _, stride, padding, dilation, groups = SHAPES[case]
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def arrays(case, seed=0):
    """Return (x, weight) float32, x with an outlier, a zero pixel, a constant and a tiny one."""
    x_shape, w_shape, *_ = SHAPES[case]
    rng = np.random.default_rng([seed, *map(ord, case)])
    x = rng.standard_normal(x_shape, dtype=np.float32)
    x[0, 0, 0, 0] = 1e4
    x[-1, :, -1, -1] = 0
    x[0, :, 1, 1] = -2.5
    x[0, :, 2, 2] *= 1e-20
    weight = rng.standard_normal(w_shape, dtype=np.float32)
    weight[0] = 0
    weight[-1] = 0.75
    return x, weight


def run(kernel, x, weight, bias=None, **options):
    """Run conv2d with one kernel and check that it was this kernel that ran."""
    with qcore.force_kernel("conv2d", kernel):
        y = qcore.conv2d(x, weight, bias, **options)
    if y.size:
        assert qcore.last_kernel("conv2d") == kernel
    return y


def refusal(kernel, x, weight, **options):
    """Return why a kernel doesn't take a call, or None."""
    try:
        run(kernel, x, weight, **options)
    except qcore.QcoreValueError as error:
        assert "does not take this call: " in str(error)
        return str(error)
    return None


def channels_last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
