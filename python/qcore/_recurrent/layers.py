"""Sizes and formats of quantized recurrent layers."""

from __future__ import annotations

from typing import Any, ClassVar

from qcore._recurrent.calls import format_of
from qcore._recurrent.formats import Format
from qcore._recurrent.integers import CellBase
from qcore._recurrent.weights import WeightsBase


class RecurrentLayers:
    """Layers of one or two directions, each with the core's object and the parameters that it was made of."""

    op: ClassVar[str]
    """What errors begin with."""
    tensors: ClassVar[tuple[str, ...]]
    """Names of the tensors that have a format."""

    cell_type: ClassVar[type[CellBase]]
    """The cell in NumPy integers, which also describes its tensors."""
    weights_type: ClassVar[type[WeightsBase]]
    """The class of the float weights."""

    config: Any
    batch_first: bool
    float_weights: WeightsBase | None = None
    """Float weights that it was made of, for reports; not in files."""
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
