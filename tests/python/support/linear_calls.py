"""Shared by the tests of linear: the kernels of this machine, and calls of one of them."""

import ml_dtypes
import numpy as np

import qcore

BITS = (4, 8)
SCHEMES = ("symmetric", "asymmetric")
MODES = ("float", "int8", "int8_asym", "int16")
INTEGER_MODES = MODES[1:]
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
POISON = np.float32(np.nan)

MS = (0, 1, 2, 7, 16, 17, 65)
NS = (1, 3, 8, 9, 63, 65, 1000)
BLOCK_SIZES = (16, 32, 48, 64, 128, "K")
LONGEST_K = 4097


def takes(name, mode, dtype=np.float32):
    """Whether a kernel takes a call in this mode. By trying: a new kernel is tested without being listed here."""
    weight = qcore.quantize(np.ones((1, 4), np.float32), block_size=4)
    try:
        with qcore.force_kernel("linear", name):
            qcore.linear(np.ones((1, 4), dtype), weight, compute=mode)
    except qcore.QcoreValueError as error:
        assert "does not take this call: it computes in" in str(error)
        return False
    return True


CPU_KERNELS = [row.name for row in qcore.kernels("linear") if row.device == "cpu" and row.available]
# Those for bf16 x only multiply it as it is, in an order of their own: see test_linear_bfloat.py.
BFLOAT_KERNELS = [name for name in CPU_KERNELS if takes(name, "float", ml_dtypes.bfloat16) and not takes(name, "float")]
AVAILABLE = [name for name in CPU_KERNELS if name not in BFLOAT_KERNELS]
KERNELS = {mode: [name for name in AVAILABLE if takes(name, mode)] for mode in MODES}
PAIRS = [(name, mode) for mode in MODES for name in KERNELS[mode]]


def run(kernel, x, weight, bias=None, **options):
    """linear by one kernel; checks that it was this kernel that ran."""
    with qcore.force_kernel("linear", kernel):
        y = qcore.linear(x, weight, bias, **options)
    if y.size:
        assert qcore.last_kernel("linear") == kernel
    return y


def same_bits(a, b):
    """Equal, -0 and +0 told apart; any NaN equals any other."""
    integer = np.dtype(f"u{a.dtype.itemsize}")
    both_nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a.view(integer) == b.view(integer)) | both_nan).all())


def assert_same(actual, expected, *where):
    if not same_bits(np.ascontiguousarray(actual), np.ascontiguousarray(expected)):
        np.testing.assert_array_equal(actual, expected, err_msg=str(where))
        raise AssertionError(f"{where}: zeros of different sign")


def poisoned_run(kernel, x, weight, **options):
    """linear into NaNs that are not 64-byte aligned, with guards around them that must stay."""
    rows, columns, guard = x.shape[0], weight.shape[0], 33
    memory = np.full(rows * columns + 2 * guard, POISON)
    memory[:guard], memory[len(memory) - guard :] = 12345, 54321
    out = memory[guard : len(memory) - guard].reshape(rows, columns)
    assert run(kernel, x, weight, out=out, **options) is out
    assert (memory[:guard] == 12345).all(), (kernel, options)
    assert (memory[len(memory) - guard :] == 54321).all(), (kernel, options)
    return out
