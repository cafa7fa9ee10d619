"""The header of a safetensors file: read with every number checked, and written before the data.

Format: https://github.com/huggingface/safetensors. The header is read here and not by the safetensors package because
tensors are mapped and released one at a time, and bfloat16 has to come through without a framework.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import ITEM_BYTES, Section, addressable

MOST_HEADER_BYTES = 100_000_000
"""safetensors' own limit."""
_MOST_AXES = 32
_ALIGNMENT = 8


@dataclass(frozen=True)
class SafetensorsFile:
    sections: dict[str, Section]
    metadata: dict[str, str]


def read_header(path: Path) -> SafetensorsFile:
    """Return what a file holds.

    Raises:
        QcoreValueError: it is truncated, its header is no safetensors header, or tensors overlap, leave holes, reach
            beyond the end or have sizes that differ from their shapes.
    """
    where = f"safetensors: {path}"
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size < 8:
            raise _core.QcoreValueError(f"{where} has {size} bytes, expected a header of 8 or more")
        (length,) = struct.unpack("<Q", file.read(8))
        most = min(size - 8, MOST_HEADER_BYTES)
        if length > most:
            raise _core.QcoreValueError(
                f"{where} says that its header has {length} bytes, expected at most {most}: "
                "it is truncated, or no safetensors file"
            )
        header = parse_json(file.read(length), f"{where}: its header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _core.QcoreValueError(f"{where}: __metadata__ is {short(metadata)}, expected an object of strings")
    begin = 8 + length
    found = {name: _section(path, name, entry, begin, where) for name, entry in header.items()}
    _check_coverage(found, begin, size, where)
    return SafetensorsFile(found, metadata)


def _section(path: Path, name: str, entry: Any, begin: int, where: str) -> Section:
    at = f"{where}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _core.QcoreValueError(f"{at} is described by {short(entry)}, expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _core.QcoreValueError(f"{at} has dtype {dtype!r}, expected one of {', '.join(sorted(ITEM_BYTES))}")
    if not is_sizes(shape) or len(shape) > _MOST_AXES:
        raise _core.QcoreValueError(f"{at} has shape {short(shape)}, expected at most {_MOST_AXES} sizes")
    if not addressable(shape):
        raise _core.QcoreValueError(f"{at} has shape {short(shape)}, expected one of less than 2^63 bytes")
    if not is_sizes(offsets) or len(offsets) != 2:
        raise _core.QcoreValueError(f"{at} has data_offsets {short(offsets)}, expected two numbers of bytes")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != needed:
        raise _core.QcoreValueError(
            f"{at} has data_offsets {offsets}, expected {needed} bytes for shape {shape} of {dtype}"
        )
    return Section(path, dtype, tuple(shape), begin + offsets[0])


def _check_coverage(found: Mapping[str, Section], begin: int, size: int, where: str) -> None:
    """Tensors follow one another without gaps up to the end, as the format demands."""
    end, last = begin, "the header"
    for name, section in sorted(found.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if section.offset != end:
            word = "overlaps" if section.offset < end else "leaves a hole behind"
            raise _core.QcoreValueError(f"{where}: tensor {name!r} {word} {last}")
        end, last = section.offset + section.nbytes, repr(name)
    if end != size:
        raise _core.QcoreValueError(f"{where} has {size} bytes, expected {end}: it is truncated or has another's data")


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> tuple[bytes, Any]:
    """Return the header of a file with these (dtype, shape), and each tensor's (offset, bytes) in the file.

    Wide items come first, as in files of the safetensors package, so that every array is aligned.
    """
    order = sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name][0]], name))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    places, end = {}, 0
    for name in order:
        dtype, shape = tensors[name]
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + nbytes]}
        places[name] = (end, nbytes)
        end += nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MOST_HEADER_BYTES:
        raise _core.QcoreValueError(
            f"safetensors: a header of {len(text)} bytes is needed, expected at most {MOST_HEADER_BYTES}"
        )
    begin = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {name: (begin + start, n) for name, (start, n) in places.items()}


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; a key that comes twice is an error."""
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise _core.QcoreValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _core.QcoreValueError(f"{where} is a JSON {type(found).__name__}, expected an object")
    return found


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice")
    return found


def is_sizes(value: Any) -> bool:
    """Return a list of integers that a 63-bit size can hold."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def short(value: Any) -> str:
    """Truncate untrusted text to one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
