"""AWQ, GPTQ and AutoRound layers: three or four tensors each, whose meaning is in config.json beside the file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from qcore import _core
from qcore.formats.awq import from_awq
from qcore.formats.awq_gemv import from_awq_gemv
from qcore.formats.checkpoint.byte_ranges import Section
from qcore.formats.checkpoint.files.safetensors import short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo
from qcore.formats.gptq import from_gptq

WORD_BITS = 32
_AUTO_ROUND = ("auto-round", "intel/auto-round")
_AUTO_ROUND_LAYOUTS = {
    "auto_round:auto_awq": ("awq", "gemm"),
    "auto_round:auto_gptq": ("gptq", "v1"),
    "auto_round:gptqmodel": ("gptq", "v2"),
    "auto_round": ("gptq", "v2"),
}
"""Methods and versions by AutoRound's ``packing_format``."""
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True)
class PackingConfig:
    """``quantization_config`` of a config.json, checked."""

    method: str
    bits: int
    group_size: int
    """-1 is one group for the whole of K."""
    version: str
    """'gemm' or 'gemv' of AWQ; 'v1' or 'v2' of GPTQ."""
    may_lack_order: bool = False
    """Whether layers of GPTQ without g_idx have blocks in the order of K, as AutoRound's."""

    @property
    def format(self) -> str:
        return f"{self.method} {self.version}"


def has_packed_layers(sections: dict[str, Section]) -> bool:
    return any(name.endswith(".qweight") for name in sections)


def read_packing(config: dict[str, Any] | None, where: str) -> PackingConfig:
    """Return what a config.json says of its packed layers.

    Raises:
        QcoreValueError: it is missing, or a field is, or has a value that qcore doesn't know. Nothing is guessed.
    """
    values = None if config is None else config.get("quantization_config")
    if not isinstance(values, dict):
        what = "config.json beside it" if config is None else "object quantization_config in its config.json"
        raise _core.QcoreValueError(f"{where} has packed layers (.qweight) and no {what}, expected one that says how")
    where = f"{where}: quantization_config of its config.json"
    method = _field(values, "quant_method", ("awq", "gptq", *_AUTO_ROUND), where)
    group_size = _field(values, "group_size", None, where)
    if type(group_size) is not int or not (group_size == -1 or 0 < group_size < 2**31):
        raise _core.QcoreValueError(f"{where}: group_size is {short(group_size)}, expected a positive integer or -1")
    if method in _AUTO_ROUND:
        return _auto_round(values, group_size, where)
    if method == "awq":
        bits = _field(values, "bits", (4,), where)
        _field(values, "zero_point", (True,), where)
        key = "version" if "version" in values else "format" if "format" in values else "version"
        return PackingConfig(method, bits, group_size, _field(values, key, ("gemm", "gemv"), where))
    bits = _field(values, "bits", (2, 3, 4, 8), where)
    _field(values, "desc_act", (True, False), where)
    key = next((key for key in ("checkpoint_format", "format") if values.get(key) is not None), "")
    if not key:
        warnings.warn(f"{where} has no 'checkpoint_format': 'gptq' is assumed, version 1", stacklevel=2)
        return PackingConfig(method, bits, group_size, "v1")
    layout = _field(values, key, ("gptq", "gptq_v2"), where)
    return PackingConfig(method, bits, group_size, "v2" if layout == "gptq_v2" else "v1")


def _auto_round(values: dict[str, Any], group_size: int, where: str) -> PackingConfig:
    layout = _field(values, "packing_format", tuple(_AUTO_ROUND_LAYOUTS), where)
    method, version = _AUTO_ROUND_LAYOUTS[layout]
    bits = _field(values, "bits", (4,) if method == "awq" else (2, 3, 4, 8), where)
    if "data_type" in values:
        _field(values, "data_type", ("int",), where)
    others = values.get("extra_config") or {}
    if not isinstance(others, dict) or not all(isinstance(other, dict) for other in others.values()):
        raise _core.QcoreValueError(f"{where}: extra_config is {short(others)}, expected objects by layer")
    for layer, other in others.items():
        known = {"bits": (bits,), "group_size": (group_size,), "data_type": ("int",)}
        for key, expected in known.items():
            if other.get("bits") not in (16, 32) and other.get(key) not in (None, *expected):
                raise _core.QcoreValueError(
                    f"{where}: extra_config: {layer}: {key} is {short(other[key])}, expected that of all layers"
                )
    return PackingConfig(method, bits, group_size, version, may_lack_order=True)


def _field(values: dict[str, Any], key: str, choices: tuple[Any, ...] | None, where: str) -> Any:
    if key not in values:
        raise _core.QcoreValueError(f"{where} has no {key!r}, expected one")
    value = values[key].lower() if isinstance(values[key], str) else values[key]
    if choices is not None and not any(type(value) is type(choice) and value == choice for choice in choices):
        names = " or ".join(repr(choice) for choice in choices)
        raise _core.QcoreValueError(f"{where}: {key} is {short(value)}, expected {names}")
    return value


@dataclass(frozen=True)
class PackedEntry:
    """A layer's weight [N, K]."""

    config: PackingConfig
    shape: tuple[int, int]
    block_size: int
    sections: dict[str, Section]

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        return TensorInfo(name, self.config.format, self.shape, self.config.bits, self.block_size, "asymmetric", nbytes)

    def read(self, name: str) -> Any:
        try:
            return self._weight()
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{self.sections['qweight'].path}: tensor {name!r}: {error}") from error

    def _weight(self) -> Any:
        arrays = {part: section.array() for part, section in self.sections.items()}
        if self.config.method == "awq":
            words, scales, zeros = arrays["qweight"], arrays["scales"], arrays["qzeros"]
            if self.config.version == "gemm":
                return from_awq(words, scales, zeros)
            return from_awq_gemv(words, scales, zeros, block_size=self.block_size)
        return from_gptq(
            arrays["qweight"],
            arrays["scales"],
            arrays["qzeros"],
            arrays.get("g_idx"),
            bits=self.config.bits,
            version=int(self.config.version[1:]),
        )


def entries_of(sections: dict[str, Section], config: PackingConfig, where: str) -> dict[str, Entry]:
    """Return the layers as NAME.weight, everything else as it is."""
    found: dict[str, Entry] = {}
    left = dict(sections)
    for name in sections:
        if not name.endswith(".qweight"):
            continue
        layer = name.removesuffix(".qweight")
        parts = {part: left.pop(f"{layer}.{part}") for part in _PARTS if f"{layer}.{part}" in left}
        found[f"{layer}.weight"] = _entry(layer, parts, config, where)
    for name, section in left.items():
        if name in found:
            raise _core.QcoreValueError(f"{where} has both {name!r} and a packed layer of that name, expected one")
        found[name] = PlainEntry(section)
    return found


def _entry(layer: str, parts: dict[str, Section], config: PackingConfig, where: str) -> PackedEntry:
    """Check sizes, so that info() is right and no codec sees parts that don't fit."""
    at = f"{where}: layer {layer!r} ({config.format}, {config.bits} bits, group_size {config.group_size})"
    for part in _PARTS[:3]:
        if part not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.{part}, expected one")
        dtype = "F16" if part == "scales" else "I32"
        if parts[part].dtype != dtype or len(parts[part].shape) != 2:
            raise _core.QcoreValueError(
                f"{at}: {part} is {parts[part].dtype} {list(parts[part].shape)}, expected {dtype} of two axes"
            )
    qweight = parts["qweight"].shape
    bits = config.bits
    per_word = WORD_BITS if bits == 3 else WORD_BITS // bits
    if config.format == "awq gemm":
        inputs, outputs = qweight[0], qweight[1] * WORD_BITS // bits
    elif config.format == "awq gemv":
        outputs, inputs = qweight[0], qweight[1] * WORD_BITS // bits
    else:
        inputs, outputs = qweight[0] * WORD_BITS // bits, qweight[1]
    group = inputs if config.group_size == -1 else config.group_size
    if group == 0 or inputs % group:
        raise _core.QcoreValueError(f"{at} has K = {inputs}, expected a multiple of its group_size")
    groups = inputs // group
    if config.format == "awq gemv":
        multiple = 1 if group >= 128 else 2 if group >= 64 else 4
        words = -(-groups // (per_word * multiple)) * multiple
        wanted = {"qzeros": (outputs, words), "scales": (outputs, words * per_word)}
    else:
        if outputs % per_word:
            raise _core.QcoreValueError(f"{at} has N = {outputs}, expected a multiple of {per_word}")
        wanted = {"qzeros": (groups, outputs * bits // WORD_BITS), "scales": (groups, outputs)}
    for part, shape in wanted.items():
        if parts[part].shape != shape:
            _wrong_shape(at, part, parts[part].shape, shape)
    if "g_idx" in parts and (parts["g_idx"].dtype, parts["g_idx"].shape) != ("I32", (inputs,)):
        raise _core.QcoreValueError(
            f"{at}: g_idx is {parts['g_idx'].dtype} {list(parts['g_idx'].shape)}, expected I32 [{inputs}]"
        )
    if config.method == "gptq" and "g_idx" not in parts and not config.may_lack_order:
        raise _core.QcoreValueError(f"{at} has no tensor {layer}.g_idx, expected one")
    return PackedEntry(config, (outputs, inputs), group, parts)


def _wrong_shape(at: str, part: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> NoReturn:
    raise _core.QcoreValueError(f"{at}: {part} has shape {list(given)}, expected {list(wanted)}")
