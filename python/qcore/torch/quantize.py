"""A whole model in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qcore import _checks, _core
from qcore.linear import COMPUTE
from qcore.torch.calibration import batches_of, inputs_of, outputs_of, relative_error
from qcore.torch.embedding import Embedding
from qcore.torch.gru import GRU
from qcore.torch.layers import Layer, layers_of, ties_of
from qcore.torch.lut import LutActivation, table_name
from qcore.torch.module import CONFIG, QuantizedModule, read_config
from qcore.torch.report import LayerReport, Report
from qcore.torch.weighted import Conv2d, Linear, WeightedModule

_BITS = {4: 4, 8: 8}
_SCHEMES = {"symmetric": 0, "asymmetric": 0}
_METHODS = {"rtn": 0, "mse": 0, "awq": 0}
_KINDS: dict[str, type[QuantizedModule]] = {kind.kind: kind for kind in (Linear, Conv2d, Embedding, GRU, LutActivation)}

Rung = tuple[int, str] | None
"""Bits and compute mode; None leaves the layer in floating point."""


@dataclass
class _Plan:
    """A layer with the ways to quantise it, cheapest first."""

    layer: Layer
    rungs: list[Rung]
    samples: list[torch.Tensor] | None
    rung: int = 0
    made: Any = None
    error: float | None = None
    tied: str = ""


@dataclass
class _Options:
    block_size: int
    method: str
    scheme: str
    shared: dict[Any, Any] = field(default_factory=dict)
    """Quantised modules by the weight that they are of, so that layers which shared one still do."""


def quantize_(
    model: torch.nn.Module,
    bits: int = 8,
    block_size: int = 64,
    compute: str = "int8",
    method: str = "rtn",
    skip: Sequence[str] = (),
    calibration: Any = None,
    *,
    scheme: str = "symmetric",
    activations: bool = False,
    target_error: float | None = None,
    progress: bool | None = None,
) -> Report:
    """Quantise the layers of a model in place.

    Every ``torch.nn.Linear``, ``Conv2d`` and, with a calibration, ``GRU`` in it becomes a module of this package. What
    can't be replaced is left and the report says why. A module in several places stays one; layers that share a weight
    share its codes; a weight that is also an embedding's stays there in floating point. If anything fails, the model is
    as it was.

    Args:
        model: any module; in evaluation mode or not, which stays.
        bits: 4 or 8. A GRU has 8.
        block_size, scheme: as for :func:`qcore.quantize`.
        compute: as for :func:`qcore.linear`.
        method: "rtn", "mse", or "awq", which needs a calibration. Layers that it doesn't reach, and convolutions in
            groups, take "mse" instead.
        skip: patterns of names to leave, as of ``fnmatch``: ("lm_head", "encoder.0.*").
        calibration: inputs of the model: a tensor, or an iterable of batches that are tensors, tuples of positional or
            dictionaries of keyword arguments. Run without gradients in evaluation mode; some thousand rows of each
            layer's inputs are kept for a while.
        activations: whether activations of ``torch.nn`` that have a table become :class:`LutActivation`.
        target_error: raise layers from 4 bits to 8, from int8 activations to int16 and at last back to floating point,
            until the relative L2 error is no greater than this: of the model's outputs on the calibration (the worst
            layers are raised first), or without one of each layer's weight.
        progress: whether to show a bar; by default if stderr is a terminal.

    Returns:
        A report with a row per layer; ``print(report)`` shows the table.

    Raises:
        QcoreValueError, QcoreTypeError: a bad option, the model itself is a layer, or a weight that can't be quantised
            (a NaN).
    """
    _check(model, bits, compute, method, skip, calibration, scheme, target_error)
    batches = None if calibration is None else batches_of(calibration)
    layers = layers_of(model, skip, activations)
    options = _Options(_checks.integer(block_size, "quantize_: block_size"), method, scheme)
    chosen = [layer for layer in layers if not layer.reason]
    seen: dict[int, list[torch.Tensor]] = {}
    expected: list[torch.Tensor] = []
    if batches is not None:
        seen, expected = inputs_of(model, batches, [layer.module for layer in chosen])
    ties = ties_of(model, layers)
    plans = []
    for layer in chosen:
        samples = seen.get(id(layer.module))
        if isinstance(layer.module, torch.nn.GRU) and samples is None:
            layer.reason = "a GRU needs a calibration that reaches it, with tensors"
            continue
        rungs = _rungs(layer.module, bits, compute, samples is not None)
        plans.append(_Plan(layer, rungs, samples, tied=ties.get(id(layer.module), "")))

    def quantise_all(some: Iterable[_Plan], limit: float | None) -> None:
        for plan in some:
            _make(plan, options)
            while limit is not None and plan.error is not None and plan.error > limit and _raise(plan):
                _make(plan, options)

    error = None
    try:
        quantise_all(_shown(plans, progress), target_error if batches is None else None)
        for plan in plans:
            plan.layer.put(plan.made)
        if batches is not None:
            error = relative_error(outputs_of(model, batches), expected)
            while target_error is not None and error > target_error:
                raised = _worst(plans)
                if not raised:
                    break
                quantise_all(raised, None)
                for plan in raised:
                    plan.layer.put(plan.made)
                error = relative_error(outputs_of(model, batches), expected)
    except BaseException:
        for plan in plans:
            plan.layer.put(plan.layer.module)
        raise
    by_layer = {id(plan.layer): plan for plan in plans}
    return Report([_row(layer, by_layer.get(id(layer)), method) for layer in layers], error)


def restore_(model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Load the state_dict of a model that :func:`quantize_` changed into the float model, in any process.

    Args:
        model: as it was before ``quantize_``; its values don't matter. Layers with a quantised state are replaced.
        state_dict: all of ``quantized_model.state_dict()``.

    Raises:
        QcoreValueError: a quantised state is damaged, or belongs to no module of the model. Nothing is changed then.
        RuntimeError: of ``load_state_dict``, where the rest does not fit.
    """
    layers: dict[int, tuple[Layer, Any]] = {}
    for key in state_dict:
        if key.rpartition(".")[2] != CONFIG or "." not in key:
            continue
        prefix = key[: -len(CONFIG)]
        path, _, attribute = prefix[:-1].rpartition(".")
        try:
            parent = model.get_submodule(path)
            module = parent._modules[attribute]
        except (AttributeError, KeyError):
            module = None
        if module is None:
            raise _core.QcoreValueError(f"restore_: the state has {key}, expected a module {prefix[:-1]} in the model")
        if id(module) in layers:
            layers[id(module)][0].places.append((parent, attribute))
            continue
        kind = _checks.choice(read_config(state_dict, prefix).get("kind"), _KINDS, f"restore_: the kind in {key}")
        layers[id(module)] = Layer(prefix[:-1], module, [(parent, attribute)]), kind.from_state_dict(state_dict, prefix)
    for layer, made in layers.values():
        made.train(layer.module.training)
        layer.put(made)
    model.load_state_dict(state_dict)


def _check(
    model: Any, bits: Any, compute: Any, method: Any, skip: Any, calibration: Any, scheme: Any, target_error: Any
) -> None:
    if not isinstance(model, torch.nn.Module):
        raise _core.QcoreTypeError(f"quantize_: model is a {type(model).__name__}, expected a torch.nn.Module")
    if isinstance(model, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GRU)):
        raise _core.QcoreValueError(
            f"quantize_: model is itself a {type(model).__name__}, which can't be replaced in place, expected a module "
            f"that holds layers: qcore.torch.{type(model).__name__}.from_float(model) makes another one"
        )
    _checks.choice(bits, _BITS, "quantize_: bits")
    _checks.choice(compute, COMPUTE, "quantize_: compute")
    _checks.choice(method, _METHODS, "quantize_: method")
    _checks.choice(scheme, _SCHEMES, "quantize_: scheme")
    if method == "awq" and calibration is None:
        raise _core.QcoreValueError("quantize_: calibration is None, expected inputs of the model with method='awq'")
    if isinstance(skip, str) or not all(isinstance(pattern, str) for pattern in skip):
        raise _core.QcoreTypeError(f"quantize_: skip is {skip!r}, expected a sequence of patterns")
    if target_error is not None and not _checks.number(target_error, "quantize_: target_error") > 0:
        raise _core.QcoreValueError(f"quantize_: target_error is {target_error!r}, expected a number above 0")


def _rungs(module: torch.nn.Module, bits: int, compute: str, sampled: bool) -> list[Rung]:
    if isinstance(module, torch.nn.GRU):
        return [(8, ""), (16, ""), None]
    if table_name(module) is not None:
        return [(0, ""), None]
    rungs: list[Rung] = [(bits, compute)]
    if bits == 4:
        rungs.append((8, compute))
    if sampled and compute in ("int8", "int8_asym"):  # an error of the weight knows nothing of activations
        rungs.append((8, "int16"))
    return [*rungs, None]


def _raise(plan: _Plan) -> bool:
    if plan.rung == len(plan.rungs) - 1:
        return False
    plan.rung += 1
    return True


def _worst(plans: list[_Plan]) -> list[_Plan]:
    """The quarter with the largest errors of those that are still quantised, one rung higher. Those that no sample
    reached come last: they have no part in the outputs' error."""
    left = [plan for plan in plans if plan.rungs[plan.rung] is not None]
    left.sort(key=lambda plan: (plan.samples is not None, plan.error or 0.0), reverse=True)
    worst = left[: -(-len(left) // 4)]
    for plan in worst:
        _raise(plan)
    return worst


def _make(plan: _Plan, options: _Options) -> None:
    rung, module = plan.rungs[plan.rung], plan.layer.module
    plan.error = None
    if rung is None:
        plan.made = module
        return
    try:
        plan.made = _quantized(module, rung, plan.samples, options)
    except (_core.QcoreValueError, _core.QcoreTypeError) as error:
        raise type(error)(f"quantize_: {plan.layer.name}: {error}") from error
    if plan.samples is not None:
        with torch.no_grad():
            run: list[Callable[[Any], Any]] = [plan.made, module]
            got, expected = ([_first(each(x)).float() for x in plan.samples] for each in run)
        plan.error = relative_error(got, expected)
    elif isinstance(plan.made, WeightedModule):
        dense = torch.from_numpy(plan.made.weight.to("cpu").dequantize())
        plan.error = relative_error([dense], [module.weight.detach().cpu().float()])


def _first(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


def _quantized(
    module: torch.nn.Module, rung: tuple[int, str], samples: list[torch.Tensor] | None, options: _Options
) -> Any:
    bits, compute = rung
    if isinstance(module, torch.nn.GRU):
        return GRU.from_float(module, samples=[_batched(x, module) for x in samples or []], bits=bits)
    if table_name(module) is not None:
        device = samples[0].device if samples else "cpu"
        return LutActivation.from_float(module).to(device)
    kind: Any = Linear if isinstance(module, torch.nn.Linear) else Conv2d
    made = kind.from_float(
        module,
        bits=bits,
        block_size=options.block_size,
        scheme=options.scheme,
        compute=compute,
        **_rounding(module, samples, options),
    )
    key = id(module.weight), bits
    first = options.shared.setdefault(key, made)
    made._set_packed(first.packed, first.format)
    return made


def _rounding(module: Any, samples: list[torch.Tensor] | None, options: _Options) -> dict[str, Any]:
    if options.method != "awq":
        return {"method": options.method}
    if samples is None or not _takes_awq(module, samples):
        return {"method": "mse"}
    pixels = [x.movedim(-3, -1) if isinstance(module, torch.nn.Conv2d) else x for x in samples]
    return {"method": "awq", "samples": torch.cat([x.reshape(-1, x.shape[-1]).cpu() for x in pixels])}


def _takes_awq(module: Any, samples: list[torch.Tensor] | None) -> bool:
    return samples is not None and getattr(module, "groups", 1) == 1


def _batched(x: torch.Tensor, module: torch.nn.GRU) -> torch.Tensor:
    return x if x.dim() == 3 else x.unsqueeze(0 if module.batch_first else 1)


def _shown(plans: list[_Plan], progress: bool | None) -> Iterable[_Plan]:
    """The plans, with a bar beside them."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    off = not console.is_terminal if progress is None else not progress
    return track(plans, "quantising", console=console, transient=True, disable=off)


def _row(layer: Layer, plan: _Plan | None, method: str) -> LayerReport:
    kind, before = type(layer.module).__name__, _bytes(layer.module)
    rung = None if plan is None else plan.rungs[plan.rung]
    if plan is None or rung is None:
        note = layer.reason or "target_error asks for floating point"
        return LayerReport(layer.name, kind, before, before, note=note)
    notes = [f"its weight is also that of {plan.tied}, which stays in floating point"] if plan.tied else []
    if method == "awq" and isinstance(plan.made, WeightedModule) and not _takes_awq(layer.module, plan.samples):
        notes.append("method 'mse'")
    compute = rung[1] or plan.made.kind
    return LayerReport(
        layer.name, kind, before, _bytes(plan.made), plan.error, rung[0] or None, compute, "; ".join(notes)
    )


def _bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensors in (module.parameters(), module.buffers()) for tensor in tensors)
