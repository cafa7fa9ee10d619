"""Sizes and formats of quantized recurrent layers."""

from __future__ import annotations

from typing import Any, ClassVar

from qcore import _core
from qcore._recurrent.calls import format_of
from qcore._recurrent.formats import Format


class RecurrentLayers:
    """Layers of one or two directions, each with the core's object and the parameters that it was made of."""

    op: ClassVar[str]
    """What errors begin with."""
    tensors: ClassVar[tuple[str, ...]]
    """Names of the tensors that have a format."""

    batch_first: bool
    """Whether inputs and outputs are [B, T, ...]."""
    reverse: bool
    """Whether a single direction runs from the last step to the first."""

    _layers: list[Any]

    @property
    def input_size(self) -> int:
        """Number of input features (C)."""
        return int(self._layers[0][0][1]["sizes"][0])

    @property
    def hidden_size(self) -> int:
        """Size of a state (H)."""
        return int(self._layers[0][0][1]["sizes"][1])

    @property
    def num_layers(self) -> int:
        """Layers, each of 1 or 2 directions."""
        return len(self._layers)

    @property
    def directions(self) -> int:
        """1, or 2 if it is bidirectional."""
        return len(self._layers[0])

    def _check_streaming(self) -> None:
        """Raise an error if a step cannot be computed without the whole sequence."""
        if self.directions == 2 or self.reverse:
            kind = "bidirectional" if self.directions == 2 else "reversed"
            raise _core.QcoreValueError(
                f"{self.op}: step() on a {kind} {self.op.upper()}, which needs the whole sequence: call it"
            )

    def format(self, name: str, layer: int = 0, direction: int = 0) -> Format:
        """Return the format of a tensor.

        Args:
            name: of ``TENSORS`` of :mod:`qcore.gru` or :mod:`qcore.lstm`.
            layer: 0 is the first.
            direction: 0 is forward, 1 backward.

        Raises:
            QcoreValueError: there is no such tensor, layer or direction.
        """
        return format_of(self.op, self.tensors, self._layers, name, layer, direction)
