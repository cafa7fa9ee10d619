"""Every intermediate of every step of a quantized LSTM, as the reference computes them."""

from __future__ import annotations

from typing import Any

from qcore._recurrent import trace as recurrent
from qcore.lstm.core import LstmCore
from qcore.lstm.integers import Cell


def cell_of(lstm: LstmCore, layer: int, direction: int) -> Cell:
    """Return the parameters of one layer in one direction."""
    cell = recurrent.cell_of(lstm, layer, direction)
    assert isinstance(cell, Cell)
    return cell


def trace(lstm: LstmCore, x: Any, h0: Any = None, c0: Any = None) -> list[list[recurrent.Trace]]:
    """Run all steps on the reference and keep everything; arguments and result are those of the recurrent one."""
    return recurrent.trace(lstm, x, [h0, c0])
