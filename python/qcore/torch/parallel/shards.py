"""Divides a weight among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qcore import _checks, _core
from qcore.quantized_tensor import QuantizedTensor


def shard_sizes(total: int, parts: int, multiple_of: int = 1) -> list[int]:
    """Return the sizes of contiguous shards: multiples of ``multiple_of``, but for the last that is not empty.

    Whole multiples are spread evenly, the first shards having one more; where there are fewer multiples than shards,
    the last shards are empty.

    Args:
        total: number of elements that are split, 0 or more.
        parts: number of shards.
        multiple_of: number of elements of a block that is not divided.

    Raises:
        QcoreValueError, QcoreTypeError: an argument is too small, or is no integer.
    """
    for name, value, least in (("total", total, 0), ("parts", parts, 1), ("multiple_of", multiple_of, 1)):
        if _checks.integer(value, f"shard_sizes: {name}") < least:
            raise _core.QcoreValueError(f"shard_sizes: {name} is {value}, expected {least} or more")
    each, more = divmod(-(-total // multiple_of), parts)
    ends = [min(total, multiple_of * (each * part + min(part, more))) for part in range(parts + 1)]
    return [stop - start for start, stop in pairwise(ends)]


@dataclass(frozen=True)
class Shard:
    """Describes the part of an axis that one rank has."""

    sizes: tuple[int, ...]
    """Sizes of the parts of all ranks."""
    rank: int

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.rank])

    @property
    def stop(self) -> int:
        return self.start + self.sizes[self.rank]


def rows_of(weight: QuantizedTensor, shard: Shard) -> QuantizedTensor:
    """Return outputs start to stop of a weight [N, K] as a weight [stop - start, K]."""
    return weight.slice_rows(shard.start, shard.stop)


def columns_of(weight: QuantizedTensor, shard: Shard) -> QuantizedTensor:
    """Return columns start to stop, whole blocks, of a weight [N, K] as a plain weight [N, stop - start]."""
    here = weight.to("cpu").plain()
    first, last = (-(-end // here.block_size) for end in (shard.start, shard.stop))
    part = QuantizedTensor.from_parts(
        np.ascontiguousarray(here.codes()[:, shard.start : shard.stop]),
        np.ascontiguousarray(here.scales()[:, first:last]),
        None if here.scheme == "symmetric" else np.ascontiguousarray(here.offsets()[:, first:last]),
        bits=here.bits,
        block_size=here.block_size,
    )
    return part.to(weight.device)
