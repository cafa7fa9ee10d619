"""`qcore bench` on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import qcore
from qcore._display.terminal import make_console, make_table, write_json
from qcore.bench import machine
from qcore.bench.cases import OPERATORS, Case
from qcore.bench.limits import Limits, find_limits
from qcore.bench.quiet import WaitBudget
from qcore.bench.timing import Clock, Plan, Timed

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 2  # of benchmarks/results.py, which reads these files too
_CASE_SECONDS, _WAIT_SECONDS = 20.0, 30.0
_WIDTH = 116  # of tables, in narrower terminals too

bench = typer.Typer(
    name="bench",
    help="""Measure this machine's limits, and qcore's operators and models beside NumPy and torch.

    \b
    Examples:
      qcore bench limits
      qcore bench linear --quick
      qcore bench all --threads 4
      qcore bench model llama-4bit/ --float llama/
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="For every library; one per CPU by default.")]
Samples = Annotated[int, typer.Option(min=2, help="Per implementation and case.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes.")]
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


def _find_limits(threads: int | None, samples: int) -> tuple[Plan, WaitBudget, Limits]:
    """Set qcore's threads and find the fastest way of reading memory."""
    if threads is not None:
        qcore.set_num_threads(threads)
    plan, budget = Plan(samples), WaitBudget(_WAIT_SECONDS)
    return plan, budget, find_limits(plan, budget)


def _measure(case: Case, plan: Plan, budget: WaitBudget, limits: Limits) -> dict[str, Any]:
    """Check and times the calls of a case in turn, and return it as results files have it."""
    facts: dict[str, dict[str, Any]] = {}
    timed: list[Timed] = []
    for call in case.calls:
        facts[call.name] = {"error": case.error(call.run(0))}
        if call.kernels:
            facts[call.name]["kernel"] = qcore.last_kernel(call.kernels)
        library = call.name.partition(" ")[0]
        timed.append(Timed(call.name, library, call.run, call.copies, bytes_per_call=call.nbytes))
    Clock(plan, budget, limits.read, limits.peaks.values()).measure(timed, time.perf_counter() + _CASE_SECONDS)
    rates, rows = limits.rates(), list[dict[str, Any]]()
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


def _show_limits(threads: int | None, samples: int) -> None:
    plan, budget, limits = _find_limits(threads, samples)
    Clock(plan, budget, limits.read, limits.peaks.values()).measure([], time.perf_counter() + _CASE_SECONDS)
    units = {"read": "GB/s, reading memory", "int8": "GOP/s, int8 dot products", "fp32": "GOP/s, fp32 multiply-adds"}
    table = make_table(("limit", f">{qcore.get_num_threads()} threads", ""))
    for name, rate in limits.rates().items():
        table.add_row(name, f"{rate:.1f}", units[name])
    _print(table)


def _run(name: str, *, threads: int | None, samples: int, quick: bool, no_torch: bool, json: Path | None) -> None:
    plan, budget, limits = _find_limits(threads, samples)
    count = qcore.get_num_threads()
    torch = None if no_torch else _import_torch(count)
    libraries = {"numpy": version("numpy")} | ({"torch": torch.__version__} if torch is not None else {})
    content = {"schema": SCHEMA, "operator": name, "settings": {"quick": quick, "samples": samples}}
    content |= {"machine": machine.describe(count, libraries), "device": "cpu", "cases": (cases := [])}
    with torch.no_grad() if torch is not None else nullcontext():
        for case in OPERATORS[name](torch, quick):
            cases.append(_measure(case, plan, budget, limits))
            _show(cases[-1])
            if json is not None:
                write_json(json, content)


def _command(name: str, text: str) -> Callable[..., None]:
    def command(
        threads: Threads = None, samples: Samples = 15, quick: Quick = False, no_torch: Alone = False, json: Json = None
    ) -> None:
        _run(name, threads=threads, samples=samples, quick=quick, no_torch=no_torch, json=json)

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
def show_limits(threads: Threads = None, samples: Samples = 15) -> None:
    """Measure this machine's limits: reading memory, int8 dot products and fp32 multiply-adds on qcore's threads.

    \b
    Examples:
      qcore bench limits
      qcore bench limits --threads 1
    """
    _show_limits(threads, samples)


for _name, _text in {
    "linear": "Linear layers with one, some and many rows, in 4 and 8 bits.",
    "conv": "A convolution with per-block weights, and in static int8.",
    "gru": "A GRU layer in integers of 8 and 16 bits.",
    "lut": "Functions by look-up tables, and softmax.",
    "quantize": "Weights quantized and decoded, AWQ's too, beside a copy of as many bytes.",
}.items():
    bench.command(_name)(_command(_name, _text))


@bench.command("all")
def measure_all(threads: Threads = None, samples: Samples = 15, quick: Quick = False, no_torch: Alone = False) -> None:
    """Measure the limits and all operators, one after the other.

    \b
    Examples:
      qcore bench all --quick
    """
    _show_limits(threads, samples)
    for name in OPERATORS:
        _run(name, threads=threads, samples=samples, quick=quick, no_torch=no_torch, json=None)
