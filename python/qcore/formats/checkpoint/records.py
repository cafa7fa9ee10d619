"""Describes the tensors of a checkpoint before they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import DTYPES, ITEM_BYTES, Section


@dataclass(frozen=True)
class TensorInfo:
    """Describes one tensor of a checkpoint, from the headers alone.

    Attributes:
        name: of the tensor.
        format: 'float32' and other dtypes of plain arrays; 'qcore', 'awq gemm', 'gptq v1', 'gguf Q4_0' and so on.
        shape: as the tensor is read: [N, K] of a weight, whatever the file's own order.
        bits: of a code in the file, or of an item of a plain array.
        block_size: elements along K that share a scale; None for a plain array.
        scheme: 'symmetric', 'asymmetric', or None for a plain array.
        nbytes: on disk: codes, scales and offsets together.
        compute: the mode of :func:`qcore.linear` that the file's layers were made for: "float" for weights of other
            programs that say nothing of activations. None for plain arrays and for qcore's own weights.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    bits: int
    block_size: int | None
    scheme: str | None
    nbytes: int
    compute: str | None = None

    @property
    def quantized(self) -> bool:
        """Whether it is a weight and no plain array."""
        return self.block_size is not None


class Entry(Protocol):
    """A tensor that can be described without being read."""

    def info(self, name: str) -> TensorInfo: ...

    def read(self, name: str) -> Any: ...


def refuse_mxfp8(path: Path, name: str) -> NoReturn:
    """Raise QcoreValueError for a weight of 8-bit floats, which is listed only."""
    raise _core.QcoreValueError(
        f"{path}: tensor {name!r} is mxfp8, codes of e4m3 with scales of e8m0, expected another format: qcore lists "
        "such weights and can't read them"
    )


@dataclass(frozen=True)
class PlainEntry:
    """An array as the file has it."""

    section: Section

    def info(self, name: str) -> TensorInfo:
        section = self.section
        bits = 8 * ITEM_BYTES[section.dtype]
        return TensorInfo(name, DTYPES[section.dtype], section.shape, bits, None, None, section.nbytes)

    def read(self, name: str) -> NDArray[Any]:
        return self.section.array()
