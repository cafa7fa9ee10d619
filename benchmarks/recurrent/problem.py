"""One recurrent layer, the sequences it runs on, and their true results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

import qcore

from ..implementation import Array, relative_error

# A wrong gate order or a state that is lost is an error of tens of per cent; int8 is below a tenth of this.
_LARGEST_ERROR = 0.2
_CHECKED_ROWS = 4
_STREAMED_STEPS = 50


Cell = Literal["gru", "lstm"]
_GATES: dict[Cell, int] = {"gru": 3, "lstm": 4}


@dataclass(frozen=True)
class Layer:
    """Weights as torch initializes them; gate order z, r, g of a GRU, i, f, g, o of an LSTM."""

    inputs: int  # C
    hidden: int  # H
    cell: Cell = "gru"

    @property
    def name(self) -> str:
        return f"C={self.inputs} H={self.hidden}"

    @property
    def weights(self) -> int:
        return self.rows * (self.inputs + self.hidden)

    @property
    def rows(self) -> int:
        """Rows of W and R: gates times H."""
        return _GATES[self.cell] * self.hidden

    @cached_property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """W [rows, C], R [rows, H], bx [rows], br [rows], fp32."""
        rng, rows, bound = np.random.default_rng(0), self.rows, self.hidden**-0.5
        shapes = ((rows, self.inputs), (rows, self.hidden), (rows,), (rows,))
        w, r, bx, br = (rng.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes)
        return w, r, bx, br

    @cached_property
    def torch_arrays(self) -> tuple[Array, ...]:
        """The same in torch's gate order: r, z, n of a GRU."""
        if self.cell == "lstm":
            return self.arrays
        size = self.hidden
        return tuple(np.concatenate([a[size : 2 * size], a[:size], a[2 * size :]]) for a in self.arrays)

    def sequences(self, steps: int, batch: int, seed: int) -> Array:
        """Return x as [T, B, C]."""
        return np.random.default_rng(seed).uniform(-0.7, 0.8, (steps, batch, self.inputs)).astype(np.float32)


@dataclass
class Sequences:
    """Input of a case: x [T, B, C], as a whole or step by step."""

    layer: Layer
    steps: int
    batch: int
    streamed: bool = False
    x: Array = field(init=False)

    def __post_init__(self) -> None:
        self.x = self.layer.sequences(_STREAMED_STEPS if self.streamed else self.steps, self.batch, seed=2)

    @property
    def operations(self) -> int:
        return 2 * self.steps * self.batch * self.layer.weights

    @cached_property
    def truth(self) -> tuple[Array, Array]:
        """(rows of the batch, their true y [T, rows, H] in float64)."""
        from qcore import gru, lstm

        rows = np.unique(np.linspace(0, self.batch - 1, _CHECKED_ROWS).astype(int))
        x = self.x[:, rows].astype(np.float64)
        if self.layer.cell == "lstm":
            (long_short,) = lstm.LstmWeights.from_arrays(*self.layer.arrays).layers[0]
            return rows, lstm.float_cell.run(long_short, x)[0]
        (direction,) = gru.GruWeights.from_arrays(*self.layer.arrays).layers[0]
        return rows, gru.float_cell.run(direction, x)[0]

    def error(self, result: Array) -> float:
        """Return the relative L2 error of y [T, B, H]; implementations with a wrong result are not timed."""
        rows, truth = self.truth
        if result.shape != (*self.x.shape[:2], self.layer.hidden):
            raise qcore.QcoreValueError(f"bench: a result has shape {list(result.shape)}, expected [T, B, H]")
        found = relative_error(result[:, rows], truth)
        if not found <= _LARGEST_ERROR:
            raise qcore.QcoreValueError(
                f"bench: a result is {found:.1%} from the true one, expected a recurrent layer's"
            )
        return found
