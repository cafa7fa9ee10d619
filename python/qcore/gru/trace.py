"""Every intermediate of every step of a quantized GRU, as the reference computes them."""

from __future__ import annotations

from typing import Any

from qcore._recurrent import trace as recurrent
from qcore.gru.core import GruCore
from qcore.gru.integers import Cell


def cell_of(gru: GruCore, layer: int, direction: int) -> Cell:
    """Return the parameters of one layer in one direction."""
    cell = recurrent.cell_of(gru, layer, direction)
    assert isinstance(cell, Cell)
    return cell


def trace(gru: GruCore, x: Any, h0: Any = None) -> list[list[recurrent.Trace]]:
    """Run all steps on the reference and keep everything; arguments and result are those of the recurrent one."""
    return recurrent.trace(gru, x, [h0])
