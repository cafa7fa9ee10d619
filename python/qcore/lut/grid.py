"""The fp16 numbers that a fit looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qcore import _arrays, _core

Array = np.ndarray[Any, Any]

FLOOR = 2.0**-14
"""Relative errors of smaller numbers are relative to this, the smallest normal fp16."""
_OVERFLOW = 65520.0  # the smallest number that rounds to fp16's infinity


@dataclass(frozen=True)
class Grid:
    """All finite fp16 numbers of a domain whose f(x) is finite in fp16 too, in their order. Zero counts twice."""

    x: Array  # float64 [n]
    f: Array  # float64 [n]
    counts: Array  # float64 [n]: how often x occurs in fp16
    weights: Array  # float64 [n]: ... or among samples

    @classmethod
    def of(cls, function: Callable[[Array], Array], low: float, high: float, samples: Any) -> Grid:
        """Make the grid of [low, high].

        Raises:
            QcoreValueError: f is NaN there; no sample lies there.
        """
        x = _all_halves()
        x = x[(x >= low) & (x <= high)]
        with np.errstate(all="ignore"):
            f = function(x) if len(x) else x
        undefined = np.flatnonzero(np.isnan(f))
        if len(undefined):
            raise _core.QcoreValueError(
                f"lut fit: f({x[undefined[0]]:.9g}) is NaN, expected a domain=(low, high) on which f is defined; it is "
                f"[{low:.9g}, {high:.9g}]"
            )
        kept = np.abs(f) < _OVERFLOW
        x, f = x[kept], f[kept]
        counts = np.where(x == 0, 2.0, 1.0)
        return cls(x, f, counts, counts if samples is None else _histogram(samples, x))

    def errors(self, handle: _core.LutTable) -> Array:
        """Return |table(x) - f(x)|, float64 [n], the table evaluated in float32."""
        x = self.x.astype(np.float32)
        y = np.empty_like(x)
        _core.lut(x, handle, y, 0)
        return np.abs(y.astype(np.float64) - self.f)

    def is_odd(self, objective: Array) -> bool:
        """Return whether f(-x) = -f(x) for all of the numbers, and errors at both count the same."""
        return (
            np.array_equal(self.x, -self.x[::-1])
            and np.array_equal(self.f, -self.f[::-1])
            and np.array_equal(objective, objective[::-1])
        )

    def relative_to(self) -> Array:
        """Return max(|f|, 2^-14), float64 [n]."""
        return np.asarray(np.maximum(np.abs(self.f), FLOOR))

    def objective(self, largest: bool, relative: bool) -> Array:
        """Return what errors are multiplied by before they are added (or the largest is taken), float64 [n]."""
        weights = (self.weights > 0).astype(np.float64) if largest else self.weights / self.weights.sum()
        return np.asarray(weights / self.relative_to() if relative else weights)


def _all_halves() -> Array:
    positive = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    return np.concatenate([-positive[::-1], [0.0], positive])


def _histogram(samples: Any, x: Array) -> Array:
    """Return how many of the samples round to each x."""
    found = np.asarray(_arrays.readable(samples, "lut fit: samples"))
    if found.dtype.kind != "f" and found.dtype.name != "bfloat16":
        raise _core.QcoreTypeError(f"lut fit: samples have dtype {found.dtype}, expected a floating-point one")
    with np.errstate(over="ignore"):
        halves = found.astype(np.float32).ravel().astype(np.float16).astype(np.float64)
    if not np.isfinite(halves).all():
        raise _core.QcoreValueError("lut fit: samples has a NaN, an infinity or a number beyond 65504")
    at = np.searchsorted(x, halves)
    at[at == len(x)] = 0
    inside = at[x[at] == halves] if len(x) else at[:0]
    if not len(inside):
        given = f"numbers from {halves.min():g} to {halves.max():g}" if len(halves) else "no numbers"
        domain = f", {x[0]:g} to {x[-1]:g}" if len(x) else ""
        raise _core.QcoreValueError(f"lut fit: samples has {given}, expected some in the domain{domain}")
    return np.bincount(inside, minlength=len(x)).astype(np.float64)
