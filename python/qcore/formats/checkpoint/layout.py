"""qcore's own layout: a quantized tensor as two or three tensors of a safetensors file.

Of a weight NAME [N, K] (or [Co, Ci, Kh, Kw]) the file has

    NAME.codes     int8, the weight's shape, for 8 bits; uint8 [N, ceil(K / 2)] for 4 bits (K = Ci * Kh * Kw for a
                   convolution): element 2j of a row in the low half of byte j, 2j + 1 in the high one, each plus 8
    NAME.scales    float32 or float16 [N, P]
    NAME.offsets   float32 or float16 [N, P]; only of an asymmetric weight

    NAME.order     int32 [K], of a ReorderedTensor only: column i of the codes is column order[i] of the matrix

The file stores an encoded weight as the arguments of QuantizedTensor.from_encoded: NAME.codes, NAME.scales and, where
the encoding has them, NAME.offsets, NAME.super_scales and NAME.super_offsets. Floats have their dtype, all other parts
are uint8; numbers of fewer than 8 bits lie one after the other in a row of ceil(columns * bits / 8) bytes, the
first in the lowest bits.

The header's metadata has format = "qcore.weights.1" and weights, which is JSON: {NAME: {bits, block_size, scheme,
shape}}, with reordered = true for a ReorderedTensor, and encoding = WeightEncoding.to_dict() for an encoded weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import Section, addressable
from qcore.formats.checkpoint.files.safetensors import SafetensorsFile, is_sizes, parse_json, short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor
from qcore.weight_encoding import WeightEncoding, pack_bits, unpack_bits

FORMAT = "qcore.weights.1"
PREFIX = "qcore.weights."
KEY = "qcore"
"""The metadata's entry for the layout in files that transformers writes: their ``format`` is "pt"."""
_PARAMETERS = {"F16": np.float16, "F32": np.float32}
_ENCODED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8"}
_KEYS = {"bits", "block_size", "scheme", "shape"}
Weight = QuantizedTensor | ReorderedTensor
Parts = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Description:
    """All that fixes the sizes of a quantized tensor's parts."""

    shape: tuple[int, ...]
    bits: int
    block_size: int
    scheme: str
    reordered: bool = False
    encoding: WeightEncoding | None = None

    @classmethod
    def of(cls, tensor: Weight) -> Description:
        weight = inner(tensor)
        reordered = isinstance(tensor, ReorderedTensor)
        return cls(weight.shape, weight.bits, weight.block_size, weight.scheme, reordered, weight.encoding)

    @property
    def columns(self) -> int:
        """Codes of a row."""
        return math.prod(self.shape[1:])

    @property
    def blocks(self) -> int:
        return -(-self.shape[1] // self.block_size)

    def parts(self, scales: str, offsets: str) -> Parts:
        """Return (dtype, shape) of each part, with the dtypes of scales and offsets of a plain weight."""
        rows = self.shape[0]
        found: Parts
        if self.encoding is not None:
            widths = self.encoding.widths()
            found = {
                name: (_ENCODED[about[1]], (rows, -(-about[0][1] * widths.get(name, 8) // 8)))
                for name, about in self.encoding.arrays(self.shape, self.block_size).items()
                if about is not None
            }
        else:
            codes = ("I8", self.shape) if self.bits == 8 else ("U8", (rows, -(-self.columns // 2)))
            found = {"codes": codes, "scales": (scales, (rows, self.blocks))}
            if self.scheme == "asymmetric":
                found["offsets"] = (offsets, (rows, self.blocks))
        if self.reordered:
            found["order"] = ("I32", (self.columns,))
        return found

    def to_json(self) -> dict[str, Any]:
        found = {"bits": self.bits, "block_size": self.block_size, "scheme": self.scheme, "shape": list(self.shape)}
        if self.reordered:
            found["reordered"] = True
        if self.encoding is not None:
            found["encoding"] = self.encoding.to_dict()
        return found


def inner(tensor: Weight) -> QuantizedTensor:
    """Return the blocks of a weight, whatever the order of its columns."""
    return tensor.weight if isinstance(tensor, ReorderedTensor) else tensor


def parameter_dtypes(tensor: Weight) -> tuple[str, str]:
    """Return the smallest that hold its scales and its offsets exactly; an encoded weight's are not used."""
    weight = inner(tensor)
    if weight.encoding is not None:
        return "F32", "F32"
    scales = "F16" if weight.scale_dtype == "float16" else "F32"
    if weight.scheme == "symmetric":
        return scales, scales
    offsets = weight.offsets()
    with np.errstate(over="ignore"):
        halves = offsets.astype(np.float16)
    return scales, "F16" if np.array_equal(halves.astype(np.float32), offsets) else "F32"


def encode(tensor: Weight, scales: str, offsets: str) -> dict[str, NDArray[Any]]:
    """Return the parts' values, in dtypes that hold them exactly."""
    weight = inner(tensor)
    found: dict[str, NDArray[Any]]
    if weight.encoding is not None:
        found = _encoded_parts(weight, weight.encoding)
    else:
        found = {"codes": weight.nibbles() if weight.bits == 4 else weight.codes()}
        found["scales"] = weight.scales().astype(_PARAMETERS[scales], copy=False)
        if weight.scheme == "asymmetric":
            found["offsets"] = weight.offsets().astype(_PARAMETERS[offsets], copy=False)
    if isinstance(tensor, ReorderedTensor):
        found["order"] = tensor.order.astype(np.int32)
    return found


def _encoded_parts(weight: QuantizedTensor, encoding: WeightEncoding) -> dict[str, NDArray[Any]]:
    """Return the parts as the file has them, bfloat16 in integers, for which no ml_dtypes is needed."""
    words: dict[int, NDArray[np.int16]] = {}

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        if dtype != "bfloat16":
            return np.empty(shape, dtype)
        array = np.empty(shape, np.int16)
        view = _core.as_bfloat16(array, "save", "scales")
        words[id(view)] = array
        return view

    parts = {name: part for name, part in weight._encoded_parts(empty).items() if part is not None}
    widths = encoding.widths()
    return {
        name: pack_bits(part, widths[name]) if name in widths else words.get(id(part), part)
        for name, part in parts.items()
    }


def unpack_nibbles(packed: NDArray[np.uint8], columns: int) -> NDArray[np.int8]:
    """Return int8 [N, columns] of :meth:`QuantizedTensor.nibbles`."""
    pairs = packed.astype("<u2")
    pairs = (pairs | pairs << 4) & 0x0F0F
    codes: NDArray[np.int8] = pairs.view(np.int8) - np.int8(8)
    return codes[:, :columns]


def metadata_of(weights: Mapping[str, Description]) -> dict[str, str]:
    """Return what the header says of the weights."""
    described = {name: weight.to_json() for name, weight in weights.items()}
    return {"format": FORMAT, "weights": json.dumps(described, separators=(",", ":"), ensure_ascii=False)}


@dataclass(frozen=True)
class QcoreEntry:
    description: Description
    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        about = self.description
        nbytes = sum(section.nbytes for section in self.sections.values())
        return TensorInfo(name, KEY, about.shape, about.bits, about.block_size, about.scheme, nbytes)

    def read(self, name: str) -> Weight:
        about = self.description
        try:
            weight = self._plain() if about.encoding is None else self._encoded(about.encoding)
            return ReorderedTensor(weight, self.sections["order"].array()) if about.reordered else weight
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{self.sections['codes'].path}: tensor {name!r}: {error}") from error

    def _plain(self) -> QuantizedTensor:
        about = self.description
        parts = {part: section.array() for part, section in self.sections.items()}
        return QuantizedTensor.from_parts(
            parts["codes"],
            parts["scales"],
            parts.get("offsets"),
            bits=about.bits,
            block_size=about.block_size,
            shape=about.shape if about.bits == 4 else None,
        )

    def _encoded(self, encoding: WeightEncoding) -> QuantizedTensor:
        about, widths = self.description, encoding.widths()
        parts: dict[str, Any] = {}
        for part, section in self.sections.items():
            if part in widths:
                columns = about.columns if part == "codes" else about.blocks
                parts[part] = unpack_bits(section.array(), widths[part], columns)
            elif part != "order":
                parts[part] = section.operand(f"from_encoded: {part}")
        return QuantizedTensor.from_encoded(**parts, encoding=encoding, block_size=about.block_size)


def entries_of(file: SafetensorsFile, where: str) -> dict[str, Entry]:
    """Return the tensors of a file in this layout, quantized and plain."""
    given = file.metadata.get(KEY, file.metadata.get("format"))
    if given != FORMAT:
        raise _core.QcoreValueError(f"{where} has format {given!r}, expected {FORMAT!r}")
    sections = dict(file.sections)
    found: dict[str, Entry] = {}
    for name, value in parse_json(file.metadata.get("weights", "").encode(), f"{where}: metadata weights").items():
        found[name] = _entry(name, _description(value, f"{where}: weight {name!r}"), sections, where)
    for name, section in sections.items():
        if name in found:
            raise _core.QcoreValueError(f"{where} has both a quantized weight and an array {name!r}, expected one")
        found[name] = PlainEntry(section)
    return found


def _description(value: Any, where: str) -> Description:
    if not isinstance(value, dict) or not set(value) >= _KEYS:
        missing = ", ".join(sorted(_KEYS - set(value))) if isinstance(value, dict) else "everything"
        raise _core.QcoreValueError(f"{where} lacks {missing} in its description, expected {', '.join(sorted(_KEYS))}")
    bits, block_size, scheme, shape = (value[key] for key in ("bits", "block_size", "scheme", "shape"))
    encoding = _encoding(value, where)
    if type(bits) is not int or bits not in ((4, 8) if encoding is None else (encoding.bits,)):
        expected = "4 or 8" if encoding is None else f"those of its encoding, {encoding.bits}"
        raise _core.QcoreValueError(f"{where} has bits {short(bits)}, expected {expected}")
    if not is_sizes([block_size]) or block_size < 1:
        raise _core.QcoreValueError(f"{where} has block_size {short(block_size)}, expected a positive integer")
    if scheme not in ("symmetric", "asymmetric"):
        raise _core.QcoreValueError(f"{where} has scheme {short(scheme)}, expected 'symmetric' or 'asymmetric'")
    if encoding is not None and (scheme == "symmetric") != (encoding.offsets is None):
        raise _core.QcoreValueError(
            f"{where} has scheme {scheme!r} and the encoding {short(value['encoding'])}, expected those of one weight"
        )
    if not is_sizes(shape) or len(shape) not in ((2, 4) if encoding is None else (2,)):
        expected = "[N, K] or [Co, Ci, Kh, Kw]" if encoding is None else "[N, K] of an encoded weight"
        raise _core.QcoreValueError(f"{where} has shape {short(shape)}, expected {expected}")
    if not addressable(shape):
        raise _core.QcoreValueError(f"{where} has shape {short(shape)}, expected one of less than 2^63 bytes")
    reordered = value.get("reordered", False)
    if type(reordered) is not bool or (reordered and len(shape) != 2):
        raise _core.QcoreValueError(
            f"{where} has reordered {short(reordered)}, expected true for [N, K] only, or false"
        )
    return Description(tuple(shape), bits, block_size, scheme, reordered, encoding)


def _encoding(value: dict[str, Any], where: str) -> WeightEncoding | None:
    if "encoding" not in value:
        return None
    try:
        return WeightEncoding.from_dict(value["encoding"])
    except _core.QcoreError as error:
        raise _core.QcoreValueError(f"{where}: {error}") from error


def _entry(name: str, about: Description, sections: dict[str, Section], where: str) -> QcoreEntry:
    """Take the weight's parts out of ``sections``."""
    found = {}
    dtypes = []
    for part in ("scales", "offsets"):
        section = sections.get(f"{name}.{part}")
        dtypes.append("F16" if section is not None and section.dtype == "F16" else "F32")
    for part, (dtype, shape) in about.parts(*dtypes).items():
        section = sections.pop(f"{name}.{part}", None)
        if section is None:
            raise _core.QcoreValueError(f"{where}: weight {name!r} has no tensor {name}.{part}, expected one")
        if (section.dtype, section.shape) != (dtype, shape):
            raise _core.QcoreValueError(
                f"{where}: {name}.{part} is {section.dtype} {list(section.shape)}, expected {dtype} {list(shape)}"
            )
        found[part] = section
    return QcoreEntry(about, found)
