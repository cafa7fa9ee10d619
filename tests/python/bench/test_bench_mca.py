"""The inner loops that `python -m benchmarks.mca` finds in a disassembly."""

import json
import subprocess

import pytest
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


BLOCK = f"""
0000000000000100 <{TILE}>:
     100:	ldr	q0, [x1]
     104:	cbz	x2, 10c <{TILE}+0xc>
     108:	ldr	q1, [x2]
     10c:	sdot	v0.4s, v4.16b, v9.4b[0]
     110:	sdot	v1.4s, v4.16b, v9.4b[0]
     114:	sdot	v2.4s, v4.16b, v9.4b[0]
     118:	sdot	v3.4s, v4.16b, v9.4b[0]
     11c:	b.gt	10c <{TILE}+0xc>
     120:	cbz	w3, 200 <{TILE}+0x100>
     124:	cbz	x4, 12c <{TILE}+0x2c>
     128:	fadd	v0.4s, v0.4s, v5.4s
     12c:	scvtf	v0.4s, v0.4s
     130:	b.gt	100 <{TILE}>
"""


def test_a_block_is_what_runs_without_what_a_call_may_ask_for():
    (loop,) = loops.loops(BLOCK)
    assert loop.tile == (1, 16)
    assert loop.block(8).splitlines() == ["ldr q0, [x1]", *loop.assembly.splitlines() * 2, "scvtf v0.4s, v0.4s"]
    assert all(other.block(8) is None for other in loops.loops(DISASSEMBLY))


def test_a_block_has_at_least_a_step():
    (loop,) = loops.loops(BLOCK.replace(f"cbz	x2, 10c <{TILE}+0xc>", f"b.le	120 <{TILE}+0x20>"))
    assert [line.operands for line in loop.before] == ["q0, [x1]", "q1, [x2]"]


def test_a_tile_has_panels_or_columns():
    (loop,) = loops.loops(BLOCK.replace("1, 1, 8>", "4, 8, 8>").replace("IntegerTile", "RegisterTile"))
    assert (loop.name, loop.tile) == ("RegisterTile 4x8 w8", (4, 8))


@pytest.fixture
def one_row(monkeypatch):
    """Let llvm-mca take two cycles for each instruction of a block and one for those of a peak."""

    def run(arguments, **options):
        if arguments[0] == "objdump":
            return subprocess.CompletedProcess(arguments, 0, BLOCK, "")
        lines = len(options["input"].splitlines())
        total = 200 * lines if lines == 24 else 20 * 2 * lines
        return subprocess.CompletedProcess(arguments, 0, f"Total Cycles:      {total}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(command, "_FEWEST_ROWS", 1)
    loops.peak.cache_clear()
    yield ["--cpu", "new", "--mca", "mca", "--objdump", "objdump", "--blocks", "8", "block.o"]
    loops.peak.cache_clear()


def test_a_prediction_that_falls_is_an_error(one_row, tmp_path, capsys):
    file = tmp_path / "predictions.json"
    assert command.main([*one_row, "--write", str(file)]) == 0
    name, fraction = "IntegerTile 1x16 w8 sdot", 0.4  # 8 of 20 cycles
    assert json.loads(file.read_text()) == {name: {"new": [fraction]}}
    assert capsys.readouterr().out.splitlines()[2:] == [f"| {name} | 4 | 2 | 40% |"]
    assert command.main([*one_row, "--check", str(file)]) == 0
    file.write_text(json.dumps({name: {"new": [0.41]}, "gone": {"new": [0.1]}}))
    capsys.readouterr()
    assert command.main([*one_row, "--check", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[3:] == [
        f"{name} on new: [0.4] of the peak, expected at least [0.41]",
        "gone on new: [0.0] of the peak, expected at least [0.1]",
    ]


def test_checking_is_of_blocks(capsys):
    with pytest.raises(SystemExit):
        command.main(["block.o", "--check", "file"])
    assert "--check and --write are of --blocks" in capsys.readouterr().err
