"""A GRU's tensors and their widths."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, get_args

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

TENSORS = ("x", "h", "wx", "rh", "rb", "rrh", "z_pre", "r_pre", "g_pre", "z", "r", "g", "old_part", "new_part")
"""Tensors that have a format, in the core's order. rb is R h + br, rrh is r * rb, old_part is z * h, new_part is
(1 - z) * g. With linear_before_reset = 0 rrh is r * h and rb is R rrh + br."""

STATES = ("h",)
"""Tensors that go from step to step; the first is the output."""
UNSIGNED = ("z", "r")
ZERO_FREE = tuple(name for name in TENSORS if name not in ("z", "r", "g"))
"""Tensors that may have a zero point."""

Pipeline = Literal["staged", "fused"]
_EIGHT = {"x": 8, "h": 8, "z": 8, "r": 8, "g": 8, "weights": 8, "biases": 16}
_SIXTEEN = {"x": 16, "h": 16, "z": 16, "r": 16, "g": 16, "weights": 16, "biases": 32}


@dataclasses.dataclass(frozen=True)
class Config(ConfigBase):
    """Specifies how a GRU is quantized.

    Args:
        bits: 8 or 16: the preset that widths not given in ``widths`` come from.
        widths: bits by tensor (a name of :data:`TENSORS`, "weights" or "biases"): 2 to 16, biases to 32. With
            linear_before_reset = 0 rrh has h's width if it is not given.
        pipeline: "fused" (fewer roundings: more exact, as fast) or "staged" (each tensor of the definition is rounded,
            as other implementations compute it).
        rounding: of shifts, "half_away" or "half_even".
        rule: how exponents follow from ranges: "cover", "nearest" or "mse".
        granularity: of the exponents of weights and biases: "channel", "gate" or "tensor".
        tables: of sigmoid and tanh where their argument has more than 8 bits: "exact" (correctly rounded) or "interp"
            (513 knots, differs from that by at most 2; for small targets).

    Raises:
        QcoreValueError: naming the option, what was given and what was expected.
    """

    pipeline: Pipeline = "fused"
    rounding: Rounding = "half_away"
    rule: Rule = "cover"
    granularity: Granularity = "channel"
    tables: TableKind = "exact"

    op = "gru"
    tensors = TENSORS
    choices: ClassVar = {
        "pipeline": get_args(Pipeline),
        "rounding": get_args(Rounding),
        "rule": RULES,
        "granularity": GRANULARITIES,
        "tables": TABLES,
    }
    presets: ClassVar = {8: _EIGHT, 16: _SIXTEEN}
