"""Recurrent cells in NumPy integers, apart from the kernels: they check those, and count clipping.

Nothing here is fast; every tensor is computed from the tensors it is defined by, all rows and channels at once.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.formats import Format

Integers = NDArray[np.int64]
Codes = Mapping[str, NDArray[Any]]
Given = Callable[[str, Integers], Any]

WIDE = ("wx", "rh")
"""Tensors with a channel for each row of weights."""


def rounding_shift(values: Any, bits: Any, *, half_even: bool) -> Integers:
    """Return values * 2**-bits, rounded half away from zero or half to even; to the left if bits is negative."""
    v, n = np.broadcast_arrays(np.asarray(values, np.int64), np.asarray(bits, np.int64))
    right = np.maximum(n, 0)
    magnitude = np.abs(v)
    whole = magnitude >> right
    rest = magnitude - (whole << right)
    half = np.where(n > 0, np.int64(1) << np.maximum(right - 1, 0), 1)
    up = (rest > half) | ((rest == half) & ((whole & 1 == 1) if half_even else True))
    rounded = np.sign(v) * (whole + up)
    shifted: Integers = np.where(n > 0, rounded, v << np.maximum(-n, 0))
    return shifted


@dataclasses.dataclass(frozen=True)
class CellBase(ABC):
    """Parameters of one direction, and what the operator's files, reports and checks need to know of its tensors.

    Args:
        parts: formats, weights and biases by name, and their exponents per row, as calibration makes them.
        tables: codes of each function in the order of ``functions``, for each code of its argument, lowest first.
        half_even: how shifts round ties.
    """

    op: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    """Names of the rows of formats."""
    unsigned: ClassVar[tuple[str, ...]]
    zero_free: ClassVar[tuple[str, ...]]
    """Tensors that may have a zero point."""
    gates: ClassVar[int]
    """Blocks of H rows of weights."""
    biases: ClassVar[tuple[str, ...]]
    states: ClassVar[tuple[str, ...]]
    """Tensors that go from step to step; the first is the output."""
    functions: ClassVar[Mapping[str, tuple[str, str]]]
    """Argument and function ("sigmoid" or "tanh") of each tensor that comes from a table."""
    traced: ClassVar[tuple[str, ...]]
    """Tensors of the core's trace in its order."""
    options: ClassVar[tuple[str, ...]]
    """Fields that a golden file has beside ``parts`` and ``tables``, each 0 or 1."""
    matrices: ClassVar[tuple[str, ...]] = ("w", "r")
    """Names of the weights."""
    others: ClassVar[tuple[str, ...]] = ()
    """Names of parameters of 16 bits, whatever the widths of weights and biases."""

    parts: Mapping[str, Any]
    tables: tuple[NDArray[Any], ...]
    half_even: bool

    @classmethod
    @abstractmethod
    def of_config(cls, parts: Mapping[str, Any], tables: tuple[NDArray[Any], ...], config: Any) -> Self:
        """Make the cell that a config describes."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[str, ...]:
        """Tensors that a step computes, in this order."""

    @abstractmethod
    def step(self, x: Any, states: Sequence[Any], given: Given | None = None) -> dict[str, Integers]:
        """Return codes of all tensors of one step, from codes x [B, C] and of the states, [B, H] each.

        ``given(name, unclamped)`` is told each tensor before it is clamped; codes it returns take its place.
        """

    @classmethod
    def variant(cls, names: Collection[str]) -> type[CellBase]:
        """Return the class of the cells that have parameters and tensors of these names."""
        return cls

    @classmethod
    def shapes(cls, inputs: int, rows: int, outputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters; each has an exponent per row.

        Args:
            inputs: C.
            rows: of w.
            outputs: columns of r.
        """
        return {"w": (rows, inputs), "r": (rows, outputs)} | {name: (rows,) for name in cls.biases}

    def width(self, name: str) -> int:
        """Return the channels of a tensor."""
        rows, outputs = self.parts["r"].shape
        return int(rows if name in WIDE else outputs if name == self.states[0] else rows // self.gates)

    def format(self, name: str) -> Format:
        """Return the format of a tensor."""
        bits, signed, exponent, zero = (int(value) for value in self.parts["formats"][self.formats.index(name)])
        return Format(bits, bool(signed), exponent, zero)

    @classmethod
    def allows(cls, name: str, exponent: int) -> bool:
        """Return whether a tensor of a golden file may have an exponent, which is within those of all formats."""
        return True

    def float_name(self, name: str) -> str:
        """Return the name under which the float cell shows what a tensor stands for."""
        return name

    def float_steps(self, name: str, seen: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        """Return what the float cell has shown of a tensor at each step."""
        return seen[self.float_name(name)]


class Step:
    """Computes the tensors of one step and keeps their codes.

    Args:
        cell: its parameters.
        given: called with each tensor before it is clamped.
    """

    def __init__(self, cell: CellBase, given: Given | None) -> None:
        self.cell, self.given = cell, given
        self.codes: dict[str, Integers] = {}

    def less_zero(self, name: str, values: Any) -> Integers:
        """Return codes less the zero point of a tensor."""
        return np.asarray(values, np.int64) - self.cell.format(name).zero_point

    def shift(self, values: Any, bits: Any) -> Integers:
        """Return values * 2**-bits, rounded as the cell rounds."""
        return rounding_shift(values, bits, half_even=self.cell.half_even)

    def settle(self, name: str, values: Integers) -> Integers:
        """Keep codes of `values`, which count from the zero point; return them less that zero point again."""
        form = self.cell.format(name)
        values = values + form.zero_point
        replaced = None if self.given is None else self.given(name, values)
        self.codes[name] = np.clip(values, form.lowest, form.highest) if replaced is None else np.asarray(replaced)
        return self.less_zero(name, self.codes[name])

    def product(
        self, source: str, weights: str, bias: str | None, values: Any, to: str, rows: slice = slice(None)
    ) -> Integers:
        """Return the tensor `to`: rows of weights times codes of `source`, with a bias added before its shift."""
        p = self.cell.parts
        total = self.less_zero(source, values) @ p[weights][rows].astype(np.int64).T
        scale = p[f"{weights}_exponents"][rows].astype(np.int64) + self.cell.format(source).exponent
        if bias is not None:
            total = total + self.shift(p[bias][rows], p[f"{bias}_exponents"][rows].astype(np.int64) - scale)
        return self.settle(to, self.shift(total, scale - self.cell.format(to).exponent))

    def look_up(self, name: str) -> Integers:
        """Return the tensor that a table gives for the codes of its argument."""
        argument, _ = self.cell.functions[name]
        entries = np.asarray(self.cell.tables[list(self.cell.functions).index(name)], np.int64)
        results = entries[self.codes[argument] - self.cell.format(argument).lowest]
        return self.settle(name, results - self.cell.format(name).zero_point)


def replay(
    cell: CellBase, x: NDArray[Any], states: Sequence[NDArray[Any]], trace: Codes, *, reverse: bool = False
) -> Iterator[tuple[int, str, Integers, NDArray[Any]]]:
    """Yield each tensor of each step from the trace's own tensors before it: (t, name, unclamped, the trace's codes).

    Args:
        cell: parameters.
        x: codes [T, B, C].
        states: codes [B, H] of each state.
        trace: codes [T, B, ...] of ``cell.tensors``.
        reverse: from the last step to the first.
    """
    for t in range(len(x) - 1, -1, -1) if reverse else range(len(x)):
        seen: list[tuple[str, Integers]] = []

        def given(name: str, unclamped: Integers, t: int = t, seen: list[tuple[str, Integers]] = seen) -> Any:
            seen.append((name, unclamped))
            return trace[name][t]

        cell.step(x[t], states, given)
        for name, unclamped in seen:
            yield t, name, unclamped, trace[name][t]
        states = [trace[name][t] for name in cell.states]
