"""One layer of a float GRU in one direction."""

from __future__ import annotations

from typing import Any

from qcore import _core
from qcore._recurrent.direction import DirectionBase


class Direction(DirectionBase):
    """Holds one layer in one direction in float64; gate order z, r, g along 3H.

    Args:
        w: numbers [3H, C], of the inputs.
        r: numbers [3H, H], of the state.
        bx, br: numbers [3H], or None for zeros.
        where: what errors begin with.
        linear_before_reset: ONNX's option. 1: the reset gate multiplies the product of h and R, as in torch's cell; 0:
            it multiplies h before that.

    Raises:
        QcoreValueError, QcoreTypeError: shapes that do not fit, a NaN or an infinity, or no numbers; or
            linear_before_reset is neither 0 nor 1.
    """

    gates = 3

    def __init__(
        self, w: Any, r: Any, bx: Any, br: Any, where: str = "gru weights", *, linear_before_reset: int = 1
    ) -> None:
        super().__init__(w, r, bx, br, where)
        if linear_before_reset not in (0, 1):
            raise _core.QcoreValueError(f"{where}: linear_before_reset is {linear_before_reset!r}, expected 0 or 1")
        self.linear_before_reset = int(linear_before_reset)
