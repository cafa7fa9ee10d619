"""Quantized GRUs as safetensors files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from qcore import _core, _files
from qcore.gru.core import GruCore, Layer, make
from qcore.gru.formats import TENSORS, Config

FORMAT = "qcore.gru.2"
READ = ("qcore.gru.1", FORMAT)
"""Version 1 has no interpolated tables; files of exact tables are the same but for their version."""
_ARRAYS = {
    "formats": np.int32,
    "w": np.int16,
    "r": np.int16,
    "bx": np.int32,
    "br": np.int32,
    "w_exponents": np.int32,
    "r_exponents": np.int32,
    "bx_exponents": np.int32,
    "br_exponents": np.int32,
}


def knots_of(core: _core.QuantizedGru, gate: int) -> Any:
    """Return int32 [2, 513]: codes of the argument counted from its lowest, and values; [2, 0] for an exact table."""
    return np.array(core.knots(gate), np.int32)


def table_hash(core: _core.QuantizedGru) -> str:
    """SHA-256 of the three tables' codes, int32 little-endian, gates z, r, g, each behind its knots if it has some."""
    digest = hashlib.sha256()
    for gate in range(3):
        digest.update(knots_of(core, gate).astype("<i4").tobytes())
        digest.update(np.array(core.table(gate), "<i4").tobytes())
    return digest.hexdigest()


def interpolated(core: _core.QuantizedGru) -> list[int]:
    return [gate for gate in range(3) if core.knots(gate)[0]]


def gru_to_bytes(gru: GruCore) -> bytes:
    """Return the contents of the file that :meth:`QuantGRU.save` writes."""
    from safetensors.numpy import save

    tensors: dict[str, Any] = {}
    hashes, widths = [], []
    for number, layer in enumerate(gru._layers):
        for side, (core, parts) in enumerate(layer):
            tensors |= {f"{number}.{side}.{name}": np.ascontiguousarray(parts[name]) for name in _ARRAYS}
            tensors |= {f"{number}.{side}.knots_{'zrg'[gate]}": knots_of(core, gate) for gate in interpolated(core)}
            hashes.append(table_hash(core))
            widths.append([parts["weight_bits"], parts["bias_bits"]])
    description = {
        "layers": gru.num_layers,
        "directions": gru.directions,
        "batch_first": gru.batch_first,
        "config": gru.config.to_json(),
        "widths": widths,
        "tables": hashes,
    }
    return save(tensors, {"format": FORMAT, "gru": json.dumps(description)})


def save_gru(gru: GruCore, path: str | os.PathLike[str]) -> None:
    """Write the file of :meth:`QuantGRU.save`."""
    _files.write_whole(Path(path), gru_to_bytes(gru))


def read_gru(path: str | os.PathLike[str]) -> tuple[list[Layer], Config, bool]:
    """Return layers, config and batch_first of a file; errors as for :meth:`QuantGRU.load`."""
    return gru_from_bytes(Path(path).read_bytes(), f"gru: {os.fspath(path)}")


def gru_from_bytes(data: bytes, where: str) -> tuple[list[Layer], Config, bool]:
    """Return layers, config and batch_first of the GRU whose file holds ``data``.

    Args:
        data: what :func:`gru_to_bytes` returned.
        where: what errors call the data.

    Raises:
        QcoreValueError, QcoreTypeError: the data is damaged, or of another format.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _core.QcoreValueError(f"{where} is not a GRU's safetensors file: {error}") from error
    # load() has checked the header, which it does not return: its length in 8 bytes, then JSON.
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if metadata.get("format") not in READ:
        raise _core.QcoreValueError(
            f"{where} has format {metadata.get('format')!r}, expected {' or '.join(repr(name) for name in READ)}"
        )
    layers_count, directions, batch_first, config, widths, tables = _description(metadata.get("gru", ""), where)
    layers: list[Layer] = []
    for number in range(layers_count):
        layer: Layer = []
        for side in range(directions):
            row = number * directions + side
            parts = _parts(tensors, f"{number}.{side}", where)
            parts["weight_bits"], parts["bias_bits"] = widths[row]
            core = make(parts, config)
            _check_knots(tensors, core, f"{number}.{side}", where)
            if table_hash(core) != tables[row]:
                raise _core.QcoreValueError(f"{where} was saved with other tables of layer {number}, direction {side}")
            layer.append((core, parts))
        layers.append(layer)
    return layers, config, batch_first


def _description(text: str, where: str) -> tuple[int, int, bool, Config, list[tuple[int, int]], list[str]]:
    """Check and return layers, directions, batch_first, config, widths and table hashes."""
    try:
        values = json.loads(text)
        layers, directions = int(values["layers"]), int(values["directions"])
        widths = [(int(weights), int(biases)) for weights, biases in values["widths"]]
        tables = [str(digest) for digest in values["tables"]]
        batch_first, config_text = bool(values["batch_first"]), str(values["config"])
    except KeyError as error:
        raise _core.QcoreValueError(f"{where} has no {error.args[0]!r} in its description") from None
    except (TypeError, ValueError) as error:
        raise _core.QcoreValueError(f"{where} has a description that can't be read: {error}") from None
    if layers < 1 or directions not in (1, 2) or len(widths) != layers * directions or len(tables) != len(widths):
        raise _core.QcoreValueError(
            f"{where} describes {layers} layers of {directions} directions with {len(widths)} widths and {len(tables)} "
            "table hashes, expected one of each per layer and direction"
        )
    return layers, directions, batch_first, Config.from_json(config_text), widths, tables


def _check_knots(tensors: dict[str, Any], core: _core.QuantizedGru, prefix: str, where: str) -> None:
    for gate in interpolated(core):
        name = f"{prefix}.knots_{'zrg'[gate]}"
        saved = tensors.get(name)
        if saved is None:
            raise _core.QcoreValueError(f"{where} has no tensor {name}")
        if not np.array_equal(saved, knots_of(core, gate)):
            raise _core.QcoreValueError(f"{where}: {name} has other knots than those of its table's formats")


def _parts(tensors: dict[str, Any], prefix: str, where: str) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, dtype in _ARRAYS.items():
        array = tensors.get(f"{prefix}.{name}")
        if array is None:
            raise _core.QcoreValueError(f"{where} has no tensor {prefix}.{name}")
        if array.dtype != dtype:
            raise _core.QcoreTypeError(f"{where}: {prefix}.{name} has dtype {array.dtype}, expected {np.dtype(dtype)}")
        parts[name] = array
    if parts["formats"].shape != (len(TENSORS), 4) or parts["w"].ndim != 2 or parts["r"].ndim != 2:
        shapes = ", ".join(f"{name} {list(parts[name].shape)}" for name in ("formats", "w", "r"))
        raise _core.QcoreValueError(
            f"{where}: {prefix} has {shapes}, expected [{len(TENSORS)}, 4], [3H, C] and [3H, H]"
        )
    parts["sizes"] = (parts["w"].shape[1], parts["r"].shape[1])
    return parts
