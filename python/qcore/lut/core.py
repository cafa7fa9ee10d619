"""A look-up table and its evaluation."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from qcore import _arrays, _checks, _core

REDUCTIONS = {
    name: getattr(_core.LutReduction, name)
    for name in ("none", "exp", "log", "reciprocal", "sqrt", "rsqrt", "periodic")
}
"""Range reductions around a table, by name: see docs/luts.md."""


class TableCore:
    """A piecewise-linear function on cut points, without what saves, exports and draws it: :class:`Table` adds that."""

    __slots__ = ("_handle", "name", "report")

    def __init__(self, handle: _core.LutTable, name: str = "custom", report: Any = None) -> None:
        self._handle = handle
        self.name = name
        self.report = report

    @classmethod
    def from_parts(cls, cuts: Any, values: Any, *, range_reduction: str = "none", name: str = "custom") -> Self:
        """Make a table of given numbers.

        Args:
            cuts: float32 [n + 1], increasing; n >= 2 intervals, at most 256.
            values: float16 or float32 [3 + s * (n - 2)]: the function at the ends of the segments, 1 in the first and
                the last interval and s in each other one.
            range_reduction: "none", "exp", "log", "reciprocal", "sqrt", "rsqrt" or "periodic": what the table is of
                then, docs/luts.md says.
            name: for repr and plots.

        Raises:
            QcoreValueError, QcoreTypeError: numbers that are not finite, not increasing, beyond +-65504 or of another
                count or dtype.
        """
        reduction = _checks.choice(range_reduction, REDUCTIONS, "lut table: range_reduction")
        cut_points = _arrays.readable(cuts, "lut table: cuts")
        entries = _arrays.readable(values, "lut table: values")
        handle = _core.LutTable.from_parts(cut_points, entries, reduction)
        return cls(handle, _checks.text(name, "lut table: name"))

    def __call__(self, x: Any, out: Any = None, *, stream: Any = None) -> Any:
        """Compute ``table(x)``, element by element.

        Args:
            x: float32, float16 or bfloat16, any shape and strides, CPU or CUDA.
            out: where to write: x's shape and device, float32, float16 or bfloat16; x itself, or without memory in
                common with it. By default a new array of x's dtype.
            stream: CUDA stream; the caller's library's current one by default.

        Returns:
            ``out``, or an array of x's library. Results lie within +-65504; NaN gives NaN.

        Raises:
            QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
            CudaError: a CUDA call failed.
        """
        return evaluate(self._handle, x, out, stream)

    @property
    def cuts(self) -> np.ndarray[Any, Any]:
        """float32 [n + 1]."""
        out = np.empty(self._handle.intervals + 1, np.float32)
        self._handle.cuts(out)
        return out

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """float16 or float32 [3 + s * (n - 2)], as stored."""
        out = np.empty(self._handle.entries, np.float32)
        self._handle.values(out)
        return out.astype(self._handle.value_dtype, copy=False)

    @property
    def segments(self) -> int:
        """s, of every interval but the first and the last."""
        return self._handle.segments

    @property
    def range_reduction(self) -> str:
        """Identity that reduces the argument: "none", "exp", "log", "reciprocal", "sqrt", "rsqrt" or "periodic"."""
        return self._handle.reduction.name

    @property
    def table_dtype(self) -> str:
        """The dtype of the values: "float16" or "float32"."""
        return self._handle.value_dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableCore) and self._handle.equal(other._handle)

    def __hash__(self) -> int:
        return hash((self.cuts.tobytes(), self.values.tobytes(), self.range_reduction))

    def __repr__(self) -> str:
        cuts = self.cuts
        reduced = "" if self.range_reduction == "none" else f", range_reduction={self.range_reduction!r}"
        return (
            f"Table({self.name!r}, [{cuts[0]:.9g}, {cuts[-1]:.9g}], {self._handle.entries} {self.table_dtype} values "
            f"in {self._handle.intervals} intervals{reduced})"
        )


def evaluate(handle: _core.LutTable, x: Any, out: Any, stream: Any) -> Any:
    """Look up every element of x; ``out`` and ``stream`` as for :meth:`TableCore.__call__`."""
    x_backend = _arrays.backend_of(x, "lut: x")
    source = x_backend.readable(x, "lut: x")
    address = x_backend.stream(x) if stream is None else _arrays.stream_address(stream, x_backend, x, "lut: stream")
    if out is not None:
        _core.lut(source, handle, _arrays.backend_of(out, "lut: out").writable(out, "lut: out"), address)
        return out
    out, target = x_backend.new_like(x, "lut: out")
    _core.lut(source, handle, target, address)
    return x_backend.result(out, x)
