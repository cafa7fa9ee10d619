"""Widths, exponents and zero points of tensors, and the rules that choose them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from qcore import _core

Rounding = Literal["half_away", "half_even"]
Rule = Literal["cover", "nearest", "mse"]
Granularity = Literal["channel", "gate", "tensor"]
TableKind = Literal["exact", "interp"]
RULES, GRANULARITIES, TABLES = get_args(Rule), get_args(Granularity), get_args(TableKind)


@dataclasses.dataclass(frozen=True)
class Format:
    """Describes the codes of a tensor: real value = (code - zero_point) * 2**-exponent.

    Args:
        bits: 2 to 16.
        signed: whether codes begin at -2**(bits-1), or at 0.
        exponent: the scale is 2**-exponent.
        zero_point: the code of 0.
    """

    bits: int
    signed: bool
    exponent: int
    zero_point: int = 0

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """The highest code."""
        return (1 << (self.bits - 1 if self.signed else self.bits)) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of arrays of codes: int8 for at most 8 bits, else int16."""
        return np.dtype(np.int8 if self.bits <= 8 else np.int16)

    def row(self) -> tuple[int, bool, int, int]:
        """Return the format as the core takes it."""
        return self.bits, self.signed, self.exponent, self.zero_point

    def encode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return codes of numbers, rounded half to even and clamped.

        Args:
            values: numbers, any shape.
        """
        codes = np.rint(np.ldexp(np.asarray(values, np.float64), self.exponent)) + self.zero_point
        clamped: NDArray[np.int64] = np.clip(codes, self.lowest, self.highest).astype(np.int64)
        return clamped

    def decode(self, codes: NDArray[Any]) -> NDArray[np.float64]:
        """Return the real values of codes, exactly.

        Args:
            codes: integers, any shape.
        """
        return np.ldexp(np.asarray(codes, np.float64) - self.zero_point, -self.exponent)


def _covering_exponent(low: float, high: float, codes: int, bound: int | None) -> int:
    """Return the largest e for which rint(high * 2**e) - rint(low * 2**e) <= codes, both within `bound` if given."""
    largest = max(-low, high)
    if largest == 0.0:  # anything would do; as if it were 1, since sums of products take their scale from their factors
        low, high, largest = -1.0, 1.0, 1.0
    exponent = math.frexp(codes / (high - low) if bound is None else (bound + 1) / largest)[1] + 1

    def fits(e: int) -> bool:
        first, last = np.rint(math.ldexp(low, e)), np.rint(math.ldexp(high, e))
        return bool(last - first <= codes and (bound is None or (last <= bound and first >= -bound - 1)))

    while not fits(exponent):
        exponent -= 1
    return exponent


def choose_format(
    low: float, high: float, bits: int, *, signed: bool = True, zero_point: bool = True, exponent: int | None = None
) -> Format:
    """Return the format that covers a range with the largest exponent, or with a given one.

    Args:
        low, high: the range; it is widened to contain 0.
        bits: 2 to 32.
        signed: codes from -2**(bits-1), else from 0.
        zero_point: whether 0 may lie anywhere, so that one-sided ranges use all codes.
        exponent: use this one; values beyond the codes will be clipped.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    shape = Format(bits, signed, 0)
    codes = shape.highest - shape.lowest
    if exponent is None:
        bound = None if zero_point else shape.highest
        exponent = _covering_exponent(low, high, codes, bound)
    if not zero_point:
        return Format(bits, signed, exponent)
    first, last = int(np.rint(math.ldexp(low, exponent))), int(np.rint(math.ldexp(high, exponent)))
    # The rest of the range is divided between both ends, for values that calibration did not see.
    zero = shape.lowest - first + (codes - (last - first)) // 2
    return Format(bits, signed, exponent, min(max(zero, shape.lowest), shape.highest))


@dataclasses.dataclass(frozen=True)
class ConfigBase:
    """Checks a config, whose operator adds its own fields, and converts it to JSON and back."""

    op: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]]
    choices: ClassVar[dict[str, tuple[str, ...]]]
    presets: ClassVar[dict[int, dict[str, int]]]
    """Bits of tensors by the preset; those not named have 16."""
    bits: int = 8
    widths: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        def fail(key: str, value: Any, expected: str) -> None:
            raise _core.QcoreValueError(f"{self.op} config: {key} is {value!r}, expected {expected}")

        if self.bits not in (8, 16):
            fail("bits", self.bits, "8 or 16")
        for key, allowed in self.choices.items():
            if getattr(self, key) not in allowed:
                fail(key, getattr(self, key), " or ".join(repr(name) for name in allowed))
        if not isinstance(self.widths, Mapping):
            fail("widths", self.widths, "a mapping of tensors to bits")
        names = (*self.tensors, "weights", "biases")
        for name, bits in self.widths.items():
            if name not in names:
                fail("widths", name, f"names among {', '.join(names)}")
            most = 32 if name == "biases" else 16
            if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= most:
                fail(f"widths[{name!r}]", bits, f"an integer from 2 to {most}")

    def width(self, name: str) -> int:
        """Return the bits of a tensor.

        Args:
            name: of a tensor, "weights" or "biases".
        """
        return self.widths.get(name, self.presets[self.bits].get(name, 16))

    def to_json(self) -> str:
        """Return all of it as JSON, which :meth:`from_json` reads."""
        return json.dumps(dataclasses.asdict(self) | {"widths": dict(self.widths)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Make the config that :meth:`to_json` wrote.

        Args:
            text: a JSON object; keys that are missing have their defaults.

        Raises:
            QcoreValueError: naming the key that is unknown, missing its type or out of range.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise _core.QcoreValueError(f"{cls.op} config: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise _core.QcoreValueError(f"{cls.op} config: the JSON is a {type(values).__name__}, expected an object")
        known = {field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in known:
                raise _core.QcoreValueError(
                    f"{cls.op} config: unknown key {key!r}, expected some of {', '.join(sorted(known))}"
                )
        return cls(**values)
