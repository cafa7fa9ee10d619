"""Checks and copies that calls of recurrent layers share. ``op`` is what errors begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qcore import _arrays, _core
from qcore._recurrent.formats import Format


def format_of(op: str, tensors: tuple[str, ...], layers: Any, name: str, layer: int, direction: int) -> Format:
    """Return the format of a tensor of one layer and direction."""
    if name not in tensors:
        raise _core.QcoreValueError(f"{op} format: name is {name!r}, expected one of {', '.join(tensors)}")
    if not (0 <= layer < len(layers) and 0 <= direction < len(layers[0])):
        raise _core.QcoreValueError(
            f"{op} format: layer is {layer!r} and direction {direction!r}, expected a layer below "
            f"{len(layers)} and a direction below {len(layers[0])}"
        )
    bits, signed, exponent, zero = layers[layer][direction][1]["formats"][tensors.index(name)]
    return Format(int(bits), bool(signed), int(exponent), int(zero))


def restarted(state: Any, mask: Any, zeros: Sequence[int]) -> Any:
    """Return a copy of a state [layers, B, H] with its layers' codes of 0 in some rows."""
    if hasattr(state, "clone"):
        copied = state.clone()
    elif hasattr(state, "at"):  # jax's arrays can't be written to
        copied = np.array(state)
    else:
        copied = state.copy()
    for layer, zero in enumerate(zeros):
        copied[layer, mask] = zero
    return copied


def checked_mask(op: str, reset: Any, batch: int) -> Any:
    """Return which rows to reset, bool [B]."""
    mask = reset if hasattr(reset, "dtype") else np.asarray(reset)
    name = _arrays.dtype_name(mask.dtype)
    if name != "bool" or tuple(mask.shape) != (batch,):
        raise _core.QcoreValueError(f"{op}: reset is {name} {list(mask.shape)}, expected bool [{batch}]")
    return mask


def checked_lengths(op: str, lengths: Any) -> Any:
    """Return lengths as int32, if they are integers on the CPU, and arrays of other libraries as they are."""
    if lengths is None:
        return None
    if hasattr(lengths, "dtype") and not isinstance(lengths, np.ndarray):
        return _arrays.readable(lengths, f"{op}: lengths")
    integers = np.asarray(lengths)
    if integers.dtype.kind not in "iu":
        raise _core.QcoreTypeError(f"{op}: lengths has dtype {integers.dtype}, expected int32")
    return np.ascontiguousarray(integers, np.int32)
