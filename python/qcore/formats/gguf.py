"""Weights in GGUF files; the package ``gguf`` knows the container, :mod:`qcore.formats.gguf_blocks` the blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from qcore import _checks, _core, _files
from qcore.formats import _inputs, gguf_blocks
from qcore.quantized_tensor import QuantizedTensor


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise _core.QcoreTypeError("gguf: GGUF files need the package gguf: pip install 'libqcore[formats]'") from error
    return gguf


def from_gguf(path: str | os.PathLike[str], name: str, *, exact: bool = True) -> QuantizedTensor:
    """Return a weight [N, K] of a GGUF file, exactly and in the bytes of the file.

    Types: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4 and TQ2_0. All but Q4_0 and Q8_0
    become encoded weights (:class:`qcore.WeightEncoding`).

    Args:
        path: the file; only the tensor's own pages are read.
        name: of the tensor.
        exact: False gives plain weights of 4 or 8 bits where a type has minima (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) or other
            codes than those (Q5_0, Q3_K, Q6_K), and rounds the offsets of Q4_1 and Q4_K once to float32.

    Raises:
        QcoreValueError: no GGUF file, a truncated or damaged one, no such tensor, another type or no matrix.
        QcoreTypeError: the package gguf is not installed.
        OSError: the file can't be read.
    """
    package = _package()
    where = f"from_gguf: {_checks.path(path, 'from_gguf: path')}"
    wanted = _checks.text(name, "from_gguf: name")
    try:
        reader = package.GGUFReader(path)
        found = next((each for each in reader.tensors if each.name == wanted), None)
    except OSError:
        raise
    except Exception as error:  # whatever a broken file leads to
        raise _core.QcoreValueError(f"{where} {_fault(path, error)}") from error
    if found is None:
        names = _checks.first_names(each.name for each in reader.tensors)
        raise _core.QcoreValueError(
            f"{where} has no tensor {wanted!r}, expected one of its {len(reader.tensors)} tensors: {names}"
        )
    if reader.byte_order != "I":
        raise _core.QcoreValueError(f"{where} has big-endian numbers, expected little-endian ones")
    return gguf_blocks.tensor_of(found.tensor_type.name, found.data, f"{where}: {wanted}", exact=exact)


def _fault(path: str | os.PathLike[str], error: Exception) -> str:
    """Return what is wrong with a file that the package can't read; its own words may be those of NumPy."""
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        return f"is no GGUF file: it begins with {magic!r}, expected b'GGUF'"
    if "GGMLQuantizationType" in str(error):
        return "has a tensor of a type that the package gguf does not know, or is damaged: expected a known type"
    size = os.path.getsize(path)
    return f"is truncated or damaged: its header describes what its {size} bytes do not hold, expected a whole file"


class _Writable(np.ndarray[Any, Any]):
    """A contiguous array that the package writes by the file object.

    NumPy's own tofile writes through a buffer of C, and does not notice if the disk is full when that is flushed.
    """

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        fid.write(self.data)


def to_gguf(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    kind: str | None = None,
    architecture: str = "qcore",
) -> None:
    """Write a GGUF file with weights and float arrays; it appears whole or not at all.

    Args:
        path: the file to write.
        tensors: name to QuantizedTensor [N, K], or to a float32 or float16 array, which stays as it is.
        kind: the type of all weights; by default the one that a weight came from, or the first of Q4_0, Q4_1, Q5_0 and
            Q8_0 that is exact. Other types take only weights in their encoding, as :func:`from_gguf` returns them.
        architecture: the value of ``general.architecture``.

    Raises:
        QcoreValueError, QcoreTypeError: a weight has no exact form: K or the block size is no multiple of 32, a scale
            isn't a float16, a code or an offset has no place in the type.
        OSError: the file can't be written; it is named.
    """
    package = _package()
    where = "to_gguf"
    target = _checks.path(path, f"{where}: path")
    _checks.text(architecture, f"{where}: architecture")
    if kind is not None:
        _checks.choice(kind, {each: each for each in gguf_blocks.TYPES}, f"{where}: kind")
    written = {name: _encoded(tensor, kind, f"{where}: {name}") for name, tensor in tensors.items()}
    with _files.whole_path(target) as partial:
        writer = package.GGUFWriter(partial, architecture)
        try:
            for name, (array, type_name) in written.items():
                known = None if type_name is None else package.GGMLQuantizationType[type_name]
                writer.add_tensor(name, array.view(_Writable), raw_dtype=known)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def _encoded(tensor: Any, kind: str | None, where: str) -> tuple[Any, str | None]:
    """Return an array as the file has it, and the name of its type if that doesn't follow from the dtype."""
    if not isinstance(tensor, QuantizedTensor):
        array = _inputs.host(tensor, where)
        if array.dtype not in (np.float32, np.float16):
            raise _core.QcoreTypeError(
                f"{where} has dtype {array.dtype}, expected a QuantizedTensor, float32 or float16"
            )
        return np.ascontiguousarray(array), None
    if kind is not None:
        return gguf_blocks.raw_of(kind, tensor, where), kind
    return gguf_blocks.first_exact(tensor, where)
