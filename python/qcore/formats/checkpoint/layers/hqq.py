"""Layers of HQQ, as HQQLinear.state_dict writes them for safetensors: NAME.W_q, NAME.scale, NAME.zero and options.

Each option is a tensor: numbers and flags have no axes, NAME.shape is [N, K], and texts are their characters in uint8.
Those that say how the layer was made, or what torch is to compute in, are not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section
from qcore.formats.checkpoint.files.safetensors import short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo
from qcore.formats.hqq import from_hqq

METHOD = "hqq"
_ARRAYS = ("W_q", "scale", "zero")
_READ = ("nbits", "group_size", "shape", "axis", "packing", "view_as_float", "quant_scale", "quant_zero")
_HISTORY = ("channel_wise", "optimize", "round_zero")
_UNUSED = ("unpack_view_dtype", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", *_HISTORY)
PARTS = (*_ARRAYS, *_READ, *_UNUSED)
_PACKINGS = {2: "2bit_u8", 3: "3bit_32", 4: "4bit_u8", 8: "8bit_u8"}
_FLAGS = {"axis": 1, "view_as_float": 0, "quant_scale": 0, "quant_zero": 0}
"""The only values of options that qcore reads; older files lack those that are 0."""
_INTEGERS = ("U8", "I8", "I16", "I32", "I64", "BOOL")
_MOST_TEXT = 64
_PER_WORD = 10
"""Codes of 3 bits in an int32."""


@dataclass(frozen=True)
class HqqEntry:
    """A layer's weight [N, K]."""

    bits: int
    block_size: int
    shape: tuple[int, int]
    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        return TensorInfo(name, METHOD, self.shape, self.bits, self.block_size, "asymmetric", nbytes)

    def read(self, name: str) -> Any:
        try:
            try:
                return self._weight(True)
            except _core.QcoreValueError:  # with another reason than rounding it comes again
                return self._weight(False)
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{self.sections['W_q'].path}: tensor {name!r}: {error}") from error

    def _weight(self, exact: bool) -> Any:
        codes, scale, zero = (self.sections[part] for part in _ARRAYS)
        options: dict[str, Any] = {"bits": self.bits, "shape": self.shape, "block_size": self.block_size}
        return from_hqq(codes.array(), scale.widened(), zero.widened(), exact=exact, **options)


def has_layers(sections: dict[str, Section], config: dict[str, Any] | None) -> bool:
    """Return whether a config.json says that a model has such layers, or tensors have their names."""
    values = (config or {}).get("quantization_config")
    if isinstance(values, dict) and "quant_method" in values:
        return bool(values["quant_method"] == METHOD)
    return any(name.endswith(".W_q") for name in sections)


def entries_of(sections: dict[str, Section], where: str) -> dict[str, Entry]:
    """Return the layers as NAME.weight, everything else as it is.

    Raises:
        QcoreValueError: a layer lacks a tensor, has one of another dtype or size than its options say, or options that
            qcore doesn't read.
    """
    found: dict[str, Entry] = {}
    left = dict(sections)
    for name in sections:
        layer, _, part = name.rpartition(".")
        if part not in ("W_q", "packing") or f"{layer}.weight" in found:
            continue
        parts = {each: left.pop(f"{layer}.{each}") for each in PARTS if f"{layer}.{each}" in left}
        found[f"{layer}.weight"] = _entry(layer, parts, f"{where}: layer {layer!r} ({METHOD})")
    for name, section in left.items():
        if name in found:
            raise _core.QcoreValueError(f"{where} has both {name!r} and a packed layer of that name, expected one")
        found[name] = PlainEntry(section)
    return found


def _entry(layer: str, parts: dict[str, Section], at: str) -> HqqEntry:
    """Check options and sizes, so that info() is right and no codec sees parts that don't fit."""
    for part in (*_ARRAYS, "nbits", "group_size", "shape", "axis", "packing"):
        if part not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.{part}, expected one")
    for part, expected in _FLAGS.items():
        if part in parts and (value := _integers(parts, part, 1, at)[0]) != expected:
            raise _core.QcoreValueError(f"{at}: {part} is {value}, expected {expected}")
    bits = _bits(parts, at)
    size = _integers(parts, "group_size", 1, at)[0]
    n, k = _integers(parts, "shape", 2, at)
    if n < 1 or k < 1:
        raise _core.QcoreValueError(f"{at}: shape is {[n, k]}, expected N and K")
    if size < 1 or k % size:
        raise _core.QcoreValueError(f"{at}: group_size is {size}, expected a divisor of K = {k}")
    groups = n * k // size
    per_item = _PER_WORD if bits == 3 else 8 // bits
    rows, dtype = (-(-groups // per_item), "I32") if bits == 3 else (groups // per_item, "U8")
    codes = parts["W_q"]
    if (codes.dtype, codes.shape) != (dtype, (rows, size)):
        raise _core.QcoreValueError(
            f"{at}: W_q is {codes.dtype} {list(codes.shape)}, expected {dtype} {[rows, size]} for {bits} bits"
        )
    for part in _ARRAYS[1:]:
        if parts[part].dtype not in FLOATING or math.prod(parts[part].shape) != groups:
            raise _core.QcoreValueError(
                f"{at}: {part} is {parts[part].dtype} {list(parts[part].shape)}, expected floats [{groups}, 1]"
            )
    return HqqEntry(bits, size, (n, k), {part: parts[part] for part in _ARRAYS})


def _bits(parts: dict[str, Section], at: str) -> int:
    given = parts["packing"]
    if given.dtype != "U8" or given.nbytes > _MOST_TEXT:
        raise _core.QcoreValueError(f"{at}: packing is {given.dtype} {list(given.shape)}, expected the text in U8")
    packing = given.bytes().tobytes().decode("latin-1")
    bits = _integers(parts, "nbits", 1, at)[0]
    if bits not in _PACKINGS:
        raise _core.QcoreValueError(f"{at}: nbits is {bits}, expected 2, 3, 4 or 8")
    if packing != _PACKINGS[bits]:
        raise _core.QcoreValueError(f"{at}: packing is {short(packing)}, expected {_PACKINGS[bits]!r} for {bits} bits")
    return bits


def _integers(parts: dict[str, Section], part: str, count: int, at: str) -> list[int]:
    section = parts[part]
    if section.dtype not in _INTEGERS or math.prod(section.shape) != count:
        expected = "an integer" if count == 1 else f"{count} integers"
        raise _core.QcoreValueError(f"{at}: {part} is {section.dtype} {list(section.shape)}, expected {expected}")
    return [int(value) for value in section.array().reshape(-1)]
