"""Long sequences, some steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def run_in_chunks(
    model: Any,
    x: NDArray[Any],
    states: Sequence[NDArray[Any] | None] = (),
    lengths: NDArray[Any] | None = None,
    *,
    steps: int = 256,
    progress: Callable[[float], None] | None = None,
) -> tuple[NDArray[Any], ...]:
    """Compute the same y and last states as ``model(x, *states, lengths=lengths)``, at most `steps` steps in a call.

    The states go from call to call as float32 or as codes, either of which holds them exactly. A bidirectional or
    reversed layer needs the whole sequence, so that is one call.

    Args:
        model: the quantized layers.
        x: as for a call, in NumPy; floats are taken as float32.
        states: initial ones, likewise; None, or none at all, for zeros.
        lengths: as for a call.
        steps: of a call.
        progress: called with the part done, 0 to 1, after every call.
    """
    x, *state = (_narrowed(each) for each in (x, *states))
    axis = 1 if model.batch_first else 0
    total = x.shape[axis] if x.ndim == 3 else 0
    if model.directions == 2 or model.reverse or total <= steps:
        results: tuple[NDArray[Any], ...] = model(x, *state, lengths=lengths)
        if progress is not None:
            progress(1.0)
        return results
    parts = []
    for first in range(0, total, steps):
        part = x[:, first : first + steps] if model.batch_first else x[first : first + steps]
        left = None if lengths is None else np.clip(lengths - first, 0, part.shape[axis]).astype(np.int32)
        y, *state = model(part, *state, lengths=left)
        parts.append(y)
        if progress is not None:
            progress((first + part.shape[axis]) / total)
    return np.concatenate(parts, axis=axis), *state


def _narrowed(array: Any) -> Any:
    """Return floats as float32, anything else as it is."""
    return array.astype(np.float32, copy=False) if array is not None and array.dtype.kind == "f" else array
