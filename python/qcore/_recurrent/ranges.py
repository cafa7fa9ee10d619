"""Ranges of tensors from what calibration saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from qcore import _core
from qcore._options import RangeMethod
from qcore._recurrent.direction import Doubles
from qcore._recurrent.formats import Format, choose_format

METHODS = get_args(RangeMethod)
EMA_KEPT = 0.9
PERCENTILE = 99.99
HEADROOM = 1 / 16
"""Part of a range that is added to it for tensors of more than 8 bits, for inputs that calibration did not see. What is
clipped there costs more than the bit that headroom may cost; with 8 bits it is the other way round."""
_SAMPLES = 1 << 18


class Range:
    """Statistics of one tensor's values.

    Methods: "minmax" is the range of everything; "ema" takes each step's range into
    ``min = 0.9 * min + 0.1 * current``, carried over steps and batches; "percentile" leaves out 0.01% of the values at
    each end; "mse" takes everything, and for tensors of up to 8 bits the exponent with the smallest squared error on
    the values: wider ones cover the range, since what another batch has clipped costs them more than an exponent gains.
    """

    def __init__(self, method: RangeMethod, op: str = "gru") -> None:
        if method not in METHODS:
            names = ", ".join(repr(name) for name in METHODS)
            raise _core.QcoreValueError(f"{op} calibration: method is {method!r}, expected one of {names}")
        self.method = method
        self.low, self.high = 0.0, 0.0
        self._averaged: tuple[float, float] | None = None
        self._samples: list[Doubles] = []
        self._kept = 0
        self._seen = 0

    def observe(self, values: Doubles) -> None:
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.method == "ema":
            before = self._averaged
            self._averaged = (
                (low, high)
                if before is None
                else (EMA_KEPT * before[0] + (1 - EMA_KEPT) * low, EMA_KEPT * before[1] + (1 - EMA_KEPT) * high)
            )
        flat = values.ravel()
        self._seen += flat.size
        if self._kept >= _SAMPLES:  # keep every other one, of the past and from now on twice as sparsely
            self._samples = [np.concatenate(self._samples)[::2]]
            self._kept = self._samples[0].size
        part = flat[:: max(1, self._seen // _SAMPLES)]
        self._samples.append(part.copy())
        self._kept += part.size

    @classmethod
    def union(cls, ranges: Sequence[Range]) -> Range:
        """Return what all of them saw, by the method of the first."""
        if len(ranges) == 1:
            return ranges[0]
        made = cls(ranges[0].method)
        made.low, made.high = min(each.low for each in ranges), max(each.high for each in ranges)
        averaged = [each._averaged for each in ranges if each._averaged is not None]
        if averaged:
            made._averaged = min(low for low, _ in averaged), max(high for _, high in averaged)
        made._samples = [part for each in ranges for part in each._samples]
        return made

    def bounds(self) -> tuple[float, float]:
        if self.method == "ema" and self._averaged is not None:
            return self._averaged
        if self.method == "percentile" and self._samples:
            low, high = np.percentile(np.concatenate(self._samples), [100 - PERCENTILE, PERCENTILE])
            return float(low), float(high)
        return self.low, self.high

    def format(
        self, bits: int, rule: str, *, signed: bool = True, zero_point: bool = True, exponent: int | None = None
    ) -> Format:
        """Choose the format for these values by a rule of :data:`qcore._recurrent.formats.RULES` or by an exponent."""
        low, high = self.bounds()
        if bits > 8:
            low, high = low * (1 + HEADROOM), high * (1 + HEADROOM)
        if exponent is not None:
            return choose_format(low, high, bits, signed=signed, zero_point=zero_point, exponent=exponent)
        cover = choose_format(low, high, bits, signed=signed, zero_point=zero_point)
        if rule == "cover" and (self.method != "mse" or bits > 8):
            return cover

        def at(exponent: int) -> Format:
            return choose_format(low, high, bits, signed=signed, zero_point=zero_point, exponent=exponent)

        if rule == "nearest":
            span = max(high, 0.0) - min(low, 0.0)
            codes = cover.highest - cover.lowest if zero_point else cover.highest
            largest = span if zero_point else max(-low, high)
            return cover if largest <= 0 else at(int(np.rint(np.log2(codes / largest))))
        samples = np.concatenate(self._samples) if self._samples else np.zeros(1)

        def error(form: Format) -> float:
            return float(np.square(form.decode(form.encode(samples)) - samples).sum())

        return min((at(cover.exponent + step) for step in (0, 1, 2, -1)), key=error)
