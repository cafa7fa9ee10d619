"""Sizes and formats of quantized recurrent layers."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from qcore import _core
from qcore._recurrent.calls import format_of
from qcore._recurrent.formats import Format, TableKind
from qcore._recurrent.integers import CellBase
from qcore._recurrent.weights import WeightsBase


class RecurrentLayers(ABC):
    """Layers of one or two directions, each with the core's object and the parameters that it was made of."""

    op: ClassVar[str]
    """What errors begin with."""
    tensors: tuple[str, ...]
    """Names of the tensors that have a format."""

    cell_type: type[CellBase]
    """The cell in NumPy integers, which also describes its tensors."""
    weights_type: ClassVar[type[WeightsBase]]
    """The class of the float weights."""

    config: Any
    batch_first: bool
    """Whether inputs and outputs are [B, T, ...]."""
    reverse: bool
    """Whether a single direction runs from the last step to the first."""
    float_weights: WeightsBase | None = None
    """Float weights that it was made of, for reports; not in files."""
    _layers: list[Any]

    def __init__(self, layers: list[Any], config: Any, *, batch_first: bool = False, reverse: bool = False) -> None:
        self._layers, self.config, self.batch_first, self.reverse = layers, config, batch_first, reverse

    @abstractmethod
    def __call__(self, x: Any) -> tuple[Any, ...]:
        """Run all steps."""

    @staticmethod
    @abstractmethod
    def _make(parts: dict[str, Any], config: Any) -> Any:
        """Make the core's object of one layer in one direction."""

    def with_tables(self, tables: TableKind) -> Self:
        """Return these layers with tables of another kind, and all other integers as they are.

        Exported C has interpolated tables unless asked otherwise: ``with_tables("interp")`` computes its numbers here.

        Args:
            tables: "exact" or "interp", as of the config.

        Raises:
            QcoreValueError: another word.
        """
        config = dataclasses.replace(self.config, tables=tables)
        layers = [[(self._make(parts, config), parts) for _, parts in layer] for layer in self._layers]
        return type(self)(layers, config, batch_first=self.batch_first, reverse=self.reverse)

    @property
    def input_size(self) -> int:
        """Number of input features (C)."""
        return int(self._layers[0][0][1]["sizes"][0])

    @property
    def hidden_size(self) -> int:
        """Size of a state (H)."""
        return int(self._layers[0][0][1]["sizes"][1])

    @property
    def output_size(self) -> int:
        """Size of h and of each direction's outputs: the projection's if there is one, else H."""
        return int(self._layers[0][0][1]["r"].shape[1])

    def _state_size(self, name: str) -> int:
        return self.output_size if name == self.cell_type.states[0] else self.hidden_size

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

    def _check_traceable(self) -> None:
        """Raise an error if golden files, reports and the C export cannot describe these layers."""
        if self.reverse:
            raise _core.QcoreValueError(
                f"{self.op} trace: the {self.op.upper()} runs from the last step to the first, expected one that "
                "begins at the first: golden files, reports and the C export have no other order of one direction"
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
