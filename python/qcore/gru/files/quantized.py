"""Quantized GRUs as safetensors files."""

from __future__ import annotations

import os
from pathlib import Path

from qcore import _files
from qcore._recurrent.files import FileKind
from qcore.gru.core import GruCore, Layer, make
from qcore.gru.formats import TENSORS, Config

FORMAT = "qcore.gru.3"
READ = ("qcore.gru.1", "qcore.gru.2", FORMAT)
"""Version 1 has no interpolated tables, version 2 no reversed GRUs and none with linear_before_reset = 0, and both have
weights of 16 bits whatever their width; other files are the same but for their version."""
_FLAGS = {"linear_before_reset": 1}
FILES = FileKind("gru", FORMAT, READ, TENSORS, 3, ("bx", "br"), ("z", "r", "g"), Config, make, _FLAGS)


def gru_to_bytes(gru: GruCore) -> bytes:
    """Return the contents of the file that :meth:`QuantGRU.save` writes."""
    return FILES.to_bytes(gru)


def save_gru(gru: GruCore, path: str | os.PathLike[str]) -> None:
    """Write the file of :meth:`QuantGRU.save`."""
    _files.write_whole(Path(path), gru_to_bytes(gru))


def read_gru(path: str | os.PathLike[str]) -> tuple[list[Layer], Config, dict[str, bool]]:
    """Return layers, config, and batch_first and reverse of a file; errors as for :meth:`QuantGRU.load`."""
    return gru_from_bytes(Path(path).read_bytes(), f"gru: {os.fspath(path)}")


def gru_from_bytes(data: bytes, where: str) -> tuple[list[Layer], Config, dict[str, bool]]:
    """Return layers, config, and batch_first and reverse of the GRU whose file holds ``data``.

    Args:
        data: what :func:`gru_to_bytes` returned.
        where: what errors call the data.

    Raises:
        QcoreValueError, QcoreTypeError: the data is damaged, or of another format.
    """
    return FILES.from_bytes(data, where)
