"""MLX's quantized layers: NAME.weight, NAME.scales and NAME.biases, whose widths are in config.json beside the file.

As mlx-lm writes it, "quantization" has group_size and bits for all layers, and under a layer's own name either another
group_size and bits, or false if that layer isn't quantized. "mode" is "affine" if it is not there; layers of "mxfp4",
"nvfp4" and "mxfp8" have no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section
from qcore.formats.checkpoint.files.safetensors import short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo, refuse_mxfp8
from qcore.formats.mlx import from_mlx
from qcore.quantized_tensor import QuantizedTensor

KEY = "quantization"
_WIDTHS = (2, 3, 4, 5, 6, 8)
_WORD_BITS = 32
_PARTS = ("weight", "scales", "biases")
_FLOATS = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
"""Bits and group_size of the modes without biases; weights of mxfp8 are listed only."""


@dataclass(frozen=True)
class MlxEntry:
    """A weight [N, K], or one [..., N, K] that can be listed only."""

    shape: tuple[int, ...]
    bits: int
    group_size: int
    mode: str
    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        scheme = "asymmetric" if self.mode == "affine" else "symmetric"
        return TensorInfo(name, f"mlx {self.mode}", self.shape, self.bits, self.group_size, scheme, nbytes)

    def read(self, name: str) -> QuantizedTensor:
        if self.mode == "mxfp8":
            refuse_mxfp8(self.sections["weight"].path, name)
        where = f"{self.sections['weight'].path}: tensor {name!r}"
        if len(self.shape) != 2:
            raise _core.QcoreValueError(f"{where} is [..., N, K] = {list(self.shape)}, expected [N, K]")
        arrays = [self.sections[part].widened() for part in _PARTS if part in self.sections]
        try:
            return from_mlx(*arrays, bits=self.bits, block_size=self.group_size, mode=self.mode)
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{where}: {error}") from error


def may_have_layers(sections: Mapping[str, Section]) -> bool:
    return bool(_layers(sections))


def _layers(sections: Mapping[str, Section]) -> list[str]:
    """Return the names of what has words and scales."""
    names = (name.removesuffix(".weight") for name in sections if name.endswith(".weight"))
    return [name for name in names if sections[f"{name}.weight"].dtype == "U32" and f"{name}.scales" in sections]


def entries_of(sections: Mapping[str, Section], config: Mapping[str, Any] | None, where: str) -> dict[str, Entry]:
    """Return entries by name: each layer as NAME.weight, every other tensor under its own name.

    Raises:
        QcoreValueError: config.json or a field of it is missing or has another value than a layer's, or a layer's parts
            don't fit together. Nothing is guessed.
    """
    values = None if config is None else config.get(KEY)
    if values is None and not any(f"{layer}.biases" in sections for layer in _layers(sections)):
        return {name: PlainEntry(section) for name, section in sections.items()}  # words and scales of another format
    if not isinstance(values, dict):
        what = "config.json beside it" if config is None else f"object {KEY} in its config.json"
        raise _core.QcoreValueError(
            f"{where} has layers of MLX (.weight, .scales, .biases) and no {what}, expected one that says how"
        )
    found: dict[str, Entry] = {}
    left = dict(sections)
    for layer in _layers(sections):
        own = values.get(layer, True)
        at = f"{where}: {KEY} of its config.json"
        if own is False:
            raise _core.QcoreValueError(f"{at}: {layer} is False, expected none of {layer}.scales in the file then")
        if own is not True:
            at = f"{at}: {layer}"
            if not isinstance(own, dict):
                raise _core.QcoreValueError(f"{at} is {short(own)}, expected an object or false")
        bits, group_size, mode = _widths(values if own is True else own, at)
        parts = {part: left.pop(f"{layer}.{part}") for part in _PARTS if f"{layer}.{part}" in left}
        kind = "mlx" if mode == "affine" else f"mlx {mode}"
        about = f"{where}: layer {layer!r} ({kind}, {bits} bits, group_size {group_size})"
        found[f"{layer}.weight"] = _entry(layer, parts, bits, group_size, mode, about)
    return found | {name: PlainEntry(section) for name, section in left.items()}


def _widths(values: Mapping[str, Any], where: str) -> tuple[int, int, str]:
    mode = values.get("mode", "affine")  # written only by versions that know others
    if mode not in ("affine", *_FLOATS):
        raise _core.QcoreValueError(f"{where}: mode is {short(mode)}, expected 'affine', 'mxfp4', 'nvfp4' or 'mxfp8'")
    for key in ("group_size", "bits"):
        if key not in values:
            raise _core.QcoreValueError(f"{where} has no {key!r}, expected one")
    bits, group_size = values["bits"], values["group_size"]
    if type(bits) is not int or bits not in _WIDTHS:
        raise _core.QcoreValueError(f"{where}: bits is {short(bits)}, expected one of {', '.join(map(str, _WIDTHS))}")
    if type(group_size) is not int or not 0 < group_size < 2**31:
        raise _core.QcoreValueError(f"{where}: group_size is {short(group_size)}, expected a positive integer")
    if mode in _FLOATS and (bits, group_size) != _FLOATS[mode]:
        raise _core.QcoreValueError(
            f"{where}: bits is {bits} and group_size {group_size}, expected {_FLOATS[mode][0]} and {_FLOATS[mode][1]} "
            f"with mode {mode!r}"
        )
    return bits, group_size, mode


def _entry(layer: str, parts: dict[str, Section], bits: int, group_size: int, mode: str, at: str) -> MlxEntry:
    """Check sizes, so that info() is right."""
    if mode != "affine" and "biases" in parts:
        raise _core.QcoreValueError(f"{at} has {layer}.biases, expected none with mode {mode!r}")
    if mode == "affine" and "biases" not in parts:
        raise _core.QcoreValueError(f"{at} has no tensor {layer}.biases, expected one")
    *rows, words = parts["weight"].shape or (0,)
    columns = words * _WORD_BITS // bits
    if not rows or columns == 0 or columns % group_size or words * _WORD_BITS % bits:
        raise _core.QcoreValueError(
            f"{at}: weight has shape {list(parts['weight'].shape)}, expected [N, K * {bits} / 32] with K a multiple of "
            "its group_size"
        )
    shape = (*rows, columns // group_size)
    dtypes = FLOATING if mode == "affine" else ("U8",)
    for part in parts:
        if part != "weight" and (parts[part].shape != shape or parts[part].dtype not in dtypes):
            raise _core.QcoreValueError(
                f"{at}: {part} is {parts[part].dtype} {list(parts[part].shape)}, expected {' or '.join(dtypes)} "
                f"{list(shape)}"
            )
    return MlxEntry((*rows, columns), bits, group_size, mode, parts)
