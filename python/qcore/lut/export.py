"""Tables for other programs: a C99 header, and memory contents for hardware."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qcore import _checks, _core, _files
from qcore.lut.accuracy import accuracy, function_of
from qcore.lut.c_source import FLOAT_ENTRY, FUNCTIONS, HALF_ENTRY, HEAD, LOOK_UP
from qcore.lut.core import TableCore

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PER_LINE = {"float16": 12, "float32": 5}
# Names that the header's own includes declare or may declare, and C++'s keywords, because C++ includes the header too.
_TAKEN = frozenset(
    """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm bitand bitor bool catch char16_t char32_t char8_t class co_await co_return co_yield
    compl concept const_cast consteval constexpr constinit decltype delete dynamic_cast explicit export false friend
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast
    requires static_assert static_cast template this thread_local throw true try typeid typename typeof typeof_unqual
    using virtual wchar_t xor xor_eq main
    memchr memcmp memcpy memmove memset strcat strchr strcmp strcoll strcpy strcspn strerror strlen strncat strncmp
    strncpy strpbrk strrchr strspn strstr strtok strxfrm index rindex size_t
    fpclassify isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan isnormal isunordered
    signbit double_t float_t j0 j1 jn y0 y1 yn gamma signgam
    """.split()  # noqa: SIM905 - a list of quoted words would fill a page
)
_MATH = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax
    fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint
    nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc
    """.split()  # noqa: SIM905
)


def export_c(table: TableCore, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write a C99 header: the table, and ``static inline float NAME(float x)`` with the same bits as ``table(x)``.

    The header needs nothing but <math.h> (floorf, rintf, fabsf, fmaf), <stdint.h> and <string.h>, and gives no warning
    under ``-std=c99 -Wall -Wextra -pedantic``. Its comment has the table's ends, range reduction, and errors if the
    table has a report. fp16 values are stored as bit patterns.

    Args:
        table: any.
        path: the file; it appears whole or not at all.
        name: of the function, and what the names of everything else begin with; "lut_" and the table's by default.

    Raises:
        QcoreValueError, QcoreTypeError: the name is not a C identifier that a program may define.
        OSError: the file can't be written.
    """
    name = _identifier(table, name)
    _files.write_whole(Path(path), _header(table, name).encode("ascii"))


def export_hex(table: TableCore, path: str | os.PathLike[str]) -> None:
    """Write memory contents for Verilog's ``$readmemh``: the bit pattern of one entry per line, in their order.

    Four digits for fp16 tables, eight for fp32. Comments before them have what surrounds the memory: cuts and scales as
    bits of fp32, and the first entry and number of segments of each interval.

    Args:
        table: any.
        path: the file; it appears whole or not at all.

    Raises:
        OSError: the file can't be written.
    """
    _files.write_whole(Path(path), _memory(table).encode("ascii"))


def scales_of(table: TableCore) -> np.ndarray[Any, Any]:
    """Return float32 [n]: segments per unit of x in each interval, as look-ups use them."""
    return np.asarray(_lengths(table).astype(np.float32) / np.diff(table.cuts))


def firsts_of(table: TableCore) -> np.ndarray[Any, Any]:
    """Return int64 [n + 1]: the entry at each cut."""
    return np.concatenate([[0], np.cumsum(_lengths(table))])


def _lengths(table: TableCore) -> np.ndarray[Any, Any]:
    """Return int64 [n]: segments of each interval."""
    lengths = np.full(len(table.cuts) - 1, table.segments, np.int64)
    lengths[[0, -1]] = 1
    return lengths


def _identifier(table: TableCore, name: str | None) -> str:
    given = f"lut_{table.name}" if name is None else _checks.text(name, "lut export: name")
    base = given[:-1] if given[-1:] in ("f", "l") else given
    if not _IDENTIFIER.fullmatch(given) or given in _TAKEN or {given, base} & _MATH:
        raise _core.QcoreValueError(
            f"lut export: name is {given!r}, expected a C identifier that begins with a letter and is not C's own"
        )
    return given


def _plain(text: str) -> str:
    """Return the part of a text that can't end a comment or a line."""
    return re.sub(r"[^\w .,:+=()-]", "_", text, flags=re.ASCII)


def _literal(value: Any) -> str:
    """Return exactly this float32 as C99 writes it."""
    digits, _, exponent = float(value).hex().partition("p")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}p{exponent}f"


def _described(table: TableCore) -> Iterator[str]:
    """Yield the lines that a reader wants to know first."""
    cuts, values = table.cuts, table.values
    yield (
        f"{_plain(table.name)} by a table: linear between {len(values)} {table.table_dtype} values, in {len(cuts) - 1} "
        "intervals."
    )
    yield f"cuts: {cuts[0]:.9g} to {cuts[-1]:.9g}; segments: {table.segments}, of the first and the last interval 1"
    yield f"range reduction: {table.range_reduction}"
    yield from _errors(table)
    yield f"by qcore {_core.__version__}"


def _errors(table: TableCore) -> Iterator[str]:
    """Yield the errors of the report, or else against the function that the table's name stands for."""
    report, function = table.report, function_of(table)
    if report is not None:
        yield (
            f"relative error on the {report.points} fp16 numbers that it was fitted to: mean "
            f"{report.mean_relative:.3e}, max {report.max_relative:.3e}; fitted for {_plain(report.metric)}"
        )
    elif function is not None:
        measured = accuracy(table, function)
        found, x = measured.of_table(table), measured.x
        yield (
            f"relative error on the fp16 numbers from {x[0]:.9g} to {x[-1]:.9g}: mean {found.mean:.3e}, max "
            f"{found.max:.3e}"
        )


def _array(kind: str, name: str, items: Iterable[str], count: int) -> str:
    return f"static const {kind} {name}[{count}] = {{\n" + "".join(f"  {item}\n" for item in items) + "};\n"


def _header(table: TableCore, name: str) -> str:
    cuts, values, scales, firsts = table.cuts, table.values, scales_of(table), firsts_of(table)
    half = table.table_dtype == "float16"
    n = len(scales)
    intro = "\n".join(f" * {line}" for line in _described(table))
    guard = f"QCORE_LUT_{name.upper()}_H"
    parts = [
        f"/* {intro[3:]}\n *\n * {name}(x) has the same bits as qcore's float32 results: NaN for NaN, otherwise within "
        f"+-65504.\n */\n#ifndef {guard}\n#define {guard}\n",
        HEAD,
        f"\n#define {name}_INTERVALS {n}\n\n/* Where the intervals begin, and where the last one ends. */\n",
        _array("float", f"{name}_cuts", (f"{_literal(cut)}, /* {cut:.9g} */" for cut in cuts), n + 1),
        "\n/* Segments per unit of x; 0 at the last cut. */\n",
        _array("float", f"{name}_scales", (f"{_literal(scale)}," for scale in [*scales, 0.0]), n + 1),
        "\n/* The entry at each cut. */\n",
        _array("int32_t", f"{name}_firsts", [", ".join(str(first) for first in firsts)], n + 1),
        "\n/* The function at the ends of the segments" + (", fp16 bit patterns" if half else "") + ". */\n",
        _array("uint16_t" if half else "float", f"{name}_values", _rows(values, firsts, half), len(values)),
        HALF_ENTRY if half else FLOAT_ENTRY,
        LOOK_UP,
        FUNCTIONS[table.range_reduction],
        "\n#endif\n",
    ]
    return "".join(parts).replace("@", name)


def _rows(values: np.ndarray[Any, Any], firsts: np.ndarray[Any, Any], half: bool) -> Iterator[str]:
    """Lines of entries; each interval begins one."""
    texts = [f"0x{bits:04x}" for bits in values.view(np.uint16)] if half else [_literal(value) for value in values]
    width = _PER_LINE[values.dtype.name]
    starts = [*firsts[:-1], firsts[-1] + 1]
    for first, end in itertools.pairwise(starts):
        for start in range(first, end, width):
            yield ", ".join(texts[start : min(start + width, end)]) + ","


def _memory(table: TableCore) -> str:
    cuts, values = table.cuts, table.values
    digits = 2 * values.itemsize
    bits = values.view(np.uint16 if values.itemsize == 2 else np.uint32)
    cut_bits, scale_bits = cuts.view(np.uint32), scales_of(table).view(np.uint32)
    lines = [f"// {line}" for line in _described(table)]
    lines.append("// interval  cut       scale     first  segments    (cut and scale: bits of fp32)")
    columns = zip(cut_bits, scale_bits, firsts_of(table), _lengths(table), strict=False)
    for i, (cut, scale, first, length) in enumerate(columns):
        lines.append(f"// {i:<9} {cut:08x}  {scale:08x}  {first:<6} {length}")
    lines.append(f"// end       {cut_bits[-1]:08x}")
    lines += [f"{pattern:0{digits}x}" for pattern in bits]
    return "\n".join(lines) + "\n"
