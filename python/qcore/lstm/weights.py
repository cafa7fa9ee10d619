"""Float weights of an LSTM: layers of one or two directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qcore import _core
from qcore._recurrent.direction import Doubles
from qcore._recurrent.weights import Watch, WeightsBase, directions_of, tensors_of
from qcore.lstm import float_cell
from qcore.lstm.direction import Direction
from qcore.lstm.formats import PROJECTED, STATES, TENSORS
from qcore.lstm.onnx_weights import layer_of_node


def _direction(given: list[Any], where: str) -> Direction:
    w, r, bx, br, projection = given
    return Direction(w, r, bx, br, where, projection=projection)


class LstmWeights(WeightsBase):
    """Holds the float weights of all layers.

    Args:
        layers: for each layer its directions, one or (forward, backward), as :class:`Direction`. A layer's inputs are
            the outputs of all directions of the layer before it.
        batch_first: whether inputs and outputs are [B, T, ...] instead of [T, B, ...].
        reverse: whether a single direction runs from the last step to the first.

    Raises:
        QcoreValueError: layers whose sizes don't fit together, or with more than two directions; or reverse of two.
    """

    op = "lstm"
    _states = STATES

    def __init__(
        self, layers: Sequence[Sequence[Direction]], *, batch_first: bool = False, reverse: bool = False
    ) -> None:
        super().__init__(layers, batch_first, reverse)
        kinds = {direction.peepholes is None for layer in self.layers for direction in layer}
        if len(kinds) > 1:
            raise _core.QcoreValueError("lstm weights: some layers have peepholes, expected all or none of them")

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that get a format."""
        return TENSORS if self.layers[0][0].projection is None else PROJECTED

    @staticmethod
    def _run_float(
        direction: Direction, x: Doubles, states: Sequence[Doubles | None], *, reverse: bool, watch: Watch | None = None
    ) -> Doubles:
        return float_cell.run(direction, x, *states, reverse=reverse, watch=watch)[0]

    @classmethod
    def from_arrays(
        cls,
        w: Any,
        r: Any,
        bx: Any = None,
        br: Any = None,
        *,
        projection: Any = None,
        peepholes: Any = None,
        batch_first: bool = False,
    ) -> LstmWeights:
        """Make one layer in one direction, gate order i, f, g, o.

        Args:
            w: numbers [4H, C], of the inputs.
            r: numbers [4H, H], of the state; [4H, P] with a projection.
            bx, br: numbers [4H], or None for zeros.
            projection: numbers [P, H], or None.
            peepholes: numbers [3, H] of i, f and o, or None.
            batch_first: whether inputs and outputs are [B, T, ...].

        Raises:
            QcoreValueError, QcoreTypeError: as :class:`Direction`.
        """
        return cls([[Direction(w, r, bx, br, projection=projection, peepholes=peepholes)]], batch_first=batch_first)

    @classmethod
    def from_torch(cls, lstm: Any) -> LstmWeights:
        """Make the weights of a ``torch.nn.LSTM`` (or ``LSTMCell``).

        Layers, directions, a projection (``proj_size``) and ``batch_first`` are included. torch's gate order is ours:
        i, f, g, o.

        Args:
            lstm: the module, on any device.

        Raises:
            QcoreTypeError: it is none.
        """
        tensors = tensors_of(lstm, "lstm", "LSTM", 4)
        return cls.from_state_dict(tensors, batch_first=bool(getattr(lstm, "batch_first", False)))

    @classmethod
    def from_state_dict(cls, tensors: Mapping[str, Any], *, batch_first: bool = False) -> LstmWeights:
        """Make the weights from arrays named and ordered as in a ``torch.nn.LSTM``'s (or ``LSTMCell``'s) state_dict.

        Layers and directions follow from the names; biases may be missing.

        Args:
            tensors: arrays by name: weight_ih_l0 [4H, C], weight_hh_l0 [4H, H] and so on, of a projection
                weight_hr_l0 [P, H], too.
            batch_first: whether inputs and outputs are [B, T, ...].

        Raises:
            QcoreValueError, QcoreTypeError: naming what is missing, unknown or has another shape.
        """
        layers = directions_of(tensors, "lstm", "LSTM", _direction, ("bias_ih", "bias_hh", "weight_hr"))
        return cls(layers, batch_first=batch_first)

    @classmethod
    def from_onnx(cls, model: Any, node: str | None = None) -> LstmWeights:
        """Make the weights of an LSTM node: one layer in one or two directions.

        ONNX's gate order is i, o, f, c: the blocks of rows change places. ``layout`` and ``direction`` become
        ``batch_first`` and ``reverse``, the input P, whose order is i, o, f, peepholes. The node's inputs
        sequence_lens, initial_h and initial_c are no weights: they are ``lengths``, ``h0`` and ``c0`` of each call.

        Args:
            model: a path, or a loaded ModelProto.
            node: the node's name; may be left out if the model has one LSTM.

        Raises:
            QcoreValueError: the node computes something else (input_forget, other activations, a clip), or
                its weights are not constants.
        """
        layer, batch_first, reverse = layer_of_node(model, node)
        return cls([layer], batch_first=batch_first, reverse=reverse)
