"""The inner loops that `python -m benchmarks.mca` finds in a disassembly."""

import subprocess

from benchmarks.mca import __main__ as command
from benchmarks.mca import loops

TILE = "qcore::(anonymous namespace)::IntegerTile<qcore::(anonymous namespace)::Neon, A, 1, 1, 8>::run(B const&)"
DISASSEMBLY = f"""
gemm.o:     file format elf64-littleaarch64

0000000000000040 <{TILE}>:
      40:	ldr	q4, [x8]
      44:	sdot	v0.4s, v4.16b, v9.4b[0]
      48:	sdot	v1.4s, v4.16b, v9.4b[0]
      4c:	sdot	v2.4s, v4.16b, v9.4b[0]
      50:	str	q1, [sp, #16]
      54:	sdot	v3.4s, v4.16b, v9.4b[0]	// a remark
      58:	b.gt	40 <{TILE}>
      5c:	b.ne	40 <{TILE}+0x0>
      60:	b	80 <{TILE}+0x40>

0000000000000080 <void qcore::(anonymous namespace)::add<int>(int)>:
      80:	fmla	v0.4s, v1.4s, v2.4s
      84:	fmla	v3.4s, v1.4s, v2.4s
      88:	fmla	v4.4s, v1.4s, v2.4s
      8c:	fmla	v5.4s, v1.4s, v2.4s
      90:	cbnz	x0, 80 <void qcore::(anonymous namespace)::add<int>(int)>
      94:	add	x1, x1, #0x1
      98:	cbnz	x1, 94 <void qcore::(anonymous namespace)::add<int>(int)+0x14>
"""


def test_inner_loops_are_found():
    found = list(loops.loops(DISASSEMBLY))
    assert [(loop.name, loop.multiply, loop.count(loop.multiply), len(loop.body), loop.spills) for loop in found] == [
        ("IntegerTile 1x16 w8", "sdot", 4, 6, 1),
        ("add", "fmla", 4, 4, 0),
    ]
    assert found[0].assembly.splitlines()[-1] == "sdot v3.4s, v4.16b, v9.4b[0]"


def test_table_of_predictions(monkeypatch, capsys):
    def run(arguments, **options):
        if arguments[0] == "objdump":
            return subprocess.CompletedProcess(arguments, 0, DISASSEMBLY, "")
        if "-mcpu=old" in arguments and "sdot" in options["input"]:
            return subprocess.CompletedProcess(arguments, 1, "", "error: instruction requires: dotprod")
        total = 200 * (12 if len(options["input"].splitlines()) == 24 else 4)
        return subprocess.CompletedProcess(arguments, 0, f"Total Cycles:      {total}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["--cpu", "new,old", "--mca", "mca", "--objdump", "objdump", "gemm.o"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| IntegerTile 1x16 w8 | 4 sdot | 6 | 1 | 16.0 (50%) | - |",
        "| add | 4 fmla | 4 | 0 | 4.0 (50%) | 4.0 (50%) |",
    ]
