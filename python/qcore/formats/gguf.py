"""Weights in GGUF files; the package ``gguf`` knows the container, :mod:`qcore.formats.gguf_blocks` the blocks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qcore import _checks, _core
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
        QcoreValueError: no GGUF file, no such tensor, another type or no matrix.
        QcoreTypeError: the package gguf is not installed.
        OSError: the file can't be read.
    """
    package = _package()
    where = f"from_gguf: {os.fspath(path)}"
    wanted = _checks.text(name, "from_gguf: name")
    try:
        reader = package.GGUFReader(path)
        found = next((each for each in reader.tensors if each.name == wanted), None)
    except OSError:
        raise
    except Exception as error:  # whatever a broken file leads to
        raise _core.QcoreValueError(f"{where} is no GGUF file that can be read: {error}") from error
    if found is None:
        raise _core.QcoreValueError(f"{where} has no tensor {wanted!r}: it has {len(reader.tensors)} others")
    if reader.byte_order != "I":
        raise _core.QcoreValueError(f"{where} has big-endian numbers, expected little-endian ones")
    return gguf_blocks.tensor_of(found.tensor_type.name, found.data, f"{where}: {wanted}", exact=exact)


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
    """
    package = _package()
    where = "to_gguf"
    if kind is not None:
        _checks.choice(kind, {each: each for each in gguf_blocks.TYPES}, f"{where}: kind")
    written = {name: _encoded(tensor, kind, f"{where}: {name}") for name, tensor in tensors.items()}
    target = Path(path)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        partial = Path(folder) / "partial"
        writer = package.GGUFWriter(partial, _checks.text(architecture, f"{where}: architecture"))
        for name, (array, type_name) in written.items():
            known = None if type_name is None else package.GGMLQuantizationType[type_name]
            writer.add_tensor(name, array, raw_dtype=known)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)


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
