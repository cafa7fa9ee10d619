"""Finds the inner loops of an object file and asks llvm-mca for their cycles."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Multiply-adds of one instruction on registers of 128 bits.
MULTIPLIES = {"sdot": 16, "usdot": 16, "usmmla": 32, "fmla": 4}
_FEWEST = 4  # multiplies of a loop that is worth a line
_ITERATIONS = 200
_FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)$")
_BRANCH = re.compile(r"b\.\w+|cbn?z|tbn?z|b")
# Rows, then panels of 16 columns or, from 8 on, columns, and bits.
_HALF_PANEL = 8
_TILE = re.compile(r"(\w+Tile)<(?:[^<>]|<[^<>]*>)*?(\d+), (\d+), (\d+)>::run")


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly: its address, its mnemonic and its operands."""

    address: int
    mnemonic: str
    operands: str


@dataclass(frozen=True)
class Loop:
    """An inner loop without its branch, and what the loop around it does before and after, if there is one."""

    function: str
    body: tuple[Instruction, ...]
    before: tuple[Instruction, ...] = ()
    after: tuple[Instruction, ...] = ()

    @property
    def name(self) -> str:
        """The tile that the loop belongs to, as `IntegerTile 5x16 w8`, or the function's name."""
        match, tile = _TILE.search(self.function), self.tile
        if match and tile:
            return f"{match[1]} {tile[0]}x{tile[1]} w{match[4]}"
        plain = re.split(r"[<(]", self.function.replace("(anonymous namespace)::", ""))[0]
        return re.split(r"::|\s", plain)[-1]

    @property
    def multiply(self) -> str:
        """The multiply that the loop has most of, or nothing."""
        counts = {mnemonic: self.count(mnemonic) for mnemonic in MULTIPLIES}
        most = max(counts, key=lambda mnemonic: counts[mnemonic])
        return most if counts[most] else ""

    def count(self, mnemonic: str) -> int:
        """Return how many instructions have this mnemonic."""
        return sum(instruction.mnemonic == mnemonic for instruction in self.body)

    @property
    def spills(self) -> int:
        """The number of accesses to the stack, which an inner loop should not have."""
        return sum("[sp" in instruction.operands for instruction in self.body)

    @property
    def assembly(self) -> str:
        """The text that llvm-mca reads."""
        return _text(self.body)

    @property
    def tile(self) -> tuple[int, int] | None:
        """Rows and columns of the tile that the loop belongs to, and None for other functions."""
        match = _TILE.search(self.function)
        if not match:
            return None
        rows, width = int(match[2]), int(match[3])
        return rows, width if width >= _HALF_PANEL else 16 * width

    def block(self, size: int) -> str | None:
        """Return the text of a block of ``size`` along K, promotion included, or None for what is no tile of blocks."""
        if self.tile is None or not self.after:
            return None
        rows, columns = self.tile
        products = self.count(self.multiply) * MULTIPLIES[self.multiply] // (rows * columns)
        along_k = 1 << (products.bit_length() - 1)  # a tile of an odd number of rows may multiply one more
        return _text(self.before) + self.assembly * (size // along_k) + _text(self.after)


def _text(instructions: Sequence[Instruction]) -> str:
    return "".join(f"{line.mnemonic} {line.operands}\n" for line in instructions)


def _is_branch(instruction: Instruction) -> bool:
    return _BRANCH.fullmatch(instruction.mnemonic) is not None


def _target(instruction: Instruction) -> int | None:
    target = re.search(r"\b([0-9a-f]+) <", instruction.operands)
    return int(target[1], 16) if target and _is_branch(instruction) else None


def _path(instructions: Sequence[Instruction], end: int) -> tuple[Instruction, ...]:
    """Return what runs of a piece of a loop that ends at an address.

    Branches that stay in the piece are taken, since they leave out what a call may ask for: offsets, sums of a weight.
    Branches out of it are not: other types of scales, other shapes, no step at all.
    """
    taken, skip_to = [], 0
    for instruction in instructions:
        if instruction.address < skip_to:
            continue
        target = _target(instruction)
        if target is not None and instruction.address < target <= end:
            skip_to = target
        elif not _is_branch(instruction):
            taken.append(instruction)
    return tuple(taken)


def _around(instructions: Sequence[Instruction], begin: int, end: int) -> tuple[tuple[Instruction, ...], ...]:
    """Return what the smallest loop around another does before and after it; places are those of the inner one."""
    places = {instruction.address: place for place, instruction in enumerate(instructions)}
    for last in range(end + 1, len(instructions)):
        first = places.get(_target(instructions[last]) or -1)
        if first is not None and first < begin:
            inner, address = instructions[begin].address, instructions[last].address
            return _path(instructions[first:begin], inner), _path(instructions[end + 1 : last], address)
    return (), ()


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Yield name and instructions of every function in the output of objdump -dC --no-show-raw-insn."""
    name, instructions = "", list[Instruction]()
    for line in disassembly.splitlines():
        if match := _FUNCTION.match(line):
            yield name, instructions
            name, instructions = match[1], []
        elif match := _INSTRUCTION.match(line):
            operands = re.sub(r"\s*//.*", "", match[3])
            instructions.append(Instruction(int(match[1], 16), match[2], operands))
    yield name, instructions


def loops(disassembly: str) -> Iterator[Loop]:
    """Yield the loops that have no branch inside and some multiplies."""
    for name, instructions in functions(disassembly):
        places = {instruction.address: place for place, instruction in enumerate(instructions)}
        for end, branch in enumerate(instructions):
            begin = places.get(_target(branch) or -1)
            if begin is None or begin >= end:
                continue
            body = tuple(instructions[begin:end])
            loop = Loop(name, body)
            if not any(map(_is_branch, body)) and loop.multiply and loop.count(loop.multiply) >= _FEWEST:
                before, after = _around(instructions, begin, end)
                yield Loop(name, body, before, after)


def cycles(assembly: str, cpu: str, mca: str, iterations: int = _ITERATIONS) -> float | None:
    """Return the cycles that llvm-mca predicts for one round of the code, or None where the processor lacks it."""
    command = [mca, "-mtriple=aarch64", f"-mcpu={cpu}", f"-iterations={iterations}"]
    done = subprocess.run(command, input=assembly, capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(total[1]) / iterations if done.returncode == 0 and total else None


@functools.cache
def peak(multiply: str, cpu: str, mca: str) -> float | None:
    """Return the predicted cycles of one such instruction among independent ones."""
    operands = {"fmla": "v30.4s, v31.4s", "usmmla": "v30.16b, v31.16b"}.get(multiply, "v30.16b, v31.4b[0]")
    lines = [f"{multiply} v{register}.4s, {operands}\n" for register in range(24)]
    total = cycles("".join(lines), cpu, mca)
    return total / len(lines) if total is not None else None
