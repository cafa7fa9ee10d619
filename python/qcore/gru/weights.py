"""Float weights of a GRU: layers of one or two directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qcore import _core
from qcore.gru.direction import Direction, Doubles, finite
from qcore.gru.onnx_weights import layer_of_node


def _swap_gates(array: Any, where: str) -> Doubles:
    """Return rows in torch's order r, z, n as z, r, g."""
    rows = finite(array, where)
    if rows.ndim == 0 or len(rows) % 3:
        raise _core.QcoreValueError(f"{where} has shape {list(rows.shape)}, expected 3H rows")
    r, z, n = np.split(rows, 3)
    return np.concatenate([z, r, n])


class GruWeights:
    """Float weights of all layers.

    Args:
        layers: for each layer its directions, one or (forward, backward), as :class:`Direction`. A layer's inputs are
            the outputs of all directions of the layer before it.
        batch_first: whether inputs and outputs are [B, T, ...] instead of [T, B, ...].

    Raises:
        QcoreValueError: layers whose sizes don't fit together, or with more than two directions.
    """

    def __init__(self, layers: Sequence[Sequence[Direction]], *, batch_first: bool = False) -> None:
        if not layers or any(len(layer) not in (1, 2) for layer in layers):
            raise _core.QcoreValueError("gru weights: layers have no direction or more than two, expected 1 or 2 each")
        expected = layers[0][0].input_size
        for index, layer in enumerate(layers):
            for direction in layer:
                if direction.input_size != expected or direction.hidden_size != layers[0][0].hidden_size:
                    raise _core.QcoreValueError(
                        f"gru weights: layer {index} has C = {direction.input_size} and H = {direction.hidden_size}, "
                        f"expected C = {expected} and H = {layers[0][0].hidden_size}"
                    )
            expected = sum(direction.hidden_size for direction in layer)
        self.layers = [list(layer) for layer in layers]
        self.batch_first = batch_first

    @property
    def input_size(self) -> int:
        """Number of input features (C)."""
        return int(self.layers[0][0].input_size)

    @property
    def hidden_size(self) -> int:
        """Size of the state (H)."""
        return int(self.layers[0][0].hidden_size)

    @property
    def directions(self) -> int:
        """1, or 2 if it is bidirectional."""
        return len(self.layers[0])

    @classmethod
    def from_arrays(cls, w: Any, r: Any, bx: Any = None, br: Any = None, *, batch_first: bool = False) -> GruWeights:
        """Make one layer in one direction, gate order z, r, g.

        Args:
            w: numbers [3H, C], of the inputs.
            r: numbers [3H, H], of the state.
            bx, br: numbers [3H], or None for zeros.
            batch_first: whether inputs and outputs are [B, T, ...].

        Raises:
            QcoreValueError, QcoreTypeError: as :class:`Direction`.
        """
        return cls([[Direction(w, r, bx, br)]], batch_first=batch_first)

    @classmethod
    def from_torch(cls, gru: Any) -> GruWeights:
        """Make the weights of a ``torch.nn.GRU`` (or ``GRUCell``), layers, directions and ``batch_first`` included.

        torch keeps gates in the order r, z, n: the first two blocks of rows change places.

        Args:
            gru: the module, on any device.

        Raises:
            QcoreTypeError: it is none.
        """
        state = getattr(gru, "state_dict", None)
        if state is None or not hasattr(gru, "hidden_size"):
            raise _core.QcoreTypeError(
                f"gru weights: gru is a {type(gru).__name__}, expected a torch.nn.GRU or GRUCell"
            )
        tensors = {name: value.detach().cpu().double().numpy() for name, value in state().items()}
        first = tensors.get("weight_ih", tensors.get("weight_ih_l0"))
        if first is None:
            raise _core.QcoreTypeError("gru weights: gru has no weight_ih_l0, expected a torch.nn.GRU")
        if first.shape[0] != 3 * gru.hidden_size:
            raise _core.QcoreTypeError(f"gru weights: {type(gru).__name__} has no three gates, expected a torch.nn.GRU")
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
        count = 0
        while f"weight_ih_l{count}" in tensors:
            count += 1
        ends = ["", "_reverse"] if "weight_ih_l0_reverse" in tensors else [""]
        suffixes = [[f"_l{layer}{end}" for end in ends] for layer in range(count)]
        if count == 0 and "weight_ih" in tensors:
            suffixes = [[""]]
        if not suffixes:
            raise _core.QcoreValueError("gru weights: there is no weight_ih_l0, expected the names of a torch.nn.GRU")
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        names = {f"{part}{suffix}" for layer in suffixes for suffix in layer for part in parts}
        unknown = sorted(name for name in tensors if name not in names)
        if unknown:
            raise _core.QcoreValueError(
                f"gru weights: there is {unknown[0]}, expected only the {', '.join(parts)} of {count or 1} layers"
            )

        def direction(suffix: str) -> Direction:
            given: list[Any] = []
            for part in parts:
                name = f"{part}{suffix}"
                if part.startswith("weight") and name not in tensors:
                    raise _core.QcoreValueError(f"gru weights: there is no {name}")
                given.append(_swap_gates(tensors[name], f"gru weights: {name}") if name in tensors else None)
            w, r, bx, br = given
            return Direction(w, r, bx, br, f"gru weights: weight_ih{suffix}")

        return cls([[direction(suffix) for suffix in layer] for layer in suffixes], batch_first=batch_first)

    @classmethod
    def from_onnx(cls, model: Any, node: str | None = None) -> GruWeights:
        """Make the weights of a GRU node with linear_before_reset = 1: one layer in one or two directions.

        Args:
            model: a path, or a loaded ModelProto.
            node: the node's name; may be left out if the model has one GRU.

        Raises:
            QcoreValueError: the node computes something else (linear_before_reset = 0, direction "reverse", other
                activations, a clip), or its weights are not constants.
        """
        layer, batch_first = layer_of_node(model, node)
        return cls([layer], batch_first=batch_first)
