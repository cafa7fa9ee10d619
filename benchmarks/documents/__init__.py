"""Writes the tables and charts of the documents from the kept results, so that no figure is copied by hand.

A table stands between ``<!-- table NAME -->`` and ``<!-- end of table -->``; NAME is a key of :data:`TABLES`.
A chart is a file ``docs/images/performance/NAME.svg`` that a page shows; NAME is a key of :data:`charts.CHARTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import typer

import qcore

from ..gpu.summary import torch_row
from ..results import Case, Row
from . import charts, kept, kernels, performance

ROOT = kept.ROOT
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_PICTURE = re.compile(r"images/performance/([\w-]+)\.svg")
_FORMS = [(bits, g) for bits in (4, 8) for g in (32, 64, 128)]


def _case_name(case: Case) -> str:
    return case.name.replace("M=", "M = ")


def linear_ratios() -> str:
    """Make the table of the fastest peer of any scheme over qcore's int8 forms."""
    rows = []
    for case in kept.results("zen4/linear").cases:
        peer = next(row for row in case.rows if not row.ours)
        ratios = [peer.milliseconds / kept.named(case, f"qcore {bits}b g{g} int8").milliseconds for bits, g in _FORMS]
        rows.append([_case_name(case), *(f"{ratio:.2f}" for ratio in ratios), peer.name])
    return kept.table(["case", *(f"{bits}b g{g}" for bits, g in _FORMS), "fastest peer"], rows)


def linear_read() -> str:
    """Make the table of the fraction of the read probe's bandwidth that products of one row reach."""
    rows = [
        [
            case.workload,
            *(f"{kept.named(case, f'qcore {bits}b g{g} int8').read_fraction:.2f}" for bits, g in _FORMS),
        ]
        for case in kept.results("zen4/linear").cases
        if case.parameters["M"] == 1 and case.parameters["N"] * case.parameters["K"] >= 1 << 20
    ]
    return kept.table(["M = 1, of the read probe", *(f"{bits}b g{g}" for bits, g in _FORMS)], rows)


def linear_amx() -> str:
    """Make the table of int8 on AMX beside AVX-512 VNNI and torch, with the faster torch's time over ours."""
    forms, kernels = ("8b g64", "4b g64", "8b g128", "8b g=K"), ("int8_amx", "int8_avx512vnni")
    return _amx_table("xeon/linear-amx", forms, kernels, ("bf16", "dynamic int8"))


def linear_amx_float() -> str:
    """Make the table of float products on AMX beside AVX-512 and torch, with torch's time over ours."""
    return _amx_table("xeon/linear-amx", ("8b g64", "4b g64", "8b g=K"), ("float_amx", "float_avx512bf16"), ("bf16",))


def linear_amx_int16() -> str:
    """Make the table of int16 on AMX beside AVX-512 VNNI and torch in bf16, with torch's time over ours."""
    forms, kernels = ("8b g64", "4b g64", "8b g128", "8b g=K"), ("int16_amx", "int16_avx512vnni")
    return _amx_table("xeon/linear-amx-int16", forms, kernels, ("bf16",))


def _amx_table(name: str, forms: tuple[str, ...], kernels: tuple[str, str], baselines: tuple[str, ...]) -> str:
    """Make a table of forms by two kernels, and the fastest of the baselines over the first kernel."""
    rows = []
    for case in kept.results(name).cases:
        if case.workload != "4096x4096" or case.parameters["M"] < 16:
            continue
        named = [kept.named(case, f"torch {name}").milliseconds for name in baselines]
        cells = []
        for form in forms:
            first, second = (kept.named(case, f"qcore {form} {kernel}").milliseconds for kernel in kernels)
            cells.append(f"{first:.2f} / {second:.2f} ({min(named) / first:.2f})")
        rows.append(
            [str(case.parameters["threads"]), str(case.parameters["M"]), *cells, *(f"{value:.2f}" for value in named)]
        )
    headings = (form.replace("b g", " bits, g = ").replace("= =", "= ") for form in forms)
    return kept.table(["threads", "M", *headings, *(f"torch {name}" for name in baselines)], rows)


def awq_device() -> str:
    """Make the table of AWQ weights on a device."""

    def us(row: Row) -> str:
        value = 1e3 * row.milliseconds
        return f"{value:.1f}" if value < 100 else f"{value:.0f}"

    rows = []
    for case in kept.results("h100/awq").cases:
        copy, plain, turned = (kept.named(case, name) for name in ("copy_", "dequantize", "dequantize transposed"))
        few = [
            us(kept.named(case, name))
            for name in ("Weight, 1 rows", "linear on raw arrays, 1 rows", "torch.matmul, 1 rows")
        ]
        many = [
            f"{1e3 * kept.named(case, name).milliseconds:.0f}"
            for name in ("Weight, 512 rows", "torch.matmul, 512 rows")
        ]
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
    return kept.table([*headings, "torch, M = 1", "`awq.Weight`, M = 512", "torch, M = 512"], rows)


def gru_device() -> str:
    """Make the table of the GRU on a device, in microseconds, with torch's time over ours."""
    cases = {case.name: case for case in kept.results("h200/gru").cases}
    shapes = [(1, 1), (50, 1), (50, 64), (200, 64)]
    rows = []
    for hidden in (128, 256, 512):
        for bits in (8, 16):
            cells = []
            for steps, batch in shapes:
                case = cases[f"T={steps} B={batch} H={hidden} int{bits}"]
                ours, peer = kept.named(case, "qcore"), torch_row(case)
                assert peer is not None
                cells.append(f"{1e3 * ours.milliseconds:.1f} ({peer.milliseconds / ours.milliseconds:.2f})")
            rows.append([str(hidden), str(bits), *cells])
    return kept.table(["H", "bits", *(f"T {steps}, B {batch}" for steps, batch in shapes)], rows)


def conv_warpgroups() -> str:
    """Make the table of products of warpgroups under a window, beside the kernels before them, in microseconds."""
    kernels = [
        "static sm75_int8_implicit_gemm",
        "static sm90_int8_implicit_gemm",
        "conv2d float w8 g128 sm80_float_implicit_gemm",
        "conv2d float w8 g128 sm90_float_implicit_gemm",
    ]
    rows = []
    for case in kept.results("h100/conv").cases:
        if case.parameters["groups"] != 1:
            continue
        peer = min(row.milliseconds for row in case.rows if row.name in ("torch float16", "torch bfloat16"))
        found = {row.name.removeprefix("qcore "): row.milliseconds for row in case.rows}
        cells = [f"{1e3 * found[name]:.1f} ({peer / found[name]:.2f})" if name in found else "" for name in kernels]
        rows.append([case.name.replace("_w", ", "), f"{1e3 * peer:.1f}", *cells])
    headings = [
        f"{'`conv2d` ' if 'conv2d' in name else '`static` '}`{name.split()[-1].split('_')[0]}`" for name in kernels
    ]
    return kept.table(["layer", "torch, 16 bits", *headings], rows)


TABLES: dict[str, Callable[[], str]] = {
    "linear-ratios": linear_ratios,
    "linear-read": linear_read,
    "linear-amx": linear_amx,
    "linear-amx-float": linear_amx_float,
    "linear-amx-int16": linear_amx_int16,
    "awq-device": awq_device,
    "gru-device": gru_device,
    "conv-warpgroups": conv_warpgroups,
    "kernels": kernels.by_architecture,
    "kernels-cuda": kernels.cuda,
    "performance-linear-cpu": performance.linear_cpu,
    "performance-linear-gpu": performance.linear_gpu,
    "performance-models-cpu": performance.models_cpu,
    "performance-others-cpu": performance.others_cpu,
    "performance-others-gpu": performance.others_gpu,
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


def pages() -> dict[str, str]:
    """Return the current text of each page and chart by its path from :data:`ROOT`."""
    found = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        found[name] = written(text, name)
        for chart in _PICTURE.findall(text):
            if chart not in charts.CHARTS:
                raise qcore.QcoreValueError(
                    f"benchmarks tables: {name} shows a chart {chart!r}, expected one of {', '.join(charts.CHARTS)}"
                )
            found[f"docs/images/performance/{chart}.svg"] = charts.CHARTS[chart]().svg()
    return found


def tables(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; the status is 1 if a table or chart is not current.")
    ] = False,
) -> None:
    """Write the tables and charts of the documents from the kept results.

    \b
    Examples:
      python -m benchmarks tables
      python -m benchmarks tables --check
    """
    stale = False
    for name, text in pages().items():
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale = True
        print(f"{name}: {'is not current' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and check:
        raise typer.Exit(1)
