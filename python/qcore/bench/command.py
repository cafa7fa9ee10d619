"""`qcore bench` on the command line."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import qcore
from qcore._display.options_of_all import OptionsOfAll
from qcore._display.terminal import make_console, make_table, write_json
from qcore.bench import machine
from qcore.bench.cases import OPERATORS, Case
from qcore.bench.limits import Limits, find_limits
from qcore.bench.quiet import WaitBudget
from qcore.bench.timing import Clock, Plan, Timed

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 2  # of benchmarks/results.py, which reads these files too
_CASE_SECONDS, _WAIT_SECONDS, _SAMPLES = 20.0, 30.0, 15
_QUICK_CASE_SECONDS, _QUICK_WAIT_SECONDS, _QUICK_SAMPLES, _QUICK_MEBIBYTES = 1.0, 2.0, 5, 64
_WIDTH = 116  # of tables, in narrower terminals too


bench = typer.Typer(
    name="bench",
    help="""Measure this machine's limits, and qcore's operators and models beside NumPy and torch.

    Without a command, options are those of `all`.

    \b
    Examples:
      qcore bench --quick
      qcore bench limits
      qcore bench linear --quick
      qcore bench all --threads 4
      qcore bench model llama-4bit/ --float llama/
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
    cls=OptionsOfAll,
)

Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="For every library; one per CPU by default.")]
Samples = Annotated[int | None, typer.Option(min=2, help="Per implementation and case; 15, or 5 with --quick.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes and few samples: all operators in a minute.")]
Alone = Annotated[bool, typer.Option("--no-torch", help="Neither import nor measure torch.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the results here.")]


def _import_torch(threads: int) -> Any:
    """Return torch with so many threads, or None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


@dataclass
class _Session:
    """Holds how much to measure and the machine's limits, for all cases of a command."""

    plan: Plan
    budget: WaitBudget
    limits: Limits
    case_seconds: float

    @classmethod
    def start(cls, threads: int | None, samples: int | None, quick: bool = False) -> _Session:
        """Set qcore's threads and find the fastest way of reading memory."""
        if threads is not None:
            qcore.set_num_threads(threads)
        if quick:
            plan = Plan(samples or _QUICK_SAMPLES, implementation_seconds=_QUICK_CASE_SECONDS / 4)
            budget = WaitBudget(min(_QUICK_WAIT_SECONDS, _WAIT_SECONDS))
            limits = find_limits(plan, budget, mebibytes=_QUICK_MEBIBYTES, part_mebibytes=_QUICK_MEBIBYTES // 4)
            return cls(plan, budget, limits, _QUICK_CASE_SECONDS)
        plan, budget = Plan(samples or _SAMPLES), WaitBudget(_WAIT_SECONDS)
        return cls(plan, budget, find_limits(plan, budget), _CASE_SECONDS)

    def measure(self, timed: list[Timed]) -> None:
        clock = Clock(self.plan, self.budget, self.limits.read, self.limits.peaks.values())
        clock.measure(timed, time.perf_counter() + self.case_seconds)


def _measure(case: Case, session: _Session) -> dict[str, Any]:
    """Check and time the calls of a case in turn, and return it as results files have it."""
    facts: dict[str, dict[str, Any]] = {}
    timed: list[Timed] = []
    for call in case.calls:
        facts[call.name] = {"error": case.error(call.run(0))}
        if call.kernels:
            facts[call.name]["kernel"] = qcore.last_kernel(call.kernels)
        library = call.name.partition(" ")[0]
        timed.append(Timed(call.name, library, call.run, call.copies, bytes_per_call=call.nbytes))
    session.measure(timed)
    rates, rows = session.limits.rates(), list[dict[str, Any]]()
    for call, each in zip(case.calls, timed, strict=True):
        seconds = each.median()
        row: dict[str, Any] = {
            "name": call.name,
            "library": each.library,
            "milliseconds": seconds * 1e3,
            "spread": each.spread(),
        }
        row |= {"samples": len(each.used()), "disturbed": each.disturbed(), "weight_bytes": call.nbytes}
        row |= {"weight_gbs": call.nbytes / seconds * 1e-9, "read_fraction": each.read_fraction()} | facts[call.name]
        if case.operations:
            peak = rates.get(call.peak)
            row["gops"] = case.operations / seconds * 1e-9
            row["dot_fraction"] = row["gops"] / peak if peak else None
        rows.append(row)
    rows.sort(key=lambda row: row["milliseconds"])
    about = {"name": case.name, "workload": case.name, "parameters": {}, "operations": case.operations}
    return about | {"limits": rates, "rows": rows}


def _show(case: dict[str, Any]) -> None:
    headings = ("implementation", "kernel", ">ms", ">spread", ">GOP/s", ">of peak", ">GB/s", ">of memory", ">error")
    table = make_table(headings)
    table.title, table.title_justify = case["name"], "left"

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    for row in case["rows"]:
        cells = (("milliseconds", ".4g"), ("spread", ".0%"), ("gops", ".0f"), ("dot_fraction", ".0%"))
        cells += (("weight_gbs", ".1f"), ("read_fraction", ".0%"), ("error", ".1e"))  # type: ignore[assignment]
        table.add_row(row["name"], row.get("kernel", ""), *(number(row.get(name), form) for name, form in cells))
    _print(table)


def _print(table: Table) -> None:
    console = make_console()
    console.width = max(console.width, _WIDTH)
    console.print(table)


def _show_limits(session: _Session) -> dict[str, Any]:
    session.measure([])
    units = {"read": "GB/s, reading memory", "int8": "GOP/s, int8 dot products", "fp32": "GOP/s, fp32 multiply-adds"}
    table = make_table(("limit", f">{qcore.get_num_threads()} threads", ""))
    rates = session.limits.rates()
    for name, rate in rates.items():
        table.add_row(name, f"{rate:.1f}", units[name])
    _print(table)
    return {"limits": rates, "threads": qcore.get_num_threads()}


def _check_folder(json: Path | None) -> None:
    if json is not None and not json.absolute().parent.is_dir():  # said before minutes of measurement
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(json))


def _run(name: str, session: _Session, *, quick: bool, no_torch: bool, json: Path | None) -> dict[str, Any]:
    count = qcore.get_num_threads()
    torch = None if no_torch else _import_torch(count)
    libraries = {"numpy": version("numpy")} | ({"torch": torch.__version__} if torch is not None else {})
    content = {"schema": SCHEMA, "operator": name, "settings": {"quick": quick, "samples": session.plan.samples}}
    cases: list[dict[str, Any]] = []
    content |= {"machine": machine.describe(count, libraries), "device": "cpu", "cases": cases}
    with torch.no_grad() if torch is not None else nullcontext():
        for case in OPERATORS[name](torch, quick):
            cases.append(_measure(case, session))
            _show(cases[-1])
            if json is not None:
                write_json(json, content)
    return content


def _command(name: str, text: str) -> Callable[..., None]:
    def command(
        threads: Threads = None,
        samples: Samples = None,
        quick: Quick = False,
        no_torch: Alone = False,
        json: Json = None,
    ) -> None:
        _check_folder(json)
        _run(name, _Session.start(threads, samples, quick), quick=quick, no_torch=no_torch, json=json)

    command.__doc__ = f"""{text}

    \b
    Columns: error is relative, L2, against float64; of peak compares with the int8 or fp32 limit of `qcore bench
    limits`; GB/s counts all bytes that a call reads and writes, of memory compares with reading, measured beside.

    \b
    Examples:
      qcore bench {name} --quick
      qcore bench {name} --threads 2 --json {name}.json
    """
    return command


@bench.command("limits")
def show_limits(threads: Threads = None, samples: Samples = None, quick: Quick = False, json: Json = None) -> None:
    """Measure this machine's limits: reading memory, int8 dot products and fp32 multiply-adds on qcore's threads.

    \b
    Examples:
      qcore bench limits
      qcore bench limits --threads 1
    """
    _check_folder(json)
    found = _show_limits(_Session.start(threads, samples, quick))
    if json is not None:
        write_json(json, found)


for _name, _text in {
    "linear": "Linear layers with one, some and many rows, in 4 and 8 bits.",
    "conv": "A convolution with per-block weights, and in static int8.",
    "gru": "A GRU layer in integers of 8 and 16 bits.",
    "lstm": "An LSTM layer in integers of 8 and 16 bits.",
    "lut": "Functions by look-up tables, and softmax.",
    "quantize": "Weights quantized and decoded, AWQ's too, beside a copy of as many bytes.",
}.items():
    bench.command(_name)(_command(_name, _text))


@bench.command("all")
def measure_all(
    threads: Threads = None,
    samples: Samples = None,
    quick: Quick = False,
    no_torch: Alone = False,
    json: Json = None,
) -> None:
    """Measure the limits and all operators, one after the other; with --quick in less than a minute.

    \b
    Examples:
      qcore bench all --quick
      qcore bench all --json all.json
    """
    _check_folder(json)
    session = _Session.start(threads, samples, quick)
    content = _show_limits(session) | {"operators": (found := list[dict[str, Any]]())}
    for name in OPERATORS:
        found.append(_run(name, session, quick=quick, no_torch=no_torch, json=None))
        if json is not None:
            write_json(json, content)
