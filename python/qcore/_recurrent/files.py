"""Quantized recurrent layers as safetensors files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from qcore import _core

Layers = list[list[tuple[Any, dict[str, Any]]]]

_NIBBLE = 4  # bits of weights up to which a byte of a file holds two codes
_BYTE = 8  # and up to which it holds one
_MATRICES = ("w", "r", "projection")  # weights of the config's width


def packed_nibbles(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return codes [N, K] of at most 4 bits as uint8 [N, (K + 1) // 2], the first of two in the low half of a byte."""
    low = np.zeros((len(codes), (codes.shape[1] + 1) // 2, 2), np.uint8)
    low.reshape(len(codes), -1)[:, : codes.shape[1]] = codes & 15
    packed: np.ndarray[Any, Any] = low[:, :, 0] | (low[:, :, 1] << 4)
    return packed


def unpacked_nibbles(packed: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    """Return the int16 codes [N, columns] of :func:`packed_nibbles`."""
    halves = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)[:, :columns].astype(np.int16)
    return halves - ((halves & 8) << 1)


def knots_of(core: Any, index: int) -> Any:
    """Return int32 [2, 513]: codes of the argument counted from its lowest, and values; [2, 0] for an exact table."""
    return np.array(core.knots(index), np.int32)


@dataclasses.dataclass(frozen=True)
class FileKind:
    """Describes the files of an operator.

    Args:
        op: what errors begin with, and the name of the description in a file.
        format: the version that is written.
        read: the versions that are read.
        tensors: names of the rows of formats.
        gates: blocks of H rows of weights.
        biases: names of the biases.
        tables: names of the core's tables.
        config: class of the config.
        make: makes the core's object of parts and a config.
        flags: names of the parts that are 0 or 1, with their values in files that lack them.
        optional: weights that a direction may have, with the tensors that have a format along with them.
    """

    op: str
    format: str
    read: tuple[str, ...]
    tensors: tuple[str, ...]
    gates: int
    biases: tuple[str, ...]
    tables: tuple[str, ...]
    config: Any
    make: Callable[[dict[str, Any], Any], Any]
    flags: Mapping[str, int] = dataclasses.field(default_factory=dict)
    optional: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def arrays(self, given: Collection[str]) -> dict[str, Any]:
        """Return the dtypes of a direction's arrays; of the optional ones those whose names are given."""
        weights = ("w", "r", *(name for name in self.optional if name in given))
        names = (*weights, *self.biases)
        codes = {name: np.int16 if name in weights else np.int32 for name in names}
        return {"formats": np.int32, **codes, **{f"{name}_exponents": np.int32 for name in names}}

    def table_hash(self, core: Any) -> str:
        """Return the SHA-256 of the tables' codes, int32 little-endian, each after its knots if it has some."""
        digest = hashlib.sha256()
        for index in range(len(self.tables)):
            digest.update(knots_of(core, index).astype("<i4").tobytes())
            digest.update(np.array(core.table(index), "<i4").tobytes())
        return digest.hexdigest()

    def interpolated(self, core: Any) -> list[int]:
        return [index for index in range(len(self.tables)) if core.knots(index)[0]]

    def to_bytes(self, model: Any) -> bytes:
        """Return the contents of a model's file."""
        from safetensors.numpy import save

        tensors: dict[str, Any] = {}
        hashes, widths = [], []
        columns: list[list[int]] = []
        flags: dict[str, list[int]] = {name: [] for name in self.flags}
        for number, layer in enumerate(model._layers):
            for side, (core, parts) in enumerate(layer):
                prefix = f"{number}.{side}"
                tensors |= {f"{prefix}.{name}": np.ascontiguousarray(parts[name]) for name in self.arrays(parts)}
                if parts["weight_bits"] <= _BYTE:
                    given = [name for name in _MATRICES if name in parts]
                    tensors |= {f"{prefix}.{name}": parts[name].astype(np.int8) for name in given}
                if parts["weight_bits"] <= _NIBBLE:
                    tensors |= {f"{prefix}.{name}": packed_nibbles(parts[name]) for name in ("w", "r")}
                    columns.append([parts[name].shape[1] for name in ("w", "r")])
                for index in self.interpolated(core):
                    tensors[f"{prefix}.knots_{self.tables[index]}"] = knots_of(core, index)
                hashes.append(self.table_hash(core))
                widths.append([parts["weight_bits"], parts["bias_bits"]])
                for name, default in self.flags.items():
                    flags[name].append(int(parts.get(name, default)))
        description = {
            "layers": model.num_layers,
            "directions": model.directions,
            "batch_first": model.batch_first,
            "reverse": model.reverse,
            "config": model.config.to_json(),
            "widths": widths,
            "tables": hashes,
            "flags": flags,
        }
        if columns:
            description["columns"] = columns
        return save(tensors, {"format": self.format, self.op: json.dumps(description)})

    def from_bytes(self, data: bytes, where: str) -> tuple[Layers, Any, dict[str, bool]]:
        """Return layers, config, and batch_first and reverse of the model whose file holds ``data``.

        Args:
            data: what :meth:`to_bytes` returned.
            where: what errors call the data.

        Raises:
            QcoreValueError, QcoreTypeError: the data is damaged, or of another format.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        article = "a GRU" if self.op == "gru" else f"an {self.op.upper()}"
        try:
            tensors = load(data)
        except SafetensorError as error:
            raise _core.QcoreValueError(f"{where} is not {article}'s safetensors file: {error}") from error
        # load() has checked the header, which it does not return: its length in 8 bytes, then JSON.
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        if metadata.get("format") not in self.read:
            raise _core.QcoreValueError(
                f"{where} has format {metadata.get('format')!r}, expected "
                f"{' or '.join(repr(name) for name in self.read)}"
            )
        description = self._description(metadata.get(self.op, ""), where)
        layers_count, directions, order, config, widths, tables, flags = description
        columns = self._columns(metadata[self.op], len(widths), where)
        layers: Layers = []
        for number in range(layers_count):
            layer: list[tuple[Any, dict[str, Any]]] = []
            for side in range(directions):
                row = number * directions + side
                if columns:
                    self._unpack(tensors, f"{number}.{side}", columns[row], where)
                parts = self._parts(tensors, f"{number}.{side}", where)
                parts["weight_bits"], parts["bias_bits"] = widths[row]
                parts |= {name: values[row] for name, values in flags.items()}
                core = self.make(parts, config)
                self._check_knots(tensors, core, f"{number}.{side}", where)
                if self.table_hash(core) != tables[row]:
                    raise _core.QcoreValueError(
                        f"{where} was saved with other tables of layer {number}, direction {side}"
                    )
                layer.append((core, parts))
            layers.append(layer)
        return layers, config, order

    def _description(
        self, text: str, where: str
    ) -> tuple[int, int, dict[str, bool], Any, list[tuple[int, int]], list[str], dict[str, list[int]]]:
        """Check and return layers, directions, batch_first and reverse, config, widths, table hashes and flags."""
        try:
            values = json.loads(text)
            layers, directions = int(values["layers"]), int(values["directions"])
            widths = [(int(weights), int(biases)) for weights, biases in values["widths"]]
            tables = [str(digest) for digest in values["tables"]]
            order = {"batch_first": bool(values["batch_first"]), "reverse": bool(values.get("reverse", False))}
            config_text = str(values["config"])
            given = {name: [int(each) for each in row] for name, row in dict(values.get("flags", {})).items()}
        except KeyError as error:
            raise _core.QcoreValueError(f"{where} has no {error.args[0]!r} in its description") from None
        except (TypeError, ValueError) as error:
            raise _core.QcoreValueError(f"{where} has a description that can't be read: {error}") from None
        if layers < 1 or directions not in (1, 2) or len(widths) != layers * directions or len(tables) != len(widths):
            raise _core.QcoreValueError(
                f"{where} describes {layers} layers of {directions} directions with {len(widths)} widths and "
                f"{len(tables)} table hashes, expected one of each per layer and direction"
            )
        flags = {name: given.get(name, [default] * len(widths)) for name, default in self.flags.items()}
        for name, row in flags.items():
            if len(row) != len(widths) or not set(row) <= {0, 1}:
                raise _core.QcoreValueError(f"{where} describes {name} as {row}, expected 0 or 1 for each direction")
        return layers, directions, order, self.config.from_json(config_text), widths, tables, flags

    def _columns(self, text: str, count: int, where: str) -> list[tuple[int, int]]:
        """Return the columns of w and r of each direction, or nothing if weights are not packed."""
        given = json.loads(text).get("columns", [])
        try:
            columns = [(int(of_w), int(of_r)) for of_w, of_r in given]
        except (TypeError, ValueError):
            columns = []
        if (given or columns) and len(columns) != count:
            raise _core.QcoreValueError(
                f"{where} describes columns as {given!r}, expected two numbers for each of {count} directions"
            )
        return columns

    def _unpack(self, tensors: dict[str, Any], prefix: str, columns: tuple[int, int], where: str) -> None:
        """Replace packed w and r by their codes."""
        for name, count in zip((f"{prefix}.w", f"{prefix}.r"), columns, strict=True):
            packed = tensors.get(name)
            if packed is None:
                raise _core.QcoreValueError(f"{where} has no tensor {name}")
            if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != (count + 1) // 2:
                raise _core.QcoreValueError(
                    f"{where}: {name} is {packed.dtype} {list(packed.shape)}, expected uint8 with {(count + 1) // 2} "
                    f"bytes for {count} codes of 4 bits in each row"
                )
            tensors[name] = unpacked_nibbles(packed, count)

    def _check_knots(self, tensors: dict[str, Any], core: Any, prefix: str, where: str) -> None:
        for index in self.interpolated(core):
            name = f"{prefix}.knots_{self.tables[index]}"
            saved = tensors.get(name)
            if saved is None:
                raise _core.QcoreValueError(f"{where} has no tensor {name}")
            if not np.array_equal(saved, knots_of(core, index)):
                raise _core.QcoreValueError(f"{where}: {name} has other knots than those of its table's formats")

    def _parts(self, tensors: dict[str, Any], prefix: str, where: str) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        found = [name for name in self.optional if f"{prefix}.{name}" in tensors]
        for name, dtype in self.arrays(found).items():
            array = tensors.get(f"{prefix}.{name}")
            if array is None:
                raise _core.QcoreValueError(f"{where} has no tensor {prefix}.{name}")
            if name in _MATRICES and array.dtype == np.int8:
                array = array.astype(dtype)
            if array.dtype != dtype:
                raise _core.QcoreTypeError(
                    f"{where}: {prefix}.{name} has dtype {array.dtype}, expected {np.dtype(dtype)}"
                )
            parts[name] = array
        rows = len(self.tensors) + sum(len(self.optional[name]) for name in found)
        if parts["formats"].shape != (rows, 4) or parts["w"].ndim != 2 or parts["r"].ndim != 2:
            shapes = ", ".join(f"{name} {list(parts[name].shape)}" for name in ("formats", "w", "r"))
            raise _core.QcoreValueError(
                f"{where}: {prefix} has {shapes}, expected [{rows}, 4], [{self.gates}H, C] and [{self.gates}H, H]"
            )
        parts["sizes"] = (parts["w"].shape[1], parts["r"].shape[0] // self.gates)
        return parts
