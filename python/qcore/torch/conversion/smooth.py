"""Moves outliers of activations into weights before a model is quantized: SmoothQuant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from qcore import _core
from qcore.awq.scaling import checked_alpha, smooth_scales
from qcore.torch.conversion.activation_readers import Source, find_readers, input_axis
from qcore.torch.conversion.calibration import evaluating, outputs_of, relative_error
from qcore.torch.conversion.layers import Layer, StorageOwners
from qcore.torch.conversion.rules import FLOATS, changed
from qcore.torch.module import QuantizedModule

_TOLERANCE = 1e-4
"""Largest relative L2 error of any output of the folded float model."""
_STEPS = 10
"""Steps of the grid of exponents: powers of two don't tell finer ones apart."""


def check_smooth(smooth: Any, calibration: Any) -> None:
    """Raise QcoreValueError or QcoreTypeError for a bad ``smooth`` of :func:`qcore.torch.quantize_`."""
    if smooth is False:
        return
    if smooth is not True:
        checked_alpha(smooth, "quantize_: smooth")
    if calibration is None:
        raise _core.QcoreValueError(
            f"quantize_: calibration is None, expected inputs of the model with smooth={smooth!r}"
        )


@dataclass
class _Fold:
    """Holds the scales of a source's output channels; its float module and those of the readers are in ``source``."""

    source: Source
    scales: torch.Tensor
    """Powers of two of 1 or more, float32 [K] on the CPU."""
    exponent: float
    vectors: list[tuple[torch.nn.Parameter, torch.Tensor]] = field(default_factory=list)
    """Parameters of the source that are vectors, with the values that they had."""
    done: int = 0
    """Number of matrices that have been scaled: after an interrupt some of them."""

    @property
    def is_float(self) -> bool:
        """Return whether no layer of the fold has been freed."""
        layers = [*self.source.readers, *([] if self.source.layer is None else [self.source.layer])]
        return all(layer.module is not None for layer in layers)

    def apply(self) -> None:
        """Divide the source's output channels and multiply the readers' input channels."""
        parameters = [each for each in self.source.module.parameters(recurse=False) if each.dim() == 1]
        self.vectors, self.done = [(each, each.detach().clone()) for each in parameters], 0
        with torch.no_grad():
            for parameter in parameters:
                parameter.div_(_like(self.scales, parameter))
            for weight, scales, is_reader in self._matrices():
                weight.mul_(scales) if is_reader else weight.div_(scales)
                self.done += 1

    def undo(self) -> None:
        """Give all parameters the values that they had; exact, because the scales are powers of two."""
        with torch.no_grad():
            for weight, scales, is_reader in self._matrices()[: self.done]:
                weight.div_(scales) if is_reader else weight.mul_(scales)
            for parameter, values in self.vectors:
                parameter.copy_(values)
        self.vectors, self.done = [], 0

    def _matrices(self) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
        """Return the weights of the linear layers, the scales shaped like them, and whether it is a reader's."""
        layers = [(layer, input_axis(layer), True) for layer in self.source.readers]
        if self.source.layer is not None:
            layers.append((self.source.layer, 1 - input_axis(self.source.layer), False))
        weights = [(layer.module.weight, axis, is_reader) for layer, axis, is_reader in layers]
        return [(weight, _along(self.scales, weight, axis), is_reader) for weight, axis, is_reader in weights]

    def refusal(self) -> str:
        """Return why the weights can't be scaled in their dtypes; an empty string if they can."""
        for layer in self.source.readers:
            weight = layer.module.weight.detach()
            scaled = weight * _along(self.scales, weight, input_axis(layer))
            if not bool(torch.isfinite(scaled).all()):
                return f"scaled weights of {layer.name} exceed {weight.dtype}"
        if self.source.layer is not None:
            weight = self.source.layer.module.weight.detach()
            scales = _along(self.scales, weight, 1 - input_axis(self.source.layer))
            if not torch.equal(weight / scales * scales, weight):
                return f"divided weights of {self.source.name} are too small for {weight.dtype}"
        return ""


class Smoothing:
    """Folds scales into a float model, and undoes that for the layers that are still in floating point.

    Attributes:
        notes: for the id of each linear layer that was looked at, what became of it.
        outputs: what the model returned for the calibration before the first fold.
    """

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}
        self.outputs: list[torch.Tensor] = []
        self._folds: list[_Fold] = []

    def fold(self, model: torch.nn.Module, layers: list[Layer], batches: list[Any], alpha: float | None) -> None:
        """Scale the inputs of all linear layers that are to be quantized, where that is sure to change nothing else.

        Args:
            model: the float model.
            layers: its layers, with their settings.
            batches: inputs of the model.
            alpha: exponent of :func:`qcore.smooth_scales`; None searches it for each source.
        """
        linear = [layer for layer in layers if _takes_scales(layer)]
        self.notes = {id(layer): "not smoothed: no norm or linear layer alone makes its input" for layer in linear}
        sources = _sources(model, layers, linear)
        self.outputs = find_readers(model, sources, linear, batches)
        owners = StorageOwners(model)
        for source in sources:
            if not source.readers:
                continue
            fold = None
            source.reason = source.reason or _shared(source, owners) or _not_finite(source)
            if not source.reason:
                fold = _make(source, alpha)
            source.samples = []
            if fold is not None:
                self._apply(fold)
        self._verify(model, batches, self._folds)
        for source in sources:
            for layer in source.readers if source.reason else ():
                self.notes[id(layer)] = f"not smoothed: {source.name}: {source.reason}"
        for fold in self._folds:
            for layer in fold.source.readers:
                self.notes[id(layer)] = f"smooth {fold.exponent:g}, in {fold.source.name}"

    def undo(self) -> None:
        """Undo the folds all of whose layers are still in floating point."""
        for fold in reversed(self._folds):
            if fold.is_float:
                fold.undo()
        self._folds = []

    def _apply(self, fold: _Fold) -> None:
        """Apply a fold, unless the source's output is then not divided by the scales."""
        source = fold.source
        before = _outputs_of_norm(source, fold.scales)
        self._folds.append(fold)
        fold.apply()
        after = _outputs_of_norm(source, fold.scales)
        if source.norm is None:
            return
        scales = _like(fold.scales, source.norm.weight)
        if before is None or after is None or not torch.allclose(after * scales, before, rtol=1e-3, atol=1e-6):
            self._folds.pop().undo()
            source.reason = "its output is not proportional to its weight and bias"

    def _verify(self, model: torch.nn.Module, batches: list[Any], folds: list[_Fold]) -> None:
        """Undo those of the applied folds, all of them on entry, with which the model's outputs change."""
        if not folds or _agree(outputs_of(model, batches), self.outputs):
            return
        for fold in reversed(folds):
            fold.undo()
        self._folds = [fold for fold in self._folds if not any(fold is each for each in folds)]
        if len(folds) == 1:
            folds[0].source.reason = "the model's outputs on the calibration change"
            return
        half = len(folds) // 2
        for part in (folds[:half], folds[half:]):
            for fold in part:
                self._folds.append(fold)
                fold.apply()
            self._verify(model, batches, part)


def _takes_scales(layer: Layer) -> bool:
    """Return whether a layer is a linear one that is to be quantized, and not in a rotated basis."""
    is_linear = layer.rule is not None and layer.rule.kind in ("Linear", "Conv1D") and not layer.folded
    return is_linear and not layer.reason and layer.settings is not None and layer.settings.rotation is None


def _sources(model: torch.nn.Module, layers: list[Layer], linear: list[Layer]) -> list[Source]:
    """Return the norms of a model and its linear layers, norms first: readers of a norm may be sources themselves."""
    covered = {id(below) for layer in layers for below in layer.module.modules()}
    norms = [
        Source(name, module, None)
        for name, module in model.named_modules()
        if id(module) not in covered and _is_norm(module)
    ]
    return norms + [Source(layer.name, None, layer) for layer in linear]


def _is_norm(module: torch.nn.Module) -> bool:
    """Return whether a module has one weight [K], and maybe a bias [K], and can be one of the known norms."""
    if isinstance(module, (torch.jit.ScriptModule, QuantizedModule)) or module._modules or changed(module):
        return False
    own = {name: each for name, each in module._parameters.items() if each is not None}
    weight = own.get("weight")
    if weight is None or not set(own) <= {"weight", "bias"} or weight.is_meta:
        return False
    return (
        weight.dim() == 1
        and weight.numel() > 0
        and all(each.dtype in FLOATS and each.shape == weight.shape for each in own.values())
    )


def _shared(source: Source, owners: StorageOwners) -> str:
    """Return which weight of a fold another module has too; an empty string if there is none."""
    named = [(source.name, each) for each in source.module.parameters(recurse=False)]
    named += [(layer.name, layer.module.weight) for layer in source.readers]
    for name, parameter in named:
        if owners.is_shared(parameter):
            return f"a parameter of {name} is shared"
        if parameter.is_inference():
            return f"a parameter of {name} is an inference tensor"
    return ""


def _not_finite(source: Source) -> str:
    tensors = [*source.module.parameters(recurse=False), *source.samples]
    tensors += [layer.module.weight for layer in source.readers]
    finite = all(bool(torch.isfinite(each).all()) for each in tensors)
    return "" if finite else "its output or a weight has a NaN or an infinity"


def _make(source: Source, alpha: float | None) -> _Fold | None:
    """Return the fold of a source; None, with the reason, where none gains or is possible."""
    settings = source.readers[0].settings
    assert settings is not None
    weights = [
        weight if input_axis(layer) == 1 else weight.t()
        for layer, weight in ((layer, layer.module.weight.detach()) for layer in source.readers)
    ]
    if not source.samples:
        source.reason = "the calibration has no rows for it"
        return None
    found = smooth_scales(
        weights,
        torch.cat([rows.float().cpu() for rows in source.samples]),
        alpha=alpha,
        steps=_STEPS,
        compute=settings.compute,
        power_of_two=True,
        method=settings.method if settings.method in ("rtn", "mse") else "mse",
        **settings.of_weight(),
    )
    if found.exponent is None:
        source.reason = "no scales make the error smaller"
        return None
    # The smallest one is 1, so that small weights in float16 lose nothing.
    scales = torch.from_numpy(found.scales / found.scales.min())
    fold = _Fold(source, scales, found.exponent)
    source.reason = fold.refusal()
    return None if source.reason else fold


def _outputs_of_norm(source: Source, scales: torch.Tensor) -> torch.Tensor | None:
    """Return what a norm makes of some rows; None for a linear layer, or a module that does not take rows [M, K]."""
    if source.norm is None:
        return None
    weight: Any = source.norm.weight
    rows = torch.linspace(-7, 7, 3 * len(scales), device=weight.device).sin().view(3, -1).to(weight.dtype)
    try:
        with evaluating(source.norm), torch.no_grad():
            result = source.norm(rows)
    except Exception:  # the module's own code, which may require other arguments
        return None
    return result if isinstance(result, torch.Tensor) and result.shape == rows.shape else None


def _agree(got: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    same = len(got) == len(expected) and all(a.shape == b.shape for a, b in zip(got, expected, strict=True))
    return same and all(relative_error([a], [b]) <= _TOLERANCE for a, b in zip(got, expected, strict=True))


def _like(scales: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    return scales.to(parameter.device, parameter.dtype)


def _along(scales: torch.Tensor, weight: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the scales shaped to go along an axis of a matrix."""
    placed = _like(scales, weight)
    return placed if axis == 1 else placed.unsqueeze(1)
