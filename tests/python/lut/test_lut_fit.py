"""Fitting tables: its searches against brute force, the tables that ship against the published ones, errors."""

import importlib.util
import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lut_calls import knots

import qcore
from qcore import _core, lut
from qcore.lut import Table, fit, functions
from qcore.lut.accuracy import accuracy

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"domain": (0.25, 4.0), "cuts": 5, "segments": 4}
"""Fits that take a fraction of a second."""

PUBLISHED_SILU = (
    -20.359375, -17.109375, -8.3671875, -1.9755859375, -0.255615234375, -0.007244110107421875, 0.0072174072265625,
    0.228515625, 1.58203125, 10.46875, 65504,
)  # fmt: skip

BARS = {
    "silu": 1.652e-4,
    "gelu": 1.171e-4,
    "exp": 1.577e-4,
    "sigmoid": 3.425e-5,
    "tanh": 2.408e-5,
    "hardswish": 5.883e-5,
    "mish": 1.426e-4,
    "rsqrt": 2.644e-3,
    "reciprocal": 4.967e-3,
}
"""Mean relative errors of an earlier search with fp16 entries f(knot); the published cuts' are larger still."""

with np.errstate(all="ignore"):
    HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)
    HALVES = HALVES[np.isfinite(HALVES)]

FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": np.vectorize(lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}


def points(name, positive):
    """Return fp16 numbers with a finite fp16 f(x), and f there."""
    x = HALVES[HALVES > 0] if positive else HALVES
    with np.errstate(all="ignore"):
        f = FUNCTIONS[name](x.astype(np.float64))
        kept = np.isfinite(f.astype(np.float16))
    return x[kept], f[kept]


def mean_relative(y, f):
    return float(np.mean(np.abs(y.astype(np.float64) - f) / np.maximum(np.abs(f), 2.0**-14)))


def interpolated(cuts, values, segments, x):
    """Return the table in float64."""
    return np.interp(x, knots(cuts, segments), np.asarray(values, np.float64))


def test_the_published_cuts_have_the_published_error():
    x, f = points("silu", False)
    with np.errstate(all="ignore"):
        values = FUNCTIONS["silu"](knots(PUBLISHED_SILU, 32)).astype(np.float16)
    assert mean_relative(interpolated(PUBLISHED_SILU, values, 32, x.astype(np.float64)), f) == pytest.approx(
        2.175e-4, abs=0.0005e-4
    )
    table = Table.from_parts(np.float32(PUBLISHED_SILU), values)
    assert mean_relative(table(x.astype(np.float32)), f) == pytest.approx(2.175e-4, rel=2e-3)
    # -2.5 lies in interval 2, at p = 29.37: between entries 33 + 29 and the next.
    p = (-2.5 - PUBLISHED_SILU[2]) * 32 / (PUBLISHED_SILU[3] - PUBLISHED_SILU[2])
    below, above = values[62:64].astype(np.float64)
    assert 29 < p < 30
    assert float(table(np.float32([-2.5]))[0]) == pytest.approx(below + (p - 29) * (above - below), rel=1e-6)


@pytest.mark.parametrize("name", BARS)
def test_shipped_tables_are_better_than_the_bars(name):
    x, f = points(name, name in ("rsqrt", "reciprocal"))
    table = lut.table(name, range_reduction=False)
    assert table.values.shape == (259,) and table.table_dtype == "float16"
    error = mean_relative(table(x.astype(np.float32)), f)
    assert error < BARS[name], f"{name}: {error:.3e}"


@pytest.mark.parametrize("name", ["exp", "log", "reciprocal", "sqrt", "rsqrt"])
def test_range_reduced_tables_are_near_one_rounding(name):
    x, f = points(name, name != "exp")
    rounded = mean_relative(f.astype(np.float16), f)
    assert mean_relative(lut.table(name)(x), f) <= 1.5 * rounded


def test_values_that_are_exact():
    np.testing.assert_array_equal(lut.relu(HALVES), np.maximum(HALVES, 0))
    powers = np.ldexp(1.0, np.arange(-14, 15)).astype(np.float32)
    np.testing.assert_array_equal(lut.reciprocal(powers), 1 / powers)
    fours = np.ldexp(1.0, 2 * np.arange(-7, 8)).astype(np.float32)
    np.testing.assert_array_equal(lut.sqrt(fours), np.sqrt(fours))
    np.testing.assert_array_equal(lut.rsqrt(fours), 1 / np.sqrt(fours))
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert lut.exp(zero) == 1 and lut.log(one) == 0 and lut.sin(zero) == 0 and lut.cos(zero) == 1
    for name in ("silu", "gelu", "tanh", "erf", "leaky_relu", "elu", "hardswish"):
        assert abs(lut.table(name)(zero)) <= 2.0**-24, name


def generator():
    spec = importlib.util.spec_from_file_location("generate_luts", ROOT / "scripts" / "generate_luts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not (ROOT / "scripts").is_dir(), reason="needs a source tree")
@pytest.mark.parametrize("name", ["log", "rsqrt", "reciprocal"])
def test_shipped_tables_are_what_the_fit_gives(name):
    made = generator()
    present = made.rows_of(made.TARGET.read_text())
    assert list(present) == made.rows()
    assert made.row_text(made.fitted(name, name)) == present[name, name]


# -- the searches ---------------------------------------------------------------------------------------------------


def small_problem(seed):
    """Return x, f, weight of 60 samples, and 9 of the x as candidates."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.choice(np.arange(-256, 256), 60, replace=False)) / np.float32(64)
    f = (np.sin(x) + 0.3 * x * x).astype(np.float32)
    weight = rng.uniform(0.1, 1, 60).astype(np.float32)
    return x.astype(np.float32), f, weight, x[np.sort(rng.choice(60, 9, replace=False))].astype(np.float32)


def search(x, f, weight, candidates, *, required=(), largest=False, fixed=False, intervals=4, segments=3):
    return _core.fit_lut_cuts(
        x, f, weight, candidates, np.array(required, np.float32), intervals, segments, True, largest, fixed, 64, 4, None
    )


def brute_force(x, f, weight, candidates, *, required=(), largest=False, fixed=False, intervals=4, segments=3):
    best = math.inf
    for cuts in itertools.combinations(candidates.astype(np.float64), intervals + 1):
        if not set(required) <= set(cuts) or (fixed and (cuts[0] != candidates[0] or cuts[-1] != candidates[-1])):
            continue
        values = np.interp(knots(cuts, segments), x, f).astype(np.float16)
        errors = weight * np.abs(interpolated(cuts, values, segments, x.astype(np.float64)) - f)
        best = min(best, errors.max() if largest else errors.sum())
    return best


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_coarse_search_finds_the_global_optimum(seed, fixed, largest):
    x, f, weight, candidates = small_problem(seed)
    for required in ((), (candidates[4],)):
        options = {"required": required, "largest": largest, "fixed": fixed}
        cuts, error, coarse, proven, count, pairs, exact = search(x, f, weight, candidates, **options)
        expected = brute_force(x, f, weight, candidates, **options)
        assert coarse == pytest.approx(expected, rel=1e-5)
        assert proven and count == 9 and pairs == 36 and exact <= 2 * pairs
        assert error <= coarse and set(required) <= set(np.float32(cuts))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_entries_are_the_best_near_f(seed, largest):
    x, f, weight, candidates = small_problem(seed)
    cuts = candidates[[1, 4, 7]]
    at = np.interp(cuts, x, f).astype(np.float32)
    values = np.empty(3, np.float32)
    error = _core.fit_lut_values(
        x, f, weight, cuts, at, np.zeros(3, np.uint8), 2, 1, True, largest, values, None
    )  # fmt: skip

    def of(entries):
        errors = weight * np.abs(interpolated(cuts, entries, 1, x.astype(np.float64)) - f)
        return errors.max() if largest else errors.sum()

    assert error == pytest.approx(of(values), rel=1e-5)
    assert (values == values.astype(np.float16)).all()
    bits = values.astype(np.float16).view(np.int16)
    for steps in itertools.product(range(-4, 5), repeat=3):
        assert of((bits + np.int16(steps)).view(np.float16)) >= error * (1 - (1e-3 if largest else 1e-6))


def test_entries_that_nothing_depends_on_are_f():
    x = np.float32([0, 1, 2, 3, 100])
    cuts, at = np.float32([0, 3, 50, 100]), np.zeros(2 + 8 + 1, np.float32)
    at[:] = 1 + np.arange(11) / 16
    values = np.empty(11, np.float32)
    _core.fit_lut_values(
        x, x / 100, np.ones(5, np.float32), cuts, at, np.zeros(11, np.uint8), 3, 8, True, False, values, None
    )  # fmt: skip
    np.testing.assert_array_equal(values[2:9], at[2:9])


# -- fit() ------------------------------------------------------------------------------------------------------------


def test_report():
    table = fit("tanh", **SMALL)
    x = HALVES[(HALVES >= 0.25) & (HALVES <= 4)].astype(np.float32)
    f = np.tanh(x.astype(np.float64))
    errors = np.abs(table(x) - f)
    report = table.report
    assert report.points == len(x) and report.metric == "mean_relative"
    relative = errors / np.maximum(np.abs(f), 2.0**-14)
    assert report.error == pytest.approx(relative.mean()) and report.mean_relative == pytest.approx(relative.mean())
    assert report.max_relative == pytest.approx(relative.max())
    assert report.mean_absolute == pytest.approx(errors.mean())
    assert report.max_absolute == pytest.approx(errors.max())
    assert report.global_over_candidates and report.candidates > 500 and report.seconds > 0
    assert report.error <= report.coarse_error
    assert table.name == "tanh" and len(table.cuts) == 5 and table.segments == 4


@pytest.mark.parametrize("options", [{}, {"table_dtype": "float32"}, {"metric": "max_absolute"}])
def test_the_fit_is_deterministic(options):
    first, second = (fit("silu", **SMALL, **options) for _ in range(2))
    assert first == second


def test_a_named_function_and_callables_give_the_same_table():
    expected = fit("silu", **SMALL)
    assert fit(lambda x: x / (1 + np.exp(-x)), **SMALL) == expected
    assert fit(lambda x: x / (1 + math.exp(-x)), **SMALL) == expected


def test_each_metric_is_best_at_its_own():
    metrics = ["mean_relative", "mean_absolute", "max_relative", "max_absolute"]
    tables = {metric: fit("silu", metric=metric, **SMALL) for metric in metrics}
    for metric in metrics:
        errors = {other: getattr(table.report, metric) for other, table in tables.items()}
        assert min(errors, key=errors.get) == metric, errors
        assert tables[metric].report.error == pytest.approx(errors[metric])


def test_samples_weigh_the_errors():
    samples = np.random.default_rng(0).normal(1.5, 0.3, (50, 40)).astype(np.float16)
    plain, weighted = fit("silu", **SMALL), fit("silu", samples=samples, **SMALL)
    inside = samples[(samples >= 0.25) & (samples <= 4)].astype(np.float32)
    f = FUNCTIONS["silu"](inside.astype(np.float64))
    assert mean_relative(weighted(inside), f) == pytest.approx(weighted.report.error, rel=1e-6)
    assert mean_relative(weighted(inside), f) < 0.5 * mean_relative(plain(inside), f)


def test_float32_tables_are_better():
    half, single = (fit("tanh", domain=(0.25, 4), table_dtype=dtype) for dtype in ("float16", "float32"))
    assert single.values.dtype == np.float32 and single.report.error < 0.5 * half.report.error


def test_range_reduction_is_for_whole_domains():
    assert fit("rsqrt", cuts=5, segments=4).range_reduction == "rsqrt"
    assert fit("rsqrt", **SMALL).range_reduction == "none"
    assert fit("rsqrt", range_reduction=True, **SMALL).range_reduction == "rsqrt"


BEST = {"silu": 9.127e-5, "gelu": 7.222e-5, "gelu_tanh": 7.184e-5, "mish": 8.302e-5, "tanh": 2.243e-5}
BEST |= {"erf": 2.444e-5, "hardswish": 4.204e-5, "elu": 2.040e-5, "sin": 3.682e-5, "square": 1.9953e-3}
"""The mean errors of the best tables that were not exact at 0."""


@pytest.mark.parametrize("name", BEST)
def test_tables_are_exactly_0_at_0(name):
    table = lut.table(name, range_reduction=False) if name == "sin" else lut.table(name)
    for dtype in ("float32", "float16"):
        assert not np.asarray(table(np.array([0, -0.0], dtype))).any()
    assert accuracy(table, functions.FUNCTIONS[name]).of_table(table).mean <= 1.01 * BEST[name]


@pytest.mark.parametrize(("name", "reduced"), [("tanh", None), ("erf", None), ("sin", False), ("sin", True)])
def test_tables_of_odd_functions_are_odd(name, reduced):
    table = lut.table(name, range_reduction=reduced)
    assert np.array_equal(table.values, -table.values[::-1])
    assert np.array_equal(table.cuts, -table.cuts[::-1])


def test_kept_cuts_are_for_whole_tables_of_named_functions():
    assert len(fit("sin", cuts=3, segments=4).cuts) == 3
    assert fit("sin", domain=(0.5, 1), cuts=5, segments=4).cuts[-1] == 1


def test_infinities_are_left_out():
    table = fit(np.exp, domain=(9, 14), cuts=5, segments=4)
    assert table.report.points == (HALVES[HALVES >= 9] <= 11.0859375).sum() and table.cuts[-1] <= 11.0859375
    assert fit(math.exp, domain=(9, 1000), cuts=5, segments=4).report.points == table.report.points


def test_progress():
    seen = []
    fit("tanh", progress=seen.append, **SMALL)
    assert len(seen) > 10 and seen == sorted(seen) and seen[0] >= 0 and seen[-1] == pytest.approx(1)

    class StoppedError(Exception):
        pass

    def stop(done):
        if done > 0.2:
            raise StoppedError

    with pytest.raises(StoppedError):
        fit("tanh", progress=stop, **SMALL)


@pytest.mark.parametrize(
    "f, options, error, words",
    [
        ("tangent", {}, ValueError, "f is 'tangent', expected one of 'silu'"),
        (3, {}, TypeError, "f is 3, expected a function's name or a callable"),
        (np.log, {}, ValueError, "NaN, expected a domain"),
        (math.log, {}, ValueError, "NaN, expected a domain"),
        (lambda x: x[:3], {}, ValueError, "f returned shape [3] for an array of shape [63487], expected the same"),
        (lambda x: 1.0, {}, ValueError, "f returned shape []"),
        (lambda x: x * 1j, {}, TypeError, "f returned dtype complex128"),
        (lambda x: {}[0], {}, KeyError, "0"),
        (lambda: 0, {}, TypeError, "takes neither an array"),
        ("silu", {"domain": (3, 1)}, ValueError, "domain is (3, 1), expected finite low < high"),
        ("silu", {"domain": (0, math.inf)}, ValueError, "domain is (0, inf)"),
        ("silu", {"domain": 3}, TypeError, "domain is 3, expected (low, high)"),
        ("silu", {"domain": ("a", 1)}, TypeError, "domain[0] is 'a', expected a number"),
        ("silu", {"domain": (1, 1.002)}, ValueError, "has 3 fp16 numbers where f is finite, expected 11"),
        ("silu", {"cuts": 2}, ValueError, "cuts is 2, expected 3 to 65"),
        ("silu", {"cuts": 5.0}, TypeError, "cuts is 5.0, expected an integer"),
        ("silu", {"segments": 0}, ValueError, "segments is 0, expected 1 to 256"),
        ("silu", {"table_dtype": "int8"}, ValueError, "table_dtype is 'int8'"),
        ("silu", {"metric": "worst"}, ValueError, "metric is 'worst'"),
        ("silu", {"range_reduction": True}, ValueError, "range_reduction is True for 'silu'"),
        ("silu", {"range_reduction": 1}, TypeError, "range_reduction is 1"),
        ("silu", {"progress": 1}, TypeError, "progress is 1, expected a callable"),
        ("silu", {"samples": np.arange(4)}, TypeError, "samples"),
        ("silu", {"samples": np.float32([1, math.nan])}, ValueError, "samples has a NaN"),
        (
            "silu",
            {"samples": np.float32([5, 7.5]), "domain": (0, 1)},
            ValueError,
            "samples has numbers from 5 to 7.5, expected some in the domain, 0 to 1",
        ),
        (
            "silu",
            {"samples": np.float32([])},
            ValueError,
            "samples has no numbers, expected some in the domain, -65504",
        ),
    ],
)
def test_errors_name_the_argument(f, options, error, words):
    with pytest.raises(error) as caught:
        fit(f, **options)
    assert words in str(caught.value)
    if error is not KeyError:
        assert isinstance(caught.value, qcore.QcoreError)


def test_the_core_checks_its_arguments():
    x, f, weight, candidates = small_problem(0)
    for arguments, words in [
        ((x[::-1].copy(), f, weight, candidates), "x[1] is"),
        ((x, f[:5], weight, candidates), "f has shape [5], expected [60]"),
        ((x, f, -weight, candidates), "weight[0] is"),
        ((x, f * np.nan, weight, candidates), "f[0] is nan"),
        ((x, f, weight, candidates[:4]), "candidates has shape [4], expected 5 or more"),
    ]:
        with pytest.raises(ValueError) as caught:
            search(*arguments)
        assert f"lut fit: {words}" in str(caught.value)
    with pytest.raises(ValueError, match="expected one of the candidates"):
        search(x, f, weight, candidates, required=[1000.0])


def test_importing_qcore_loads_no_fitting():
    code = "import sys, qcore; sys.exit('qcore.lut.fitting' in sys.modules or 'qcore.lut.functions' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
