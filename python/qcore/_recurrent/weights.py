"""Float weights of recurrent networks: layers of one or two directions, from modules and state_dicts of torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qcore import _core
from qcore._recurrent.direction import Doubles

Watch = Callable[[str, int, Doubles], None]
"""Called with a tensor's name, the step's number in order of computation, and its values [B, ...]."""


class WeightsBase(ABC):
    """Float weights of all layers, each with one direction or two."""

    op: ClassVar[str]
    _states: ClassVar[tuple[str, ...]]
    """Names of the tensors that go from step to step; the first is the output."""

    def __init__(self, layers: Sequence[Sequence[Any]], batch_first: bool, reverse: bool = False) -> None:
        if not layers or any(len(layer) not in (1, 2) for layer in layers):
            raise _core.QcoreValueError(
                f"{self.op} weights: layers have no direction or more than two, expected 1 or 2 each"
            )
        if reverse and len(layers[0]) == 2:
            raise _core.QcoreValueError(f"{self.op} weights: reverse is True for two directions, expected one")
        expected = layers[0][0].input_size
        for index, layer in enumerate(layers):
            for direction in layer:
                if direction.input_size != expected or direction.hidden_size != layers[0][0].hidden_size:
                    raise _core.QcoreValueError(
                        f"{self.op} weights: layer {index} has C = {direction.input_size} and "
                        f"H = {direction.hidden_size}, expected C = {expected} and H = {layers[0][0].hidden_size}"
                    )
                if direction.state_size != layers[0][0].state_size:
                    raise _core.QcoreValueError(
                        f"{self.op} weights: layer {index} has {direction.state_size} outputs, expected "
                        f"{layers[0][0].state_size} as in the first layer"
                    )
            expected = sum(direction.state_size for direction in layer)
        self.layers = [list(layer) for layer in layers]
        self.batch_first = batch_first
        self.reverse = reverse

    @staticmethod
    @abstractmethod
    def _run_float(
        direction: Any, x: Doubles, states: Sequence[Doubles | None], *, reverse: bool, watch: Watch | None = None
    ) -> Doubles:
        """Return y [T, B, H] of the float cell, and tell ``watch`` its tensors."""

    def _outputs(self, x: Doubles, states: Sequence[Doubles | None]) -> Doubles:
        """Return the last layer's y [T, B, directions * H] in float64, of x [T, B, C]."""
        for number, layer in enumerate(self.layers):
            outputs = []
            for side, direction in enumerate(layer):
                row = number * self.directions + side
                initial = [None if state is None else state[row] for state in states]
                outputs.append(self._run_float(direction, x, initial, reverse=(side == 1) != self.reverse))
            x = np.concatenate(outputs, axis=2)
        return x

    @property
    def input_size(self) -> int:
        """Number of input features (C)."""
        return int(self.layers[0][0].input_size)

    @property
    def hidden_size(self) -> int:
        """Size of the state (H)."""
        return int(self.layers[0][0].hidden_size)

    @property
    def output_size(self) -> int:
        """Size of h and of each direction's outputs: the projection's if there is one, else H."""
        return int(self.layers[0][0].state_size)

    def _state_size(self, name: str) -> int:
        return self.output_size if name == self._states[0] else self.hidden_size

    @property
    def directions(self) -> int:
        """1, or 2 if it is bidirectional."""
        return len(self.layers[0])


def tensors_of(module: Any, op: str, kind: str, gates: int) -> dict[str, Doubles]:
    """Return the state_dict of a torch.nn module in float64.

    Raises:
        QcoreTypeError: it is another module.
    """
    state = getattr(module, "state_dict", None)
    if state is None or not hasattr(module, "hidden_size"):
        raise _core.QcoreTypeError(
            f"{op} weights: {op} is a {type(module).__name__}, expected a torch.nn.{kind} or {kind}Cell"
        )
    tensors = {name: value.detach().cpu().double().numpy() for name, value in state().items()}
    first = tensors.get("weight_ih", tensors.get("weight_ih_l0"))
    if first is None:
        raise _core.QcoreTypeError(f"{op} weights: {op} has no weight_ih_l0, expected a torch.nn.{kind}")
    if first.shape[0] != gates * module.hidden_size:
        number = {3: "three", 4: "four"}[gates]
        raise _core.QcoreTypeError(
            f"{op} weights: {type(module).__name__} has no {number} gates, expected a torch.nn.{kind}"
        )
    return tensors


def directions_of(
    tensors: Mapping[str, Any],
    op: str,
    kind: str,
    make: Callable[[list[Any], str], Any],
    optional: tuple[str, ...] = ("bias_ih", "bias_hh"),
) -> list[list[Any]]:
    """Return layers of directions from arrays named as in a torch.nn module's state_dict.

    Args:
        tensors: arrays by name.
        op: what errors begin with.
        kind: the module's class.
        make: a direction of the arrays of weight_ih, weight_hh and ``optional``, and of what errors begin with.
        optional: names of arrays that may be missing, which are None then.

    Raises:
        QcoreValueError: naming what is missing or unknown.
    """
    count = 0
    while f"weight_ih_l{count}" in tensors:
        count += 1
    ends = ["", "_reverse"] if "weight_ih_l0_reverse" in tensors else [""]
    suffixes = [[f"_l{layer}{end}" for end in ends] for layer in range(count)]
    if count == 0 and "weight_ih" in tensors:
        suffixes = [[""]]
    if not suffixes:
        raise _core.QcoreValueError(f"{op} weights: there is no weight_ih_l0, expected the names of a torch.nn.{kind}")
    parts = ("weight_ih", "weight_hh", *optional)
    names = {f"{part}{suffix}" for layer in suffixes for suffix in layer for part in parts}
    unknown = sorted(name for name in tensors if name not in names)
    if unknown:
        raise _core.QcoreValueError(
            f"{op} weights: there is {unknown[0]}, expected only the {', '.join(parts)} of {count or 1} layers"
        )

    def direction(suffix: str) -> Any:
        for part in parts[:2]:
            if f"{part}{suffix}" not in tensors:
                raise _core.QcoreValueError(f"{op} weights: there is no {part}{suffix}")
        return make([tensors.get(f"{part}{suffix}") for part in parts], f"{op} weights: weight_ih{suffix}")

    return [[direction(suffix) for suffix in layer] for layer in suffixes]
