"""qcore.lut, through its public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import qcore

from ..implementation import OURS, Array, Bound, Implementation
from .problem import EPSILON, Data, Problem, numpy_dtype

_CHECKED = 1 << 12


def implementations(problem: Problem) -> list[Implementation]:
    """With and without `out`; where a range reduction is the default, also without it."""
    numpy_dtype(problem.dtype)
    name = problem.function
    made = [_implementation(problem, f"{OURS} out=", True), _implementation(problem, f"{OURS}", False)]
    if not problem.by_rows and qcore.lut.table(name).range_reduction != "none":
        plain = qcore.lut.table(name, range_reduction=False)
        made.append(_implementation(problem, f"{OURS} out=, no range reduction", True, plain))
    return made


def _implementation(problem: Problem, name: str, with_out: bool, table: Any = None) -> Implementation:
    def bind(data: Data) -> Bound:
        call = _call(problem, data, table)
        x = data.stored
        out = np.empty_like(x)
        if with_out:
            return _bound(problem, x, call, lambda _: call(x, out=out))
        return _bound(problem, x, call, lambda _: call(x))

    return problem.implementation(name, OURS, bind)


def _call(problem: Problem, data: Data, table: Any) -> Callable[..., Any]:
    if problem.function == "rms_norm":
        weight = data.weight.astype(data.stored.dtype)
        return lambda x, out=None: qcore.lut.rms_norm(x, weight, EPSILON, out=out)
    return table if table is not None else getattr(qcore.lut, problem.function)  # type: ignore[no-any-return]


def _bound(problem: Problem, x: Array, call: Callable[..., Any], run: Callable[[int], Any]) -> Bound:
    run(0)
    kernel = qcore.last_kernel(_operator(problem))
    return Bound(run, lambda: np.asarray(run(0)), lambda: _same_as_reference(problem, x, call), kernel)


def _operator(problem: Problem) -> str:
    return problem.function if problem.by_rows else "lut"


def _same_as_reference(problem: Problem, x: Array, call: Callable[..., Any]) -> bool:
    """Return whether sampled rows or elements of a result have the reference kernel's bits."""
    where = np.unique(np.linspace(0, len(x) - 1, 4 if problem.by_rows else _CHECKED).astype(int))
    with qcore.force_kernel(_operator(problem), "reference"):
        expected = np.asarray(call(x[where]))
    return bool(np.array_equal(np.asarray(call(x))[where], expected))
