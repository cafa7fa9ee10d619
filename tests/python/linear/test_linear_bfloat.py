"""The kernels that multiply bf16 activations as they are: within the bound of the exact result."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from linear_calls import BFLOAT_KERNELS, BITS, MS, NS, SCHEMES, assert_same, run

import qcore

BFLOAT = ml_dtypes.bfloat16

pytestmark = pytest.mark.skipif(not BFLOAT_KERNELS, reason="this CPU has no dot products of bf16")


def random_call(rng, m, n, k, g, bits, scheme, **options):
    w = rng.standard_normal((n, k), dtype=np.float32)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, **options)
    return rng.standard_normal((m, k), dtype=np.float32).astype(BFLOAT), weight


def check(kernel, x, weight, **options):
    """Check that a result is within 4 * (P + g) * 2^-24 * sum |x w| of the exact result."""
    y = run(kernel, x, weight, compute="float", out_dtype="float32", **options)
    w = weight.dequantize().astype(np.float64)
    wide = x.astype(np.float64)
    bound = oracle.error_bound(np.abs(wide) @ np.abs(w).T, x.shape[1], weight.block_size, "float")
    # Offsets and codes take part separately, so that their magnitudes, not that of their sum, bound the rounding.
    scales = np.repeat(np.abs(weight.scales()), weight.block_size, axis=1)[:, : x.shape[1]]
    parts = np.abs(wide) @ (scales * np.abs(weight.codes().astype(np.float64))).T
    bound += oracle.error_bound(parts, x.shape[1], weight.block_size, "float")
    assert (np.abs(y - wide @ w.T) <= bound + 1e-30).all()
    return y


@pytest.mark.parametrize("kernel", BFLOAT_KERNELS)
@pytest.mark.parametrize("g", [1, 7, 16, 32, 48, 64, 128, 333])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_within_the_bound(kernel, g, bits, scheme):
    rng = np.random.default_rng([g, bits])
    for m in MS:
        for n in NS[:-1]:
            for k in (1, g, g + 1, 333):
                check(kernel, *random_call(rng, m, n, k, g, bits, scheme))
    check(kernel, *random_call(rng, 40, 1000, 2050, g, bits, scheme))


@pytest.mark.parametrize("kernel", BFLOAT_KERNELS)
def test_is_chosen_for_bf16_only(kernel):
    rows = 40 if kernel.endswith("amx") else 3  # AMX does not pay for a few
    x, weight = random_call(np.random.default_rng(0), rows, 9, 64, 32, 4, "symmetric")
    before = next(row.runs for row in qcore.kernels("linear") if row.name == kernel)
    qcore.linear(x, weight, compute="float")
    assert qcore.last_kernel("linear") == kernel
    assert next(row.runs for row in qcore.kernels("linear") if row.name == kernel) == before + 1
    for other, compute in ((x.astype(np.float32), "float"), (x.astype(np.float16), "float"), (x, "int8")):
        with qcore.force_kernel("linear", kernel), pytest.raises(qcore.QcoreValueError) as caught:
            qcore.linear(other, weight, compute=compute)
        expected = f"the forced kernel '{kernel}' does not take this call: it computes in float from bfloat16 x"
        assert str(caught.value) == f"linear: {expected}"


@pytest.mark.parametrize("kernel", BFLOAT_KERNELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_layouts_threads_and_parameters(kernel, scheme):
    rng = np.random.default_rng(1)
    x, weight = random_call(rng, 70, 90, 1100, 96, 4, scheme, scale_dtype="float16")
    expected = check(kernel, x, weight)
    wide = np.full((70, 2205), np.nan, BFLOAT)
    wide[:, 5::2] = x
    threads = qcore.get_num_threads()
    try:
        for count in (1, 2, 4):
            qcore.set_num_threads(count)
            for view in (wide[:, 5::2], np.asfortranarray(x), x[::-1][::-1]):
                assert_same(run(kernel, view, weight, compute="float", out_dtype="float32"), expected)
    finally:
        qcore.set_num_threads(threads)
    bias = rng.standard_normal(90).astype(BFLOAT)
    y = run(kernel, x, weight, bias, compute="float", activation="relu", out_dtype="float32")
    assert_same(y, np.maximum(expected + bias.astype(np.float32), 0))
    assert_same(run(kernel, x, weight, compute="float"), expected.astype(BFLOAT))
    # One row alone is the same as in company, whatever the tile.
    for row in (0, 41):
        assert_same(
            run(kernel, x[row : row + 1], weight, compute="float", out_dtype="float32"), expected[row : row + 1]
        )


@pytest.mark.parametrize("kernel", BFLOAT_KERNELS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_rows_stay_non_finite(kernel, scheme, value):
    x, weight = random_call(np.random.default_rng(2), 9, 40, 200, 64, 8, scheme)
    expected = run(kernel, x, weight, compute="float", out_dtype="float32")
    x[4, 130] = value
    y = run(kernel, x, weight, compute="float", out_dtype="float32")
    assert not np.isfinite(y[4][weight.codes()[:, 130] != 0]).any()
    keep = np.arange(9) != 4
    assert_same(y[keep], expected[keep])
