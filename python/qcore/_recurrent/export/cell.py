"""Numbers and source of a cell, as the writer of headers takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.formats import Format
from qcore._recurrent.integers import rounding_shift

Exponents = tuple[tuple[str, ...], str]
"""The exponents of what is multiplied, and that of the result: their difference is a shift."""


def shifted(bound: int, shift: int) -> int:
    """Return a bound of magnitudes after a shift to the right, or to the left if it is negative."""
    return bound << -shift if shift <= 0 else (bound >> shift) + 1


@dataclasses.dataclass(frozen=True)
class Product:
    """Offsets that are added to sums of products, shifts of the sums, and a bound of their magnitudes.

    Args:
        offsets: of each row of weights.
        shifts: likewise.
        bound: of every partial sum.
    """

    offsets: NDArray[Any]
    shifts: NDArray[Any]
    bound: int


@dataclasses.dataclass(frozen=True)
class Direction:
    """Parameters of one direction of one layer.

    Args:
        core: the core's object, which has the tables.
        parts: what it was made of.
        tensors: names of the rows of ``parts["formats"]``.
        half_even: how shifts round ties.
    """

    core: Any
    parts: Mapping[str, Any]
    tensors: tuple[str, ...]
    half_even: bool

    def format(self, name: str) -> Format:
        """Return the format of a tensor."""
        bits, signed, exponent, zero = (int(value) for value in self.parts["formats"][self.tensors.index(name)])
        return Format(bits, bool(signed), exponent, zero)

    def range(self, name: str) -> tuple[int, int]:
        """Return the lowest and the highest code of a tensor, less its zero point."""
        form = self.format(name)
        return form.lowest - form.zero_point, form.highest - form.zero_point

    def magnitude(self, name: str) -> int:
        """Return the largest magnitude of a tensor's codes, less its zero point."""
        return max(abs(bound) for bound in self.range(name))

    def shift(self, exponents: Exponents) -> int:
        """Return the shift from a product's scale to that of a tensor."""
        sources, target = exponents
        return sum(self.format(name).exponent for name in sources) - self.format(target).exponent

    def bias(self, name: str, rows: slice, exponents: Any) -> NDArray[np.int64]:
        """Return rows of a bias at the scale of what it is added to."""
        shift = self.parts[f"{name}_exponents"][rows].astype(np.int64) - exponents
        return rounding_shift(self.parts[name][rows], shift, half_even=self.half_even)

    def product(self, source: str, weights: str, target: str, bias: str | None) -> Product:
        """Return the numbers of a product, to which a bias may be added before its shift."""
        form, w = self.format(source), self.parts[weights].astype(np.int64)
        offsets = -w.sum(1) * form.zero_point
        scale = self.parts[f"{weights}_exponents"].astype(np.int64) + form.exponent
        if bias is not None:
            offsets = offsets + self.bias(bias, slice(None), scale)
        bound = int((np.abs(w).sum(1) * max(-form.lowest, form.highest) + np.abs(offsets)).max())
        return Product(offsets, scale - self.format(target).exponent, bound)


@dataclasses.dataclass(frozen=True)
class Layer:
    """Numbers of one layer.

    Args:
        direction: its parameters.
        wx, rh: the two products.
        biases: what the cell adds, a multiple of H, or nothing.
        shifts: by name, within 8 bits.
        numbers: by name, within 32 bits.
        bound: of the magnitude of every number that the cell computes.
        projection: of m = o * tanh(c), which makes h; None without one.
        peepholes: codes [3, H] within 16 bits that the cell multiplies by c; None without any.
    """

    direction: Direction
    wx: Product
    rh: Product
    biases: NDArray[Any]
    shifts: dict[str, int]
    numbers: dict[str, int]
    bound: int
    projection: Product | None = None
    peepholes: NDArray[Any] | None = None

    @property
    def narrow(self) -> bool:
        """Whether 32 bits hold every number of a step, also before it is shifted."""
        products = [(product.bound, product.shifts) for product in (self.wx, self.rh, self.projection) if product]
        # A bound of 0, of weights that are all 0, says nothing about how far 1 is shifted.
        bounds = [shifted(max(bound, 1), int(shifts.min())) for bound, shifts in products]
        largest = max(self.bound, *bounds, *(bound for bound, _ in products))
        rightmost = max(*self.shifts.values(), *(int(shifts.max()) for _, shifts in products))
        return largest < 1 << 31 and rightmost < 32


@dataclasses.dataclass(frozen=True)
class CellSource:
    """A cell in C.

    Args:
        about: what the header's comment adds to the sizes.
        gates: blocks of H rows of weights.
        tables: arguments by what the tables give, in the core's order.
        states: tensors that go from step to step beside h; their zero points are 0.
        ranges: tensors that are clamped or looked up.
        function: the definition of ``@_cell``.
        call: the expression that computes channel j of a layer.
        layer: makes the numbers of a layer.
        second: what the first half of a step computes for the second, which multiplies it by the last gate's rows of R;
            "" for a step in one part.
    """

    about: str
    gates: int
    tables: Mapping[str, str]
    states: tuple[str, ...]
    ranges: tuple[str, ...]
    function: str
    call: str
    layer: Callable[[Direction], Layer]
    second: str = ""
