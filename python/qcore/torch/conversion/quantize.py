"""Quantizes whole models in place."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from qcore import _checks, _core
from qcore._options import Compute, Method, Scheme, option_names
from qcore.methods.gptq import DAMPING
from qcore.methods.samples import Hessian
from qcore.quantized_tensor import quantize as quantize_weight
from qcore.rotation import hadamard
from qcore.torch.conversion import patterns
from qcore.torch.conversion import target_bits as by_bits
from qcore.torch.conversion import trainable as training
from qcore.torch.conversion.calibration import batches_of, inputs_of, outputs_of, relative_error, weight_error
from qcore.torch.conversion.hessians import Hessians
from qcore.torch.conversion.hosts import tell_transformers
from qcore.torch.conversion.layers import (
    Layer,
    disable_fast_paths,
    explain,
    find_shared,
    float_parameters,
    forget_ties,
    known,
    layers_of,
    left_modules,
    limit_rotation,
    outside_weights,
)
from qcore.torch.conversion.memory import trim
from qcore.torch.conversion.options import (
    check_gptq_options,
    choose_settings,
    default_settings,
    encoding_names,
    layer_settings,
)
from qcore.torch.conversion.restore import restore_
from qcore.torch.conversion.rotation_folding import FOLDED, Folding, find_folding
from qcore.torch.conversion.rules import RECURRENT, Settings, embedding_like, rule_of, takes_awq, takes_gptq
from qcore.torch.conversion.smooth import Smoothing, check_smooth
from qcore.torch.embedding import Embedding
from qcore.torch.report import Candidate, LayerReport, Report
from qcore.torch.rotated import RotatedLinear
from qcore.torch.weighted import Linear, WeightedModule

__all__ = ["quantize_", "restore_"]

_TRIM_BYTES = 1 << 25
"""Freed bytes after which the C library returns its memory: quantized weights in between keep it from being reused."""

_PLAIN_KINDS = ("Linear", "Conv2d", "Conv1d", "Conv1D", *RECURRENT, "activation")

PrecisionLevel = tuple[int, Compute | Literal[""]] | None
"""Bits and compute mode, "" if the layer has none; None leaves the layer in floating point."""


@dataclass
class _Plan:
    """Holds a layer and the levels at which it can be quantized, cheapest first."""

    layer: Layer
    levels: list[PrecisionLevel]
    samples: list[torch.Tensor] | None
    level: int = 0
    made: Any = None
    error: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> PrecisionLevel:
        """Return the level at which the layer is quantized."""
        return self.levels[self.level]

    @property
    def is_gptq(self) -> bool:
        """Return whether method "gptq" quantizes the layer."""
        if self.layer.settings is None or self.layer.settings.method != "gptq" or self.chosen is None:
            return False
        return self.layer.module is not None and takes_gptq(self.layer.module, self.samples)

    @property
    def features(self) -> int:
        """Return K of a layer that method "gptq" quantizes."""
        shape = self.layer.module.weight.shape
        return int(shape[0] if self.layer.rule is not None and self.layer.rule.kind == "Conv1D" else shape[1])

    @property
    def current(self) -> torch.nn.Module:
        """Return the module that is in the model now."""
        module: torch.nn.Module = self.layer.module if self.made is None else self.made
        return module


@option_names(
    "quantize_",
    deprecated={"skip": "exclude"},
    positional=("bits", "block_size", "compute", "method", "exclude", "calibration"),
)
def quantize_(
    model: torch.nn.Module,
    *,
    bits: int | None = None,
    block_size: int | None = None,
    compute: Compute = "int8",
    method: Method | None = None,
    exclude: Sequence[str] = (),
    calibration: Any = None,
    layers: Mapping[str, Mapping[str, Any] | None] | None = None,
    scheme: Scheme | None = None,
    scale_dtype: str | None = None,
    embeddings: bool = True,
    activations: bool = False,
    target_error: float | None = None,
    target_bits: float | None = None,
    progress: bool | None = None,
    damping: float = DAMPING,
    act_order: bool = False,
    smooth: bool | float = False,
    rotation: Literal["hadamard", "hadamard_online"] | None = None,
    encoding: str | Sequence[str] | None = None,
    trainable: bool = False,
) -> Report:
    """Quantize the layers of a model in place.

    Replaced are ``torch.nn.Linear``, ``Conv2d``, ``Conv1d``, ``Embedding``, ``MultiheadAttention``, with a calibration
    ``GRU`` and ``LSTM``, GPT-2's ``Conv1D`` and modules with the weights of experts in 3-D parameters. Everything else
    is left, and the report names it with its reason. A warning says so if less than 90% of the parameters were
    quantized. A module in several places stays one; layers that share a weight share its packed one.

    All options and weights are checked before anything is changed. Then each float weight is freed before the next one
    is quantized, unless ``target_error`` is given together with a calibration: so the most memory in use is that of the
    float model and one layer. If anything fails before the first weight is freed, the model is as it was; if something
    fails later (memory, an interrupt, the model itself on the calibration), each layer is either quantized or as it
    was.

    Args:
        model: any module; in evaluation mode or not, which stays.
        bits: 2, 3, 4, 5, 6 or 8; 4 by default, as for :func:`qcore.quantize`. A GRU or an LSTM has 8, and so has an
            embedding unless it shares its weight with another layer or ``layers`` says otherwise. Convolutions have the
            next of 4 and 8. 8 takes twice the bytes, with a sixteenth of the error (docs/choices.md).
        block_size, scheme, scale_dtype: as for :func:`qcore.quantize`; 32, "symmetric" and "float16" by default.
        compute: as for :func:`qcore.linear`.
        method: "mse", the default, "rtn", or "awq" and "gptq", which need a calibration. Layers that it doesn't reach,
            embeddings, experts, attention and convolutions (for "awq": in groups) take "mse" instead. "gptq" runs the
            calibration again for each gigabyte of Hessians, 4 * K * K bytes per layer, with the layers before quantized
            already. With ``encoding`` not "gptq", and by default "awq" with a calibration and "mse" without.
        exclude: patterns of names to leave, as of ``fnmatch``: ("lm_head", "encoder.0.*"). A pattern that matches a
            module matches all modules below it.
        calibration: inputs of the model: a tensor, or an iterable of batches that are tensors, tuples of positional or
            dictionaries of keyword arguments. Run without gradients in evaluation mode; some thousand rows of each
            layer's inputs are kept for a while.
        layers: options of single layers by patterns of their names, of which the first one that matches counts:
            ``{"*.down_proj": {"bits": 8}, "lm_head": None}``. Each is a dictionary with any of bits, block_size,
            compute, method, scheme, scale_dtype, damping, act_order, rotation and encoding, or None to leave the
            layer. An encoding takes the place of what the call says of bits, block_size, scheme, scale_dtype and
            rotation; any of the first four takes that of the call's encoding.
        embeddings: whether embeddings are quantized.
        activations: whether activations of ``torch.nn`` that have a table become :class:`LutActivation`.
        target_error: raise layers from fewer bits to 8, from int8 activations to int16 and at last back to floating
            point, until the relative L2 error is no greater than this: of the model's outputs on the calibration (the
            worst layers are raised first), or without one of each layer's weight.
        target_bits: choose bits (2, 3, 4, 5, 6 or 8; of convolutions and on CUDA devices 4 or 8) and block size (32, 64
            or 128) of each layer in the place of ``bits`` and ``block_size``, so that the mean of all packed weights,
            scales and offsets included, is at most this, and the error of the model's outputs on the calibration small.
            What ``layers`` says of either is kept and counts into the mean; GRUs and tables do not count. The model
            runs once per layer on up to 4 batches of the calibration, which it needs, for each format once where a
            layer's inputs are not kept (experts, attention).
        progress: whether to show a bar; by default if stderr is a terminal.
        damping, act_order: for method "gptq", as for :func:`qcore.quantize`.
        smooth: True, or alpha from 0 to 1 of :func:`qcore.smooth_scales`, which True searches: linear layers that
            share an input get its outliers in their weights. The scales, rounded to powers of two, are folded into the
            norm, or the linear layer, that makes the input, if on the calibration nothing else reads what it returns
            and the float model's outputs stay the same to 1e-4. The report says so for each layer, or why not. An
            error after the first weight was freed leaves the layers folded that belong to a quantized one; they
            compute the same.
        rotation: "hadamard" rotates the inputs of linear layers against outliers. In language models of transformers
            that are built like Llama, the rotations are folded into the weights and cost nothing, except in front of
            the MLP's last layer; a head that shares the embedding's weight gets one of its own, and hidden states are
            in the rotated basis. ``report.rotation`` says what was folded, or why not. All other linear layers that
            share their weight with none become a :class:`RotatedLinear`, on the CPU only; with
            ``layers={"*.down_proj": {"rotation": None}}`` the MLP's last layers do not. "hadamard_online" folds
            nothing. smooth leaves all rotated layers alone. Folding is the first change of the model: an error after
            it leaves the model folded, which computes the same up to rounding in its dtype.
        encoding: a name of :func:`qcore.quantize_encoded`, such as "q4_k" or "mxfp4", in the place of bits, block_size,
            scheme and scale_dtype: each matrix, embeddings included, becomes what that function makes of it.
            Convolutions have the next of 4 and 8 bits in blocks of that size. With ``target_bits`` one or several
            names of encodings that a matrix on the CPU may have beside the other formats, by the same method, by "awq"
            in the place of "gptq".
        trainable: whether to quantize recurrent layers only, into modules that keep float weights and compute their
            integers while they are trained, as ``GRU.from_float(..., trainable=True)`` makes them; ``bits`` is the
            width of their weights, 8 by default. Needs a calibration. All other layers stay in floating point, to be
            trained with them; after training a second call quantizes those, and leaves the recurrent ones as they are.

    Returns:
        A report with a row per layer; ``print(report)`` shows the table.

    Raises:
        QcoreValueError, QcoreTypeError: a bad option, a pattern that matches no module, the model itself is a layer, or
            a weight that can't be quantized (a NaN), ``target_bits`` without a calibration, with ``target_error``, or
            below the mean of the smallest formats; ``trainable`` without a calibration or a recurrent layer.
    """
    _check(model, exclude, target_error)
    given: dict[str, Any] = {"bits": bits, "block_size": block_size, "scheme": scheme, "scale_dtype": scale_dtype}
    given |= {"compute": compute, "method": method, "damping": damping, "act_order": act_order, "rotation": rotation}
    if trainable and bits is None and encoding is None:
        given["bits"] = training.BITS
    encodings = () if target_bits is None else encoding_names(encoding)
    given["encoding"] = encoding if target_bits is None else None
    default = default_settings(given, calibration)
    check_smooth(smooth, calibration)
    options = layer_settings(layers, given, calibration)
    check_gptq_options([default, *options.values()])
    by_bits.check(target_bits, target_error, calibration)
    others = {"target_error": target_error, "target_bits": target_bits, "smooth": smooth, "rotation": rotation}
    training.check(trainable, calibration, others | {"encoding": encoding})
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    patterns.check(exclude, names, "quantize_: exclude")
    patterns.check(options, names, "quantize_: layers")
    batches = None if calibration is None else batches_of(calibration, model)
    found = layers_of(model, activations)
    explain(model, found, tuple(exclude), embeddings)
    if trainable:
        training.mark(found)
    find_shared(found)
    folding = find_folding(model) if default.rotation == "hadamard" else Folding(model)
    folding.mark(found)
    choose_settings(found, options, default)
    limit_rotation(found)
    report = _empty_report(model, found)
    reference: list[torch.Tensor] = []
    if folding.decoder is not None:
        reference = _fold(folding, found, batches, layers or {}, target_bits, encodings)
    keeps = target_error is not None and batches is not None
    before: list[tuple[Layer, torch.nn.Module]] = []
    undo: Callable[[], None] = _nothing
    shared: dict[Any, Any] = {}
    smoothing = Smoothing()
    error, freed = None, 0
    candidates: dict[int, list[Candidate]] = {}
    try:
        if smooth is not False and batches is not None:
            smoothing.fold(model, found, batches, None if smooth is True else float(smooth))
        plans, expected = _plans(model, found, batches, smoothing)
        _check_weights(plans)
        hessians = Hessians(model, batches or [])
        if target_bits is not None and batches is not None:
            make = functools.partial(_make, hessians=hessians, measures=False)
            candidates = by_bits.choose(model, plans, batches, expected, target_bits, layers or {}, make, encodings)
        expected = reference or expected
        for number, plan in enumerate(_shown(plans, progress)):
            _make(plan, shared, hessians, plans[number + 1 :])
            while target_error is not None and batches is None and _is_above(plan, target_error) and _promote(plan):
                _make(plan, shared, hessians)
            if keeps:
                before.append((plan.layer, plan.layer.module))
            plan.layer.put(plan.made)
            if not keeps:
                plan.layer.module, plan.samples = None, None
                freed += plan.layer.nbytes
            if freed >= _TRIM_BYTES:
                freed = 0
                trim()
        undo = disable_fast_paths(model)
        if batches is not None:
            error = relative_error(outputs_of(model, batches), expected)
            while target_error is not None and error > target_error:
                promoted = _promote_worst(plans)
                if not promoted:
                    break
                for number, plan in enumerate(promoted):
                    _make(plan, shared, hessians, promoted[number + 1 :])
                    plan.layer.put(plan.made)
                error = relative_error(outputs_of(model, batches), expected)
    except BaseException:
        undo()
        for layer, module in before:
            layer.put(module)
        smoothing.undo()
        raise
    forget_ties(model)
    tell_transformers(model)
    by_layer = {id(plan.layer): plan for plan in plans}
    report.layers = [_row(layer, by_layer.get(id(layer)), candidates) for layer in found] + report.layers
    report.model_error, report.bytes_after = error, _model_bytes(model)
    report.bits_per_weight = by_bits.mean_bits(plan.made for plan in plans)
    report.rotation = folding.text(found, sum(isinstance(plan.made, RotatedLinear) for plan in plans))
    report.quantized_parameters = _quantized_parameters(report, found)
    del plans, by_layer, found, shared, before, undo
    trim()
    report.log()
    if report.warning:
        warnings.warn(f"quantize_: {report.warning}", stacklevel=3)  # past the decorator, to the caller's line
    return report


def _nothing() -> None:
    """Do nothing."""


def _fold(
    folding: Folding,
    layers: list[Layer],
    batches: list[Any] | None,
    given: Mapping[str, Mapping[str, Any] | None],
    target_bits: float | None,
    encodings: Sequence[str],
) -> list[torch.Tensor]:
    """Fold the rotations into the model and return what it returned for the calibration before.

    An invalid calibration, weight or target raises before the model changes.
    """
    outputs = [] if batches is None else outputs_of(folding.model, batches)
    plans = [_Plan(layer, _levels(layer, False), None) for layer in layers if not layer.reason]
    _check_weights(plans)
    if target_bits is not None:
        make = functools.partial(_make, hessians=Hessians(folding.model, []), measures=False)
        by_bits.check_least(plans, target_bits, given, make, encodings)
    folding.apply()
    return outputs


def _check(model: Any, exclude: Any, target_error: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise _core.QcoreTypeError(f"quantize_: model is a {type(model).__name__}, expected a torch.nn.Module")
    rule = rule_of(model, False)
    if rule is not None:
        name = type(model).__name__
        made = (
            f": qcore.torch.{name}.from_float(model) makes another one"
            if rule.kind in ("Linear", "Conv2d", "Conv1d", *RECURRENT)
            else ""
        )
        raise _core.QcoreValueError(
            f"quantize_: model is itself a {name}, which can't be replaced in place, expected a module that holds "
            f"layers{made}"
        )
    if isinstance(exclude, str) or not all(isinstance(pattern, str) for pattern in exclude):
        raise _core.QcoreTypeError(f"quantize_: exclude is {exclude!r}, expected a sequence of patterns")
    if target_error is not None and not _checks.number(target_error, "quantize_: target_error") > 0:
        raise _core.QcoreValueError(f"quantize_: target_error is {target_error!r}, expected a number above 0")


def _plans(
    model: torch.nn.Module, layers: list[Layer], batches: list[Any] | None, smoothing: Smoothing
) -> tuple[list[_Plan], list[torch.Tensor]]:
    """Return a plan for each layer that is to be quantized, and the model's outputs on the calibration."""
    chosen = [layer for layer in layers if not layer.reason]
    seen: dict[int, list[torch.Tensor]] = {}
    expected: list[torch.Tensor] = []
    if batches is not None:
        seen, expected = inputs_of(model, batches, [layer.module for layer in chosen])
    outside = outside_weights(model, layers)
    plans = []
    for layer in chosen:
        samples = seen.get(id(layer.module))
        if layer.rule is not None and layer.rule.kind in RECURRENT and samples is None:
            article = "an" if layer.rule.kind == "LSTM" else "a"
            layer.reason = f"{article} {layer.rule.kind} needs a calibration that reaches it, with tensors"
            continue
        plan = _Plan(layer, _levels(layer, samples is not None), samples, notes=list(layer.notes))
        if layer.shared in outside:
            plan.notes.append(f"its weight is also that of {outside[layer.shared]}, which stays in floating point")
        takes = {"awq": takes_awq, "gptq": takes_gptq}.get(_settings(layer).method)
        if takes is not None and not (_is_plain(layer) and takes(layer.module, samples)):
            plan.notes.append("method 'mse'")
        if _settings(layer).rotation is not None or layer.folded:
            plan.notes.append(FOLDED if layer.folded else "rotated")
        if id(layer) in smoothing.notes:
            plan.notes.append(smoothing.notes[id(layer)])
        plans.append(plan)
    return plans, smoothing.outputs or expected


def _settings(layer: Layer) -> Settings:
    assert layer.settings is not None
    return layer.settings


def _is_plain(layer: Layer) -> bool:
    return layer.rule is not None and layer.rule.kind in _PLAIN_KINDS


def _check_weights(plans: list[_Plan]) -> None:
    """Raise QcoreValueError for a weight with a NaN or an infinity, before anything is changed."""
    checked = set()
    for plan in plans:
        for parameter in plan.layer.module.parameters():
            if id(parameter) in checked:
                continue
            checked.add(id(parameter))
            low, high = torch.aminmax(parameter.detach())
            if bool(torch.isfinite(low)) and bool(torch.isfinite(high)):
                continue
            try:
                if parameter.dim() == 2:
                    quantize_weight(parameter.detach().cpu(), method="rtn", scale_dtype="float32")
            except (_core.QcoreValueError, _core.QcoreTypeError) as error:
                raise type(error)(f"quantize_: {plan.layer.name}: {error}") from error
            raise _core.QcoreValueError(
                f"quantize_: {plan.layer.name}: a parameter {list(parameter.shape)} has a NaN or an infinity, expected "
                "finite values"
            )


def _levels(layer: Layer, sampled: bool) -> list[PrecisionLevel]:
    settings, kind = _settings(layer), "" if layer.rule is None else layer.rule.kind
    if layer.trainable:
        return [(settings.bits, "")]
    if kind in RECURRENT:
        return [(8, ""), (16, ""), None]
    if kind == "activation":
        return [(0, ""), None]
    compute = "" if kind == "Embedding" else settings.compute
    levels: list[PrecisionLevel] = [(settings.bits, compute)]
    if settings.bits < 8:
        levels.append((8, compute))
    if sampled and compute in ("int8", "int8_asym"):  # the weight's error does not include that of the activations
        levels.append((8, "int16"))
    return [*levels, None]


def _is_above(plan: _Plan, limit: float) -> bool:
    return plan.error is not None and plan.error > limit


def _promote(plan: _Plan) -> bool:
    """Raise the level by one; returns False if it is the highest already."""
    if plan.level == len(plan.levels) - 1:
        return False
    plan.level += 1
    return True


def _promote_worst(plans: list[_Plan]) -> list[_Plan]:
    """Promote the quarter with the largest errors of those that are still quantized.

    Those that no sample reached come last, because they do not contribute to the error of the outputs.
    """
    left = [plan for plan in plans if plan.chosen is not None]
    left.sort(key=lambda plan: (plan.samples is not None, plan.error or 0.0), reverse=True)
    worst = left[: -(-len(left) // 4)]
    for plan in worst:
        _promote(plan)
    return worst


def _make(
    plan: _Plan, shared: dict[Any, Any], hessians: Hessians, upcoming: Sequence[_Plan] = (), measures: bool = True
) -> None:
    """Make the module of the chosen level and measure its error; ``upcoming`` are the plans that are made next."""
    layer, level = plan.layer, plan.chosen
    plan.error = None
    if level is None or layer.rule is None:
        plan.made = layer.module
        return
    bits, compute = level
    settings = replace(_settings(layer), bits=bits, compute=compute or _settings(layer).compute)
    if plan.level > 0:
        settings = replace(settings, encoding=None)
    try:
        samples: list[torch.Tensor] | Hessian | None = plan.samples
        if plan.is_gptq:
            samples = hessians.of(plan, [each for each in upcoming if each.is_gptq])
        plan.made = _sharing(layer, settings, samples, shared)
    except (_core.QcoreValueError, _core.QcoreTypeError) as error:
        raise type(error)(f"quantize_: {layer.name}: {error}") from error
    if not measures:
        return
    if plan.samples is not None and _is_plain(layer):
        plan.made.eval()  # while training, inputs move the ranges of a trainable one
        with torch.no_grad():
            run: list[Callable[[Any], Any]] = [plan.made, layer.module]
            got, expected = ([_first(each(x)).float() for x in plan.samples] for each in run)
        plan.made.train(layer.module.training)
        plan.error = relative_error(got, expected)
    elif isinstance(plan.made, (WeightedModule, RotatedLinear)):
        weight, made = layer.module.weight.detach(), plan.made
        weight = {"Conv1D": weight.t, "Conv1d": lambda: weight.unsqueeze(2)}.get(layer.rule.kind, lambda: weight)()
        if isinstance(made, RotatedLinear):  # the error is the same in either basis
            weight, made = hadamard(weight, made.rotation_block, out_dtype="float32"), made.linear
        plan.error = weight_error(made.weight, weight)


def _sharing(layer: Layer, settings: Settings, samples: Any, shared: dict[Any, Any]) -> Any:
    """Return the layer's module, which shares the packed weight of an earlier layer with the same float weight."""
    assert layer.rule is not None
    # The compute mode has no part in the weight, so the key has the same one for all layers.
    key = layer.shared, replace(settings, compute="float")
    if layer.shared is None or key not in shared or settings.rotation is not None:
        make = training.make if layer.trainable else layer.rule.make
        made = make(layer.module, settings, samples)
        if layer.shared is not None:
            shared[key] = made
        return made
    first, module = shared[key], layer.module
    if layer.rule.kind == "Linear":
        made = Linear(first.weight, module.bias, compute=settings.compute)
    elif layer.rule.kind == "Embedding":
        made = embedding_like(module, Embedding(first.weight, module.padding_idx, dtype=module.weight.dtype))
    else:
        made = layer.rule.make(module, settings, samples)
    made.train(module.training)
    made._set_packed(first.packed, first.format)
    return made


def _first(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def _shown(plans: list[_Plan], progress: bool | None) -> Iterable[_Plan]:
    """Yield the plans while a progress bar counts them."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    off = not console.is_terminal if progress is None else not progress
    return track(plans, "quantizing", console=console, transient=True, disable=off)


def _empty_report(model: torch.nn.Module, layers: list[Layer]) -> Report:
    """Return a report of the float model, with rows for the modules without a rule."""
    report = Report(bytes_before=_model_bytes(model))
    report.parameters = sum(each.numel() for each in float_parameters(model))
    for name, module in left_modules(model, layers):
        own = known(parameter for parameter in module._parameters.values() if parameter is not None)
        kind, number = type(module).__name__, sum(parameter.numel() for parameter in own)
        if any(parameter.dim() > 1 for parameter in own):
            nbytes = sum(parameter.nbytes for parameter in own)
            note = f"there is no rule for {kind}"
            report.layers.append(
                LayerReport(name or "the model itself", kind, nbytes, nbytes, note=note, parameters=number)
            )
        else:
            report.other_parameters[kind] = report.other_parameters.get(kind, 0) + number
    return report


def _row(layer: Layer, plan: _Plan | None, candidates: dict[int, list[Candidate]]) -> LayerReport:
    level = None if plan is None else plan.chosen
    if plan is None or level is None:
        row = LayerReport(layer.name, layer.kind, layer.nbytes, layer.nbytes, parameters=layer.parameters)
        row.note = (layer.reason or "target_error asks for floating point") + (f"; {FOLDED}" if layer.folded else "")
        row.asked = layer.asked or not layer.reason
        return row
    weighted = next((each for each in plan.made.modules() if isinstance(each, WeightedModule)), None)
    is_encoded = weighted is not None and weighted.encoding is not None
    return LayerReport(
        layer.name,
        layer.kind,
        layer.nbytes,
        sum(tensor.nbytes for tensors in (plan.made.parameters(), plan.made.buffers()) for tensor in tensors),
        plan.error,
        # A convolution may have more bits than were asked for.
        getattr(weighted, "bits", level[0]) or None,
        level[1] or plan.made.kind,
        "; ".join(plan.notes),
        layer.parameters,
        block_size=getattr(plan.made, "block_size", _settings(layer).block_size if level[1] else None),
        candidates=candidates.get(id(layer), []),
        encoding=_settings(layer).encoding if is_encoded and plan.level == 0 else None,
        bits_per_weight=by_bits.mean_bits([plan.made]),
    )


def _model_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of all parameters and buffers; memory that several of them share counts once."""
    sizes = {}
    for tensors in (model.parameters(), model.buffers()):
        for tensor in tensors:
            if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
                continue
            place = (tensor.data_ptr(), tensor.nbytes) if not tensor.is_meta else (id(tensor), -1)
            sizes[place] = tensor.nbytes
    return sum(sizes.values())


def _quantized_parameters(report: Report, layers: list[Layer]) -> int:
    """Return the number of parameters of layers that were quantized; a weight that several share counts once."""
    total, counted = 0, set()
    for layer, row in zip(layers, report.layers, strict=False):
        if row.quantized and (layer.shared is None or layer.shared not in counted):
            total += layer.parameters
            counted.add(layer.shared)
    return min(total, report.parameters)
