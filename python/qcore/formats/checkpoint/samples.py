"""Inputs of layers, by the names of their weights: what `qcore quantize --method awq` and `gptq` need."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import Section
from qcore.formats.checkpoint.files.folder import read_safetensors
from qcore.methods import gptq
from qcore.methods.samples import mean_squares

_ZIP = b"PK"
_BROKEN = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors that numpy and zipfile raise over damaged or encrypted archives."""
_ARRAY_SUFFIX = ".npy"


class Samples:
    """A file of arrays [M, K], one per layer and named as its weight; one is read at a time.

    Args:
        path: what :func:`numpy.savez` writes, or a safetensors file.

    Raises:
        QcoreValueError: it is neither, or an array holds no numbers.
        OSError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sections: dict[str, Section] | None = None
        with open(path, "rb") as file:
            zipped = file.read(len(_ZIP)) == _ZIP
        if zipped:
            self.shapes = self._archive_shapes()
        else:
            self._sections = read_safetensors(path).contents.sections
            self.shapes = {name: section.shape for name, section in self._sections.items()}

    def check(self, name: str, features: int) -> None:
        """Check that the inputs of the weight ``name`` are [M, K] with that K."""
        shape = self.shapes[name]
        if len(shape) != 2 or shape[0] == 0 or shape[1] != features:
            raise _core.QcoreValueError(
                f"quantize: --samples {self.path}: {name!r} has shape {list(shape)}, expected [M, K] with "
                f"K = {features}"
            )

    def importance(self, name: str, features: int) -> NDArray[np.float32]:
        """Return [K] of a weight's input channels, for method "awq"."""
        return mean_squares(self._read(name), features, f"quantize: --samples {self.path}: {name!r}")

    def factor(self, name: str, features: int, damping: float, act_order: bool) -> gptq.Factor:
        """Return what method "gptq" needs of a weight's inputs."""
        where = f"quantize: --samples {self.path}: {name!r}"
        return gptq.factor_of(self._read(name), features, damping=damping, act_order=act_order, where=where)

    def _read(self, name: str) -> NDArray[Any]:
        if self._sections is not None:
            return self._sections[name].widened()
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                found: NDArray[Any] = arrays[name]
        except _BROKEN as error:
            raise self._unreadable(f"array {name!r}", error) from error
        return found

    def _archive_shapes(self) -> dict[str, tuple[int, ...]]:
        found = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                for member in archive.infolist():
                    name = member.filename.removesuffix(_ARRAY_SUFFIX)
                    with archive.open(member) as file:
                        found[name] = self._shape(name, file, member.file_size)
        except _BROKEN as error:
            if isinstance(error, _core.QcoreError):
                raise
            raise self._unreadable("it", error) from error
        return found

    def _shape(self, name: str, file: Any, size: int) -> tuple[int, ...]:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.kind not in "fiu":
            raise _core.QcoreValueError(
                f"quantize: --samples {self.path}: {name!r} has dtype {dtype}, expected floats or integers"
            )
        needed = file.tell() + math.prod(shape) * dtype.itemsize
        if size != needed:  # before memory is asked for
            raise _core.QcoreValueError(
                f"quantize: --samples {self.path}: {name!r} has {size} bytes, expected {needed} for shape {list(shape)}"
            )
        return tuple(shape)

    def _unreadable(self, what: str, error: Exception) -> _core.QcoreValueError:
        return _core.QcoreValueError(
            f"quantize: --samples {self.path}: {what} can't be read, expected arrays of numpy.savez or a safetensors "
            f"file: {error}"
        )
