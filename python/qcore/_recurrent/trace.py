"""Every intermediate of every step of a quantized layer, as the reference computes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore._recurrent.direction import finite
from qcore._recurrent.formats import Format
from qcore._recurrent.integers import CellBase
from qcore._recurrent.layers import RecurrentLayers

Codes = NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Trace:
    """One direction of one layer, codes as int32: x [T, B, C], initial states [B, H], tensors [T, B, ...].

    Args:
        cell: the parameters.
        x: inputs.
        states: in the order of the cell's states.
        tensors: by name.
    """

    cell: CellBase
    x: Codes
    states: tuple[Codes, ...]
    tensors: dict[str, Codes]


def readable(values: Any) -> Any:
    """Return what NumPy can read of torch's tensors, too."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return values.float() if str(values.dtype) == "torch.bfloat16" else values
    return values


def is_codes(values: Any) -> bool:
    return bool(np.asarray(readable(values)).dtype.kind == "i")


def input_codes(form: Format, values: Any, where: str) -> Codes:
    """Return the codes of numbers, rounded; or codes of the format's dtype as they are."""
    array = np.asarray(readable(values))
    if is_codes(array):
        if array.dtype != form.dtype:
            raise _core.QcoreTypeError(f"{where} has dtype {array.dtype}, expected numbers or {form.dtype} codes")
        if array.size and (array.min() < form.lowest or array.max() > form.highest):
            raise _core.QcoreValueError(
                f"{where} has codes from {array.min()} to {array.max()}, expected {form.lowest} to {form.highest}"
            )
        return array.astype(np.int32)
    # Convert through float32 as the operator does, whose rounding is part of what a caller gets.
    return form.encode(finite(readable(values), where).astype(np.float32).astype(np.float64)).astype(np.int32)


def cell_of(model: RecurrentLayers, layer: int, direction: int) -> CellBase:
    """Return the parameters of one direction of a quantized layer."""
    core, parts = model._layers[layer][direction]
    tables = tuple(np.array(core.table(index), np.int32) for index in range(len(model.cell_type.functions)))
    return model.cell_type.of_config(parts, tables, model.config)


def trace(model: RecurrentLayers, x: Any, states: Sequence[Any]) -> list[list[Trace]]:
    """Run all steps on the reference and keep everything.

    Args:
        model: the quantized layers.
        x: [T, B, C] ([B, T, C] if batch_first): numbers or codes, at least one step and one row.
        states: [layers * directions, B, H] each, numbers or codes, or None for zeros.

    Returns:
        For each layer its directions.
    """
    model._check_traceable()
    codes = _checked_input(model, x)
    names = model.cell_type.states
    shapes = {name: (model.num_layers * model.directions, codes.shape[1], model._state_size(name)) for name in names}
    for name, given in zip(names, states, strict=True):
        if given is not None and np.shape(given) != shapes[name]:
            raise _core.QcoreValueError(
                f"{model.op}: {name}0 has shape {list(np.shape(given))}, expected {list(shapes[name])}"
            )
    layers = []
    for number in range(model.num_layers):
        layer = []
        for side in range(model.directions):
            row = number * model.directions + side
            initial = []
            for name, given in zip(names, states, strict=True):
                form = model.format(name, number, side)
                if given is None:
                    initial.append(np.full(shapes[name][1:], form.zero_point, np.int32))
                else:
                    initial.append(input_codes(form, given[row], f"{model.op}: {name}0"))
            layer.append(_traced(model, (number, side), codes, tuple(initial)))
        codes = np.concatenate([each.tensors["h"] for each in layer], axis=2)
        layers.append(layer)
    return layers


def _checked_input(model: RecurrentLayers, x: Any) -> Codes:
    """Return codes [T, B, C]."""
    codes = input_codes(model.format("x"), x, f"{model.op}: x")
    axes = "[B, T, C]" if model.batch_first else "[T, B, C]"
    if codes.ndim != 3 or codes.shape[2] != model.input_size or 0 in codes.shape:
        raise _core.QcoreValueError(
            f"{model.op}: x has shape {list(codes.shape)}, expected {axes} with C = {model.input_size} and at least "
            "one step"
        )
    return np.ascontiguousarray(codes.transpose(1, 0, 2) if model.batch_first else codes)


def _traced(model: RecurrentLayers, place: tuple[int, int], x: Codes, states: tuple[Codes, ...]) -> Trace:
    """Return the trace of one layer in one direction."""
    cell, (core, _) = cell_of(model, *place), model._layers[place[0]][place[1]]
    widths = [cell.width(name) for name in cell.traced]
    every = np.empty((*x.shape[:2], sum(widths)), np.int32)
    inputs, *initial = (
        codes.astype(cell.format(name).dtype) for name, codes in zip(("x", *cell.states), (x, *states), strict=True)
    )
    core.trace(inputs, *initial, place[1] == 1, every)
    parts = np.split(every, np.cumsum(widths)[:-1], axis=2)
    whole = {name: np.ascontiguousarray(part) for name, part in zip(cell.traced, parts, strict=True)}
    return Trace(cell, x, states, {name: whole[name] for name in cell.tensors})
