"""Fitting tables to functions: cuts and entries with the smallest error of the subdivided table itself.

The published method (NLI, ICLR 2026, arXiv 2602.02988) chooses cuts for one straight line per interval and subdivides
afterwards; here dynamic programming minimizes the error that the finished table has, and the entries are fitted with
the cuts. The search itself is in C++: include/qcore/lut_fit.h.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qcore import _checks, _core
from qcore._options import Metric, TableDtype
from qcore.lut.callables import evaluate
from qcore.lut.core import REDUCTIONS as REDUCTION_NUMBERS
from qcore.lut.exact_zero import KEPT, Kept
from qcore.lut.functions import FUNCTIONS, LIMIT, Function
from qcore.lut.grid import Grid
from qcore.lut.reductions import REDUCTIONS, Reduction
from qcore.lut.table import Table

Array = np.ndarray[Any, Any]

METRICS = {
    "mean_relative": (False, True),
    "max_relative": (True, True),
    "mean_absolute": (False, False),
    "max_absolute": (True, False),
}
"""Whether the largest error counts, and whether errors are relative."""
_TABLE_DTYPES = {"float16": True, "float32": False}
_COARSE = 1024  # candidates of the global search
_WINDOW = 8  # candidates to either side of a cut in the local search
_FINENESS = 2.0**-13  # distance of the cuts that the table of one binade may have
_ZERO_COST = 1.01  # a table that is odd or 0 at 0 may have this many times the error of the best one that is not
_BETWEEN, _NEIGHBORHOODS = 1 << 14, 128  # of a reduced table: points that no fp16 number looks up, and groups of them


@dataclass(frozen=True)
class FitReport:
    """Holds the result of a fit. Errors are those of the table, evaluated in float32 on the domain's fp16 numbers.

    Attributes:
        metric: what was minimized.
        error: by ``metric``, with the weights of ``samples`` if there were some.
        mean_relative: mean of |table(x) - f(x)| / max(|f(x)|, 2^-14).
        max_relative: the largest of these.
        mean_absolute: mean of |table(x) - f(x)|.
        max_absolute: the largest of these.
        global_over_candidates: no table whose cuts are among the candidates of the global search and whose entries are
            f(knot), rounded, has an error below ``coarse_error``, and ``error`` is not above it.
        coarse_error: the smallest error of such a table.
        candidates: how many candidates the global search had.
        points: fp16 numbers in the domain with an f(x) that fp16 can hold.
        seconds: that the fit took.
    """

    metric: str
    error: float
    mean_relative: float
    max_relative: float
    mean_absolute: float
    max_absolute: float
    global_over_candidates: bool
    coarse_error: float
    candidates: int
    points: int
    seconds: float


@dataclass(frozen=True)
class _Task:
    """Input of the core's fit: samples of the table's function and where cuts may lie. float32."""

    function: Callable[[Array], Array]
    x: Array  # [n]
    f: Array  # [n]
    weights: Array  # [n]
    candidates: Array  # [c]
    required: Array  # [r]
    fixed_ends: bool


def fit(
    f: Any,
    *,
    domain: tuple[float, float] | None = None,
    cuts: int = 11,
    segments: int = 32,
    table_dtype: TableDtype = "float16",
    metric: Metric = "mean_relative",
    samples: Any = None,
    range_reduction: bool | None = None,
    progress: Callable[[float], Any] | None = None,
) -> Table:
    """Return a table of ``f`` with the smallest error over the fp16 numbers of its domain; takes seconds.

    The table of an odd function is odd, and exactly 0 at 0, where that costs less than 1% of the error; so are those of
    silu, gelu, mish and others that are 0 at 0, by cuts that were searched for once.
    Deterministic: the same numbers on every machine. Cuts come from dynamic programming over about a thousand
    candidates and then over windows of neighboring ones; entries are fitted with them. :class:`FitReport` says what is
    proven about the result.

    Args:
        f: a name of :func:`qcore.lut.names`, or a callable of float64 arrays or of floats. Points where it is infinite
            or beyond fp16 are left out; NaN inside the domain is an error.
        domain: (low, high), finite; by default where a named function is defined, and all of fp16 for a callable.
        cuts: number of cut points, 3 to 65; the first and the last interval have one segment.
        segments: of each other interval, 1 to 256.
        table_dtype: "float16" or "float32".
        metric: "mean_relative" (relative to max(|f|, 2^-14)), "max_relative", "mean_absolute" or "max_absolute".
        samples: real activations, float32, float16 or bfloat16, any shape: an x counts as often as it occurs there.
        range_reduction: as for :func:`qcore.lut.table`; off by default if there is a ``domain``.
        progress: called with the fraction that is done; what it raises ends the fit.

    Returns:
        The table, with its FitReport as ``.report``.

    Raises:
        QcoreValueError, QcoreTypeError: an impossible argument, naming it.
    """
    began = time.perf_counter()
    intervals = _within(cuts, "cuts", 3, 65) - 1
    segments = _within(segments, "segments", 1, 256)
    half = _checks.choice(table_dtype, _TABLE_DTYPES, "lut fit: table_dtype")
    largest, relative = _checks.choice(metric, METRICS, "lut fit: metric")
    if progress is not None and not callable(progress):
        raise _core.QcoreTypeError(f"lut fit: progress is {progress!r}, expected a callable or None")
    function = _function(f)
    reduction = _reduction(function, domain, range_reduction)
    low, high = _domain(function, domain, reduction)

    grid = Grid.of(function.evaluate, low, high, samples)
    if len(grid.x) <= intervals:
        raise _core.QcoreValueError(
            f"lut fit: domain [{low:.9g}, {high:.9g}] has {len(grid.x)} fp16 numbers where f is finite, expected "
            f"{intervals + 1} or more for as many cuts"
        )
    objective = grid.objective(largest, relative)
    if reduction is not None:
        task = _reduced_task(grid, objective, reduction, largest)
    else:
        task = _plain_task(grid, objective, function, (low, high) if function.covers_domain and not domain else None)

    options = (intervals, segments, half, largest)
    found, _, coarse_error, proven, candidates, _, _ = _core.fit_lut_cuts(
        task.x, task.f, task.weights, task.candidates, task.required, *options, task.fixed_ends, _COARSE, _WINDOW,
        progress and (lambda done: progress(0.9 * done)),
    )  # fmt: skip
    chosen = np.array(found, np.float32)
    values = _fit_values(task, chosen, options, progress and (lambda done: progress(0.9 + 0.1 * done)))
    number = REDUCTION_NUMBERS["none" if reduction is None else function.reduction or "none"]
    handle = _core.LutTable.from_parts(chosen, values.astype(table_dtype), number)

    errors, relative_to = grid.errors(handle), grid.relative_to()
    final = errors * objective
    join = np.max if largest else np.sum
    if intervals % 2 == 0 and (reduction is None or reduction.low < 0):  # other reduced tables have no 0 inside
        bound = min(_ZERO_COST * join(final), max(join(final), coarse_error))
        kept = KEPT.get(function.name) if isinstance(f, str) and domain is None and reduction is None else None
        for cuts_, values_ in _zero_tables(task, options, kept, chosen, grid.is_odd(objective)):
            other = _core.LutTable.from_parts(cuts_, values_.astype(table_dtype), number)
            other_errors = grid.errors(other)
            if join(other_errors * objective) <= bound:
                handle, errors, final = other, other_errors, other_errors * objective
                bound = join(final)
    report = FitReport(
        metric=metric,
        error=float(final.max() if largest else final.sum()),
        mean_relative=float(np.average(errors / relative_to, weights=grid.counts)),
        max_relative=float((errors / relative_to).max()),
        mean_absolute=float(np.average(errors, weights=grid.counts)),
        max_absolute=float(errors.max()),
        global_over_candidates=proven,
        coarse_error=coarse_error,
        candidates=candidates,
        points=len(grid.x),
        seconds=time.perf_counter() - began,
    )
    return Table(handle, function.name, report)


def _within(value: Any, argument: str, low: int, high: int) -> int:
    number = _checks.integer(value, f"lut fit: {argument}", bits=32)
    if not low <= number <= high:
        raise _core.QcoreValueError(f"lut fit: {argument} is {number}, expected {low} to {high}")
    return number


def _function(f: Any) -> Function:
    if isinstance(f, str):
        return _checks.choice(f, FUNCTIONS, "lut fit: f")
    if not callable(f):
        raise _core.QcoreTypeError(f"lut fit: f is {f!r}, expected a function's name or a callable")
    name = getattr(f, "__name__", "custom")
    return Function(name if name.isidentifier() else "custom", lambda x: evaluate(f, x))


def _reduction(function: Function, domain: Any, wanted: bool | None) -> Reduction | None:
    if wanted is not None and not isinstance(wanted, bool):
        raise _core.QcoreTypeError(f"lut fit: range_reduction is {wanted!r}, expected True, False or None")
    if wanted and function.name not in REDUCTIONS:
        names = ", ".join(REDUCTIONS)
        raise _core.QcoreValueError(
            f"lut fit: range_reduction is True for {function.name!r}, expected one of {names} with it"
        )
    if wanted is None:
        wanted = function.reduction is not None and domain is None
    return REDUCTIONS[function.name] if wanted else None


def _domain(function: Function, domain: Any, reduction: Reduction | None) -> tuple[float, float]:
    if domain is None:
        return (-LIMIT, LIMIT) if reduction is not None and function.covers_domain else function.domain
    try:
        low, high = domain
    except (TypeError, ValueError):
        raise _core.QcoreTypeError(f"lut fit: domain is {domain!r}, expected (low, high)") from None
    low, high = _checks.number(low, "lut fit: domain[0]"), _checks.number(high, "lut fit: domain[1]")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _core.QcoreValueError(f"lut fit: domain is ({low:.9g}, {high:.9g}), expected finite low < high")
    return low, high


def _plain_task(grid: Grid, objective: Array, function: Function, ends: tuple[float, float] | None) -> _Task:
    """Return cuts as fp16 numbers of the grid; the first and the last are `ends` if given."""
    x, f, weights = grid.x, grid.f, objective
    if ends is not None:
        x, f, weights = _with_points(x, f, weights, np.array(ends, np.float32).astype(np.float64), function.evaluate)
    nothing = np.empty(0, np.float32)
    return _Task(function.evaluate, _single(x), _single(f), _single(weights), _single(x), nothing, ends is not None)


def _reduced_task(grid: Grid, objective: Array, reduction: Reduction, largest: bool) -> _Task:
    """Return the points that inputs look up, each once, and what their errors add to that of the results."""
    inside = np.abs(grid.x) > 0 if reduction.skips_zero else np.ones(len(grid.x), bool)
    reduced = reduction.reduce(grid.x[inside].astype(np.float32))
    weights = objective[inside] * reduced.scales
    x, where = np.unique(reduced.points.astype(np.float64), return_inverse=True)
    total = np.zeros(len(x))
    (np.maximum if largest else np.add).at(total, where, weights)
    x, total = x[total > 1e-30], total[total > 1e-30]
    added = np.array([reduction.low, *reduction.exact, reduction.high])
    x, total = _with_points_between(x, total, reduction, largest)
    x, f, total = _with_points(x, reduction.function(x), total, added, reduction.function)
    if reduction.low < 0:  # sines: small numbers are not reduced, so that their relative precision counts
        candidates = np.unique(np.concatenate([grid.x[np.abs(grid.x) < reduction.high], added]))
    else:
        steps = np.arange(math.ceil(reduction.low / _FINENESS), math.floor(reduction.high / _FINENESS) + 1)
        candidates = np.unique(np.concatenate([steps * _FINENESS, added]))
    exact = _single(np.array(reduction.exact))
    return _Task(reduction.function, _single(x), _single(f), _single(total), _single(candidates), exact, True)


def _with_points_between(x: Array, weights: Array, reduction: Reduction, largest: bool) -> tuple[Array, Array]:
    """Add points that fp16 inputs do not look up and fp32 inputs do: entries in between are otherwise unconstrained.

    Together they weigh as much as their neighborhood's own points (each as much as the largest for a largest error).
    """
    steps = np.linspace(reduction.low, reduction.high, _BETWEEN + 2)[1:-1].astype(np.float32).astype(np.float64)
    between = np.setdiff1d(steps, x)
    edges = np.linspace(reduction.low, reduction.high, _NEIGHBORHOODS + 1)[1:-1]
    of_x, of_between = np.searchsorted(edges, x), np.searchsorted(edges, between)
    total = np.zeros(_NEIGHBORHOODS)
    (np.maximum if largest else np.add).at(total, of_x, weights)
    if not largest:
        total /= np.maximum(np.bincount(of_between, minlength=_NEIGHBORHOODS), 1)
    order = np.argsort(np.concatenate([x, between]), kind="stable")
    return np.concatenate([x, between])[order], np.concatenate([weights, total[of_between]])[order]


def _with_points(
    x: Array, f: Array, weights: Array, added: Array, function: Callable[[Array], Array]
) -> tuple[Array, Array, Array]:
    """Add samples at `added` that weigh nothing, so that f is known there."""
    added = np.setdiff1d(added, x)
    order = np.argsort(np.concatenate([x, added]), kind="stable")
    more = [(x, added), (f, function(added)), (weights, np.zeros(len(added)))]
    x, f, weights = (np.concatenate(pair)[order] for pair in more)
    return x, f, weights


def _single(array: Array) -> Array:
    """Return float32 without the bits in which machines' exp() differ, so that the fit is the same on all."""
    return np.ascontiguousarray(array, np.float32)


def _zero_tables(
    task: _Task, options: tuple[int, int, bool, bool], kept: Kept | None, chosen: Array, odd: bool
) -> list[tuple[Array, Array]]:
    """Return cuts and values of tables that are exactly 0 at 0, most of an odd function odd."""
    tables = _odd_tables(task, options, chosen) if odd else []
    if kept is None or options[:3] != (len(kept[0]) - 1, 32, True):
        return tables
    cuts = np.array(kept[0], np.float32)
    values = _fit_values(task, cuts, options, None, kept[1])
    is_mirrored = odd and np.array_equal(cuts, -cuts[::-1])
    return [*tables, _mirrored(cuts, values) if is_mirrored else (cuts, values)]


def _mirrored(cuts: Array, values: Array) -> tuple[Array, Array]:
    """Return the cuts and the odd values of which those above 0 are given."""
    above = values[len(values) // 2 + 1 :]
    return cuts, np.concatenate([-above[::-1], np.zeros(1, np.float32), above])


def _odd_tables(task: _Task, options: tuple[int, int, bool, bool], chosen: Array) -> list[tuple[Array, Array]]:
    """Return cuts and values of odd tables: each half of the best table with a cut at 0, and its mirror image."""
    cuts = chosen
    if not np.array_equal(task.required, [0]):
        found, *_ = _core.fit_lut_cuts(
            task.x, task.f, task.weights, task.candidates, np.zeros(1, np.float32), *options, task.fixed_ends, _COARSE,
            _WINDOW, None,
        )  # fmt: skip
        cuts = np.array(found, np.float32)
    half = len(cuts) // 2
    if cuts[half] != 0:
        return []
    tables = []
    for above in (cuts[half + 1 :], -cuts[:half][::-1]):
        mirrored = np.concatenate([-above[::-1], np.zeros(1, np.float32), above])
        tables.append(_mirrored(mirrored, _fit_values(task, mirrored, options, None)))
    return tables


def _fit_values(
    task: _Task,
    cuts: Array,
    options: tuple[int, int, bool, bool],
    progress: Any,
    pins: Mapping[int, float] | None = None,
) -> Array:
    """Return float32 [entries]; ``pins`` has the entries that are given, by number."""
    intervals, segments, _, _ = options
    at = cuts.astype(np.float64)
    parts = [1, *[segments] * (intervals - 2), 1]
    knots = np.concatenate([at[i] + (at[i + 1] - at[i]) / n * np.arange(n) for i, n in enumerate(parts)] + [at[-1:]])
    with np.errstate(all="ignore"):
        f = task.function(knots)
    f = np.clip(np.where(np.isfinite(f), f, np.interp(knots, task.x, task.f)), -LIMIT, LIMIT)
    pinned = np.isin(knots, task.required)
    if task.fixed_ends:
        pinned[[0, -1]] = True
    for entry, value in (pins or {}).items():
        f[entry], pinned[entry] = value, True
    values = np.empty(len(knots), np.float32)
    _core.fit_lut_values(
        task.x, task.f, task.weights, cuts, _single(f), pinned.astype(np.uint8), *options, values, progress or None
    )
    return values
