"""How weights are stored that keep the bytes of their source."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core

Parameter = Literal["float32", "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn", "uint4", "uint6", "uint8"]
Offset = Literal["float32", "float16", "bfloat16", "uint4", "uint6", "uint8", "uint4 zero points", "uint8 zero points"]

_TYPES = {
    "float32": _core.ParameterType.f32,
    "float16": _core.ParameterType.f16,
    "bfloat16": _core.ParameterType.bf16,
    "float8_e8m0fnu": _core.ParameterType.e8m0,
    "float8_e4m3fn": _core.ParameterType.e4m3,
    "uint4": _core.ParameterType.u4,
    "uint6": _core.ParameterType.u6,
    "uint8": _core.ParameterType.u8,
}
_OFFSETS = {
    **{name: kind for name, kind in _TYPES.items() if not name.startswith("float8")},
    "uint4 zero points": _core.ParameterType.z4,
    "uint8 zero points": _core.ParameterType.z8,
}
_FLOATS, _INTEGERS = ("float32", "float16", "bfloat16"), ("uint4", "uint6", "uint8")
_WIDTHS = {"uint4": 4, "uint6": 6, "uint4 zero points": 4}
_NAMES = {kind: name for name, kind in (_TYPES | _OFFSETS).items()}


@dataclass(frozen=True)
class WeightEncoding:
    """Describes an encoded weight: unsigned codes u of any width, and parameters as small as their source's.

    ``w = scale * q + offset``, rounded once, with ``q = codebook[u]``, or ``u - zero`` without a codebook. Scales and
    offsets are numbers of their type, one per row and block. e8m0 and e4m3 are multiplied by ``tensor_scale``. Integers
    have a float16 super-parameter for each ``super_block`` blocks of a row: the scale is
    ``super_scale * (number - scale_zero)``, the offset ``-(super_offset * number)``. Zero points mean
    ``w = scale * (u - number)``, rounded once, to ``dequantize`` and ``embedding``, and give ``linear`` the offset
    ``scale * (zero - number)``: the same with float16 and bfloat16 scales.

    Attributes:
        bits: of u: 2, 3, 4, 5, 6 or 8.
        scales: "float32", "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn", "uint4", "uint6" or "uint8".
        offsets: likewise but for the floats of 8 bits; "uint4 zero points" or "uint8 zero points"; None for a symmetric
            weight.
        zero: 0 to 128, and 128 for 8 bits.
        codebook: 16 integers of 8 bits, for at most 4 bits; it replaces ``zero``.
        scale_zero: 0 to 255, for integer scales.
        super_block: blocks of a row that share a super-parameter; 0 without integers.
        tensor_scale: for e8m0 and e4m3; rounded to float32.

    Raises:
        QcoreValueError, QcoreTypeError: no weight can have this encoding.
    """

    bits: int
    scales: Parameter = "float16"
    offsets: Offset | None = None
    zero: int = 0
    codebook: tuple[int, ...] | None = None
    scale_zero: int = 0
    super_block: int = 0
    tensor_scale: float = 1.0

    def __post_init__(self) -> None:
        where = "WeightEncoding"
        scale = _checks.number(self.tensor_scale, f"{where}: tensor_scale")
        object.__setattr__(self, "tensor_scale", struct.unpack("f", struct.pack("f", scale))[0])
        if self.codebook is not None:
            try:
                object.__setattr__(self, "codebook", tuple(self.codebook))
            except TypeError:
                raise _core.QcoreTypeError(f"{where}: codebook is {self.codebook!r}, expected 16 integers") from None
        self._native().check(where)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from their defaults, in values that JSON keeps exactly."""
        given = asdict(self)
        return {
            field.name: list(value) if isinstance(value := given[field.name], tuple) else value
            for field in fields(self)
            if given[field.name] != field.default
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> WeightEncoding:
        """Return the encoding of :meth:`to_dict`.

        Args:
            given: attributes by name, ``bits`` at least.

        Raises:
            QcoreValueError, QcoreTypeError: a name is unknown or missing, or a value is impossible.
        """
        where = "WeightEncoding.from_dict"
        known = {field.name for field in fields(cls)}
        if not isinstance(given, Mapping) or not set(given) <= known or "bits" not in given:
            names = f"the names {sorted(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
            raise _core.QcoreValueError(f"{where}: got {names}, expected bits and some of {sorted(known - {'bits'})}")
        values = dict(given)
        codebook = values.get("codebook")
        if codebook is not None:
            if not isinstance(codebook, (list, tuple)):
                raise _core.QcoreTypeError(f"{where}: codebook is {codebook!r}, expected 16 integers")
            values["codebook"] = tuple(codebook)
        return cls(**values)

    def arrays(self, shape: Sequence[int], block_size: int) -> dict[str, tuple[tuple[int, int], str] | None]:
        """Return the shape and dtype of each part of a weight, by its name in ``QuantizedTensor.from_encoded``.

        Args:
            shape: [N, K] of the weight.
            block_size: elements along K that share a scale.

        Raises:
            QcoreValueError, QcoreTypeError: block_size is no integer of 1 or more.
        """
        if _checks.integer(block_size, "WeightEncoding.arrays: block_size") < 1:
            raise _core.QcoreValueError(
                f"WeightEncoding.arrays: block_size is {block_size}, expected an integer of 1 or more"
            )
        rows, blocks = shape[0], -(-shape[1] // block_size)

        def parameters(kind: Parameter | Offset | None) -> tuple[tuple[int, int], str] | None:
            return None if kind is None else ((rows, blocks), kind if kind in _FLOATS else "uint8")

        def supers(kind: Parameter | Offset | None) -> tuple[tuple[int, int], str] | None:
            return ((rows, -(-blocks // self.super_block)), "float16") if kind in _INTEGERS else None

        return {
            "codes": ((rows, shape[1]), "uint8"),
            "scales": parameters(self.scales),
            "offsets": parameters(self.offsets),
            "super_scales": supers(self.scales),
            "super_offsets": supers(self.offsets),
        }

    def widths(self) -> dict[str, int]:
        """Return the bits of the numbers of each part that files hold packed: those of fewer than 8."""
        widths = {"codes": self.bits, "scales": _WIDTHS.get(self.scales), "offsets": _WIDTHS.get(self.offsets or "")}
        return {name: bits for name, bits in widths.items() if bits is not None and bits < 8}

    def _native(self) -> _core.WeightEncoding:
        """Return the same for the core, which knows what is possible."""
        where = "WeightEncoding"
        codebook = None
        if self.codebook is not None:
            codebook = [_checks.integer(value, f"{where}: codebook", bits=8) for value in self.codebook]
        offsets = _core.ParameterType.none
        if self.offsets is not None:
            offsets = _checks.choice(self.offsets, _OFFSETS, f"{where}: offsets")
        return _core.WeightEncoding(
            _checks.integer(self.bits, f"{where}: bits", bits=32),
            _checks.integer(self.zero, f"{where}: zero", bits=32),
            codebook,
            _checks.choice(self.scales, _TYPES, f"{where}: scales"),
            offsets,
            _checks.integer(self.scale_zero, f"{where}: scale_zero", bits=32),
            _checks.integer(self.super_block, f"{where}: super_block"),
            self.tensor_scale,
        )

    @classmethod
    def _of(cls, native: _core.WeightEncoding) -> WeightEncoding:
        """Return the core's encoding as a dataclass."""
        return cls(
            bits=native.bits,
            scales=_NAMES[native.scales],  # type: ignore[arg-type]
            offsets=_NAMES.get(native.offsets),  # type: ignore[arg-type]
            zero=native.zero,
            codebook=native.codebook,
            scale_zero=native.scale_zero,
            super_block=native.super_block,
            tensor_scale=native.tensor_scale,
        )


def pack_bits(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack numbers of a few bits one after the other, the first in a row's lowest bits.

    Args:
        numbers: uint8 [N, K], below 2^bits.
        bits: 1 to 8.

    Returns:
        uint8 [N, ceil(K * bits / 8)], zeros in what is left of the last byte.
    """
    if bits == 8:
        return np.ascontiguousarray(numbers)
    rows, columns = numbers.shape
    padded = np.zeros((rows, -(-columns // 8) * 8), np.uint8)
    padded[:, :columns] = numbers
    groups = np.zeros((rows, padded.shape[1] // 8), np.uint64)
    for place in range(8):
        groups |= padded[:, place::8].astype(np.uint64) << np.uint64(place * bits)
    octets = groups.astype("<u8").view(np.uint8).reshape(*groups.shape, 8)[:, :, :bits]
    return np.ascontiguousarray(octets.reshape(rows, groups.shape[1] * bits)[:, : -(-columns * bits // 8)])


def unpack_bits(packed: NDArray[np.uint8], bits: int, columns: int) -> NDArray[np.uint8]:
    """Return the inverse of :func:`pack_bits`.

    Args:
        packed: uint8 [N, ceil(columns * bits / 8)].
        bits: 1 to 8.
        columns: K.

    Returns:
        uint8 [N, K].
    """
    if bits == 8:
        return np.ascontiguousarray(packed)
    rows, count = packed.shape[0], -(-columns // 8)
    octets = np.zeros((rows, count * bits), np.uint8)
    octets[:, : packed.shape[1]] = packed
    wide = np.zeros((rows, count, 8), np.uint8)
    wide[:, :, :bits] = octets.reshape(rows, count, bits)
    groups = wide.view("<u8")[:, :, 0]
    out = np.empty((rows, count, 8), np.uint8)
    for place in range(8):
        out[:, :, place] = groups >> np.uint64(place * bits) & np.uint64((1 << bits) - 1)
    return np.ascontiguousarray(out.reshape(rows, count * 8)[:, :columns])


E2M1_CODEBOOK = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of e2m1, so that they are integers."""
IQ4_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of ggml's IQ4_NL and IQ4_XS."""
NF4_CODEBOOK = (-112, -78, -59, -44, -32, -21, -10, 0, 9, 18, 28, 38, 49, 63, 81, 112)
"""The quantiles of bitsandbytes' NF4 times 112.03, rounded."""

ENCODINGS: Mapping[str, tuple[WeightEncoding, int]] = {
    "q2_k": (WeightEncoding(2, "uint4", "uint4", super_block=16), 16),
    "q3_k": (WeightEncoding(3, "uint6", zero=4, scale_zero=32, super_block=16), 16),
    "q4_k": (WeightEncoding(4, "uint6", "uint6", super_block=8), 32),
    "q5_k": (WeightEncoding(5, "uint6", "uint6", super_block=8), 32),
    "q6_k": (WeightEncoding(6, "uint8", zero=32, scale_zero=128, super_block=16), 16),
    "q4_1": (WeightEncoding(4, offsets="float16"), 32),
    "q5_0": (WeightEncoding(5, zero=16), 32),
    "q5_1": (WeightEncoding(5, offsets="float16"), 32),
    "iq4_nl": (WeightEncoding(4, codebook=IQ4_CODEBOOK), 32),
    "iq4_xs": (WeightEncoding(4, "uint6", codebook=IQ4_CODEBOOK, scale_zero=32, super_block=8), 32),
    "tq2_0": (WeightEncoding(2, zero=1), 256),
    "mxfp4": (WeightEncoding(4, "float8_e8m0fnu", codebook=E2M1_CODEBOOK, tensor_scale=0.5), 32),
    "nvfp4": (WeightEncoding(4, "float8_e4m3fn", codebook=E2M1_CODEBOOK, tensor_scale=0.5), 16),
    "nf4": (WeightEncoding(4, codebook=NF4_CODEBOOK), 64),
}
"""Encodings and block sizes by the names of GGUF's types, and bitsandbytes' NF4."""
