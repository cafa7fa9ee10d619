"""Every intermediate of every step of a quantized GRU, as the reference computes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore._recurrent.direction import finite
from qcore._recurrent.formats import Format
from qcore.gru.core import GruCore
from qcore.gru.integers import FUSED, STAGED, Cell

Codes = NDArray[np.int32]

_ORDER = ("wx", "rh", "z_pre", "r_pre", "rb", "rrh", "g_pre", "z", "r", "g", "old_part", "new_part", "h")
_WIDE = ("wx", "rh")  # 3H


@dataclasses.dataclass(frozen=True)
class Trace:
    """One direction of one layer, codes as int32: x [T, B, C], h0 [B, H], and tensors [T, B, H or 3H] by name."""

    x: Codes
    h0: Codes
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
    return form.encode(finite(array, where).astype(np.float32).astype(np.float64)).astype(np.int32)


def cell_of(gru: GruCore, layer: int, direction: int) -> Cell:
    core, parts = gru._layers[layer][direction]
    tables = tuple(np.array(core.table(gate), np.int32) for gate in range(3))
    return Cell(parts, tables, gru.config.pipeline == "fused", gru.config.rounding == "half_even")


def trace(gru: GruCore, x: Any, h0: Any = None) -> list[list[Trace]]:
    """Run all steps on the reference and keep everything.

    Args:
        x: [T, B, C] ([B, T, C] if batch_first): numbers or codes, at least one step and one row.
        h0: [layers * directions, B, H], numbers or codes, or None for zeros.

    Returns:
        For each layer its directions.
    """
    if gru.reverse:
        raise _core.QcoreValueError(
            "gru trace: the GRU runs from the last step to the first, expected one that begins at the first: golden "
            "files, reports and the C export have no other order of one direction"
        )
    if not gru.linear_before_reset:
        raise _core.QcoreValueError(
            "gru trace: the GRU has linear_before_reset = 0, expected 1: golden files, reports and the C export have "
            "torch's cell only"
        )
    codes = input_codes(gru.format("x"), x, "gru: x")
    axes = "[B, T, C]" if gru.batch_first else "[T, B, C]"
    if codes.ndim != 3 or codes.shape[2] != gru.input_size or 0 in codes.shape:
        raise _core.QcoreValueError(
            f"gru: x has shape {list(codes.shape)}, expected {axes} with C = {gru.input_size} and at least one step"
        )
    codes = np.ascontiguousarray(codes.transpose(1, 0, 2) if gru.batch_first else codes)
    steps, batch, _ = codes.shape
    expected = (gru.num_layers * gru.directions, batch, gru.hidden_size)
    if h0 is not None and np.shape(h0) != expected:
        raise _core.QcoreValueError(f"gru: h0 has shape {list(np.shape(h0))}, expected {list(expected)}")
    names = FUSED if gru.config.pipeline == "fused" else STAGED
    layers = []
    for number in range(gru.num_layers):
        layer = []
        for side in range(gru.directions):
            core, _ = gru._layers[number][side]
            form = gru.format("h", number, side)
            if h0 is None:
                state = np.full((batch, gru.hidden_size), form.zero_point, np.int32)
            else:
                state = input_codes(form, h0[number * gru.directions + side], "gru: h0")
            source = gru.format("x", number, side).dtype
            every = np.empty((steps, batch, 17 * gru.hidden_size), np.int32)
            core.trace(codes.astype(source), state.astype(form.dtype), side == 1, every)
            layer.append(Trace(codes, state, _split(every, names)))
        codes = np.concatenate([each.tensors["h"] for each in layer], axis=2)
        layers.append(layer)
    return layers


def _split(every: Codes, names: tuple[str, ...]) -> dict[str, Codes]:
    size = every.shape[2] // 17
    parts, first = {}, 0
    for name in _ORDER:
        width = 3 * size if name in _WIDE else size
        parts[name] = np.ascontiguousarray(every[:, :, first : first + width])
        first += width
    return {name: parts[name] for name in names}
