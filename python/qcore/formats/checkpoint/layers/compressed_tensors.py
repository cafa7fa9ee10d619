"""Layers of compressed-tensors: three to five tensors each, whose meaning is in config.json beside the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section
from qcore.formats.checkpoint.files.safetensors import short
from qcore.formats.checkpoint.records import Entry, PlainEntry, TensorInfo, refuse_mxfp8
from qcore.formats.compressed_tensors import from_compressed_tensors
from qcore.formats.compressed_tensors_float4 import from_compressed_tensors_mxfp4, from_compressed_tensors_nvfp4

METHOD = "compressed-tensors"
FORMATS = (
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp8-quantized",
)
PARTS = (
    "weight_packed",
    "weight",
    "weight_scale",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
UNUSED = ("input_scale", "input_zero_point", "input_global_scale")
"""Names of static activation scales, which are not read: dynamic ones replace them."""
_STRATEGIES = ("group", "channel", "tensor")
_FLOAT4 = {("group", 32): "mxfp4", ("tensor_group", 16): "nvfp4"}
"""Kinds of weights of 4-bit floats by strategy and group_size."""
_MX_BLOCK = 32
_GROUPS = {kind: size for (_, size), kind in _FLOAT4.items()}


@dataclass(frozen=True)
class Scheme:
    """A group of layers of ``config_groups``: how weights are stored, and what activations are quantized to."""

    targets: tuple[str, ...]
    bits: int
    symmetric: bool
    group_size: int | None
    """None for a scale per channel or tensor."""
    activations: str | None
    """The compute mode that ``input_activations`` stands for; None if it says nothing."""
    float4: str | None = None
    """'mxfp4' or 'nvfp4' for weights of 4-bit floats."""
    is_mxfp8: bool = False
    """Whether weights are floats of 8 bits, which are listed only."""

    def holds(self, layer: str) -> bool:
        """Return whether a layer of that name is in the group; names of classes, such as Linear, mean all layers."""
        return any(
            re.match(target[3:], layer) is not None
            if target.startswith("re:")
            else ("." not in target and target[:1].isupper()) or target == layer
            for target in self.targets
        )


def is_compressed(config: dict[str, Any] | None) -> bool:
    """Return whether a config.json says that a model has such layers."""
    values = (config or {}).get("quantization_config")
    return isinstance(values, dict) and values.get("quant_method") == METHOD


def read_schemes(values: dict[str, Any], where: str) -> list[Scheme]:
    """Return the groups of a ``quantization_config``.

    Raises:
        QcoreValueError: a field is missing, or has a value that qcore doesn't know.
    """
    where = f"{where}: quantization_config of its config.json"
    if values.get("format") not in FORMATS:
        raise _core.QcoreValueError(f"{where}: format is {short(values.get('format'))}, expected {', '.join(FORMATS)}")
    groups = values.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _core.QcoreValueError(f"{where} has no 'config_groups', expected one group or more")
    return [_scheme(group, f"{where}: config_groups[{name!r}]") for name, group in groups.items()]


def _scheme(group: Any, where: str) -> Scheme:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise _core.QcoreValueError(f"{where} has no 'weights', expected how weights are quantized")
    if weights.get("type") == "float":
        return _float4_scheme(group, weights, where)
    for key, known in (("num_bits", (4, 8)), ("type", ("int",)), ("strategy", _STRATEGIES)):
        if weights.get(key) not in known:
            expected = " or ".join(repr(each) for each in known)
            raise _core.QcoreValueError(f"{where}: weights.{key} is {short(weights.get(key))}, expected {expected}")
    size = weights.get("group_size") if weights["strategy"] == "group" else None
    if weights["strategy"] == "group" and (type(size) is not int or size < 1):
        raise _core.QcoreValueError(f"{where}: weights.group_size is {short(size)}, expected a positive integer")
    activations = _activations(group.get("input_activations"), where)
    return Scheme(_targets(group, where), weights["num_bits"], bool(weights.get("symmetric", True)), size, activations)


def _targets(group: dict[str, Any], where: str) -> tuple[str, ...]:
    targets = group.get("targets", ())
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise _core.QcoreValueError(f"{where}: targets is {short(targets)}, expected a list of strings")
    return tuple(targets)


def _float4_scheme(group: dict[str, Any], weights: dict[str, Any], where: str) -> Scheme:
    """Return a group of weights of 4-bit floats; activations in 4-bit floats are not a compute mode of qcore."""
    key = (weights.get("strategy"), weights.get("group_size"))
    if weights.get("num_bits") == 8 and key == ("group", _MX_BLOCK) and weights.get("symmetric", True):
        return Scheme(_targets(group, where), 8, True, _MX_BLOCK, None, is_mxfp8=True)
    kind = next((kind for known, kind in _FLOAT4.items() if known == key), None)
    if kind is None or weights.get("num_bits") != 4 or not weights.get("symmetric", True):
        raise _core.QcoreValueError(
            f"{where}: weights are floats with num_bits {short(weights.get('num_bits'))}, strategy {short(key[0])}, "
            f"group_size {short(key[1])} and symmetric {short(weights.get('symmetric', True))}, expected 4 symmetric "
            "bits in a 'group' of 32 (mxfp4) or a 'tensor_group' of 16 (nvfp4), or 8 in a 'group' of 32 (mxfp8)"
        )
    given = group.get("input_activations")
    integers = isinstance(given, dict) and given.get("type", "int") == "int"
    activations = _activations(given, where) if integers else None
    return Scheme(_targets(group, where), 4, True, _GROUPS[kind], activations, kind)


def _activations(values: Any, where: str) -> str | None:
    if values is None:
        return None
    if not isinstance(values, dict) or (values.get("type", "int"), values.get("num_bits")) != ("int", 8):
        raise _core.QcoreValueError(f"{where}: input_activations is {short(values)}, expected null or int of 8 bits")
    return "int8" if values.get("symmetric", True) else "int8_asym"


@dataclass(frozen=True)
class _LayerEntry:
    """A layer's weight [N, K], and how the files say it is stored."""

    scheme: Scheme
    shape: tuple[int, int]
    sections: dict[str, Section]

    @property
    def activations(self) -> str | None:
        """The compute mode that the files ask for."""
        return self.scheme.activations


@dataclass(frozen=True)
class CompressedEntry(_LayerEntry):
    """A layer's weight [N, K] of integers."""

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        kind = "pack-quantized" if "weight_packed" in self.sections else "int-quantized"
        scheme = "asymmetric" if "weight_zero_point" in self.sections else "symmetric"
        block = self.scheme.group_size or self.shape[1]
        return TensorInfo(name, f"{METHOD} {kind}", self.shape, self.scheme.bits, block, scheme, nbytes)

    def read(self, name: str) -> Any:
        parts = self.sections
        try:
            return from_compressed_tensors(
                parts["weight_packed" if "weight_packed" in parts else "weight"].array(),
                parts["weight_scale"].widened(),
                parts["weight_zero_point"].array() if "weight_zero_point" in parts else None,
                bits=self.scheme.bits,
                shape=self.shape if "weight_packed" in parts else None,
                g_idx=parts["weight_g_idx"].array() if "weight_g_idx" in parts else None,
                block_size=self.scheme.group_size,
            )
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{parts['weight_scale'].path}: tensor {name!r}: {error}") from error


@dataclass(frozen=True)
class Float4Entry(_LayerEntry):
    """A layer's weight [N, K] of 4-bit floats."""

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        kind = f"{METHOD} {self.scheme.float4}-pack-quantized"
        return TensorInfo(name, kind, self.shape, 4, self.scheme.group_size, "symmetric", nbytes)

    def read(self, name: str) -> Any:
        parts = self.sections
        scale = parts["weight_scale"]
        arrays = (parts["weight_packed"].array(), Section(scale.path, "U8", scale.shape, scale.offset).array())
        try:
            if self.scheme.float4 == "mxfp4":
                return from_compressed_tensors_mxfp4(*arrays)
            return from_compressed_tensors_nvfp4(*arrays, parts["weight_global_scale"].array())
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"{scale.path}: tensor {name!r}: {error}") from error


@dataclass(frozen=True)
class Mxfp8Entry(_LayerEntry):
    """A layer's weight [N, K] of 8-bit floats, which can be listed only."""

    def info(self, name: str) -> TensorInfo:
        nbytes = sum(section.nbytes for section in self.sections.values())
        return TensorInfo(name, f"{METHOD} mxfp8-quantized", self.shape, 8, _MX_BLOCK, "symmetric", nbytes)

    def read(self, name: str) -> Any:
        refuse_mxfp8(self.sections["weight"].path, name)


def entries_of(sections: dict[str, Section], values: dict[str, Any], where: str) -> dict[str, Entry]:
    """Return the layers as NAME.weight, everything else as it is.

    Raises:
        QcoreValueError: a layer is in no group, lacks a tensor, or has one of another dtype or shape.
    """
    schemes = read_schemes(values, where)
    found: dict[str, Entry] = {}
    left = dict(sections)
    for name in sections:
        layer, _, part = name.rpartition(".")
        if part != "weight_packed" and not (part == "weight" and sections[name].dtype not in FLOATING):
            continue
        parts = {each: left.pop(f"{layer}.{each}") for each in PARTS if f"{layer}.{each}" in left}
        for each in UNUSED:
            left.pop(f"{layer}.{each}", None)
        found[f"{layer}.weight"] = _entry(layer, parts, schemes, where)
    return found | {name: PlainEntry(section) for name, section in left.items()}


def _entry(layer: str, parts: dict[str, Section], schemes: list[Scheme], where: str) -> Entry:
    at = f"{where}: layer {layer!r}"
    scheme = next((scheme for scheme in schemes if scheme.holds(layer)), None)
    if scheme is None:
        raise _core.QcoreValueError(f"{at} is quantized and in none of config_groups, expected one that names it")
    if scheme.float4 is not None:
        return _float4_entry(parts, scheme, at, layer)
    if scheme.is_mxfp8:
        return _mxfp8_entry(parts, scheme, at, layer)
    packed = "weight_packed" in parts
    weight = parts["weight_packed" if packed else "weight"]
    kind = "I32" if packed else "I8"
    if weight.dtype != kind or len(weight.shape) != 2:
        raise _core.QcoreValueError(
            f"{at}: its weight is {weight.dtype} {list(weight.shape)}, expected {kind} of two axes"
        )
    for part in ("weight_scale", *(("weight_shape",) if packed else ())):
        if part not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.{part}, expected one")
    if not scheme.symmetric and "weight_zero_point" not in parts:
        raise _core.QcoreValueError(f"{at} is asymmetric and has no tensor {layer}.weight_zero_point, expected one")
    if parts["weight_scale"].dtype not in FLOATING:
        raise _core.QcoreValueError(f"{at}: weight_scale is {parts['weight_scale'].dtype}, expected floats")
    shape = (weight.shape[0], weight.shape[1])
    if packed:
        sizes = parts["weight_shape"]
        if sizes.dtype not in ("I64", "I32") or sizes.shape != (2,):
            raise _core.QcoreValueError(
                f"{at}: weight_shape is {sizes.dtype} {list(sizes.shape)}, expected two integers"
            )
        n, k = (int(size) for size in sizes.array())
        if n != weight.shape[0] or -(-k * scheme.bits // 32) != weight.shape[1]:
            raise _core.QcoreValueError(
                f"{at}: weight_shape is {[n, k]}, expected sizes that {scheme.bits} bits pack to {list(weight.shape)}"
            )
        shape = (n, k)
    return CompressedEntry(scheme, shape, parts)


def _float4_entry(parts: dict[str, Section], scheme: Scheme, at: str, layer: str) -> Float4Entry:
    needed = ["weight_packed", "weight_scale"] + (["weight_global_scale"] if scheme.float4 == "nvfp4" else [])
    for part in needed:
        if part not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.{part}, expected one")
    codes, size = parts["weight_packed"], _GROUPS[str(scheme.float4)]
    if codes.dtype != "U8" or len(codes.shape) != 2 or codes.shape[1] * 2 % size:
        raise _core.QcoreValueError(
            f"{at}: its weight is {codes.dtype} {list(codes.shape)}, expected U8 [N, K / 2] with K a multiple of {size}"
        )
    n, k = codes.shape[0], codes.shape[1] * 2
    scale = parts["weight_scale"]
    dtype = "U8" if scheme.float4 == "mxfp4" else "F8_E4M3"
    if scale.dtype != dtype or scale.shape != (n, k // size):
        raise _core.QcoreValueError(
            f"{at}: weight_scale is {scale.dtype} {list(scale.shape)}, expected {dtype} {[n, k // size]}"
        )
    if scheme.float4 == "nvfp4":
        factor = parts["weight_global_scale"]
        if factor.dtype != "F32" or factor.shape not in ((), (1,)):
            raise _core.QcoreValueError(
                f"{at}: weight_global_scale is {factor.dtype} {list(factor.shape)}, expected F32 [1]"
            )
    return Float4Entry(scheme, (n, k), {part: parts[part] for part in needed})


def _mxfp8_entry(parts: dict[str, Section], scheme: Scheme, at: str, layer: str) -> Mxfp8Entry:
    for part in ("weight", "weight_scale"):
        if part not in parts:
            raise _core.QcoreValueError(f"{at} has no tensor {layer}.{part}, expected one")
    codes, scale = parts["weight"], parts["weight_scale"]
    if codes.dtype != "F8_E4M3" or len(codes.shape) != 2 or codes.shape[1] % _MX_BLOCK:
        raise _core.QcoreValueError(
            f"{at}: its weight is {codes.dtype} {list(codes.shape)}, expected F8_E4M3 [N, K] with K a multiple of "
            f"{_MX_BLOCK}"
        )
    n, k = codes.shape
    if scale.dtype not in ("U8", "F8_E8M0") or scale.shape != (n, k // _MX_BLOCK):
        raise _core.QcoreValueError(
            f"{at}: weight_scale is {scale.dtype} {list(scale.shape)}, expected U8 or F8_E8M0 {[n, k // _MX_BLOCK]}"
        )
    return Mxfp8Entry(scheme, (n, k), {"weight": codes, "weight_scale": scale})
