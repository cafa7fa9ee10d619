"""One layer of a float GRU in one direction."""

from __future__ import annotations

from typing import Any

from qcore._recurrent.direction import DirectionBase


class Direction(DirectionBase):
    """One layer in one direction, kept in float64; gate order z, r, g along 3H.

    Args:
        w: numbers [3H, C], of the inputs.
        r: numbers [3H, H], of the state.
        bx, br: numbers [3H], or None for zeros.
        where: what errors begin with.

    Raises:
        QcoreValueError, QcoreTypeError: shapes that do not fit, a NaN or an infinity, or no numbers.
    """

    gates = 3

    def __init__(self, w: Any, r: Any, bx: Any, br: Any, where: str = "gru weights") -> None:
        super().__init__(w, r, bx, br, where)
