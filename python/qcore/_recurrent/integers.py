"""Integer arithmetic of recurrent cells in NumPy, apart from the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def rounding_shift(values: Any, bits: Any, *, half_even: bool) -> Integers:
    """Return values * 2**-bits, rounded half away from zero or half to even; to the left if bits is negative."""
    v, n = np.broadcast_arrays(np.asarray(values, np.int64), np.asarray(bits, np.int64))
    right = np.maximum(n, 0)
    magnitude = np.abs(v)
    whole = magnitude >> right
    rest = magnitude - (whole << right)
    half = np.where(n > 0, np.int64(1) << np.maximum(right - 1, 0), 1)
    up = (rest > half) | ((rest == half) & ((whole & 1 == 1) if half_even else True))
    rounded = np.sign(v) * (whole + up)
    shifted: Integers = np.where(n > 0, rounded, v << np.maximum(-n, 0))
    return shifted
