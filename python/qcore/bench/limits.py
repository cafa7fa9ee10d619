"""Measures the limits of this machine with qcore's probes, which run on the same threads as its kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qcore import _core

from .quiet import WaitBudget
from .timing import Clock, Plan, Timed

READ_STREAMS = (1, 2, 4, 8)
_MEBIBYTE = 1 << 20
_ROUNDS = 20_000


@dataclass(frozen=True)
class Limits:
    """The probes to run beside implementations."""

    read: Timed  # or another one of the memory's bandwidth, by its name
    peaks: dict[str, Timed]
    operations: dict[str, int]
    read_by_streams: dict[int, float]  # GB/s, from the search for the best number of streams
    bandwidth: str = "read"

    def rates(self) -> dict[str, float | None]:
        """GB/s and 10^9 operations per second, medians of what was sampled last."""
        found: dict[str, float | None] = {self.bandwidth: self.read.bytes_per_call / self.read.median() * 1e-9}
        for name, timed in self.peaks.items():
            found[name] = self.operations[name] / timed.median() * 1e-9
        return found


def _read_probe(buffer: npt.NDArray[np.uint8], part: int, streams: int) -> Timed:
    def run(copy: int) -> object:
        return _core.probe_read(buffer, copy * part, part, streams)

    return Timed(f"read probe, {streams} streams", "limits", run, buffer.nbytes // part, bytes_per_call=part)


def find_limits(plan: Plan, wait_budget: WaitBudget, *, mebibytes: int = 256, part_mebibytes: int = 32) -> Limits:
    """Choose the fastest way of reading memory, and make the probes of the peaks that this processor has."""
    buffer = np.ones(mebibytes * _MEBIBYTE, np.uint8)
    part = min(part_mebibytes, mebibytes) * _MEBIBYTE
    reads = {streams: _read_probe(buffer, part, streams) for streams in READ_STREAMS}
    Clock(plan, wait_budget, None).measure(list(reads.values()), time.perf_counter() + 20)
    rates = {streams: part / timed.median() * 1e-9 for streams, timed in reads.items()}
    best = max(rates, key=lambda streams: rates[streams])

    probes = {"int8": _core.probe_int8_dots, "fp32": _core.probe_float_fmas}
    operations = {name: probe(_ROUNDS) for name, probe in probes.items()}
    peaks = {
        name: Timed(f"{name} peak", "limits", lambda _copy, probe=probe: probe(_ROUNDS))  # type: ignore[misc]
        for name, probe in probes.items()
        if operations[name]
    }
    return Limits(reads[best], peaks, operations, rates)
