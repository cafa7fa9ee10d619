"""Layers of bitsandbytes: NF4 and FP4, which describe themselves, and LLM.int8().

Beside NAME.weight a layer of 4 bits has NAME.weight.absmax, NAME.weight.quant_map and, as a tensor of the bytes of a
JSON object, NAME.weight.quant_state.bitsandbytes__nf4 (or fp4); a double-quantized one has NAME.weight.nested_absmax
and NAME.weight.nested_quant_map, too. A layer of LLM.int8() has NAME.SCB, and NAME.weight_format, which is 0.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from qcore import _core
from qcore.formats.bitsandbytes import from_bitsandbytes_4bit, from_bitsandbytes_int8
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section
from qcore.formats.checkpoint.files.safetensors import short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo

METHOD = "bitsandbytes"
_STATE = "weight.quant_state.bitsandbytes__"
_TYPES = ("nf4", "fp4")
_INT8_PARTS = ("weight", "SCB", "weight_format")
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
_PARTS = ("weight", "weight.absmax", "weight.quant_map", *_NESTED)
PARTS = (*_PARTS, *(_STATE + kind for kind in _TYPES), *_INT8_PARTS[1:])
_STORAGE = ("U8", "I8", *FLOATING)
"""Dtypes that bnb_4bit_quant_storage may name; the bytes are the same."""
_MOST_BYTES = 1 << 16
"""A description has about 100 bytes; a tensor that is larger is none, and is not read."""
_NESTED_BLOCK = 256
_LARGEST = 3.4028234663852886e38
"""The largest float32."""


@dataclass(frozen=True)
class QuantState:
    """The checked contents of a layer's JSON description."""

    quant_type: str
    block_size: int
    shape: tuple[int, int]
    offset: float | None
    """The number that a double-quantized weight adds to every absmax."""


@dataclass(frozen=True)
class FourBitEntry:
    """A layer's weight [N, K] in NF4 or FP4."""

    state: QuantState
    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        state = self.state
        return TensorInfo(name, f"{METHOD} {state.quant_type}", state.shape, 4, state.block_size, "symmetric", nbytes)

    def read(self, name: str) -> Any:
        parts, state = self.sections, self.state
        more: dict[str, Any] = {}
        if _NESTED[0] in parts:
            more = {"nested_absmax": parts[_NESTED[0]].array(), "nested_quant_map": parts[_NESTED[1]].array()}
            more["nested_offset"] = state.offset
        try:
            return from_bitsandbytes_4bit(
                parts["weight"].bytes(),
                parts["weight.absmax"].array(),
                quant_type=state.quant_type,
                shape=state.shape,
                block_size=state.block_size,
                **more,
            )
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{parts['weight'].path}: tensor {name!r}: {error}") from error


@dataclass(frozen=True)
class Int8Entry:
    """A layer's weight [N, K] of LLM.int8()."""

    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        shape = self.sections["weight"].shape
        return TensorInfo(name, f"{METHOD} int8", shape, 8, shape[1], "symmetric", nbytes)

    def read(self, name: str) -> Any:
        parts = self.sections
        try:
            return from_bitsandbytes_int8(parts["weight"].array(), parts["SCB"].array())
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{parts['weight'].path}: tensor {name!r}: {error}") from error


def has_layers(sections: dict[str, Section], config: dict[str, Any] | None) -> bool:
    """Return whether a config.json says that a model has such layers, or tensors have their names."""
    values = (config or {}).get("quantization_config")
    if isinstance(values, dict) and "quant_method" in values:
        return bool(values["quant_method"] == METHOD)
    return any(f".{_STATE}" in name or name.endswith(".SCB") for name in sections)


def entries_of(sections: dict[str, Section], where: str) -> dict[str, Entry]:
    """Return the layers as NAME.weight, everything else as it is.

    Raises:
        QcoreValueError: a layer lacks a tensor, or has one of another dtype or size than its description says.
    """
    found: dict[str, Entry] = {}
    left = dict(sections)
    for layer, kinds in _layers(sections).items():
        at = f"{where}: layer {layer!r} ({METHOD})"
        parts = {part: left.pop(f"{layer}.{part}") for part in PARTS if f"{layer}.{part}" in left}
        if "weight" not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.weight, expected one")
        is_int8 = not kinds and "weight.absmax" not in parts and (parts["weight"].dtype == "I8" or "SCB" in parts)
        found[f"{layer}.weight"] = (_int8_entry if is_int8 else _four_bit_entry)(layer, parts, kinds, at)
    return found | {name: PlainEntry(section) for name, section in left.items()}


def _layers(sections: dict[str, Section]) -> dict[str, dict[str, Section]]:
    """Return the descriptions of each layer, by type; none of a layer of LLM.int8()."""
    found: dict[str, dict[str, Section]] = {}
    for name, section in sections.items():
        layer, mark, kind = name.partition(f".{_STATE}")
        if mark:
            found.setdefault(layer, {})[kind] = section
        elif name.endswith((".SCB", ".weight.absmax")):
            found.setdefault(name.removesuffix(".SCB").removesuffix(".weight.absmax"), {})
        elif name.endswith(".weight") and section.dtype in ("U8", "I8") and len(section.shape) == 2:
            found.setdefault(name.removesuffix(".weight"), {})
    return found


def _int8_entry(layer: str, parts: dict[str, Section], kinds: dict[str, Section], at: str) -> Int8Entry:
    weight = parts["weight"]
    if weight.dtype != "I8" or len(weight.shape) != 2:
        raise _core.QcoreValueError(f"{at}: weight is {weight.dtype} {list(weight.shape)}, expected I8 of two axes")
    if "SCB" not in parts:
        raise _core.QcoreValueError(f"{at} has no tensor {layer}.SCB, expected one")
    _check(parts, "SCB", "F32", weight.shape[0], at)
    if "weight_format" in parts:
        _check(parts, "weight_format", "U8", 1, at)
        order = int(parts["weight_format"].array().reshape(-1)[0])
        if order != 0:
            raise _core.QcoreValueError(f"{at}: weight_format is {order}, expected 0: the order of rows")
    return Int8Entry({part: parts[part] for part in _INT8_PARTS if part in parts})


def _four_bit_entry(layer: str, parts: dict[str, Section], kinds: dict[str, Section], at: str) -> FourBitEntry:
    """Check sizes, so that info() is right and no codec sees parts that don't fit."""
    if len(kinds) != 1:
        given = f"{len(kinds)} tensors {layer}.{_STATE}*" if kinds else f"no tensor {layer}.{_STATE}nf4 or fp4"
        raise _core.QcoreValueError(f"{at} has {given}, expected one")
    kind, description = next(iter(kinds.items()))
    if kind not in _TYPES:
        raise _core.QcoreValueError(f"{at}: {layer}.{_STATE}{kind} names {short(kind)}, expected 'nf4' or 'fp4'")
    state = _state(description, kind, f"{at}: {layer}.{_STATE}{kind}")
    weight, values = parts["weight"], math.prod(state.shape)
    if weight.dtype not in _STORAGE or 2 * weight.nbytes != values:
        raise _core.QcoreValueError(
            f"{at}: weight is {weight.dtype} {list(weight.shape)}, expected half of a byte for each of "
            f"{list(state.shape)}"
        )
    if "weight.absmax" not in parts:
        raise _core.QcoreValueError(f"{at} has no tensor {layer}.weight.absmax, expected one")
    _check_absmax(layer, parts, state, at)
    if "weight.quant_map" in parts:  # bitsandbytes knows the table by its type, and so does qcore
        _check(parts, "weight.quant_map", "F32", 16, at)
    return FourBitEntry(state, {part: parts[part] for part in _PARTS if part in parts})


def _check_absmax(layer: str, parts: dict[str, Section], state: QuantState, at: str) -> None:
    blocks = -(-math.prod(state.shape) // state.block_size)
    dtype = parts["weight.absmax"].dtype
    nested = dtype == "U8"
    _check(parts, "weight.absmax", "U8" if nested else "F32", blocks, at)
    for part, count in zip(_NESTED, (-(-blocks // _NESTED_BLOCK), 256), strict=True):
        if nested != (part in parts):
            given, expected = ("no", "one") if nested else ("a", "none")
            raise _core.QcoreValueError(
                f"{at} has {given} tensor {layer}.{part}, expected {expected}: weight.absmax is {dtype}"
            )
        if nested:
            _check(parts, part, "F32", count, at)
    if nested and state.offset is None:
        raise _core.QcoreValueError(
            f"{at}: {layer}.{_STATE}{state.quant_type} has no 'nested_offset', expected one: weight.absmax is U8"
        )


def _check(parts: dict[str, Section], part: str, dtype: str, count: int, at: str) -> None:
    section = parts[part]
    if section.dtype != dtype or math.prod(section.shape) != count:
        raise _core.QcoreValueError(
            f"{at}: {part} is {section.dtype} {list(section.shape)}, expected {dtype} [{count}]"
        )


def _state(section: Section, kind: str, where: str) -> QuantState:
    """Return what the description of a layer of 4 bits says."""
    if section.dtype != "U8" or section.nbytes > _MOST_BYTES:
        raise _core.QcoreValueError(
            f"{where} is {section.dtype} {list(section.shape)}, expected U8, at most {_MOST_BYTES} bytes of JSON"
        )
    try:
        values = json.loads(section.bytes().tobytes())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _core.QcoreValueError(f"{where} holds no JSON object, expected one")
    shape, size = values.get("shape"), values.get("blocksize")
    if values.get("quant_type") != kind:
        raise _core.QcoreValueError(f"{where}: quant_type is {short(values.get('quant_type'))}, expected {kind!r}")
    if type(size) is not int or not 0 < size < 2**31:
        raise _core.QcoreValueError(f"{where}: blocksize is {short(size)}, expected a positive integer")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(each) is int and each > 0 for each in shape):
        raise _core.QcoreValueError(f"{where}: shape is {short(shape)}, expected N and K")
    nested = values.get("nested_blocksize", _NESTED_BLOCK)
    if nested != _NESTED_BLOCK:
        raise _core.QcoreValueError(f"{where}: nested_blocksize is {short(nested)}, expected {_NESTED_BLOCK}")
    offset = values.get("nested_offset")
    if offset is not None and (type(offset) not in (int, float) or not abs(offset) <= _LARGEST):
        raise _core.QcoreValueError(f"{where}: nested_offset is {short(offset)}, expected a finite float32")
    return QuantState(kind, size, (shape[0], shape[1]), None if offset is None else float(offset))
