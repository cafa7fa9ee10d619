"""Finds the inner loops of an object file and asks llvm-mca for their cycles."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

# Multiply-adds of one instruction on registers of 128 bits.
MULTIPLIES = {"sdot": 16, "usdot": 16, "usmmla": 32, "fmla": 4}
_FEWEST = 4  # multiplies of a loop that is worth a line
_ITERATIONS = 200
_FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)$")
_BRANCH = re.compile(r"b\.\w+|cbn?z|tbn?z|b")
_TILE = re.compile(r"(\w+Tile)<(?:[^<>]|<[^<>]*>)*?(\d+), (\d+), (\d+)>::run")


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly: its address, its mnemonic and its operands."""

    address: int
    mnemonic: str
    operands: str


@dataclass(frozen=True)
class Loop:
    """An inner loop without its branch."""

    function: str
    body: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        """The tile that the loop belongs to, as `IntegerTile 5x16 w8`, or the function's name."""
        match = _TILE.search(self.function)
        if match:
            return f"{match[1]} {match[2]}x{16 * int(match[3])} w{match[4]}"
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
        return "".join(f"{line.mnemonic} {line.operands}\n" for line in self.body)


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
            target = re.search(r"\b([0-9a-f]+) <", branch.operands)
            begin = places.get(int(target[1], 16)) if target and _BRANCH.fullmatch(branch.mnemonic) else None
            if begin is None or begin >= end:
                continue
            body = tuple(instructions[begin:end])
            loop = Loop(name, body)
            inner = any(_BRANCH.fullmatch(instruction.mnemonic) for instruction in body)
            if not inner and loop.multiply and loop.count(loop.multiply) >= _FEWEST:
                yield loop


def cycles(assembly: str, cpu: str, mca: str) -> float | None:
    """Return the cycles that llvm-mca predicts for one round of the code, or None where the processor lacks it."""
    command = [mca, "-mtriple=aarch64", f"-mcpu={cpu}", f"-iterations={_ITERATIONS}"]
    done = subprocess.run(command, input=assembly, capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(total[1]) / _ITERATIONS if done.returncode == 0 and total else None


def peak(multiply: str, cpu: str, mca: str) -> float | None:
    """Return the predicted cycles of one such instruction among independent ones."""
    operands = {"fmla": "v30.4s, v31.4s", "usmmla": "v30.16b, v31.16b"}.get(multiply, "v30.16b, v31.4b[0]")
    lines = [f"{multiply} v{register}.4s, {operands}\n" for register in range(24)]
    total = cycles("".join(lines), cpu, mca)
    return total / len(lines) if total is not None else None
