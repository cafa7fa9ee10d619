"""An LSTM's tensors and their widths."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, get_args

from qcore._recurrent.formats import (
    GRANULARITIES,
    RULES,
    TABLES,
    ConfigBase,
    Granularity,
    Rounding,
    Rule,
    TableKind,
)

TENSORS = ("x", "h", "c", "wx", "rh", "i_pre", "f_pre", "g_pre", "o_pre", "i", "f", "g", "o", "c_tanh")
"""Tensors that have a format, in the core's order. wx is W x + b, rh is R h, i_pre is the argument of i, c_tanh is
tanh(c)."""
PROJECTED = (*TENSORS, "m")
"""The same with a projection: m is o * tanh(c), and h the product of the projection's weights and m."""

STATES = ("h", "c")
"""Tensors that go from step to step; the first is the output."""
UNSIGNED = ("i", "f", "o")
ZERO_FREE = ("x", "h", "m", "wx", "rh", "i_pre", "f_pre", "g_pre", "o_pre")
"""Tensors that may have a zero point."""

_EIGHT = {"x": 8, "h": 8, "i": 8, "f": 8, "g": 8, "o": 8, "m": 8, "weights": 8, "biases": 16}
_SIXTEEN = {"biases": 32}


@dataclasses.dataclass(frozen=True)
class Config(ConfigBase):
    """Specifies how an LSTM is quantized.

    Args:
        bits: 8 or 16: the preset that widths not given in ``widths`` come from. c and tanh(c) have 16 bits in
            both.
        widths: bits by tensor (a name of :data:`TENSORS`, "m", "weights" or "biases"): 2 to 16, biases to 32.
        rounding: of shifts, "half_away" or "half_even".
        rule: how exponents follow from ranges: "cover", "nearest" or "mse".
        granularity: of the exponents of weights and biases: "channel", "gate" or "tensor".
        tables: of sigmoid and tanh where their argument has more than 8 bits: "exact" (correctly rounded) or "interp"
            (513 knots, differs from that by at most 2; for small targets).

    Raises:
        QcoreValueError: naming the option, what was given and what was expected.
    """

    rounding: Rounding = "half_away"
    rule: Rule = "cover"
    granularity: Granularity = "channel"
    tables: TableKind = "exact"

    op = "lstm"
    tensors = PROJECTED
    choices: ClassVar = {
        "rounding": get_args(Rounding),
        "rule": RULES,
        "granularity": GRANULARITIES,
        "tables": TABLES,
    }
    presets: ClassVar = {8: _EIGHT, 16: _SIXTEEN}
