"""Builds implementations, checks their results, times them, and writes everything down."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from qcore.bench.limits import Limits
from qcore.bench.quiet import WaitBudget
from qcore.bench.timing import Clock, Plan, Timed

from . import libraries
from .implementation import OURS, Array, Bound, Built, Implementation, Inputs, Unavailable, Workload
from .results import Case, Document, Row

# With fewer operations per weight a call's time is a question of bandwidth, and needs the read probe beside it.
_SMALL_INTENSITY = 64


# A guess from the case before is trusted to skip a implementation only if it is this many times over the limit.
_CERTAINLY_SLOW = 4


@dataclass(frozen=True)
class Budget:
    seconds: float  # for the whole run
    call_seconds: float = 2.0  # a implementation that would take longer per call is skipped
    start: float = field(default_factory=time.perf_counter)

    def left(self) -> float:
        return self.start + self.seconds - time.perf_counter()


@dataclass
class _Entry:
    implementation: Implementation
    built: Built
    outlier_error: float | None = None
    seconds_per_operation: float = 0.0

    @property
    def name(self) -> str:
        return self.implementation.name


class Runner:
    """Runs workloads; `progress` is told what is going on."""

    def __init__(
        self, document: Document, plan: Plan, wait_budget: WaitBudget, limits: Limits | None, budget: Budget,
        progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._document, self._plan, self._wait_budget = document, plan, wait_budget
        self._limits, self._budget, self._progress = limits, budget, progress

    def run(self, workloads: Sequence[Workload]) -> Iterator[Case]:
        """Yield cases as they are finished; the document has them too."""
        left = sum(len(workload.case_names) for workload in workloads)
        for workload in workloads:
            if self._budget.left() <= 0:
                self._document.unfinished += workload.case_names
                continue
            entries = self._build(workload)
            try:
                for name in workload.case_names:
                    if self._budget.left() <= 0:
                        self._document.unfinished.append(name)
                        continue
                    share, left = self._budget.left() / left, left - 1
                    case = self._case(workload, entries, workload.inputs(name), time.perf_counter() + share)
                    self._document.cases.append(case)
                    self._document.seconds = time.perf_counter() - self._budget.start
                    self._document.waited_seconds = self._wait_budget.waited
                    yield case
            finally:
                for entry in entries:
                    entry.built.close()
                entries.clear()
                gc.collect()

    def _build(self, workload: Workload) -> list[_Entry]:
        implementations = workload.implementations()
        self._document.unavailable |= workload.unavailable
        outliers = workload.outliers()
        entries = []
        for number, implementation in enumerate(implementations, 1):
            self._progress(f"{workload.name}: building {number}/{len(implementations)} {implementation.name}")
            try:
                with warnings.catch_warnings(action="ignore"):
                    entry = _Entry(implementation, implementation.build())
                if outliers is not None:
                    entry.outlier_error = outliers.error(entry.built.bind(outliers.data).result())
                entries.append(entry)
            except Exception as error:
                if implementation.library == OURS:
                    raise
                self._document.unavailable[implementation.name] = libraries.reason(error)
        return entries

    def _case(self, workload: Workload, entries: list[_Entry], inputs: Inputs, deadline: float) -> Case:
        bound: dict[str, Bound] = {}
        errors: dict[str, float | None] = {}
        skipped: dict[str, str] = {}
        for entry in entries:
            self._progress(f"{inputs.name}: checking {entry.name}")
            try:
                self._refuse(entry, inputs)
                bound[entry.name] = entry.built.bind(inputs.data)
                result, seconds = _timed_result(bound[entry.name])
                errors[entry.name] = inputs.error(result)
                self._refuse_slow(entry, seconds / entry.built.calls_per_run)
            except Exception as error:
                if entry.implementation.library == OURS and not isinstance(error, Unavailable):
                    raise
                bound.pop(entry.name, None)
                skipped[entry.name] = libraries.reason(error)
        running = [entry for entry in entries if entry.name in bound]
        timed = {entry.name: self._timed(entry, bound[entry.name]) for entry in running}
        self._progress(f"{inputs.name}: timing {len(timed)} implementations")
        small = inputs.operations < _SMALL_INTENSITY * workload.weights
        probes = workload.limits(inputs.name) if workload.has_limits else self._limits
        assert probes is not None
        peaks = list(probes.peaks.values())
        if small:
            Clock(self._plan, self._wait_budget, probes.read, peaks).measure(list(timed.values()), deadline)
        else:
            Clock(self._plan, self._wait_budget, None, [probes.read, *peaks]).measure(list(timed.values()), deadline)
        limits = probes.rates()
        rows = [
            _row(entry, timed[entry.name], bound[entry.name], errors[entry.name], inputs, workload, limits)
            for entry in running
        ]
        for entry, row in zip(running, rows, strict=True):
            entry.seconds_per_operation = row.minimum * 1e-3 / inputs.operations
        rows.sort(key=lambda row: row.milliseconds)
        return Case(inputs.name, workload.name, inputs.parameters, inputs.operations, limits, rows, skipped)

    def _refuse(self, entry: _Entry, inputs: Inputs) -> None:
        why_not = entry.implementation.why_not(inputs)
        if why_not:
            raise Unavailable(why_not)
        expected = entry.seconds_per_operation * inputs.operations
        if expected > _CERTAINLY_SLOW * self._budget.call_seconds and entry.implementation.library != OURS:
            raise Unavailable(f"would take about {expected:.0f} s per call")

    def _refuse_slow(self, entry: _Entry, seconds: float) -> None:
        if seconds > self._budget.call_seconds and entry.implementation.library != OURS:
            raise Unavailable(f"takes {seconds:.1f} s per call")

    @staticmethod
    def _timed(entry: _Entry, bound: Bound) -> Timed:
        built, library = entry.built, entry.implementation.library
        return Timed(entry.name, library, bound.run, built.copies, built.calls_per_run, built.weight_bytes)


def _timed_result(bound: Bound) -> tuple[Array, float]:
    start = time.perf_counter()
    return bound.result(), time.perf_counter() - start


def _row(
    entry: _Entry, timed: Timed, bound: Bound, error: float | None, inputs: Inputs, workload: Workload,
    limits: dict[str, float | None],
) -> Row:  # fmt: skip
    scheme, seconds = entry.implementation.scheme, timed.median()
    gops, gbs = inputs.operations / seconds * 1e-9, timed.bytes_per_call / seconds * 1e-9
    peak, read = limits.get(scheme.arithmetic), limits.get("read")
    read_fraction = timed.read_fraction()
    if read_fraction is None and read:
        read_fraction = gbs / read
    return Row(
        name=entry.name,
        library=entry.implementation.library,
        weight_bits=scheme.weight_bits,
        block_size=scheme.block_size,
        offsets=scheme.offsets,
        activations=scheme.activations,
        arithmetic=scheme.arithmetic,
        weight_bytes=timed.bytes_per_call,
        bits_per_weight=8 * timed.bytes_per_call / workload.weights,
        milliseconds=seconds * 1e3,
        minimum=min(sample.seconds for sample in timed.used()) * 1e3,
        spread=timed.spread(),
        samples=len(timed.used()),
        disturbed=timed.disturbed(),
        gops=gops,
        weight_gbs=gbs,
        read_fraction=read_fraction,
        dot_fraction=gops / peak if peak else None,
        error=error,
        error_outliers=entry.outlier_error,
        kernel=bound.kernel,
        same_as_reference=bound.same_as_reference() if bound.same_as_reference else None,
    )
