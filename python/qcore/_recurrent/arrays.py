"""Named arrays in .safetensors, .npz and .npy files, as the command line takes and writes them."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core, _files

Arrays = dict[str, NDArray[Any]]
SUFFIXES = (".safetensors", ".npz", ".npy")


def read_arrays(path: str | os.PathLike[str], op: str = "gru") -> Arrays:
    """Return all arrays of a file; a .npy file's is called "x".

    Raises:
        QcoreValueError: the file is of another kind, or damaged.
        OSError: it can't be read.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        if path.suffix == ".npy":
            return {"x": np.load(path, allow_pickle=False)}
    except OSError:
        raise
    except (ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise _core.QcoreValueError(f"{op}: {path} is not a {path.suffix} file of numbers: {error}") from error
    raise _core.QcoreValueError(f"{op}: {path} has the suffix {path.suffix!r}, expected {', '.join(SUFFIXES)}")


def _read_safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError, safe_open

    _files.check_input(path)
    try:
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def check_output(path: Path, op: str = "gru") -> None:
    """Check before the work that write_arrays() can write such a file and that its folder is there."""
    if path.suffix not in SUFFIXES[:2]:
        raise _core.QcoreValueError(
            f"{op}: {path} has the suffix {path.suffix!r}, expected {' or '.join(SUFFIXES[:2])}"
        )
    check_folder(path, op)


def check_folder(path: Path, op: str = "gru") -> None:
    if not path.absolute().parent.is_dir():
        raise _core.QcoreValueError(f"{op}: there is no folder {path.absolute().parent} for {path.name}, expected one")


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], op: str = "gru") -> None:
    """Write a .safetensors or .npz file, whole or not at all."""
    path = Path(path)
    check_output(path, op)
    made = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if path.suffix == ".safetensors":
        from safetensors.numpy import save

        content = save(made)
    else:
        buffer = io.BytesIO()
        np.savez(buffer, **made)  # type: ignore[arg-type]
        content = buffer.getvalue()
    _files.write_whole(path, content)
