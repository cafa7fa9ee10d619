"""qcore.save and qcore.load."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _arrays, _checks, _core, _files
from qcore._options import named_arguments
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.byte_ranges import DTYPES
from qcore.formats.checkpoint.files.safetensors import header_bytes
from qcore.formats.checkpoint.reader import open_checkpoint
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor

_NAMES = {name: dtype for dtype, name in DTYPES.items()}
_NOT_NUMPY = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8"}
"""Dtypes that torch passes as integers of the same size."""


_OTHER_FORMATS = {
    ".gguf": "qcore.formats.to_gguf gives the bytes of a weight, and `qcore quantize IN OUT.gguf` writes a file",
    ".onnx": "qcore.formats.to_onnx gives the nodes of a weight, and `qcore quantize IN OUT.onnx` writes a file",
    ".pt": "torch.save writes such a file",
    ".pth": "torch.save writes such a file",
    ".bin": "torch.save writes such a file",
    ".npy": "numpy.save writes such a file",
    ".npz": "numpy.savez writes such a file",
}


_SAVE = 'save("model.safetensors", {"name": weight})'


@named_arguments("save", _SAVE)
def save(path: str | os.PathLike[str], tensors: Mapping[str, Any]) -> None:
    """Write weights and arrays to one safetensors file, whole or not at all, without loss.

    Args:
        path: the file, whose name ends with .safetensors or with what no other format has; one that exists is replaced.
        tensors: QuantizedTensors, ReorderedTensors and arrays (numpy, torch, jax, ... on the CPU) by name. Codes of
            4 bits take half a byte; scales and offsets are saved in fp16 where that is exact.

    Raises:
        QcoreValueError, QcoreTypeError: a tensor is of another kind, has a dtype that safetensors lacks, or its name
            is that of another's part ("NAME.codes" and so on). Nothing is written then.
        OSError: the file can't be written; nothing is left behind.
    """
    if not isinstance(path, (str, os.PathLike)) and isinstance(tensors, (str, os.PathLike)):
        raise _core.QcoreTypeError(
            f"save: path is a {type(path).__name__} and tensors is {str(tensors)!r}, expected the path first: {_SAVE}"
        )
    file_name = _checks.path(path, "save: path")
    if file_name.suffix.lower() in _OTHER_FORMATS:
        raise _core.QcoreValueError(
            f"save: path is {str(file_name)!r}, expected a name that ends with .safetensors, the format of save: "
            f"{_OTHER_FORMATS[file_name.suffix.lower()]}"
        )
    if not isinstance(tensors, Mapping):
        raise _core.QcoreTypeError(
            f"save: tensors is a {type(tensors).__name__}, expected a dictionary of weights and arrays by their names: "
            f"{_SAVE}"
        )
    described: dict[str, layout.Description] = {}
    shapes: layout.Parts = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise _core.QcoreTypeError(f"save: tensors has the name {name!r}, expected strings")
        if isinstance(tensor, (QuantizedTensor, ReorderedTensor)):
            about = described[name] = layout.Description.of(tensor)
            parts = about.parts(*layout.parameter_dtypes(tensor.to("cpu")))
            add_parts(shapes, {f"{name}.{part}": shape for part, shape in parts.items()}, "save")
        else:
            dtype, array = plain_array(tensor, f"save: tensors[{name!r}]")
            add_parts(shapes, {name: (dtype, array.shape)}, "save")
    header, places = header_bytes(shapes, layout.metadata_of(described))
    with _files.whole_file(file_name) as file:
        file.write(header)
        for name, tensor in tensors.items():
            for part, values in _values(name, tensor).items():
                file.seek(places[part][0])
                file.write(byte_view(values).data)


def _values(name: str, tensor: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(tensor, (QuantizedTensor, ReorderedTensor)):
        return {name: plain_array(tensor, f"save: tensors[{name!r}]")[1]}
    tensor = tensor.to("cpu")
    values = layout.encode(tensor, *layout.parameter_dtypes(tensor))
    return {f"{name}.{part}": array for part, array in values.items()}


def byte_view(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return uint8 [nbytes], row-major."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def add_parts(found: dict[str, Any], parts: Mapping[str, Any], where: str) -> None:
    """Join them where no name comes twice."""
    for name, value in parts.items():
        if name in found or name == "__metadata__":
            raise _core.QcoreValueError(f"{where}: the name {name!r} is taken in the file, expected another")
        found[name] = value


def plain_array(value: Any, where: str) -> tuple[str, NDArray[Any]]:
    """Return safetensors' name of an array's dtype, and its values in an array of NumPy with that item size."""
    backend = _arrays.backend_of(value, where)
    name = _arrays.dtype_name(value.dtype)
    if name not in _NAMES:
        raise _core.QcoreTypeError(f"{where} has dtype {value.dtype}, expected one of {', '.join(_NAMES)}")
    if isinstance(backend, _arrays.TorchBackend):
        value = value.detach().cpu().resolve_neg()
        if name in _NOT_NUMPY:
            value = value.contiguous().view(getattr(sys.modules["torch"], _NOT_NUMPY[name]))
        return _NAMES[name], value.numpy()
    array = np.asarray(value)
    return _NAMES[name], array.astype(array.dtype.newbyteorder("<"), copy=False)


@named_arguments("load", 'load("model.safetensors")')
def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return all tensors of a file that :func:`save` wrote, or of any checkpoint that :func:`open_checkpoint` opens.

    Args:
        path: a file or folder, as for :func:`open_checkpoint`.

    Returns:
        QuantizedTensors, ReorderedTensors and arrays by name, in memory of their own. A weight equals the one that was
        saved, bit for bit in its codes, scales and offsets.

    Raises:
        QcoreValueError, OSError: as :func:`open_checkpoint`.
    """
    with open_checkpoint(_checks.path(path, "load: path")) as checkpoint:
        return {name: _owned(value) if isinstance(value, np.ndarray) else value for name, value in checkpoint.items()}


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    out = _arrays.empty_numpy(array.shape, array.dtype)
    out[...] = array
    return out
