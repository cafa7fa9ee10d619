"""How far a checkpoint's tensors are from another's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.reader import Checkpoint

_PIECE_ITEMS = 1 << 20


@dataclass(frozen=True)
class Difference:
    """Errors of one tensor. NaN and infinities count as they come: a NaN in one of the two makes both errors NaN."""

    name: str
    format: str
    relative_l2: float
    """||a - b|| / ||a||; 0 where both are zero."""
    max_error: float
    """max |a - b|"""


@dataclass(frozen=True)
class Comparison:
    differences: list[Difference]
    only_first: list[str]
    only_second: list[str]

    def relative_l2(self) -> float:
        """Return the error of the worst tensor."""
        return max((row.relative_l2 for row in self.differences), default=0.0)


def compare(
    first: Checkpoint, second: Checkpoint, progress: Callable[[str, int], None] = lambda name, done: None
) -> Comparison:
    """Compare every tensor that both have, ``second``'s against ``first``'s, in float64.

    Raises:
        QcoreValueError: no name is in both, or a tensor has another shape.
    """
    common = [name for name in first if name in second]
    if not common:
        raise _core.QcoreValueError(
            f"compare: {first.files[0]} and {second.files[0]} have no tensor's name in common, expected one or more"
        )
    for name in common:
        shapes = first.info(name).shape, second.info(name).shape
        if shapes[0] != shapes[1]:
            raise _core.QcoreValueError(
                f"compare: tensor {name!r} has shape {list(shapes[0])} in {first.files[0]}, expected that of "
                f"{second.files[0]}, {list(shapes[1])}"
            )
    rows = []
    for name in common:
        rows.append(_difference(name, second.info(name).format, _values(first[name]), _values(second[name])))
        progress(name, 1)
    return Comparison(rows, [name for name in first if name not in second], [n for n in second if n not in first])


def _values(tensor: Any) -> NDArray[Any]:
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor.dequantize())


def _difference(name: str, form: str, a: NDArray[Any], b: NDArray[Any]) -> Difference:
    a, b = a.reshape(-1), b.reshape(-1)
    squares = errors = 0.0
    worst = np.float64(0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, a.size, _PIECE_ITEMS):
            x = a[start : start + _PIECE_ITEMS].astype(np.float64)
            gap = np.abs(x - b[start : start + _PIECE_ITEMS].astype(np.float64))
            squares += float(x @ x)
            errors += float(gap @ gap)
            worst = np.maximum(worst, gap.max())  # keeps a NaN
    if errors == 0.0:
        return Difference(name, form, 0.0, 0.0)
    return Difference(name, form, math.sqrt(errors / squares) if squares else math.inf, float(worst))
