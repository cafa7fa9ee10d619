"""Float weights of a GRU: layers of one or two directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core

Doubles = NDArray[np.float64]


class Direction:
    """One layer in one direction, gate order z, r, g along 3H: w [3H, C], r [3H, H], bx [3H], br [3H], float64."""

    def __init__(self, w: Any, r: Any, bx: Any, br: Any, where: str = "gru weights") -> None:
        self.w, self.r = _matrix(w, f"{where}: w"), _matrix(r, f"{where}: r")
        rows, self.hidden_size = self.r.shape
        self.input_size = self.w.shape[1]
        if rows != 3 * self.hidden_size or self.w.shape[0] != rows:
            raise _core.QcoreValueError(
                f"{where}: w has shape {list(self.w.shape)} and r {list(self.r.shape)}, expected [3H, C] and [3H, H]"
            )
        self.bx, self.br = _vector(bx, rows, f"{where}: bx"), _vector(br, rows, f"{where}: br")


def _finite(values: Any, where: str) -> Doubles:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise _core.QcoreTypeError(f"{where} is a {type(values).__name__}, expected an array of numbers") from None
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise _core.QcoreValueError(f"{where} has {array[index]} at index {list(index)}, expected finite numbers")
    return array


def _matrix(values: Any, where: str) -> Doubles:
    array = _finite(values, where)
    if array.ndim != 2 or 0 in array.shape:
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected a matrix")
    return array


def _vector(values: Any, rows: int, where: str) -> Doubles:
    array = np.zeros(rows) if values is None else _finite(values, where)
    if array.shape != (rows,):
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected [{rows}]")
    return array


def _swap_gates(array: Any) -> Doubles:
    """Rows in torch's order r, z, n as z, r, g."""
    r, z, n = np.split(np.asarray(array, np.float64), 3)
    return np.concatenate([z, r, n])


class GruWeights:
    """Float weights of all layers.

    Args:
        layers: for each layer its directions, one or (forward, backward), as :class:`Direction`. A layer's inputs are
            the outputs of all directions of the layer before it.
        batch_first: whether inputs and outputs are [B, T, ...] instead of [T, B, ...].
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
        """C."""
        return int(self.layers[0][0].input_size)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.layers[0][0].hidden_size)

    @property
    def directions(self) -> int:
        return len(self.layers[0])

    @classmethod
    def from_arrays(cls, w: Any, r: Any, bx: Any = None, br: Any = None, *, batch_first: bool = False) -> GruWeights:
        """One layer in one direction: w [3H, C], r [3H, H], bx and br [3H] or None, gate order z, r, g."""
        return cls([[Direction(w, r, bx, br)]], batch_first=batch_first)

    @classmethod
    def from_torch(cls, gru: Any) -> GruWeights:
        """Of a ``torch.nn.GRU`` (or ``GRUCell``), layers, directions and ``batch_first`` included.

        torch keeps gates in the order r, z, n: the first two blocks of rows change places.
        """
        state = getattr(gru, "state_dict", None)
        if state is None or not hasattr(gru, "hidden_size"):
            raise _core.QcoreTypeError(
                f"gru weights: gru is a {type(gru).__name__}, expected a torch.nn.GRU or GRUCell"
            )
        tensors = {name: value.detach().cpu().double().numpy() for name, value in state().items()}
        cell = not hasattr(gru, "num_layers")

        def direction(suffix: str) -> Direction:
            names = [f"{part}{suffix}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            if names[0] not in tensors:
                raise _core.QcoreTypeError(f"gru weights: gru has no {names[0]}, expected a torch.nn.GRU")
            if tensors[names[0]].shape[0] != 3 * gru.hidden_size:
                raise _core.QcoreTypeError(
                    f"gru weights: {type(gru).__name__} has no three gates, expected a torch.nn.GRU"
                )
            w, r, bx, br = (_swap_gates(tensors[name]) if name in tensors else None for name in names)
            return Direction(w, r, bx, br)

        if cell:
            return cls([[direction("")]])
        ends = ["", "_reverse"] if gru.bidirectional else [""]
        layers = [[direction(f"_l{layer}{end}") for end in ends] for layer in range(gru.num_layers)]
        return cls(layers, batch_first=bool(gru.batch_first))

    @classmethod
    def from_onnx(cls, model: Any, node: str | None = None) -> GruWeights:
        """Of a GRU node with linear_before_reset = 1: one layer in one or two directions.

        Args:
            model: a path, or a loaded ModelProto.
            node: the node's name; may be left out if the model has one GRU.

        Raises:
            QcoreValueError: the node computes something else (linear_before_reset = 0, direction "reverse", other
                activations, a clip), or its weights are not constants.
        """
        from qcore.gru.onnx_weights import weights_of_node

        return weights_of_node(model, node)
