"""Chooses the bits and block size of each layer by measured sensitivity, so that their mean meets a target.

A group is the layers with one weight, mostly a single layer. For each of its candidate formats the error is measured
that the weight makes in the layer's output on its own inputs, and once the error of the model's outputs with only this
layer quantized: their ratio turns the errors of all candidates into errors of the model. Errors of different layers add
as squares, as if they were independent. Then the lower convex hull of (bytes, squared error) of each group is followed
by the largest reduction per byte, which is what one Lagrange multiplier for all groups gives (Shoham and Gersho, 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from qcore import _checks, _core
from qcore.torch.conversion.calibration import outputs_of, relative_error, weight_error
from qcore.torch.conversion.layers import Layer, disable_fast_paths
from qcore.torch.conversion.rules import RECURRENT
from qcore.torch.report import Candidate
from qcore.torch.weighted import WeightedModule
from qcore.weight_encoding import ENCODINGS

_BITS: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
_PLAIN_BITS: tuple[int, ...] = (4, 8)
_BLOCK_SIZES: tuple[int, ...] = (32, 64, 128)
_BATCHES = 4
"""Number of batches on which the model's error is measured for each layer."""
_WITHOUT_WIDTH = (*RECURRENT, "activation")
_FORM = ("bits", "block_size", "scheme", "scale_dtype", "encoding")
"""Options of a layer that leave no choice of encodings."""
Format = tuple[int, int, str | None]
"""Bits, block size, and the name of an encoding, None for those of :func:`qcore.quantize`."""


class Plan(Protocol):
    """A layer that is to be quantized, and the module that was made for it."""

    layer: Layer
    levels: list[Any]
    samples: list[torch.Tensor] | None
    made: Any


def check(target_bits: Any, target_error: Any, calibration: Any) -> None:
    """Raise QcoreValueError or QcoreTypeError if these arguments of ``quantize_`` do not go together."""
    if target_bits is None:
        return
    if not 0 < _checks.number(target_bits, "quantize_: target_bits") < float("inf"):
        raise _core.QcoreValueError(f"quantize_: target_bits is {target_bits!r}, expected a finite number above 0")
    if target_error is not None:
        raise _core.QcoreValueError(
            f"quantize_: target_error is {target_error!r} and target_bits {target_bits!r}, expected one of them"
        )
    if calibration is None:
        raise _core.QcoreValueError(
            "quantize_: calibration is None, expected inputs of the model with target_bits: sensitivities are measured"
        )


@dataclass
class _Group:
    """Holds the layers with one weight, and the formats that they can have.

    Attributes:
        formats: bits, block size and encoding of each candidate.
        found: the candidates as measured, in the order of ``formats``; error is the model's, so that shared and
            unreached weights compare.
        chosen: index of the candidate.
        count: number of weights.
        is_reached: whether the outputs depend on the layers on the calibration.
    """

    plans: list[Any]
    formats: list[Format]
    found: list[Candidate]
    chosen: int = 0
    count: int = 0
    is_reached: bool = True

    @property
    def nbytes(self) -> int:
        """Return the bytes of the chosen candidate."""
        return self.found[self.chosen].nbytes

    @property
    def steps(self) -> list[int]:
        """Return the indices of the candidates on the lower convex hull of (bytes, squared error), by bytes."""
        hull: list[int] = []
        for index in sorted(range(len(self.found)), key=lambda i: (self.found[i].nbytes, self.found[i].error)):
            if hull and self.found[index].error >= self.found[hull[-1]].error:
                continue
            while len(hull) > 1 and self.rate(hull[-2], hull[-1]) <= self.rate(hull[-1], index):
                hull.pop()
            hull.append(index)
        return hull

    def rate(self, old: int, new: int) -> float:
        """Return the squared error that candidate ``new`` saves per byte that it adds to ``old``."""
        return self.saved(old, new) / max(1, self.found[new].nbytes - self.found[old].nbytes)

    def saved(self, old: int, new: int) -> float:
        """Return the squared error that candidate ``new`` saves."""
        return self.found[old].error ** 2 - self.found[new].error ** 2


def choose(
    model: torch.nn.Module,
    plans: Sequence[Plan],
    batches: list[Any],
    expected: list[torch.Tensor],
    target: float,
    given: Mapping[str, Mapping[str, Any] | None],
    make: Callable[[Any, dict[Any, Any]], None],
    encodings: Sequence[str] = (),
) -> dict[int, list[Candidate]]:
    """Set bits, block size and encoding of the layers' settings.

    The model is as it was when this returns or raises. At any time one group of layers is quantized beside the float
    model.

    Args:
        model: the float model.
        plans: all layers that are to be quantized.
        batches: the calibration.
        expected: the float model's outputs on it.
        target: the largest mean of bits per weight: codes, scales and offsets as stored, of all layers with a weight.
        given: the argument ``layers`` of ``quantize_``; the bits and block sizes in it are kept.
        make: quantizes a plan's layer by its settings; layers with one weight get one dictionary.
        encodings: names of encodings that matrices on the CPU may have, too.

    Returns:
        The candidates of each layer, by the id of its :class:`Layer`.

    Raises:
        QcoreValueError: the smallest formats exceed the target.
    """
    groups = _groups(plans, given, encodings)
    _check_least(groups, target, make)
    parts = batches[:: -(-len(batches) // _BATCHES)]
    if len(parts) < len(batches):
        expected = outputs_of(model, parts)

    def model_error(changed: list[Plan]) -> float:
        for plan in changed:
            plan.layer.put(plan.made)
        undo = disable_fast_paths(model)
        try:
            return relative_error(outputs_of(model, parts), expected)
        finally:
            undo()
            for plan in changed:
                plan.layer.put(plan.layer.module)

    for group in groups:
        _measure(group, target, make, model_error)
    _choose(groups, target)
    for group in groups:
        for plan in group.plans:
            _set_format(plan, *group.formats[group.chosen])
            plan.made = None
    return {id(plan.layer): group.found for group in groups for plan in group.plans}


def check_least(
    plans: Sequence[Plan],
    target: float,
    given: Mapping[str, Mapping[str, Any] | None],
    make: Callable[[Any, dict[Any, Any]], None],
    encodings: Sequence[str] = (),
) -> None:
    """Raise QcoreValueError if the smallest formats exceed the target; arguments are those of :func:`choose`."""
    _check_least(_groups(plans, given, encodings), target, make)


def _groups(
    plans: Sequence[Plan], given: Mapping[str, Mapping[str, Any] | None], encodings: Sequence[str]
) -> list[_Group]:
    """Return the groups of the layers with a weight, in the model's order."""
    by_weight: dict[Any, list[Plan]] = {}
    for plan in plans:
        if plan.layer.rule is not None and plan.layer.rule.kind not in _WITHOUT_WIDTH:
            by_weight.setdefault(("layer", id(plan)) if plan.layer.shared is None else plan.layer.shared, []).append(
                plan
            )
    return [_Group(group, _formats(group, given, encodings), []) for group in by_weight.values()]


def _formats(
    plans: list[Plan], given: Mapping[str, Mapping[str, Any] | None], encodings: Sequence[str]
) -> list[Format]:
    """Return the formats that all layers of a group can have and that ``layers`` leaves open."""
    bits, block_sizes = _BITS, _BLOCK_SIZES
    for plan in plans:
        parameters = list(plan.layer.module.parameters())
        # Encoded weights are matrices on the CPU.
        is_convolution = plan.layer.rule is not None and plan.layer.rule.kind in ("Conv2d", "Conv1d")
        if is_convolution or any(each.device.type != "cpu" for each in parameters):
            bits, encodings = _PLAIN_BITS, ()
    for plan in plans:
        options, settings = given.get(plan.layer.pattern or "") or {}, plan.layer.settings
        assert settings is not None
        if settings.encoding is not None:
            return [(settings.bits, settings.block_size, settings.encoding)]
        if settings.rotation is not None or any(name in options for name in _FORM):
            encodings = ()
        # Layers with one weight have the settings of the first that a pattern names.
        if "bits" in options:
            bits = (settings.bits,)
        if "block_size" in options:
            block_sizes = (settings.block_size,)
    plain: list[Format] = [(width, size, None) for width in bits for size in block_sizes]
    return plain + [(ENCODINGS[name][0].bits, ENCODINGS[name][1], name) for name in encodings]


def _set_format(plan: Plan, bits: int, block_size: int, encoding: str | None) -> None:
    assert plan.layer.settings is not None
    settings = replace(plan.layer.settings, bits=bits, block_size=block_size, encoding=encoding)
    if encoding is not None and settings.method == "gptq":
        settings = replace(settings, method="awq")
    plan.layer.settings = settings
    plan.levels = [(bits, plan.levels[0][1])]


def _try(group: _Group, index: int, make: Callable[[Any, dict[Any, Any]], None], method: str = "") -> tuple[int, int]:
    """Make the modules of a candidate; returns the bytes and the number of their weights."""
    shared: dict[Any, Any] = {}
    for plan in group.plans:
        settings = plan.layer.settings
        _set_format(plan, *group.formats[index])
        if method or settings.method == "gptq":
            # "gptq" would run the calibration for each candidate; "awq" weighs errors by the same inputs.
            plan.layer.settings = replace(plan.layer.settings, method=method or "awq")
        try:
            make(plan, shared)
        finally:
            plan.layer.settings = settings
    return weight_bytes([group.plans[0].made])


def _check_least(groups: list[_Group], target: float, make: Callable[[Any, dict[Any, Any]], None]) -> None:
    """Raise QcoreValueError if the smallest formats exceed the target; rounding to nearest tells their bytes."""
    nbytes = count = 0
    for group in groups:
        order = sorted(range(len(group.formats)), key=lambda index: (group.formats[index][0], -group.formats[index][1]))
        plain = [index for index in order if group.formats[index][2] is None]
        encoded = [index for index in order if group.formats[index][2] is not None]
        sizes = []
        for index in plain[:1] + encoded:
            size, group.count = _try(group, index, make, "rtn")
            sizes.append(size)
        nbytes, count = nbytes + min(sizes), count + group.count
        for plan in group.plans:
            plan.made = None
    if 8 * nbytes > target * count:
        raise _core.QcoreValueError(
            f"quantize_: target_bits is {target!r}, expected {8 * nbytes / count:.4g} or more: the mean of the "
            "smallest formats, with scales and offsets"
        )


def _measure(
    group: _Group,
    target: float,
    make: Callable[[Any, dict[Any, Any]], None],
    model_error: Callable[[list[Plan]], float],
) -> None:
    """Fill in the candidates of a group."""
    order = sorted(range(len(group.formats)), key=lambda index: abs(_nominal(group.formats[index]) - target))
    found: dict[int, Candidate] = {}
    gains: list[float] = []
    inputs = [_factor(plan) for plan in group.plans]
    for index in order:  # the first one is nearest to the target
        nbytes, _ = _try(group, index, make)
        own = [_own_error(plan, factor) for plan, factor in zip(group.plans, inputs, strict=True)]
        if min(own) > 0:
            if not gains:
                gains = [(model_error([plan]) / error) ** 2 for plan, error in zip(group.plans, own, strict=True)]
            squared = sum(gain * error**2 for gain, error in zip(gains, own, strict=True))
        else:  # several weights, or one that the format holds exactly
            squared = model_error(group.plans) ** 2
        bits, block_size, encoding = group.formats[index]
        found[index] = Candidate(bits, block_size, nbytes, squared**0.5, encoding)
        for plan in group.plans:
            plan.made = None
    group.found = [found[index] for index in range(len(group.formats))]
    group.is_reached = any(each.error > 0 for each in group.found)


def _factor(plan: Plan) -> torch.Tensor | None:
    """Return rows r with ``r.T @ r = x.T @ x`` of a linear layer's inputs x: no more than it has features."""
    if plan.samples is None or plan.layer.rule is None or plan.layer.rule.kind not in ("Linear", "Conv1D"):
        return None
    rows = torch.cat([x.reshape(-1, x.shape[-1]).cpu().float() for x in plan.samples])
    return rows if len(rows) <= rows.shape[1] else torch.linalg.qr(rows, mode="r").R


def _own_error(plan: Plan, inputs: torch.Tensor | None) -> float:
    """Return the error of the layer's output on its inputs, else of its weight; 0 if it has several weights."""
    made, module = plan.made, plan.layer.module
    if not isinstance(made, WeightedModule):
        return 0.0
    if plan.samples is not None and len(made.shape) == 4:
        with torch.no_grad():
            return relative_error([made(x).float() for x in plan.samples], [module(x).float() for x in plan.samples])
    is_transposed = plan.layer.rule is not None and plan.layer.rule.kind == "Conv1D"
    return weight_error(made.weight, module.weight.detach().t() if is_transposed else module.weight.detach(), inputs)


def _nominal(form: Format) -> float:
    return form[0] + 16 / form[1]


def _choose(groups: list[_Group], target: float) -> None:
    """Choose the candidates: along the hulls by the squared error saved per byte, then what still fits."""
    for group in groups:
        group.chosen = min(
            range(len(group.found)), key=lambda index: (group.found[index].nbytes, group.found[index].error)
        )
    left = target * sum(group.count for group in groups) / 8 - sum(group.nbytes for group in groups)
    free = [group for group in groups if group.is_reached]
    for group in groups:
        if not group.is_reached:  # nothing is known of it: the widest format that the target allows by itself
            limit = min(target * group.count / 8, group.nbytes + left)
            fits = [index for index, each in enumerate(group.found) if each.nbytes <= limit]
            left += group.nbytes
            group.chosen = max([group.chosen, *fits], key=lambda index: group.found[index].nbytes)
            left -= group.nbytes
    paths = {id(group): group.steps[1:] for group in free}
    while True:
        steps = [
            (group.rate(group.chosen, paths[id(group)][0]), number)
            for number, group in enumerate(free)
            if paths[id(group)]
        ]
        if not steps:
            break
        group = free[max(steps)[1]]
        step = paths[id(group)].pop(0)
        added = group.found[step].nbytes - group.nbytes
        if added > left:
            paths[id(group)] = []  # later steps add more
            continue
        group.chosen, left = step, left - added
    while True:  # candidates above the hulls fill what is left
        saving, where, index = max(
            (
                (group.saved(group.chosen, index), number, index)
                for number, group in enumerate(free)
                for index, each in enumerate(group.found)
                if each.nbytes - group.nbytes <= left
            ),
            default=(0.0, 0, 0),
        )
        if saving <= 0:
            return
        left -= free[where].found[index].nbytes - free[where].nbytes
        free[where].chosen = index


def mean_bits(modules: Iterable[torch.nn.Module]) -> float | None:
    """Return the mean bits per weight of all packed weights in modules; None if there are none."""
    nbytes, count = weight_bytes(modules)
    return 8 * nbytes / count if count else None


def weight_bytes(modules: Iterable[torch.nn.Module]) -> tuple[int, int]:
    """Return the bytes of codes, scales and offsets of all packed weights in modules, and the number of weights.

    A weight that several modules share counts once.
    """
    sizes: dict[int, tuple[int, int]] = {}
    for module in modules:
        for each in module.modules():
            if isinstance(each, WeightedModule):
                # The memory of experts holds the weights of all of them.
                shape = each.shape if each.format is None else each.format.shape
                sizes[each.packed.data_ptr()] = each.packed.nbytes, torch.Size(shape).numel()
    return sum(nbytes for nbytes, _ in sizes.values()), sum(count for _, count in sizes.values())
