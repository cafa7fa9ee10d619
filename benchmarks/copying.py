"""Copies of memory: the limit of what does little more than move it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qcore.bench.limits import Limits
from qcore.bench.timing import Timed

from . import libraries
from .implementation import Unavailable

TORCH, NUMPY = "torch copy_", "numpy copyto (1 thread)"


def torch_copy(elements: int, dtype: str = "uint8") -> Callable[[int], object]:
    """torch's, of a dtype by its name there."""
    torch = libraries.torch()
    target = torch.empty(elements, dtype=getattr(torch, dtype))
    source = torch.from_numpy(_noise(target.nbytes)).view(target.dtype)
    return lambda _: target.copy_(source)


def numpy_copy(nbytes: int) -> Callable[[int], object]:
    source = _noise(nbytes)
    target = np.empty_like(source)
    return lambda _: np.copyto(target, source)


def _noise(nbytes: int) -> npt.NDArray[np.uint8]:
    """Virtual machines move zeros up to three times as fast as anything else."""
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)


def copy_limits(elements: int, dtype: str, item_bytes: int, *, others: bool) -> Limits:
    """Return torch's copy on as many threads as the other libraries have, or NumPy's if not `others`."""
    nbytes = elements * item_bytes
    try:
        if not others:
            raise Unavailable("no other library is to be imported")
        name, run = TORCH, torch_copy(elements, dtype)
    except Unavailable:
        name, run = NUMPY, numpy_copy(nbytes)
    return Limits(Timed(f"{name} limit", "limits", run, bytes_per_call=2 * nbytes), {}, {}, {}, "copy")
