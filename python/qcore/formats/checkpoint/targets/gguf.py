"""`qcore quantize --format gguf`: a GGUF file of Q4_0 or Q8_0 weights, written row by row."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import ITEM_BYTES
from qcore.formats.checkpoint.files.gguf import BLOCK_TYPES, DEFAULT_ALIGNMENT, MAGIC, MOST_AXES, PLAIN_TYPES
from qcore.formats.checkpoint.layout import Description, Parts
from qcore.formats.gguf_blocks import raw_of
from qcore.quantized_tensor import QuantizedTensor

_KINDS = {4: "Q4_0", 8: "Q8_0"}
_NUMBERS = {kind.name: number for number, kind in BLOCK_TYPES.items()}
_PLAIN_NUMBERS = {dtype: number for number, dtype in PLAIN_TYPES.items()}
_MOST_NAME_BYTES = 63
"""Longest name of a tensor that ggml stores."""
_UINT32, _STRING = 4, 8
_BLOCK_FORMAT_VERSION = 2
"""general.quantization_version: of ggml's block layouts."""


class GgufTarget:
    by_rows = True

    def __init__(self, bits: int, block_size: int, scheme: str, scale_dtype: str) -> None:
        if bits not in _KINDS or block_size % 32 or (scheme, scale_dtype) != ("symmetric", "float16"):
            raise _core.QcoreValueError(
                f"quantize: --format gguf has {bits} bits, blocks of {block_size}, scheme {scheme}, scale dtype "
                f"{scale_dtype}, expected --block-size 32 (or a multiple) --scheme symmetric --scale-dtype float16: "
                "those are Q4_0 and Q8_0"
            )
        self._kind = BLOCK_TYPES[_NUMBERS[_KINDS[bits]]]

    def misfit(self, name: str, about: Description) -> str:
        if len(about.shape) != 2:
            return "gguf: not of two axes"
        if about.shape[1] % self._kind.elements:
            return f"gguf: K = {about.shape[1]} is no multiple of {self._kind.elements}"
        return ""

    def parts(self, name: str, about: Description) -> Parts:
        rows, columns = about.shape
        return {name: ("U8", (rows, columns // self._kind.elements * self._kind.nbytes))}

    def encode(self, name: str, weight: QuantizedTensor) -> dict[str, NDArray[Any]]:
        return {name: raw_of(self._kind.name, weight, f"quantize: {name}")}

    def container(self, shapes: Parts, weights: Mapping[str, Description]) -> tuple[bytes, dict[str, tuple[int, int]]]:
        values = _text("general.architecture") + struct.pack("<I", _STRING) + _text("qcore")
        values += _text("general.quantization_version") + struct.pack("<II", _UINT32, _BLOCK_FORMAT_VERSION)
        entries, places, end = b"", {}, 0
        for name, (dtype, shape) in shapes.items():
            nbytes = math.prod(shape) * ITEM_BYTES[dtype]
            number = _PLAIN_NUMBERS.get(dtype) if name not in weights else _NUMBERS[self._kind.name]
            shape = weights[name].shape if name in weights else shape
            if len(name.encode()) > _MOST_NAME_BYTES:
                raise _core.QcoreValueError(
                    f"quantize: tensor {name!r} has a name of {len(name.encode())} bytes, expected at most "
                    f"{_MOST_NAME_BYTES} for GGUF: write .safetensors instead"
                )
            if number is None or len(shape) > MOST_AXES:
                raise _core.QcoreValueError(
                    f"quantize: tensor {name!r} is {dtype} {list(shape)}, expected for GGUF one of "
                    f"{', '.join(_PLAIN_NUMBERS)} and at most {MOST_AXES} axes"
                )
            entries += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
            entries += struct.pack("<IQ", number, end)
            places[name] = (end, nbytes)
            end += -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        header = MAGIC + struct.pack("<IQQ", 3, len(shapes), 2) + values + entries
        header += b"\0" * (-len(header) % DEFAULT_ALIGNMENT)
        return header, {name: (len(header) + start, nbytes) for name, (start, nbytes) in places.items()}

    def prepare(self, output: Path) -> Path:
        return check_output_file(output)

    def complete(
        self, output: Path, shapes: Parts, weights: Mapping[str, Description], places: dict[str, tuple[int, int]]
    ) -> None:
        pass


def check_output_file(output: Path) -> Path:
    """Return a file's name in a folder that is there."""
    if not output.absolute().parent.is_dir():
        raise _core.QcoreValueError(
            f"quantize: there is no folder {output.absolute().parent} for {output.name}, expected one"
        )
    if output.is_dir():
        raise _core.QcoreValueError(f"quantize: {output} is a folder, expected the name of a file")
    if output.exists() and not output.is_file():
        raise _core.QcoreValueError(f"quantize: {output} is a device, a pipe or a socket, expected the name of a file")
    return output


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
