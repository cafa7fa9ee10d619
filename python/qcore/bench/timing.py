"""Interleaved timing.

All implementations of a case are sampled in turn, round after round, so that a change of the machine meets all alike.
Those of one library follow each other; between libraries there is a pause until the last one's threads have stopped
spinning, and the read probe runs there, so that each sample has the memory bandwidth of its own moment beside it. A
sample that some task of the machine had to wait through is repeated.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from .quiet import WaitBudget, stalled_seconds, wait_until_idle

_SLOW_FACTOR = 10  # times the fastest, and then only a few samples
_SLOW_SECONDS = 5e-3
_HOPELESS_SECONDS = 0.3  # no second look
_FEW_SAMPLES = 3
_WIDE_SPREAD = 0.15


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    samples: int = 15
    sample_seconds: float = 1.5e-3
    implementation_seconds: float = 6.0  # for all samples of one implementation in a case


@dataclass
class Sample:
    seconds: float
    clean: bool
    read_rate: float | None  # bytes per second of the probe just before and after


@dataclass
class Timed:
    """Something to time, and its samples."""

    name: str
    library: str
    run: Callable[[int], object]
    copies: int = 1
    calls_per_run: int = 1
    bytes_per_call: int = 0
    samples: list[Sample] = field(default_factory=list)
    estimate: float = math.inf  # of one run
    slow: bool = False
    _batch: int = 1
    _wanted: int = 0
    _next: int = 0

    def call(self) -> None:
        self._next = (self._next + 1) % self.copies
        self.run(self._next)

    def warm_up(self, plan: Plan, wait_budget: WaitBudget) -> None:
        """Run every copy once, within reason, then make a first estimate."""
        end = time.perf_counter() + 1.0
        for _ in range(self.copies):
            self.call()
            if time.perf_counter() > end:
                break
        for attempt in range(6):
            start = time.perf_counter()
            self.call()
            self.estimate = min(self.estimate, time.perf_counter() - start)
            if self.estimate > _HOPELESS_SECONDS or (attempt >= 2 and self.estimate < _SLOW_SECONDS):
                break
            if attempt >= 2:  # either it is slow, or another process was running
                wait_budget.wait(2.0)
        self._batch = max(1, math.ceil(plan.sample_seconds / self.estimate))
        most = int(plan.implementation_seconds / (self.estimate * self._batch))
        self._wanted = max(min(_FEW_SAMPLES, plan.samples), min(plan.samples, most))

    def mark_slow(self) -> None:
        self.slow = True
        self._wanted = min(self._wanted, _FEW_SAMPLES)

    def wants(self, round_number: int) -> bool:
        return round_number < self._wanted

    def sample(self, wait_budget: WaitBudget) -> None:
        last = 1 if self.slow else 4
        for attempt in range(last):
            if self.estimate < 0.05:
                self.call()  # wakes the library's threads
            stalled, start = stalled_seconds(), time.perf_counter()
            for _ in range(self._batch):
                self.call()
            seconds = time.perf_counter() - start
            clean = stalled_seconds() - stalled < 0.02 * seconds + 20e-6
            if clean or attempt == last - 1:
                self.samples.append(Sample(seconds / (self._batch * self.calls_per_run), clean, None))
                return
            wait_budget.wait()

    def used(self) -> list[Sample]:
        """Return the clean samples where there are enough of them."""
        clean = [sample for sample in self.samples if sample.clean]
        return clean if len(clean) >= min(5, self._wanted) else self.samples

    def median(self) -> float:
        return statistics.median(sample.seconds for sample in self.used())

    def spread(self) -> float:
        """Return the interquartile range over the median."""
        ordered = sorted(sample.seconds for sample in self.used())
        count = len(ordered)
        return (ordered[3 * count // 4] - ordered[count // 4]) / statistics.median(ordered)

    def disturbed(self) -> int:
        return sum(not sample.clean for sample in self.samples)

    def read_fraction(self) -> float | None:
        """Return the median over the samples of its weights' bytes per second against the read probe's beside it."""
        near = [(sample.seconds, sample.read_rate) for sample in self.used() if sample.read_rate]
        if not near or not self.bytes_per_call:
            return None
        return statistics.median(self.bytes_per_call / seconds / rate for seconds, rate in near)


class Clock:
    """Times implementations beside limits; `read` is the limit that gives every sample its bandwidth."""

    def __init__(self, plan: Plan, wait_budget: WaitBudget, read: Timed | None, limits: Iterable[Timed] = ()) -> None:
        self._plan, self._wait_budget, self._read, self._limits = plan, wait_budget, read, list(limits)

    def measure(self, implementations: list[Timed], deadline: float) -> None:
        """Fill their samples; after the deadline only what is needed for a median."""
        gc.disable()
        try:
            self._measure(implementations, deadline)
        finally:
            gc.enable()

    def _measure(self, implementations: list[Timed], deadline: float) -> None:
        limits = ([self._read] if self._read else []) + self._limits
        for timed in implementations + limits:
            wait_until_idle()
            timed.samples.clear()
            timed.warm_up(self._plan, self._wait_budget)
        fastest = min((timed.estimate for timed in implementations), default=math.inf)
        for timed in implementations:
            if timed.estimate > _SLOW_FACTOR * fastest and timed.estimate > _SLOW_SECONDS:
                timed.mark_slow()
        for number in range(self._plan.samples):
            if number >= _FEW_SAMPLES and time.perf_counter() > deadline:
                return
            self._round(number, [timed for timed in implementations if timed.wants(number)])
        for number in range(self._plan.samples // 2):
            unsure = [timed for timed in implementations if not timed.slow and timed.spread() > _WIDE_SPREAD]
            if not unsure or time.perf_counter() > deadline:
                return
            self._round(number, unsure)

    def _round(self, number: int, implementations: list[Timed]) -> None:
        for limit in self._limits:
            wait_until_idle()
            limit.sample(self._wait_budget)
        libraries = [list(group) for _, group in groupby(implementations, key=lambda timed: timed.library)]
        start = number % len(libraries) if libraries else 0
        before = self._read_rate()
        for library in libraries[start:] + libraries[:start]:
            for timed in library:
                timed.sample(self._wait_budget)
            after = self._read_rate()
            for timed in library:
                if before and after:
                    timed.samples[-1].read_rate = (before + after) / 2
            before = after

    def _read_rate(self) -> float | None:
        wait_until_idle()
        if self._read is None:
            return None
        self._read.sample(self._wait_budget)
        return self._read.bytes_per_call / self._read.samples[-1].seconds
