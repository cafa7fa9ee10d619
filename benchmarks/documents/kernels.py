"""Tables of the kernels by architecture, from the kernel tables in src.

The sources are read, because a build has the rows of its own processor only. A test compares the rows of this build
with :func:`qcore.kernels`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .kept import ROOT, table

_TABLE = re.compile(r'^KernelTable<\w+> \w+\(\s*"(\w+)"', re.MULTILINE)
_ROW = re.compile(r'\{"(\w+)",\s*(k\w+),')

# Columns, and the requirements (src/runtime/requirements.h) that belong to them.
CPU = {
    "any CPU": ("kNoRequirement",),
    "vectors of the compiler": ("kGeneric128",),
    "AVX2": ("kAvx2",),
    "AVX-VNNI": ("kAvxVnni",),
    "AVX-512 VNNI": ("kAvx512Vnni", "kAvx512Bf16"),
    "AMX": ("kAmxInt8", "kAmxBf16"),
    "AArch64": ("kNeonI8mm", "kNeonDotprod", "kNeon"),
}
CUDA = {"7.5 and later": ("kCuda75",), "8.0 and later": ("kCuda80",), "9.0": ("kCuda90",)}


def kernel_rows() -> dict[str, list[tuple[str, str]]]:
    """Return (name, requirement) of each operator's kernels, best first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "src").rglob("dispatch.cpp")):
        found |= rows_of(path)
    return found


def rows_of(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the rows of the tables of one file. Rows before the first table are of a function that all tables call."""
    text = path.read_text(encoding="utf-8")
    starts = [(match.start(), match[1]) for match in _TABLE.finditer(text)]
    if not starts:
        return {}
    shared = _ROW.findall(text[: starts[0][0]])
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return {
        operator: _ROW.findall(text[start:end]) or shared for (start, operator), end in zip(starts, ends, strict=True)
    }


def _table(columns: Mapping[str, tuple[str, ...]]) -> str:
    rows = []
    for operator, kernels in sorted(kernel_rows().items()):
        cells = [
            ", ".join(f"`{name}`" for name, needs in kernels if needs in requirements)
            for requirements in columns.values()
        ]
        if any(cells):
            rows.append([f"`{operator}`", *cells])
    return table(["operator", *columns], rows)


def by_architecture() -> str:
    """Make the table of CPU kernels."""
    return _table(CPU)


def cuda() -> str:
    """Make the table of CUDA kernels by compute capability."""
    return _table(CUDA)
