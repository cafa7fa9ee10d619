"""One run of one operator's benchmark: settings in, tables and files out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

import qcore
from qcore.bench.limits import find_limits
from qcore.bench.quiet import WaitBudget
from qcore.bench.timing import Plan

from . import libraries, plot
from .implementation import Workload
from .options import Run
from .results import Document
from .runner import Budget, Runner
from .selection import Selection
from .tables import Operator, make_console, print_summary, show_progress

MISMATCH_STATUS = 1
_QUICK_SAMPLES = 5

# How other libraries are kept to an instruction set; those without a way run with all that the processor has.
_CAPS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avxvnni": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "amx": {},
}


def measure(run: Run, operator: Operator, selection: Selection, workloads: Sequence[Workload]) -> None:
    """Measure the workloads that were selected.

    Ends the command with MISMATCH_STATUS if a result of qcore is wrong.
    """
    if not workloads:
        raise typer.BadParameter(f"{run.cases!r} is in no case's name", param_hint="--cases")
    Session(run, operator, selection.settings()).run(workloads)


class Session:
    """One run of one operator."""

    def __init__(self, run: Run, operator: Operator, settings: dict[str, Any]) -> None:
        self._operator = operator
        self._json, self._plot, self._seconds = run.json, run.plot, run.seconds
        samples = min(run.samples, _QUICK_SAMPLES) if run.quick else run.samples
        self._plan, self._wait_budget = Plan(samples), WaitBudget(run.wait)
        _check_files(run.json, run.plot)
        libraries.set_threads(run.threads)
        if run.isa is not None:
            _cap(run.isa)
        qcore.set_num_threads(run.threads)
        settings = settings | {"samples": samples, "seconds": run.seconds, "wait": run.wait, "isa": run.isa}
        self._document = Document(run.operator, settings, libraries.describe(run.threads))

    def run(self, workloads: Sequence[Workload]) -> None:
        """Print each case as soon as it is measured."""
        console = make_console()
        document, budget = self._document, Budget(self._seconds)
        limits = None
        if not all(workload.has_limits for workload in workloads):
            show_progress("finding this machine's limits")
            limits = find_limits(self._plan, self._wait_budget)
            document.read_by_streams = {str(streams): rate for streams, rate in limits.read_by_streams.items()}
        runner = Runner(document, self._plan, self._wait_budget, limits, budget, show_progress)
        for case in runner.run(workloads):
            show_progress("")
            console.print(self._operator.case_table(case, None))
            if self._json is not None:
                document.save(self._json)
        show_progress("")
        if self._json is not None:
            document.save(self._json)
        print_summary(document, self._operator, console)
        if self._plot is not None and self._operator.draw is not None:
            self._operator.draw(document, self._plot)
        if document.mismatches():
            raise typer.Exit(MISMATCH_STATUS)


def _check_files(json: Path | None, picture: Path | None) -> None:
    """Check, before hours of measurement, that the files can be written."""
    for path in (json, picture):
        if path is not None and not path.absolute().parent.is_dir():
            raise qcore.QcoreValueError(f"bench: there is no folder {path.absolute().parent}")
    if picture is not None:
        plot.check(picture)


def _cap(isa: str) -> None:
    if isa not in _CAPS:
        raise typer.BadParameter(f"{isa!r} is not one of {', '.join(_CAPS)}", param_hint="--isa")
    os.environ.update(_CAPS[isa], QCORE_ISA=isa)
    in_use = qcore.info()["isa"]
    # Others, such as avx512bf16, come with one of these.
    if [name for name in in_use if name in _CAPS][-1:] != [isa]:
        raise qcore.QcoreValueError(f"bench: --isa {isa}: qcore uses {' '.join(in_use) or 'baseline'} here")
