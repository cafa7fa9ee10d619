"""Stretches of a file that hold one array each."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _arrays, _core

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""safetensors' names of dtypes and NumPy's, or ml_dtypes's for those that NumPy lacks."""

ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
ITEM_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1}
_WIDEST = 8
FLOATING = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Section:
    """``shape`` items of ``dtype`` (safetensors' name), row-major, at byte ``offset`` of a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def rows(self, start: int, stop: int) -> Section:
        """Return rows ``start`` to ``stop`` of its first axis."""
        inner = self.shape[1:]
        step = math.prod(inner) * ITEM_BYTES[self.dtype]
        return Section(self.path, self.dtype, (stop - start, *inner), self.offset + start * step)

    def bytes(self) -> NDArray[np.uint8]:
        """Return uint8 [nbytes], read-only, mapped from the file: pages are read when used, freed with the array."""
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset + self.nbytes:  # reading beyond the end of a mapping would kill the process
                raise _core.QcoreValueError(
                    f"{self.path} has {size} bytes now, expected {self.offset + self.nbytes} or more: it has become "
                    "shorter since it was opened"
                )
            start = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            inside = self.offset - start
            mapped = mmap.mmap(file.fileno(), inside + self.nbytes, access=mmap.ACCESS_READ, offset=start)
        return np.frombuffer(mapped, np.uint8, self.nbytes, inside)

    def array(self) -> NDArray[Any]:
        """Return ``bytes`` with its dtype and shape. It is copied only where the file has it at an odd address."""
        dtype = numpy_dtype(self.dtype)
        data = self.bytes()
        if data.ctypes.data % dtype.itemsize:
            data = data.copy()
            data.flags.writeable = False
        return data.view(dtype).reshape(self.shape)

    def widened(self) -> NDArray[Any]:
        """Return ``array``, bfloat16 in float32, which holds it: no ml_dtypes is needed."""
        if self.dtype != "BF16":
            return self.array()
        words = Section(self.path, "U16", self.shape, self.offset).array()
        return (words.astype(np.uint32) << 16).view(np.float32)

    def operand(self, where: str) -> Any:
        """Return a floating-point array as ``_core`` takes it; bfloat16 needs no ml_dtypes here."""
        if self.dtype != "BF16":
            return self.array()
        words = Section(self.path, "I16", self.shape, self.offset).array()
        op, _, argument = where.partition(": ")
        return _core.as_bfloat16(words, op, argument)


def addressable(shape: Iterable[int]) -> bool:
    """Return whether NumPy can have such an array; it minds the other axes even if one is 0."""
    return math.prod(size for size in shape if size) * _WIDEST < 2**63


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype for safetensors' name."""
    if not name.startswith("F8_"):
        return _arrays.numpy_dtype(DTYPES[name])
    try:
        import ml_dtypes
    except ImportError as error:
        raise _core.QcoreTypeError(
            f"{name} arrays of NumPy need the package ml_dtypes: pip install ml-dtypes"
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, DTYPES[name]))
    return found
