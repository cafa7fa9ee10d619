"""The header of a GGUF file: names, types, shapes and places of its tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The gguf package's
reader trusts the counts in a file; here each is held against the bytes that are left.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import Section, addressable
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo
from qcore.formats.gguf_blocks import TYPES, tensor_of

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MOST_AXES = 4
_UINT32, _STRING, _ARRAY = 4, 8, 9
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
PLAIN_TYPES = {0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}


class BlockType(NamedTuple):
    """A quantized type: ``elements`` of a row in ``nbytes``; ``group`` of them share a scale."""

    name: str
    elements: int
    nbytes: int
    bits: int
    group: int
    scheme: str


BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, 4, 32, "symmetric"),
    3: BlockType("Q4_1", 32, 20, 4, 32, "asymmetric"),
    6: BlockType("Q5_0", 32, 22, 5, 32, "symmetric"),
    7: BlockType("Q5_1", 32, 24, 5, 32, "asymmetric"),
    8: BlockType("Q8_0", 32, 34, 8, 32, "symmetric"),
    10: BlockType("Q2_K", 256, 84, 2, 16, "asymmetric"),
    11: BlockType("Q3_K", 256, 110, 3, 16, "symmetric"),
    12: BlockType("Q4_K", 256, 144, 4, 32, "asymmetric"),
    13: BlockType("Q5_K", 256, 176, 5, 32, "asymmetric"),
    14: BlockType("Q6_K", 256, 210, 6, 16, "symmetric"),
    15: BlockType("Q8_K", 256, 292, 8, 256, "symmetric"),
    16: BlockType("IQ2_XXS", 256, 66, 2, 32, "symmetric"),
    17: BlockType("IQ2_XS", 256, 74, 2, 16, "symmetric"),
    18: BlockType("IQ3_XXS", 256, 98, 3, 32, "symmetric"),
    19: BlockType("IQ1_S", 256, 50, 1, 32, "asymmetric"),
    20: BlockType("IQ4_NL", 32, 18, 4, 32, "symmetric"),
    21: BlockType("IQ3_S", 256, 110, 3, 32, "symmetric"),
    22: BlockType("IQ2_S", 256, 82, 2, 16, "symmetric"),
    23: BlockType("IQ4_XS", 256, 136, 4, 32, "symmetric"),
    29: BlockType("IQ1_M", 256, 56, 1, 16, "asymmetric"),
    34: BlockType("TQ1_0", 256, 54, 2, 256, "symmetric"),
    35: BlockType("TQ2_0", 256, 66, 2, 256, "symmetric"),
    39: BlockType("MXFP4", 32, 17, 4, 32, "symmetric"),
    40: BlockType("NVFP4", 64, 36, 4, 16, "symmetric"),
    41: BlockType("Q1_0", 128, 18, 1, 128, "symmetric"),
}
"""By ggml's numbers; :data:`qcore.formats.gguf_blocks.TYPES` are those that become QuantizedTensors."""


@dataclass(frozen=True)
class GgufEntry:
    path: Path
    kind: BlockType
    shape: tuple[int, ...]
    offset: int

    def info(self, name: str) -> TensorInfo:
        kind = self.kind
        nbytes = math.prod(self.shape) // kind.elements * kind.nbytes
        return TensorInfo(name, f"gguf {kind.name}", self.shape, kind.bits, kind.group, kind.scheme, nbytes)

    def raw(self) -> NDArray[np.uint8]:
        """Return the bytes of its rows, uint8 [rows, bytes of a row]."""
        rows = (math.prod(self.shape[:-1]), self.shape[-1] // self.kind.elements * self.kind.nbytes)
        return Section(self.path, "U8", rows, self.offset).array()

    def read(self, name: str, order: NDArray[np.intp] | None = None) -> Any:
        """Return the weight, its rows in another order if one is given."""
        if self.kind.name not in TYPES:
            raise _core.QcoreValueError(
                f"open_checkpoint: {self.path}: tensor {name!r} is {self.kind.name}, expected {', '.join(TYPES)} "
                "or a plain type"
            )
        if len(self.shape) != 2:
            raise _core.QcoreValueError(
                f"open_checkpoint: {self.path}: tensor {name!r} is {self.kind.name} of shape {list(self.shape)}, "
                "expected [N, K]"
            )
        raw = self.raw()
        return tensor_of(
            self.kind.name, raw if order is None else raw[order], f"open_checkpoint: {self.path}: tensor {name!r}"
        )


class _Cursor:
    """Reads forward through a header and never beyond the file's end."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.at = data, where, 0

    def skip(self, count: int, what: str) -> int:
        start = self.at
        if count > len(self.data) - start:
            raise _core.QcoreValueError(
                f"{self.where} ends within {what}: {count} bytes at {start} of {len(self.data)}"
            )
        self.at += count
        return start

    def number(self, layout: str, what: str) -> int:
        (value,) = struct.unpack_from("<" + layout, self.data, self.skip(struct.calcsize("<" + layout), what))
        return int(value)

    def text(self, what: str) -> str:
        length = self.number("Q", what)
        start = self.skip(length, what)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _core.QcoreValueError(f"{self.where}: {what} is not UTF-8: {error}") from None

    def value(self, kind: int, what: str) -> int | None:
        """Skip a metadata value; returns it if it is a uint32."""
        if kind == _STRING:
            self.skip(self.number("Q", what), what)
        elif kind == _ARRAY:
            inner, count = self.number("I", what), self.number("Q", what)
            if inner == _STRING:
                if count > len(self.data) // 8:
                    self.skip(8 * count, what)
                for _ in range(count):
                    self.skip(self.number("Q", what), what)
            elif inner in _VALUE_BYTES:
                self.skip(count * _VALUE_BYTES[inner], what)
            else:  # arrays of arrays exist in the format's text and in no file
                raise _core.QcoreValueError(f"{self.where}: {what} is an array of type {inner}, which is not known")
        elif kind == _UINT32:
            return self.number("I", what)
        elif kind in _VALUE_BYTES:
            self.skip(_VALUE_BYTES[kind], what)
        else:
            raise _core.QcoreValueError(f"{self.where}: {what} has type {kind}, expected 0 to 12")
        return None


def read_gguf(path: Path) -> dict[str, Entry]:
    """Return the tensors of a file.

    Raises:
        QcoreValueError: a header that is truncated or inconsistent, tensors that overlap or reach beyond the end.
    """
    where = f"open_checkpoint: {path}"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, where)
        cursor.skip(4, "its magic")
        version = cursor.number("I", "its version")
        if version not in (2, 3):
            raise _core.QcoreValueError(f"{where} is GGUF of version {version}, expected 2 or 3 in little-endian order")
        tensors, values = cursor.number("Q", "its counts"), cursor.number("Q", "its counts")
        alignment = DEFAULT_ALIGNMENT
        for _ in range(values):
            key = cursor.text("the name of a metadata value")
            found = cursor.value(cursor.number("I", f"metadata {key[:64]!r}"), f"metadata {key[:64]!r}")
            if key == "general.alignment" and found is not None:
                alignment = found
        if alignment == 0 or alignment % 8:
            raise _core.QcoreValueError(f"{where}: general.alignment is {alignment}, expected a multiple of 8")
        described = [_tensor(cursor) for _ in range(tensors)]
        begin = -(-cursor.at // alignment) * alignment
        return _entries(path, described, begin, len(data), where)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape outermost first, type, offset."""
    name = cursor.text("the name of a tensor")
    what = f"tensor {name[:64]!r}"
    axes = cursor.number("I", what)
    if axes > MOST_AXES:
        raise _core.QcoreValueError(f"{cursor.where}: {what} has {axes} axes, expected at most {MOST_AXES}")
    sizes = [cursor.number("Q", what) for _ in range(axes)]
    return name, tuple(reversed(sizes)), cursor.number("I", what), cursor.number("Q", what)


def _entries(
    path: Path, described: list[tuple[str, tuple[int, ...], int, int]], begin: int, size: int, where: str
) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    places = []
    for name, shape, number, offset in described:
        at = f"{where}: tensor {name[:64]!r}"
        if name in found:
            raise _core.QcoreValueError(f"{at} comes twice")
        if not addressable(shape):
            raise _core.QcoreValueError(f"{at} has shape {list(shape)}, expected one of less than 2^63 bytes")
        entry: Entry
        if number in PLAIN_TYPES:
            entry = PlainEntry(Section(path, PLAIN_TYPES[number], shape, begin + offset))
        elif number in BLOCK_TYPES:
            kind = BLOCK_TYPES[number]
            if not shape or shape[-1] % kind.elements:
                raise _core.QcoreValueError(
                    f"{at} has shape {list(shape)}, expected rows of a multiple of {kind.elements} for {kind.name}"
                )
            entry = GgufEntry(path, kind, shape, begin + offset)
        else:  # of a later version of ggml; it is listed, and reading it is an error
            entry = GgufEntry(path, BlockType(f"type {number}", 1, 0, 0, 0, "unknown"), shape, begin + offset)
        found[name] = entry
        places.append((begin + offset, entry.info(name).nbytes, name))
    end, last = begin, "the header"
    for start, nbytes, name in sorted(places):
        at = f"{where}: tensor {name[:64]!r}"
        if start < end:
            raise _core.QcoreValueError(f"{at} overlaps {last}")
        end, last = start + nbytes, repr(name[:64])
        if end > size:
            raise _core.QcoreValueError(f"{at} ends at byte {end} of {size}: the file is truncated")
    return found
