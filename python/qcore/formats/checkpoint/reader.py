"""Checkpoints as read-only mappings from names to tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from qcore import _checks, _core
from qcore._options import named_arguments
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.files import gguf
from qcore.formats.checkpoint.files.folder import find_file, join_files, read_config, read_safetensors
from qcore.formats.checkpoint.files.foreign import KIND_BYTES, check_kind
from qcore.formats.checkpoint.files.safetensors import SafetensorsFile, read_header
from qcore.formats.checkpoint.frameworks import as_torch
from qcore.formats.checkpoint.layers import awq_gptq, bitsandbytes, compressed_tensors, hqq, mlx
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo


class Checkpoint(Mapping[str, Any]):
    """Maps names to the tensors of a checkpoint, each read when accessed. Made by :func:`open_checkpoint`.

    ``checkpoint[name]`` is a new QuantizedTensor (what ``from_gptq`` returns, for a GPTQ layer in another order), or a
    read-only array that is mapped from the file; both stay valid after :meth:`close`. Use it as a context manager or
    not: no file is held open between two reads.
    """

    def __init__(self, entries: Mapping[str, Entry], files: tuple[Path, ...]) -> None:
        self._entries: Mapping[str, Entry] | None = entries
        self._files = files

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that it was opened from."""
        return self._files

    def info(self, name: str) -> TensorInfo:
        """Return format, shape, bits, block size, bytes on disk and compute mode of a tensor, from headers alone.

        Args:
            name: of the tensor.

        Raises:
            KeyError: there is no such tensor.
        """
        entry = self.entry(name)
        about = entry.info(name)
        if not about.quantized or about.format == layout.KEY:
            return about
        return replace(about, compute=getattr(entry, "activations", None) or "float")

    def entry(self, name: str) -> Entry:
        """Return how a tensor is stored, for tools that read pieces of it.

        Args:
            name: of the tensor.

        Raises:
            KeyError: there is no such tensor.
        """
        entries = self._open()
        if name not in entries:
            raise KeyError(
                f"open_checkpoint: {self._files[0]} has no tensor {name!r}, expected one of {len(entries)}: "
                f"{_checks.first_names(entries)}"
            )
        return entries[name]

    def tensor(self, name: str, framework: str = "numpy") -> Any:
        """Read a tensor for a framework.

        Args:
            name: of the tensor.
            framework: "numpy", as ``checkpoint[name]``, or "torch": plain arrays are tensors of torch, bfloat16 among
                them, mapped from the file; writing to one leaves the file alone.

        Returns:
            An array or a tensor; a QuantizedTensor or ReorderedTensor of a quantized weight, whatever the framework.

        Raises:
            KeyError: there is no such tensor.
            QcoreValueError: another framework.
            QcoreTypeError: torch isn't installed.
        """
        entry = self.entry(name)
        wants_torch = _checks.choice(framework, {"numpy": False, "torch": True}, "checkpoint.tensor: framework")
        if wants_torch and isinstance(entry, PlainEntry):
            return as_torch(entry.section)
        return entry.read(name)

    def close(self) -> None:
        """End its use: every later access is an error."""
        self._entries = None

    def _open(self) -> Mapping[str, Entry]:
        if self._entries is None:
            raise _core.QcoreValueError(f"open_checkpoint: {self._files[0]} is closed")
        return self._entries

    def __getitem__(self, name: str) -> Any:
        return self.entry(name).read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._open()

    def __iter__(self) -> Iterator[str]:
        return iter(self._open())

    def __len__(self) -> int:
        return len(self._open())

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._entries is None:
            return f"Checkpoint({str(self._files[0])!r}, closed)"
        return f"Checkpoint({str(self._files[0])!r}, {len(self)} tensors)"


@named_arguments("open_checkpoint", 'open_checkpoint("model.safetensors")')
def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint; reads its headers and no tensor.

    Args:
        path: a .safetensors file, an index (model.safetensors.index.json), a .gguf file, or a folder with one of
            them. Layers of AWQ and GPTQ (NAME.qweight and so on) and of MLX (NAME.weight of uint32, NAME.scales,
            NAME.biases) need the config.json beside them and appear as NAME.weight, [N, K]. Layers of bitsandbytes
            and HQQ describe themselves.

    Returns:
        A mapping: quantized tensors are read as QuantizedTensor, all others as arrays.

    Raises:
        QcoreValueError: the file has another format, is truncated or inconsistent, the index names what isn't there, a
            needed field of config.json is missing. The file and the tensor are named.
        OSError: there is no such file.
    """
    file = find_file(_checks.path(path, "open_checkpoint: path"))
    where = f"open_checkpoint: {file}"
    begin = _first_bytes(file)
    check_kind(file, begin, where)
    if begin.startswith(gguf.MAGIC):
        return Checkpoint(gguf.read_gguf(file), (file,))
    sharded = read_safetensors(file)
    config = read_config(file.parent)
    return Checkpoint(_entries(sharded.contents, sharded.files, config, where), sharded.files)


def open_files(
    files: Sequence[Path],
    config: Mapping[str, Any],
    where: str,
    read: Callable[[Path], SafetensorsFile] = read_header,
) -> Checkpoint:
    """Open files that belong together, with the contents of their config.json.

    Args:
        files: one file or the shards of a model.
        config: what config.json says.
        where: begins the texts of errors.
        read: describes the tensors of a file; files of safetensors by default.

    Raises:
        QcoreValueError, OSError: as :func:`open_checkpoint`; two files have a tensor of one name.
    """
    sharded = join_files(files, where, read)
    return Checkpoint(_entries(sharded.contents, sharded.files, dict(config), where), sharded.files)


def _entries(
    contents: SafetensorsFile, files: tuple[Path, ...], config: dict[str, Any] | None, where: str
) -> Mapping[str, Entry]:
    if contents.metadata.get(layout.KEY, contents.metadata.get("format", "")).startswith(layout.PREFIX):
        if len(files) > 1 and layout.KEY not in contents.metadata:
            raise _core.QcoreValueError(f"{where} is an index of files in qcore's layout, expected one file")
        return layout.entries_of(contents, where)
    if config is not None and compressed_tensors.is_compressed(config):
        return compressed_tensors.entries_of(contents.sections, config["quantization_config"], where)
    if bitsandbytes.has_layers(contents.sections, config):
        return bitsandbytes.entries_of(contents.sections, where)
    if hqq.has_layers(contents.sections, config):
        return hqq.entries_of(contents.sections, where)
    if awq_gptq.has_packed_layers(contents.sections):
        packing = awq_gptq.read_packing(config, where)
        return awq_gptq.entries_of(contents.sections, packing, where)
    if mlx.may_have_layers(contents.sections):
        return mlx.entries_of(contents.sections, config, where)
    return {name: PlainEntry(section) for name, section in contents.sections.items()}


def _first_bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(KIND_BYTES)
