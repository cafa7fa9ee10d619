"""Fits the tables that ship with qcore and writes src/lut/builtin_data.h; takes about a minute and a half.

python scripts/generate_luts.py                     # needs an installed qcore; rebuild it afterwards
python scripts/generate_luts.py --only silu exp     # these; the other rows stay
python scripts/generate_luts.py --check             # compares instead: exit status 1, and the rows that differ
"""

import argparse
import re
import sys
from pathlib import Path

from qcore.lut import Table, fit
from qcore.lut.functions import FUNCTIONS

TARGET = Path(__file__).resolve().parents[1] / "src" / "lut" / "builtin_data.h"
HEAD = """\
// Made by scripts/generate_luts.py; a test compares. Do not edit.
#pragma once

#include <cstdint>

#include "qcore/lut.h"

namespace qcore {

struct BuiltinData {
  const char* name;
  LutReduction reduction;
  float cuts[11];
  std::uint16_t values[259];  // fp16
};

// clang-format off
inline constexpr BuiltinData kBuiltinLuts[] = {
"""
TAIL = """\
};
// clang-format on

}  // namespace qcore
"""
PER_LINE = 13  # of values: 120 columns


def rows() -> list[tuple[str, str]]:
    """(name, reduction) of every table, in the order of the file."""
    plain = [(name, "none") for name in FUNCTIONS]
    reduced = [(name, function.reduction) for name, function in FUNCTIONS.items() if function.reduction]
    return plain + reduced


def number(value: float) -> str:
    """Return a float literal of exactly that value."""
    text = f"{value:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def row_text(table: Table) -> str:
    """One element of the array."""
    cuts = [number(float(cut)) for cut in table.cuts]
    bits = [f"0x{value:04x}" for value in table.values.view("uint16").tolist()]
    lines = [f'    {{"{table.name}", LutReduction::{table.range_reduction},']
    lines += [f"     {{{', '.join(cuts[:6])},", f"      {', '.join(cuts[6:])}}},"]
    groups = [", ".join(bits[i : i + PER_LINE]) for i in range(0, len(bits), PER_LINE)]
    lines += [f"     {{{groups[0]},", *(f"      {group}," for group in groups[1:-1]), f"      {groups[-1]}}}}},"]
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> dict[tuple[str, str], str]:
    """Return the rows of a file, as row_text() writes them."""
    found = re.findall(r'^    \{"(\w+)", LutReduction::(\w+),\n(?:     .*\n)+', text, re.MULTILINE)
    parts = re.findall(r'^    \{"\w+", LutReduction::\w+,\n(?:     .*\n)+', text, re.MULTILINE)
    return dict(zip(found, parts, strict=True))


def fitted(name: str, reduction: str) -> Table:
    """One table as it ships."""
    return fit(name, range_reduction=reduction != "none")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(FUNCTIONS), help="names to fit")
    arguments = parser.parse_args()

    present = rows_of(TARGET.read_text())
    made = {}
    for name, reduction in rows():
        if arguments.only and name not in arguments.only:
            made[name, reduction] = present.get((name, reduction), "")
            continue
        table = fitted(name, reduction)
        made[name, reduction] = row_text(table)
        report = table.report
        print(
            f"{name:12} {reduction:10}  mean {report.mean_relative:.3e}  max {report.max_relative:.3e}  "
            f"max absolute {report.max_absolute:.3e}  {report.seconds:.1f} s",
            flush=True,
        )
    if arguments.check:
        differing = [
            f"{name} ({reduction})"
            for name, reduction in made
            if made[name, reduction] != present.get((name, reduction))
        ]
        extra = [f"{name} ({reduction})" for name, reduction in present.keys() - made.keys()]
        if differing or extra:
            print(f"{TARGET.name} differs in: {', '.join(differing + extra)}", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(HEAD + "".join(made.values()) + TAIL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
