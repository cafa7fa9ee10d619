"""Arrays of linear, on every kernel: memory layouts and dtypes of x, bias and out."""

import itertools

import numpy as np
import pytest
from linear_calls import DTYPES, PAIRS, assert_same, run

import qcore

X_LAYOUTS = {
    "vector": lambda x: x[3],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "columns reversed": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "rows reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "every third column": lambda x: np.repeat(x, 3, axis=1)[:, ::3],
    "window of a larger array": lambda x: np.pad(x, 5)[5:-5, 5:-5],
    "one row for all": lambda x: np.broadcast_to(x[0], x.shape),
    "one value for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "3-D": lambda x: x.reshape(4, 6, -1),
    "3-D, leading axes swapped": lambda x: x.reshape(4, 6, -1).transpose(1, 0, 2),
    "4-D, leading axes swapped": lambda x: x.reshape(2, 3, 4, -1).transpose(2, 0, 1, 3),
    "4-D with gaps": lambda x: np.repeat(x.reshape(2, 3, 4, -1), 2, axis=1)[:, ::2, ::-1],
    "4-D, last axis not contiguous": lambda x: np.ascontiguousarray(x.T).reshape(-1, 2, 3, 4).transpose(1, 2, 3, 0),
    "8-D": lambda x: x.reshape(1, 2, 1, 3, 1, 4, 1, -1),
    "off by one element": lambda x: np.append(x.dtype.type(0), x.ravel())[1:].reshape(x.shape),
}


@pytest.mark.parametrize("layout", X_LAYOUTS)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_x_memory_layouts(kernel, mode, layout):
    rng = np.random.default_rng(6)
    weight = qcore.quantize(rng.standard_normal((19, 70), dtype=np.float32), block_size=32, scheme="asymmetric")
    for dtype in DTYPES:
        x = X_LAYOUTS[layout](rng.standard_normal((24, 70)).astype(dtype))
        flat = np.array(x, order="C").reshape(-1, 70)
        y = run(kernel, x, weight, compute=mode)
        assert y.shape == (*x.shape[:-1], 19)
        assert y.flags.c_contiguous
        assert_same(y.reshape(-1, 19), run("reference", flat, weight, compute=mode))


OUT_LAYOUTS = {
    "contiguous": lambda shape, dtype: np.empty(shape, dtype),
    "fortran": lambda shape, dtype: np.empty(shape, dtype, order="F"),
    "reversed": lambda shape, dtype: np.empty(shape, dtype)[::-1, :, ::-1],
    "every second column": lambda shape, dtype: np.empty((*shape[:2], 2 * shape[2]), dtype)[:, :, ::2],
    "leading axes swapped": lambda shape, dtype: np.empty((shape[1], shape[0], shape[2]), dtype).transpose(1, 0, 2),
    "window": lambda shape, dtype: np.empty(tuple(extent + 3 for extent in shape), dtype)[1:-2, 2:-1, 1:-2],
    "off by one element": lambda shape, dtype: np.empty(np.prod(shape) + 1, dtype)[1:].reshape(shape),
}


@pytest.mark.parametrize("layout", OUT_LAYOUTS)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_out_memory_layouts(kernel, mode, layout):
    rng = np.random.default_rng(7)
    x = rng.standard_normal((3, 5, 40), dtype=np.float32)
    weight = qcore.quantize(rng.standard_normal((37, 40), dtype=np.float32), block_size=16)
    bias = rng.standard_normal(37, dtype=np.float32)
    for dtype, activation in itertools.product(DTYPES, (None, "relu6", "silu")):
        expected = run("reference", x, weight, bias, compute=mode, activation=activation, out_dtype=dtype)
        out = OUT_LAYOUTS[layout]((3, 5, 37), dtype)
        owner = out if out.base is None else out.base
        owner[...] = np.nan
        assert run(kernel, x, weight, bias, compute=mode, activation=activation, out=out) is out
        assert_same(out, expected, dtype, activation)
        # The memory around out has not changed.
        assert np.isnan(owner.astype(np.float32)).sum() == owner.size - out.size


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_bias_dtypes_and_layouts(kernel, mode):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((5, 40), dtype=np.float32)
    weight = qcore.quantize(rng.standard_normal((37, 40), dtype=np.float32), block_size=16)
    plain = run("reference", x, weight, compute=mode)
    for dtype in DTYPES:
        values = rng.standard_normal(37).astype(dtype)
        expected = plain + values.astype(np.float32)
        wide = np.repeat(values, 2)
        for bias in (values, wide[::2], np.ascontiguousarray(values[::-1])[::-1], np.broadcast_to(values[:1], 37)):
            same = values[0] if bias.strides == (0,) else values
            assert_same(run(kernel, x, weight, bias, compute=mode), plain + np.float32(same), dtype, bias.strides)
        assert_same(run(kernel, x, weight, values, compute=mode), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_dtypes(kernel, mode, dtype):
    """x is widened exactly; the float32 result is rounded once, half to even."""
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((9, 77)) * 30).astype(dtype)
    weight = qcore.quantize(rng.standard_normal((41, 77), dtype=np.float32), bits=8, block_size=32)
    bias = rng.standard_normal(41).astype(dtype)
    exact = run("reference", x.astype(np.float32), weight, bias.astype(np.float32), compute=mode)
    y = run(kernel, x, weight, bias, compute=mode)
    assert y.dtype == dtype
    assert_same(y, exact.astype(dtype))
    for out_dtype in DTYPES:
        assert_same(run(kernel, x, weight, bias, compute=mode, out_dtype=out_dtype), exact.astype(out_dtype))
        assert_same(
            run(kernel, x, weight, bias, compute=mode, out_dtype=np.dtype(out_dtype).name), exact.astype(out_dtype)
        )


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_half_precision_outputs_at_their_limits(kernel, mode):
    """Overflow to infinity, subnormals and ties of fp16 and bf16, by way of the bias."""
    weight = qcore.quantize(np.zeros((64, 8), np.float32))
    limits = [
        65504,
        65519.996,
        65520,
        1e5,
        -65520,
        2**-24,
        2**-25,
        1.5 * 2**-25,
        3 * 2**-25,
        2**-14,
        1 + 2**-11,
        1 + 3 * 2**-11,
    ]
    more = [3.4e38, -3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, 2**-133, 2**-134, 3 * 2**-134, 0.0, -0.0, np.inf, np.nan]
    bias = np.resize(np.float32(limits + more), 64)
    for dtype in DTYPES:
        with np.errstate(over="ignore"):
            expected = np.tile((np.float32(0) + bias).astype(dtype), (2, 1))
        assert_same(run(kernel, np.zeros((2, 8), np.float32), weight, bias, compute=mode, out_dtype=dtype), expected)


def test_out_and_x_may_be_columns_of_one_array():
    weight = qcore.quantize(np.eye(8, dtype=np.float32), bits=8, block_size=8)
    buffer = np.arange(80, dtype=np.float32).reshape(5, 16)
    expected = qcore.linear(buffer[:, :8].copy(), weight)
    out = buffer[:, 8:]
    assert qcore.linear(buffer[:, :8], weight, out=out) is out
    np.testing.assert_array_equal(buffer[:, 8:], expected)
    with pytest.raises(qcore.QcoreValueError, match="out overlaps x"):
        qcore.linear(buffer[:, :8], weight, out=buffer[:, 4:12])
    with pytest.raises(qcore.QcoreValueError, match="out overlaps x"):
        qcore.linear(buffer[:, 8:], weight, out=buffer[:, 7:15])
