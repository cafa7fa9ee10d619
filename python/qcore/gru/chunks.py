"""Long sequences, some steps at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore.gru.core import GruCore


def run_in_chunks(
    gru: GruCore,
    x: NDArray[Any],
    h0: NDArray[Any] | None = None,
    lengths: NDArray[Any] | None = None,
    *,
    steps: int = 256,
    progress: Callable[[float], None] | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Compute the same y and last states as ``gru(x, h0, lengths=lengths)``, at most `steps` steps in a call.

    The state goes from call to call as float32 or as codes, either of which holds it exactly. Both directions of a
    bidirectional GRU need the whole sequence, and so does a reversed one: that is one call.

    Args:
        x: as for a call, in NumPy; floats are taken as float32.
        progress: called with the part done, 0 to 1, after every call.
    """
    if x.dtype.kind == "f":
        x = x.astype(np.float32, copy=False)
    if h0 is not None and h0.dtype.kind == "f":
        h0 = h0.astype(np.float32, copy=False)
    axis = 1 if gru.batch_first else 0
    total = x.shape[axis] if x.ndim == 3 else 0
    if gru.directions == 2 or gru.reverse or total <= steps:
        y, last = gru(x, h0, lengths=lengths)
        if progress is not None:
            progress(1.0)
        return y, last
    parts, state = [], h0
    for first in range(0, total, steps):
        part = x[:, first : first + steps] if gru.batch_first else x[first : first + steps]
        left = None if lengths is None else np.clip(lengths - first, 0, part.shape[axis]).astype(np.int32)
        y, state = gru(part, state, lengths=left)
        parts.append(y)
        if progress is not None:
            progress((first + part.shape[axis]) / total)
    assert state is not None
    return np.concatenate(parts, axis=axis), state
