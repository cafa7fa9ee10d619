"""Collects the Hessians of layers for method "gptq", some layers at a time: memory is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from qcore import _core
from qcore.methods.samples import Hessian
from qcore.torch.conversion.calibration import outputs_of

_BYTES = 1 << 30
"""Memory for Hessians; a layer that needs more is collected alone."""


class Observed(Protocol):
    """A layer of the model whose inputs are wanted."""

    @property
    def features(self) -> int:
        """Return K, its number of input features."""

    @property
    def current(self) -> torch.nn.Module:
        """Return the module that is in the model now, float or quantized."""


class Hessians:
    """Runs the calibration for as many layers at a time as memory holds.

    Layers that were replaced before a run are quantized in it, so that later ones compensate their errors, too.

    Args:
        model: the model.
        batches: inputs of the model.
    """

    def __init__(self, model: torch.nn.Module, batches: list[Any]) -> None:
        self._model = model
        self._batches = batches
        self._found: dict[int, Hessian] = {}

    def of(self, layer: Observed, upcoming: Sequence[Observed]) -> Hessian | None:
        """Return the Hessian of a layer, or None if the calibration does not reach it.

        Args:
            layer: the layer.
            upcoming: layers that are asked for next, in this order.

        Raises:
            QcoreValueError: inputs of one of the layers hold a NaN or an infinity.
        """
        if id(layer) not in self._found:
            self._found = {}
            self._collect([layer, *upcoming])
        found = self._found.pop(id(layer))
        return found if found.rows else None

    def _collect(self, layers: list[Observed]) -> None:
        left = _BYTES
        hooks = []
        for layer in layers:
            left -= 4 * layer.features**2
            if left < 0 and self._found:
                break
            if id(layer) not in self._found:
                self._found[id(layer)] = Hessian(layer.features)
                hooks.append(layer.current.register_forward_pre_hook(_Watch(self._found[id(layer)])))
        try:
            outputs_of(self._model, self._batches)
        finally:
            for hook in hooks:
                hook.remove()


class _Watch:
    """Adds what a module is called with to a Hessian."""

    def __init__(self, hessian: Hessian) -> None:
        self._hessian = hessian

    def __call__(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], torch.Tensor) and arguments[0].numel() > 0:
            x = arguments[0].detach()
            try:
                self._hessian.add(x.reshape(-1, x.shape[-1]))
            except _core.QcoreValueError as error:
                raise _core.QcoreValueError(f"inputs on the calibration: {error}") from error
