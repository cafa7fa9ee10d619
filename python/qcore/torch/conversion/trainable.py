"""Makes recurrent layers that are trained with their integers, for ``quantize_(..., trainable=True)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qcore import _core
from qcore.torch.conversion.layers import Layer
from qcore.torch.conversion.rules import RECURRENT, Settings
from qcore.torch.gru import GRU
from qcore.torch.lstm import LSTM
from qcore.torch.training.layers import operator

BITS = 8
"""Width of weights where none is given, as in the preset of a GRU and an LSTM."""
LEFT = "trainable=True leaves it in floating point, to be trained"


def check(trainable: Any, calibration: Any, others: Mapping[str, Any]) -> None:
    """Check the option against others of ``quantize_``.

    Args:
        trainable: the argument of that name.
        calibration: the argument of that name.
        others: arguments that are for layers which are not recurrent, by name.

    Raises:
        QcoreValueError, QcoreTypeError: it is no bool, there is no calibration, or another option is given.
    """
    if not isinstance(trainable, bool):
        raise _core.QcoreTypeError(f"quantize_: trainable is a {type(trainable).__name__}, expected a bool")
    if not trainable:
        return
    if calibration is None:
        raise _core.QcoreValueError("quantize_: calibration is None, expected inputs of the model with trainable=True")
    for name, value in others.items():
        default = False if name == "smooth" else None
        if value is not None and value is not False:
            raise _core.QcoreValueError(
                f"quantize_: {name} is {value!r}, expected {default!r} with trainable=True, which quantizes recurrent "
                "layers only"
            )


def mark(layers: list[Layer]) -> None:
    """Leave all layers but recurrent ones that can be trained, which get the mark.

    Raises:
        QcoreValueError: there is none.
    """
    recurrent = [layer for layer in layers if layer.rule is not None and layer.rule.kind in RECURRENT]
    for layer in layers:
        if layer.reason:
            continue
        if layer not in recurrent:
            layer.reason, layer.asked, layer.shared = LEFT, True, None
            continue
        layer.reason = _refusal(layer.module)
        layer.trainable = not layer.reason
        if layer.trainable:
            layer.notes.append("trainable")
    if not any(layer.trainable for layer in recurrent):
        found = "; ".join(f"{layer.name}: {layer.reason}" for layer in recurrent) or "it has no GRU and no LSTM"
        raise _core.QcoreValueError(
            "quantize_: the model has no recurrent layer to train in integers, expected one with trainable=True "
            f"({found})"
        )


def _refusal(module: Any) -> str:
    """Return why a recurrent module can't be trained in integers, or an empty string."""
    if module.dropout > 0 and module.num_layers > 1:
        return "it has dropout between layers, without which integers in training are computed"
    return ""


def make(module: Any, settings: Settings, samples: list[torch.Tensor] | None) -> GRU | LSTM:
    """Return a module that computes its integers while it is trained; the settings' bits are those of its weights."""
    batch = 0 if module.batch_first else 1
    given = [x if x.dim() == 3 else x.unsqueeze(batch) for x in samples or []]
    kind: type[GRU] | type[LSTM] = GRU if isinstance(module, torch.nn.GRU) else LSTM
    config = operator(kind.kind).config(widths={"weights": settings.bits})
    return kind.from_float(module, samples=given, config=config, trainable=True)
