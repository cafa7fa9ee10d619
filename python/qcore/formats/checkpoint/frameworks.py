"""Arrays of a file as tensors of torch, which has dtypes that NumPy lacks."""

from __future__ import annotations

import mmap
import os
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import DTYPES, ITEM_BYTES, Section


def as_torch(section: Section) -> Any:
    """Return a tensor of torch over a private mapping of the file: writing to it leaves the file alone.

    Args:
        section: the array's place.

    Raises:
        QcoreValueError: the file has become shorter.
        QcoreTypeError: torch isn't installed, or lacks the dtype.
    """
    try:
        import torch
    except ImportError as error:
        raise _core.QcoreTypeError("checkpoint.tensor: framework 'torch' needs the package torch") from error
    dtype = getattr(torch, DTYPES[section.dtype], None)
    if dtype is None:
        raise _core.QcoreTypeError(f"checkpoint.tensor: torch has no dtype {DTYPES[section.dtype]}")
    if section.nbytes == 0:
        return torch.empty(section.shape, dtype=dtype)
    with open(section.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < section.offset + section.nbytes:
            raise _core.QcoreValueError(
                f"{section.path} has {size} bytes now, expected {section.offset + section.nbytes} or more: it has "
                "become shorter since it was opened"
            )
        start = section.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        inside = section.offset - start
        mapped = mmap.mmap(file.fileno(), inside + section.nbytes, access=mmap.ACCESS_COPY, offset=start)
    octets = torch.frombuffer(mapped, dtype=torch.uint8, count=section.nbytes, offset=inside)
    if section.offset % ITEM_BYTES[section.dtype]:
        octets = octets.clone()
    return octets.view(dtype).reshape(section.shape)
