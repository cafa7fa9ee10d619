"""Pieces that are quantized or copied at a time: rows or bytes of a tensor. A piece's result depends on itself only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.encode import encode_weighted
from qcore.formats.checkpoint.byte_ranges import ITEM_BYTES, Section
from qcore.methods.gptq import Factor
from qcore.quantized_tensor import quantize_weighted
from qcore.weight_encoding import WeightEncoding

if TYPE_CHECKING:
    from qcore.formats.checkpoint.options import Options
    from qcore.formats.checkpoint.targets.target import Target

_PIECE_ITEMS = 1 << 20
"""Weights that a thread reads, quantizes and encodes at a time: 4 MB of float32, and some 10 MB in all."""
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Piece:
    """A stretch of a tensor."""

    name: str
    """Name of the tensor."""
    section: Section
    start: int
    """Its first row, or byte."""
    method: str
    """Method of :func:`qcore.quantize`; empty if the bytes are copied."""
    inputs: NDArray[Any] | Factor | None = None
    """Importance of the input channels for method "awq", their Hessian's factor for "gptq"."""
    encoding: WeightEncoding | None = None
    """Encoding of a weight by name, with its tensor scale."""


@dataclass(frozen=True)
class Converted:
    """A piece as it is to be written."""

    name: str
    nbytes: int
    """Bytes of the input."""
    parts: dict[str, NDArray[Any]]


def byte_pieces(name: str, section: Section) -> Iterator[Piece]:
    """Yield a tensor that stays as it is."""
    for start in range(0, max(1, section.nbytes), _PIECE_BYTES):
        count = min(_PIECE_BYTES, section.nbytes - start)
        yield Piece(name, Section(section.path, "U8", (count,), section.offset + start), start, "")


def row_pieces(
    name: str,
    section: Section,
    method: str,
    inputs: NDArray[Any] | Factor | None,
    by_rows: bool,
    encoding: WeightEncoding | None = None,
) -> Iterator[Piece]:
    """Yield a tensor that is quantized; in one piece if not ``by_rows``. A row's codes depend on no other row."""
    rows = section.shape[0]
    step = max(1, _PIECE_ITEMS * rows * ITEM_BYTES[section.dtype] // section.nbytes) if by_rows else rows
    for start in range(0, rows, step):
        yield Piece(name, section.rows(start, min(rows, start + step)), start, method, inputs, encoding)


def largest_magnitude(section: Section) -> float:
    """Return the largest |x| of a tensor that is not empty, read in pieces; NaN if it has one."""
    pieces = row_pieces("", section, "", None, True)
    return float(np.max([np.abs(piece.section.widened()).max() for piece in pieces]))


def convert(piece: Piece, options: Options, layout: Target) -> Converted:
    """Return the piece, quantized and encoded.

    Raises:
        QcoreValueError: it holds a NaN or an Inf, or the file has become shorter.
    """
    if not piece.method:
        return Converted(piece.name, piece.section.nbytes, {piece.name: piece.section.bytes()})
    arguments = options.of_tensor() | {"method": piece.method}
    try:
        is_wide = piece.method == "gptq"
        given = piece.section.widened() if is_wide else piece.section.operand("quantize: weight")
        if piece.encoding is not None:
            method = getattr(_core.Method, piece.method)
            weight = encode_weighted(given, piece.encoding, options.block_size, method, piece.inputs)
        else:
            weight = quantize_weighted(given, piece.inputs, **arguments)
    except _core.QcoreError as error:
        rows = f", its rows from {piece.start}" if piece.start else ""
        raise _core.QcoreValueError(f"quantize: {piece.section.path}: tensor {piece.name!r}{rows}: {error}") from error
    return Converted(piece.name, piece.section.nbytes, layout.encode(piece.name, weight))
