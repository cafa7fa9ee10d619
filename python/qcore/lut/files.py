"""Tables as safetensors files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qcore import _checks, _core, _files
from qcore.lut.core import TableCore

FORMAT = "qcore.lut.1"


def save_table(table: TableCore, path: str | os.PathLike[str]) -> None:
    """Write as :meth:`Table.save`."""
    from safetensors.numpy import save

    metadata = {"format": FORMAT, "name": table.name, "range_reduction": table.range_reduction}
    _files.write_whole(Path(path), save({"cuts": table.cuts, "values": table.values}, metadata))


def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of :meth:`Table.from_parts` for the table of a file; errors as for :meth:`Table.load`."""
    from safetensors import SafetensorError, safe_open

    where = f"lut table: {_checks.path(path, 'lut table: path')}"
    _files.check_input(Path(path))
    arrays: dict[str, Any] = {}
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            for name in ("cuts", "values"):
                arrays[name] = file.get_tensor(name)
    except SafetensorError as error:
        raise _core.QcoreValueError(f"{where} is not a table's safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise _core.QcoreValueError(f"{where} has format {metadata.get('format')!r}, expected {FORMAT!r}")
    missing = [key for key in ("name", "range_reduction") if key not in metadata]
    if missing:
        raise _core.QcoreValueError(f"{where} has no {missing[0]!r} in its metadata")
    return arrays | {"range_reduction": metadata["range_reduction"], "name": metadata["name"]}
