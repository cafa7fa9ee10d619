"""Float weights of a GRU: layers of one or two directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qcore import _core
from qcore._recurrent.direction import Doubles, finite
from qcore._recurrent.weights import Watch, WeightsBase, directions_of, tensors_of
from qcore.gru import float_cell
from qcore.gru.direction import Direction
from qcore.gru.formats import STATES
from qcore.gru.onnx_weights import layer_of_node


def _swap_gates(array: Any, where: str) -> Doubles:
    """Return rows in torch's order r, z, n as z, r, g."""
    rows = finite(array, where)
    if rows.ndim == 0 or len(rows) % 3:
        raise _core.QcoreValueError(f"{where} has shape {list(rows.shape)}, expected 3H rows")
    r, z, n = np.split(rows, 3)
    return np.concatenate([z, r, n])


class GruWeights(WeightsBase):
    """Holds the float weights of all layers.

    Args:
        layers: for each layer its directions, one or (forward, backward), as :class:`Direction`. A layer's inputs are
            the outputs of all directions of the layer before it.
        batch_first: whether inputs and outputs are [B, T, ...] instead of [T, B, ...].
        reverse: whether a single direction runs from the last step to the first.

    Raises:
        QcoreValueError: layers whose sizes don't fit together, or with more than two directions; or reverse of two.
    """

    op = "gru"
    _states = STATES

    def __init__(
        self, layers: Sequence[Sequence[Direction]], *, batch_first: bool = False, reverse: bool = False
    ) -> None:
        super().__init__(layers, batch_first, reverse)

    @staticmethod
    def _run_float(
        direction: Direction, x: Doubles, states: Sequence[Doubles | None], *, reverse: bool, watch: Watch | None = None
    ) -> Doubles:
        return float_cell.run(direction, x, states[0], reverse=reverse, watch=watch)[0]

    @classmethod
    def from_arrays(
        cls,
        w: Any,
        r: Any,
        bx: Any = None,
        br: Any = None,
        *,
        batch_first: bool = False,
        linear_before_reset: int = 1,
    ) -> GruWeights:
        """Make one layer in one direction, gate order z, r, g.

        Args:
            w: numbers [3H, C], of the inputs.
            r: numbers [3H, H], of the state.
            bx, br: numbers [3H], or None for zeros.
            batch_first: whether inputs and outputs are [B, T, ...].
            linear_before_reset: 1 for torch's cell, 0 for the other one of ONNX, as for :class:`Direction`.

        Raises:
            QcoreValueError, QcoreTypeError: as :class:`Direction`.
        """
        direction = Direction(w, r, bx, br, linear_before_reset=linear_before_reset)
        return cls([[direction]], batch_first=batch_first)

    @classmethod
    def from_torch(cls, gru: Any) -> GruWeights:
        """Make the weights of a ``torch.nn.GRU`` (or ``GRUCell``), layers, directions and ``batch_first`` included.

        torch keeps gates in the order r, z, n: the first two blocks of rows change places.

        Args:
            gru: the module, on any device.

        Raises:
            QcoreTypeError: it is none.
        """
        tensors = tensors_of(gru, "gru", "GRU", 3)
        return cls.from_state_dict(tensors, batch_first=bool(getattr(gru, "batch_first", False)))

    @classmethod
    def from_state_dict(cls, tensors: Mapping[str, Any], *, batch_first: bool = False) -> GruWeights:
        """Make the weights from arrays named and ordered as in a ``torch.nn.GRU``'s (or ``GRUCell``'s) state_dict.

        Layers and directions follow from the names; biases may be missing.

        Args:
            tensors: arrays by name: weight_ih_l0 [3H, C], weight_hh_l0 [3H, H] and so on.
            batch_first: whether inputs and outputs are [B, T, ...].

        Raises:
            QcoreValueError, QcoreTypeError: naming what is missing, unknown or has another shape.
        """

        def direction(given: list[Any], where: str) -> Direction:
            suffix = where.removeprefix("gru weights: weight_ih")
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w, r, bx, br = (
                None if array is None else _swap_gates(array, f"gru weights: {name}{suffix}")
                for name, array in zip(names, given, strict=True)
            )
            return Direction(w, r, bx, br, where)

        return cls(directions_of(tensors, "gru", "GRU", direction), batch_first=batch_first)

    @classmethod
    def from_onnx(cls, model: Any, node: str | None = None) -> GruWeights:
        """Make the weights of a GRU node: one layer in one or two directions, linear_before_reset 0 or 1.

        ``layout`` and ``direction`` become ``batch_first`` and ``reverse``. The node's inputs sequence_lens and
        initial_h are no weights: they are ``lengths`` and ``h0`` of each call.

        Args:
            model: a path, or a loaded ModelProto.
            node: the node's name; may be left out if the model has one GRU.

        Raises:
            QcoreValueError: the node computes something else (other activations, a clip), or its weights are not
                constants.
        """
        layer, batch_first, reverse = layer_of_node(model, node)
        return cls([layer], batch_first=batch_first, reverse=reverse)
