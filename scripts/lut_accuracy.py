#!/usr/bin/env python3
"""Writes the table of errors in docs/luts.md, between its markers, from the tables that ship with qcore.

python scripts/lut_accuracy.py             # needs an installed qcore; seconds
python scripts/lut_accuracy.py --check     # compares instead: exit status 1 if the document has other numbers
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from qcore.lut import Table, table
from qcore.lut.accuracy import Accuracy, accuracy
from qcore.lut.functions import FUNCTIONS, Function

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "luts.md"
BEGIN, END = "<!-- accuracy: begin, by scripts/lut_accuracy.py -->", "<!-- accuracy: end -->"
HEAD = """\
| function | reduction | mean | max | between: max | as fp16: mean | max | published cuts: mean | rounded: mean | max |
|---|---|---|---|---|---|---|---|---|---|
"""

# Mean errors with the published cut points, 259 fp16 values and fp32 results. Silu's are computed below.
PUBLISHED = {
    "gelu": 3.697e-4,
    "exp": 2.095e-4,
    "sigmoid": 6.906e-5,
    "tanh": 4.281e-5,
    "hardswish": 6.935e-5,
    "mish": 2.037e-4,
    "rsqrt": 3.102e-3,
    "reciprocal": 5.090e-3,
}
SILU_CUTS = (
    -20.359375, -17.109375, -8.3671875, -1.9755859375, -0.255615234375, -0.007244110107421875,
    0.0072174072265625, 0.228515625, 1.58203125, 10.46875, 65504.0,
)  # fmt: skip


def published_silu() -> Table:
    """Return the published cut points with the function's values at the ends of their segments."""
    cuts = np.array(SILU_CUTS, np.float32).astype(np.float64)
    parts = [1, *[32] * 8, 1]
    ends = [cuts[i] + (cuts[i + 1] - cuts[i]) / n * np.arange(n) for i, n in enumerate(parts)]
    knots = np.concatenate([*ends, cuts[-1:]])
    return Table.from_parts(cuts.astype(np.float32), FUNCTIONS["silu"].evaluate(knots).astype(np.float16), name="silu")


def between(given: Table, measured: Accuracy, function: Function) -> float:
    """Return the largest error of float32 numbers between those of fp16: three inside each gap."""
    x = measured.x
    inner = np.concatenate([x[:-1] + np.diff(x) * part for part in (0.25, 0.5, 0.75)]).astype(np.float32)
    f = function.evaluate(inner.astype(np.float64))
    return Accuracy(inner.astype(np.float64), f, np.ones(len(f))).of_table(given).max


def row(name: str, reduced: bool) -> str:
    function, given = FUNCTIONS[name], table(name, range_reduction=reduced)
    measured = accuracy(given, function)
    floats, halves, rounded = measured.of_table(given), measured.of_table(given, "float16"), measured.of_rounding()
    published = "-"
    if not reduced and name == "silu":
        published = f"{measured.of_table(published_silu()).mean:.2e}"
    elif not reduced and name in PUBLISHED:
        published = f"{PUBLISHED[name]:.2e}"
    errors = [f"{errors.mean:.2e} | {errors.max:.2e}" for errors in (floats, halves, rounded)]
    errors[0] += f" | {between(given, measured, function):.2e}"
    reduction = given.range_reduction if reduced else "-"
    return f"| {name} | {reduction} | {errors[0]} | {errors[1]} | {published} | {errors[2]} |\n"


def made() -> str:
    plain = [row(name, False) for name in FUNCTIONS]
    reduced = [row(name, True) for name, function in FUNCTIONS.items() if function.reduction]
    return HEAD + "".join(plain + reduced)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN + "\n")
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n{made()}{END}{after}"
    if check:
        lines = set(text.splitlines())
        different = [line for line in new.splitlines() if line not in lines]
        print("\n".join(["docs/luts.md has other numbers than these:", *different] if different else ["the same"]))
        return 1 if new != text else 0
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
