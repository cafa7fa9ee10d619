"""Runs `python -m benchmarks.mca`."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from .loops import MULTIPLIES, Loop, cycles, loops, peak

_CPUS = "neoverse-n1,neoverse-n2,neoverse-v1,neoverse-v2"
_BLOCK_ITERATIONS = 20
_FEWEST_ROWS = 3  # of a tile whose blocks are predicted: fewer rows wait for memory, which llvm-mca knows nothing of
_TOLERANCE = 0.01

Predictions = dict[str, dict[str, list[float]]]  # by loop and by processor


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--blocks",
        metavar="SIZES",
        help="predict whole blocks of these sizes, such as 32,64,128, of tiles of three rows and more, in which each "
        "block's sums are converted and scaled: cells are fractions of the peak",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="with --blocks: fail where a fraction is lower than in this file by more than 1%% of it, or is missing",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --blocks: write such a file")
    return parser


def _found(options: argparse.Namespace) -> Iterator[Loop]:
    for path in options.objects:
        command = [options.objdump, "-dC", "--no-show-raw-insn", path]
        yield from loops(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _print_loops(options: argparse.Namespace, cpus: list[str]) -> None:
    print(f"| loop | instruction | instructions | spills | {' | '.join(cpus)} |")
    print("|---" * (4 + len(cpus)) + "|")
    for loop in _found(options):
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


def _fractions(loop: Loop, cpu: str, sizes: list[int], mca: str) -> list[float]:
    """Return the fractions of the peak for blocks of these sizes, or nothing where the processor lacks the loop."""
    best, found = peak(loop.multiply, cpu, mca), []
    for size in sizes:
        text = loop.block(size)
        taken = cycles(text, cpu, mca, _BLOCK_ITERATIONS) if text and best else None
        if loop.tile is None or best is None or taken is None:
            return []
        products = loop.tile[0] * loop.tile[1] * size
        found.append(round(products / MULTIPLIES[loop.multiply] * best / taken, 3))
    return found


def _predict_blocks(options: argparse.Namespace, cpus: list[str], sizes: list[int]) -> Predictions:
    predictions: Predictions = {}
    print(f"| block of {options.blocks} | instructions of a step | of a block's rest | {' | '.join(cpus)} |")
    print("|---" * (3 + len(cpus)) + "|")
    for loop in _found(options):
        name = f"{loop.name} {loop.multiply}"
        # The first loop of a tile is the ordinary one; those that follow serve other layouts.
        if name in predictions or loop.tile is None or loop.tile[0] < _FEWEST_ROWS or not loop.after:
            continue
        predictions[name] = {cpu: found for cpu in cpus if (found := _fractions(loop, cpu, sizes, options.mca))}
        cells = [
            " / ".join(f"{100 * part:.0f}" for part in predictions[name][cpu]) + "%"
            if cpu in predictions[name]
            else "-"
            for cpu in cpus
        ]
        print(f"| {' | '.join([name, str(len(loop.body)), str(len(loop.before + loop.after)), *cells])} |")
    return predictions


def _fallen(found: Predictions, floor: Predictions) -> list[str]:
    """Return a line for each prediction that is lower than it was."""
    lines = []
    for name, cpus in floor.items():
        for cpu, lowest in cpus.items():
            now = found.get(name, {}).get(cpu, [0.0] * len(lowest))
            if any(part < (1 - _TOLERANCE) * least for part, least in zip(now, lowest, strict=True)):
                lines.append(f"{name} on {cpu}: {now} of the peak, expected at least {lowest}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the loops of some object files, and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    cpus = options.cpu.split(",")
    if not options.blocks:
        if options.check or options.write:
            parser.error("--check and --write are of --blocks")
        _print_loops(options, cpus)
        return 0
    predictions = _predict_blocks(options, cpus, [int(size) for size in options.blocks.split(",")])
    if options.write:
        lines = (f"{json.dumps(name)}: {json.dumps(cells)}" for name, cells in predictions.items())
        options.write.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    fallen = _fallen(predictions, json.loads(options.check.read_text())) if options.check else []
    print("\n".join(fallen), end="\n" if fallen else "")
    return 1 if fallen else 0


if __name__ == "__main__":
    raise SystemExit(main())
