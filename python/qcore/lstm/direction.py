"""One layer of a float LSTM in one direction."""

from __future__ import annotations

from typing import Any

from qcore import _core
from qcore._recurrent.direction import DirectionBase, finite


class Direction(DirectionBase):
    """Holds one layer in one direction in float64; gate order i, f, g, o along 4H.

    Args:
        w: numbers [4H, C], of the inputs.
        r: numbers [4H, H], of the state; [4H, P] with a projection.
        bx, br: numbers [4H], or None for zeros; only their sum counts.
        where: what errors begin with.
        projection: numbers [P, H], torch's weight_hr: h is their product with o * tanh(c); None for no projection.
        peepholes: numbers [3, H], as ONNX has them: the arguments of i and f get their product with c channel by
            channel, the argument of o that with the next c; None for none.

    Raises:
        QcoreValueError, QcoreTypeError: shapes that do not fit, a NaN or an infinity, or no numbers.
    """

    gates = 4
    biases = ("b",)

    def __init__(
        self,
        w: Any,
        r: Any,
        bx: Any = None,
        br: Any = None,
        where: str = "lstm weights",
        *,
        projection: Any = None,
        peepholes: Any = None,
    ) -> None:
        super().__init__(w, r, bx, br, where, projection)
        self.peepholes = None if peepholes is None else finite(peepholes, f"{where}: peepholes")
        if self.peepholes is not None:
            if self.peepholes.shape != (3, self.hidden_size):
                raise _core.QcoreValueError(
                    f"{where}: peepholes has shape {list(self.peepholes.shape)}, expected {[3, self.hidden_size]} "
                    "of i, f and o"
                )
            self.others = ("peepholes",)
        self.b = self.bx + self.br
