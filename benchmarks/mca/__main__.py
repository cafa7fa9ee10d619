"""Runs `python -m benchmarks.mca`."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence

from .loops import MULTIPLIES, cycles, loops, peak

_CPUS = "neoverse-n1,neoverse-n2,neoverse-v1,neoverse-v2"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the loops of some object files, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mca",
        description="Predicts the cycles of the inner loops of object files for AArch64 by llvm-mca, as if all data "
        "were in the first-level cache. Cells are multiply-adds per cycle and the fraction of the peak "
        "of the loop's own multiply instruction. Nothing is run: these are no measurements.",
    )
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    parser.add_argument("--cpu", default=_CPUS, help=f"names of llvm-mca, separated by commas; {_CPUS} by default")
    parser.add_argument("--mca", default="llvm-mca", help="LLVM 17 or later has models of the Neoverse processors")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    options = parser.parse_args(arguments)
    cpus = options.cpu.split(",")
    print(f"| loop | instruction | instructions | spills | {' | '.join(cpus)} |")
    print("|---" * (4 + len(cpus)) + "|")
    for path in options.objects:
        command = [options.objdump, "-dC", "--no-show-raw-insn", path]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for loop in loops(text):
            count = loop.count(loop.multiply)
            cells = []
            for cpu in cpus:
                taken, best = cycles(loop.assembly, cpu, options.mca), peak(loop.multiply, cpu, options.mca)
                if taken is None or best is None:
                    cells.append("-")
                else:
                    cells.append(f"{count * MULTIPLIES[loop.multiply] / taken:.1f} ({count * best / taken:.0%})")
            row = [loop.name, f"{count} {loop.multiply}", str(len(loop.body)), str(loop.spills), *cells]
            print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
