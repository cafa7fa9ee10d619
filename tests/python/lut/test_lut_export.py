"""Exported tables: the C header against the library bit by bit, and the hex file read back."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

import qcore
from qcore import _core
from qcore.lut import Table, table
from qcore.lut.core import REDUCTIONS

COMPILER = shutil.which("gcc") or shutil.which("cc")
FLAGS = {
    "c99": ["-std=c99"],
    # The compiler may fuse a product with a sum here.
    "native": ["-std=gnu11", "-march=native", "-O3"],
}


def all_inputs():
    """float32: every fp16 and bf16 number, random bits, and numbers near those where something changes."""
    sixteen = np.arange(65536, dtype=np.uint16)
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint64).astype(np.uint32)
    return np.concatenate(
        [
            sixteen.view(np.float16).astype(np.float32),
            (sixteen.astype(np.uint32) << 16).view(np.float32),
            bits.view("f4"),
        ]
    )


def around(numbers):
    """Each with its neighbors, and their negatives."""
    given = np.asarray(numbers, np.float32)
    near = np.concatenate([given, np.nextafter(given, np.float32(-np.inf)), np.nextafter(given, np.float32(np.inf))])
    return np.concatenate([near, -near])


def custom(reduction="none", dtype="float32", cuts=8, segments=5, seed=1):
    """Random numbers: also negative ones and 0, whatever the reduction."""
    generator = np.random.default_rng(seed)
    ends = {"none": (-9, 7), "exp": (0, 1), "reciprocal": (1, 2), "log": (0.7, 1.42), "periodic": (-3.2, 3.2)}
    low, high = ends.get(reduction, (1, 4))
    points = np.sort(generator.uniform(low, high, cuts)).astype(np.float32)
    values = generator.normal(0, 3, 3 + segments * (cuts - 3)).astype(dtype)
    values[len(values) // 2] = -0.0
    return Table.from_parts(points, values, range_reduction=reduction)


def subnormal():
    values = np.array([1, 0x8001, 0x3FF, 0x400, 0x83FF, 0, 0x8000, 0x7BFF, 0xFBFF], np.uint16).view(np.float16)
    return Table.from_parts(np.array([-2, -1, 1, 2], np.float32), values)


def builtins():
    return [(name, reduced) for name, reduced in _core.builtin_luts() if reduced or name in ("silu", "tanh", "exp")]


def shipped(name, reduced):
    return lambda: table(name, range_reduction=reduced)


def of_reduction(reduction):
    return lambda: custom(reduction)


CASES = {
    **{f"{name} reduced" if reduced else name: shipped(name, reduced) for name, reduced in builtins()},
    **{f"custom {reduction} float32": of_reduction(reduction) for reduction in REDUCTIONS},
    "custom none float16": lambda: custom(dtype="float16", segments=7),
    "two intervals": lambda: custom(cuts=3, segments=1),
    "subnormal entries": subnormal,
}
# One table of each reduction is enough for other flags.
COMPILED = [(case, "c99") for case in CASES] + [(case, "native") for case in CASES if case.startswith("custom")]
PROGRAM = """\
#include "%s"
void run(const float* x, float* y, long n) {
  long i;
  for (i = 0; i < n; ++i) y[i] = %s(x[i]);
}
"""


def run_header(exported, name, folder, flags, x):
    """Return what the exported function gives for x in a C program."""
    program = folder / f"{name}.c"
    program.write_text(PROGRAM % (exported.name, name))
    library = folder / f"{name}.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    command = [COMPILER, *flags, *warnings, "-O2", "-shared", "-fPIC", "-o", library, program, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    y = np.empty_like(x)
    pointer = ctypes.POINTER(ctypes.c_float)
    ctypes.CDLL(str(library)).run(x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), ctypes.c_long(len(x)))
    return y


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize(("case", "flags"), COMPILED)
def test_header_has_the_same_bits(case, flags, tmp_path):
    given = CASES[case]()
    exported = tmp_path / "exported.h"
    given.export_c(exported, name="exported")
    x = np.concatenate([all_inputs(), around(given.cuts), around([0.5, 1, 2, 4, 2.0**-126, 2.0**-17, 2.0**-34, 0])])
    expected, got = given(x), run_header(exported, "exported", tmp_path, FLAGS[flags], x)
    wrong = np.flatnonzero(expected.view(np.uint32) != got.view(np.uint32))
    assert not len(wrong), [(x[i], expected[i], got[i]) for i in wrong[:5]]


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_headers_live_together(tmp_path):
    silu, exp = table("silu"), table("exp")
    silu.export_c(tmp_path / "silu.h")
    exp.export_c(tmp_path / "exp.h")
    (tmp_path / "both.h").write_text('#include "silu.h"\n#include "exp.h"\n#include "silu.h"\n')
    x = np.linspace(-20, 11, 1000, dtype=np.float32)
    assert np.array_equal(run_header(tmp_path / "both.h", "lut_silu", tmp_path, FLAGS["c99"], x), silu(x))
    assert np.array_equal(run_header(tmp_path / "both.h", "lut_exp", tmp_path, FLAGS["c99"], x), exp(x))


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_fast_math_is_refused_by_the_header(tmp_path):
    table("tanh").export_c(tmp_path / "tanh.h")
    command = [COMPILER, "-std=c99", "-ffast-math", "-fsyntax-only", "-x", "c", tmp_path / "tanh.h"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fast-math" in done.stderr


def test_header_says_what_it_is(tmp_path):
    table("silu").export_c(tmp_path / "silu.h")
    text = (tmp_path / "silu.h").read_text(encoding="ascii")
    comment = text[: text.index("*/")]
    assert "silu by a table" in comment
    assert "range reduction: none" in comment
    assert "max" in comment
    assert qcore.__version__ in comment
    assert "@" not in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_names_of_tables_end_no_comment(tmp_path):
    given = custom()
    given.name = "a */ int main; /* \\\n ??/ \N{SNOWMAN}"
    given.export_c(tmp_path / "odd.h", name="odd")
    given.export_hex(tmp_path / "odd.hex")
    assert (tmp_path / "odd.h").read_text(encoding="ascii").count("int main") == 1
    assert "*/ int" not in (tmp_path / "odd.h").read_text(encoding="ascii")
    assert read_hex(tmp_path / "odd.hex")[0] == given


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "_hidden", "while", "exp", "tanhf", "memcpy", "class", "ä"])
def test_names_that_c_refuses(name, tmp_path):
    with pytest.raises(
        qcore.QcoreValueError, match=re.escape(f"lut export: name is {name!r}, expected a C identifier")
    ):
        table("tanh").export_c(tmp_path / "tanh.h", name=name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_must_be_text(tmp_path):
    with pytest.raises(qcore.QcoreTypeError, match="lut export: name is 3, expected a string"):
        table("tanh").export_c(tmp_path / "tanh.h", name=3)


def test_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        table("tanh").export_hex(tmp_path / "absent" / "tanh.hex")


def read_hex(path):
    """(table, scales, firsts, segments) of a file, as hardware or its test bench would read it."""
    reduction, intervals, patterns, end = None, [], [], None
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("// range reduction: "):
            reduction = line.removeprefix("// range reduction: ")
        elif match := re.fullmatch(r"// (\d+) +([0-9a-f]{8})  ([0-9a-f]{8})  (\d+) +(\d+)", line):
            intervals.append([int(match[1]), int(match[2], 16), int(match[3], 16), int(match[4]), int(match[5])])
        elif match := re.fullmatch(r"// end +([0-9a-f]{8})", line):
            end = int(match[1], 16)
        elif not line.startswith("//"):
            assert re.fullmatch("[0-9a-f]{4}|[0-9a-f]{8}", line)
            patterns.append(line)
    numbers, cuts, scales, firsts, segments = (list(column) for column in zip(*intervals, strict=True))
    assert numbers == list(range(len(numbers)))
    width = len(patterns[0])
    assert all(len(pattern) == width for pattern in patterns)
    bits = np.array([int(pattern, 16) for pattern in patterns], np.uint16 if width == 4 else np.uint32)
    made = Table.from_parts(
        np.array([*cuts, end], np.uint32).view(np.float32),
        bits.view(np.float16 if width == 4 else np.float32),
        range_reduction=reduction,
    )
    return made, np.array(scales, np.uint32).view(np.float32), firsts, segments


@pytest.mark.parametrize("case", CASES)
def test_hex_file_read_back(case, tmp_path):
    given = CASES[case]()
    given.export_hex(tmp_path / "table.hex")
    back, scales, firsts, segments = read_hex(tmp_path / "table.hex")
    assert back == given
    assert back.table_dtype == given.table_dtype
    expected = np.array(segments, np.float32) / np.diff(given.cuts)
    assert np.array_equal(scales, expected)
    assert firsts == [0, *np.cumsum(segments)[:-1].tolist()]
    assert sum(segments) == len(given.values) - 1


def test_hex_file_is_enough_for_hardware(tmp_path):
    """Look-ups in whole numbers and one multiplication, from the file alone, come within fp32's rounding."""
    given = table("silu")
    given.export_hex(tmp_path / "silu.hex")
    back, scales, firsts, segments = read_hex(tmp_path / "silu.hex")
    cuts, values = back.cuts, back.values.astype(np.float64)
    x = np.random.default_rng(2).normal(0, 4, 1000).astype(np.float32).clip(cuts[0], cuts[-1])
    i = np.searchsorted(cuts[:-1], x, side="right") - 1
    p = np.minimum((x - cuts[i]) * scales[i], np.float32(1) * np.array(segments, np.float32)[i])
    q = np.array(firsts)[i] + p.astype(int)
    a = (p - np.floor(p)).astype(np.float64)
    y = values[q] + a * (values[np.minimum(q + 1, len(values) - 1)] - values[q])
    assert np.array_equal(y.astype(np.float32), given(x))
