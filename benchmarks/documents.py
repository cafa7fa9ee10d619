"""Writes the tables of the documents from the kept results, so that no figure is copied by hand.

A table stands between ``<!-- table NAME -->`` and ``<!-- end of table -->``; NAME is a key of :data:`TABLES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

import qcore

from .gpu.summary import torch_row
from .results import Case, Document, Row, load

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_FORMS = [(bits, g) for bits in (4, 8) for g in (32, 64, 128)]


def _results(name: str) -> Document:
    return load(ROOT / "benchmarks" / "results" / f"{name}.json")


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = list(headings)
    lines = [first, *(list(row) for row in rows)]
    text = ["| " + " | ".join(cells) + " |\n" for cells in lines]
    return "".join([text[0], "|---" * len(first) + "|\n", *text[1:]])


def _row(case: Case, name: str) -> Row:
    return next(row for row in case.rows if row.name == name)


def _case_name(case: Case) -> str:
    return case.name.replace("M=", "M = ")


def linear_ratios() -> str:
    """Make the table of the fastest peer of any scheme over qcore's int8 forms."""
    rows = []
    for case in _results("zen4/linear").cases:
        peer = next(row for row in case.rows if not row.ours)
        ratios = [peer.milliseconds / _row(case, f"qcore {bits}b g{g} int8").milliseconds for bits, g in _FORMS]
        rows.append([_case_name(case), *(f"{ratio:.2f}" for ratio in ratios), peer.name])
    return _table(["case", *(f"{bits}b g{g}" for bits, g in _FORMS), "fastest peer"], rows)


def linear_read() -> str:
    """Make the table of the fraction of the read probe's bandwidth that products of one row reach."""
    rows = [
        [
            case.workload,
            *(f"{_row(case, f'qcore {bits}b g{g} int8').read_fraction:.2f}" for bits, g in _FORMS),
        ]
        for case in _results("zen4/linear").cases
        if case.parameters["M"] == 1 and case.parameters["N"] * case.parameters["K"] >= 1 << 20
    ]
    return _table(["M = 1, of the read probe", *(f"{bits}b g{g}" for bits, g in _FORMS)], rows)


def linear_amx() -> str:
    """Make the table of int8 on AMX beside AVX-512 VNNI and torch, with the faster torch's time over ours."""
    rows = []
    for case in _results("xeon/linear-amx").cases:
        if case.workload != "4096x4096" or case.parameters["M"] < 16:
            continue
        torch = min(row.milliseconds for row in case.rows if row.library == "torch")
        cells = []
        for form in ("8b g64", "4b g64", "8b g128", "8b g=K"):
            amx, vnni = (_row(case, f"qcore {form} int8_{isa}").milliseconds for isa in ("amx", "avx512vnni"))
            cells.append(f"{amx:.2f} / {vnni:.2f} ({torch / amx:.2f})")
        named = [_row(case, f"torch {name}").milliseconds for name in ("bf16", "dynamic int8")]
        rows.append(
            [str(case.parameters["threads"]), str(case.parameters["M"]), *cells, *(f"{value:.2f}" for value in named)]
        )
    forms = ("8 bits, g = 64", "4 bits, g = 64", "8 bits, g = 128", "8 bits, g = K")
    return _table(["threads", "M", *forms, "torch bf16", "torch dynamic int8"], rows)


def awq_device() -> str:
    """Make the table of AWQ weights on a device."""

    def us(row: Row) -> str:
        value = 1e3 * row.milliseconds
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"

    rows = []
    for case in _results("h200/awq").cases:
        copy, plain, turned = (_row(case, name) for name in ("copy_", "dequantize", "dequantize transposed"))
        few = [
            us(_row(case, name)) for name in ("Weight, 1 rows", "linear on raw arrays, 1 rows", "torch.matmul, 1 rows")
        ]
        many = [f"{1e3 * _row(case, name).milliseconds:.0f}" for name in ("Weight, 512 rows", "torch.matmul, 512 rows")]
        rows.append(
            [
                f"{case.parameters['K']} x {case.parameters['N']}",
                f"{us(copy)} us",
                f"{copy.milliseconds / plain.milliseconds:.2f} ({us(plain)} us)",
                f"{copy.milliseconds / turned.milliseconds:.2f}",
                *(f"{value} us" for value in few + many),
            ]
        )
    headings = ["K x N", "`copy_`", "`simt_lop3`", "`simt_lop3` transposed", "`awq.Weight`, M = 1", "raw arrays, M = 1"]
    return _table([*headings, "torch, M = 1", "`awq.Weight`, M = 512", "torch, M = 512"], rows)


def gru_device() -> str:
    """Make the table of the GRU on a device, in microseconds, with torch's time over ours."""
    cases = {case.name: case for case in _results("h200/gru").cases}
    shapes = [(1, 1), (50, 1), (50, 64), (200, 64)]
    rows = []
    for hidden in (128, 256, 512):
        for bits in (8, 16):
            cells = []
            for steps, batch in shapes:
                case = cases[f"T={steps} B={batch} H={hidden} int{bits}"]
                ours, peer = _row(case, "qcore"), torch_row(case)
                assert peer is not None
                cells.append(f"{1e3 * ours.milliseconds:.1f} ({peer.milliseconds / ours.milliseconds:.2f})")
            rows.append([str(hidden), str(bits), *cells])
    return _table(["H", "bits", *(f"T {steps}, B {batch}" for steps, batch in shapes)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "linear-ratios": linear_ratios,
    "linear-read": linear_read,
    "linear-amx": linear_amx,
    "awq-device": awq_device,
    "gru-device": gru_device,
}


def written(text: str, where: str) -> str:
    """Return a document's text with its tables made anew. An unknown name is a QcoreValueError."""

    def block(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise qcore.QcoreValueError(
                f"benchmarks tables: {where} has a table {match[2]!r}, expected one of {', '.join(TABLES)}"
            )
        return f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}"

    return _BLOCK.sub(block, text)


def tables(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; the status is 1 if a table is not current.")
    ] = False,
) -> None:
    """Write the tables of the documents from the kept results.

    \b
    Examples:
      python -m benchmarks tables
      python -m benchmarks tables --check
    """
    stale = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        new = written(text, str(path.relative_to(ROOT)))
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'is not current' if check else 'written'}")
    if stale and check:
        raise typer.Exit(1)
