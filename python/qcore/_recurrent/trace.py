"""Codes of the inputs of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore._recurrent.direction import finite
from qcore._recurrent.formats import Format

Codes = NDArray[np.int32]


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
