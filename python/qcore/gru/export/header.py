"""A quantized GRU for other programs: a C99 header of integers only, and a program that tests it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core, _files
from qcore._recurrent.integers import rounding_shift
from qcore.gru.core import GruCore
from qcore.gru.export import c_source
from qcore.gru.integers import Cell
from qcore.gru.trace import cell_of, trace

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_STEPS, _ROWS = 24, 2  # steps and rows of generated inputs
_WIDTH = 116
_INT32 = (1 << 31) - 1

# Shifts by name: the exponents of what is multiplied, and of the result.
_SHARED_SHIFTS = {
    "wx_to_z": (("wx",), "z_pre"),
    "rh_to_z": (("rh",), "z_pre"),
    "wx_to_r": (("wx",), "r_pre"),
    "rh_to_r": (("rh",), "r_pre"),
    "wx_to_g": (("wx",), "g_pre"),
}
_STAGED_SHIFTS = {
    "rh_to_rb": (("rh",), "rb"),
    "r_rb_to_rrh": (("r", "rb"), "rrh"),
    "rrh_to_g": (("rrh",), "g_pre"),
    "z_h_to_old": (("z", "h"), "old_part"),
    "z_g_to_new": (("z", "g"), "new_part"),
    "old_to_h": (("old_part",), "h"),
    "new_to_h": (("new_part",), "h"),
}
_FUSED_SHIFTS = {"r_rh_to_g": (("r", "rh"), "g_pre"), "g_to_h": (("g",), "h")}
_SHARED_RANGES = ("wx", "rh", "z_pre", "r_pre", "g_pre", "h")
_STAGED_RANGES = ("rb", "rrh", "old_part", "new_part")


def export_gru(gru: GruCore, path: str | os.PathLike[str], name: str = "gru", x: Any = None) -> None:
    """Write as :meth:`QuantGRU.export_c`."""
    name = _checks.text(name, "gru export: name")
    if not _IDENTIFIER.fullmatch(name):
        raise _core.QcoreValueError(f"gru export: name is {name!r}, expected a C identifier that begins with a letter")
    header = Path(path)
    if header.suffix != ".h":
        raise _core.QcoreValueError(f"gru export: path is {os.fspath(path)!r}, expected a name that ends in .h")
    if gru.directions == 2:
        raise _core.QcoreValueError(
            "gru export: a bidirectional GRU needs the whole sequence, expected one direction: what is exported runs "
            "step by step"
        )
    if x is None:
        form = gru.format("x")
        codes = np.random.default_rng(0).integers(form.lowest, form.highest + 1, (_STEPS, _ROWS, gru.input_size))
        x = codes.astype(form.dtype)
        x = x.transpose(1, 0, 2) if gru.batch_first else x
    test = _self_test(gru, name, header.name, x)
    source = _Source(gru, name).header()
    _files.write_whole(header, source.encode("ascii"))
    _files.write_whole(header.with_name(f"{header.stem}_selftest.c"), test.encode("ascii"))


def _named(text: str, name: str) -> str:
    return text.replace("@@", name.upper()).replace("@", name)


def _array(kind: str, name: str, values: Iterable[int], shape: str = "") -> str:
    """Return a constant array; a row of a self-test's inputs per `shape` is left to C."""
    lines, line = [], " "
    for text in (f" {value}," for value in values):
        if len(line) + len(text) > _WIDTH:
            lines.append(line)
            line = " "
        line += text
    body = "\n".join([*lines, line])
    return f"static const {kind} {name}{shape} = {{\n{body}\n}};\n"


def _nested(kind: str, name: str, shape: str, codes: NDArray[Any]) -> str:
    """Return [rows, steps, N], with the braces that pedantic compilers want."""
    rows = []
    for row in codes.tolist():
        steps = ",\n".join("    {" + ", ".join(map(str, step)) + "}" for step in row)
        rows.append("  {\n" + steps + "\n  }")
    return f"static const {kind} {name}{shape} = {{\n" + ",\n".join(rows) + "\n};\n"


def _type_of(low: int, high: int) -> str:
    for bits in (8, 16, 32):
        if low >= 0 and high < 1 << bits and bits < 32:
            return f"uint{bits}_t"
        if low >= -(1 << (bits - 1)) and high < 1 << (bits - 1):
            return f"int{bits}_t"
    return "int64_t"


def _signed_type(values: Iterable[int]) -> str:
    most = max((abs(value) for value in values), default=0)
    return "int32_t" if most <= _INT32 else "int64_t"


class _Layer:
    """Numbers of one layer as the C code wants them."""

    def __init__(self, gru: GruCore, number: int) -> None:
        core, parts = gru._layers[number][0]
        self.parts, self.cell = parts, cell_of(gru, number, 0)
        self.wx = _product(self.cell, "x", "w", "bx", "wx")
        self.rh = _product(self.cell, "h", "r", "br", "rh")
        self.knots = [core.knots(gate) for gate in range(3)]
        self.biases = np.zeros(0, np.int64) if self.cell.fused else _biases(self.cell)

    def range(self, name: str) -> tuple[int, int]:
        form = self.cell.format(name)
        return form.lowest - form.zero_point, form.highest - form.zero_point

    def shift(self, sources: tuple[str, ...], target: str) -> int:
        return sum(self.cell.format(name).exponent for name in sources) - self.cell.format(target).exponent


def _product(cell: Cell, source: str, weights: str, biases: str, target: str) -> tuple[Any, Any, int]:
    """Return what is added to sums of products, their shifts, and a bound of them: [3H], [3H], one number."""
    form, p = cell.format(source), cell.parts
    w = p[weights].astype(np.int64)
    offsets = -w.sum(1) * form.zero_point
    scale = p[f"{weights}_exponents"].astype(np.int64) + form.exponent
    if cell.fused:
        bias = rounding_shift(p[biases], p[f"{biases}_exponents"].astype(np.int64) - scale, half_even=cell.half_even)
        offsets = offsets + bias
    bound = int((np.abs(w).sum(1) * max(-form.lowest, form.highest) + np.abs(offsets)).max())
    return offsets, scale - cell.format(target).exponent, bound


def _biases(cell: Cell) -> NDArray[np.int64]:
    """Return z, r, g and rb, H each, at the scale of what they are added to."""
    size = cell.parts["r"].shape[1]

    def bias(name: str, gate: int, to: str) -> Any:
        rows = slice(gate * size, (gate + 1) * size)
        shift = cell.parts[f"{name}_exponents"][rows].astype(np.int64) - cell.format(to).exponent
        return rounding_shift(cell.parts[name][rows], shift, half_even=cell.half_even)

    return np.concatenate(
        [
            bias("bx", 0, "z_pre") + bias("br", 0, "z_pre"),
            bias("bx", 1, "r_pre") + bias("br", 1, "r_pre"),
            bias("bx", 2, "g_pre"),
            bias("br", 2, "rb"),
        ]
    )


class _Source:
    def __init__(self, gru: GruCore, name: str) -> None:
        self.gru, self.name = gru, name
        self.fused = gru.config.pipeline == "fused"
        self.layers = [_Layer(gru, number) for number in range(gru.num_layers)]
        # Types hold what every layer has.
        narrow = all(layer.parts["weight_bits"] <= 8 for layer in self.layers)
        later = [layer.wx[2] for layer in self.layers[1:]]
        self.types = {
            "weight": "int8_t" if narrow else "int16_t",
            "x": f"{gru.format('x').dtype}_t",
            "h": f"{gru.format('h').dtype}_t",
            "sum_x": _signed_type([self.layers[0].wx[2]]),
            "sum_h": _signed_type([*later, *(layer.rh[2] for layer in self.layers)]),
            "bias": _signed_type([int(value) for layer in self.layers for value in layer.biases]),
        }
        self.gates = {}
        for gate in range(3):
            tables = [layer.cell.tables[gate] for layer in self.layers]
            low, high = min(int(table.min()) for table in tables), max(int(table.max()) for table in tables)
            self.gates["zrg"[gate]] = _type_of(low, high)
        self.interpolated = ["zrg"[gate] for gate in range(3) if self.layers[0].knots[gate][0]]
        for layer in self.layers:
            if ["zrg"[gate] for gate in range(3) if layer.knots[gate][0]] != self.interpolated:
                raise _core.QcoreValueError(
                    "gru export: layers have interpolated tables of different gates, expected the same in all"
                )
        self.bytes = {"weights": 0, "offsets, shifts and biases": 0, "tables": 0}

    def header(self) -> str:
        arrays = "".join(self._arrays(number) for number in range(len(self.layers)))
        parts = [self._declared(), arrays, self._initialized(), c_source.SHIFT[self.gru.config.rounding]]
        parts.append(c_source.CLAMP)
        parts.append(c_source.MULTIPLY.replace("$", "x"))
        parts.append(c_source.MULTIPLY.replace("$", "h"))
        for gate in "zrg":
            source = c_source.INTERPOLATE if gate in self.interpolated else c_source.LOOK_UP
            parts.append(source.replace("$", gate))
        parts += [c_source.FUSED if self.fused else c_source.STAGED, c_source.STEP]
        guard = "QCORE_GRU_@@_H"
        intro = self._intro()
        return _named(f"{intro}#ifndef {guard}\n#define {guard}\n{''.join(parts)}\n#endif\n", self.name)

    def _intro(self) -> str:
        gru, size = self.gru, self.gru.hidden_size
        state = gru.num_layers * size * gru.format("h").dtype.itemsize
        sizes = ", ".join(f"{name} {count}" for name, count in self.bytes.items())
        x, h = gru.format("x"), gru.format("h", gru.num_layers - 1)
        lines = [
            f"A fixed-point GRU made by qcore: {gru.input_size} inputs, {size} states, {gru.num_layers} layers, "
            f"pipeline {gru.config.pipeline}.",
            "",
            f"Bytes of constants: {sizes}; of @_state: {state}; of @_step's stack: about {24 * size}.",
            "Integers only, without allocation and without a library; the same numbers as qcore's.",
            "",
            "Codes: a number is (code - zero point) * 2^-exponent.",
            f"x: {x.bits} bits, exponent {x.exponent}, zero point {x.zero_point}.",
            f"y: {h.bits} bits, exponent {h.exponent}, zero point {h.zero_point}.",
            "",
            "Call @_start once, then @_step for each step.",
        ]
        return "/*\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"

    def _declared(self) -> str:
        gru = self.gru
        x, h = gru.format("x"), gru.format("h", gru.num_layers - 1)
        constants = {
            "INPUT_SIZE": gru.input_size,
            "HIDDEN_SIZE": gru.hidden_size,
            "LAYERS": gru.num_layers,
            "X_EXPONENT": x.exponent,
            "X_ZERO_POINT": x.zero_point,
            "Y_EXPONENT": h.exponent,
            "Y_ZERO_POINT": h.zero_point,
        }
        if self.interpolated:
            constants["SEGMENTS"] = len(self.layers[0].knots["zrg".index(self.interpolated[0])][0]) - 1
        text = "\n#include <stdint.h>\n\n"
        text += "".join(f"#define @@_{name} ({value})\n" for name, value in constants.items()) + "\n"
        text += "".join(f"typedef {kind} @_{name};\n" for name, kind in self.types.items())
        text += "\ntypedef struct {\n  @_h h[@@_LAYERS][@@_HIDDEN_SIZE];\n} @_state;\n"
        text += "\n/* Codes less their zero point. */\ntypedef struct {\n  int32_t lo, hi;\n} @_range;\n"
        tables = "".join(
            f"  const uint16_t *{gate}_starts;\n  const {kind} *{gate}_values;\n"
            if gate in self.interpolated
            else f"  const {kind} *{gate}_table;\n"
            for gate, kind in self.gates.items()
        )
        biases = "" if self.fused else "  const @_bias *biases;\n"
        return (
            f"{text}\ntypedef struct {{\n  const @_weight *w, *r;\n  const @_sum_h *wx_offsets, *rh_offsets;\n"
            f"  const int8_t *wx_shifts, *rh_shifts;\n{biases}{tables}"
            f"  @_range {', '.join(self._ranges())};\n  int {', '.join(self._shifts())};\n"
            "  int32_t one, h_zero;\n} @_layer;\n\n"
        )

    def _ranges(self) -> tuple[str, ...]:
        return _SHARED_RANGES if self.fused else (*_SHARED_RANGES, *_STAGED_RANGES)

    def _shifts(self) -> list[str]:
        return [*_SHARED_SHIFTS, *_FUSED_SHIFTS, "z_bits"] if self.fused else [*_SHARED_SHIFTS, *_STAGED_SHIFTS]

    def _arrays(self, number: int) -> str:
        layer = self.layers[number]

        def array(kind: str, name: str, values: Any, what: str) -> str:
            flat = [int(value) for value in np.ravel(values)]
            bits = re.search(r"\d+", self.types.get(kind[2:], kind))
            assert bits is not None
            self.bytes[what] += len(flat) * int(bits.group()) // 8
            return _array(kind, f"@_{name}_{number}", flat, f"[{len(flat)}]")

        other = "offsets, shifts and biases"
        text = array("@_weight", "w", layer.parts["w"], "weights")
        text += array("@_weight", "r", layer.parts["r"], "weights")
        text += array("@_sum_h" if number else "@_sum_x", "wx_offsets", layer.wx[0], other)
        text += array("@_sum_h", "rh_offsets", layer.rh[0], other)
        text += array("int8_t", "wx_shifts", layer.wx[1], other) + array("int8_t", "rh_shifts", layer.rh[1], other)
        if not self.fused:
            text += array("@_bias", "biases", layer.biases, other)
        for index, (gate, kind) in enumerate(self.gates.items()):
            if gate in self.interpolated:
                starts, values = layer.knots[index]
                text += array("uint16_t", f"{gate}_starts", starts[:-1], "tables")
                text += array(kind, f"{gate}_values", values, "tables")
            else:
                text += array(kind, f"{gate}_table", layer.cell.tables[index], "tables")
        return text

    def _initialized(self) -> str:
        shifts = _SHARED_SHIFTS | (_FUSED_SHIFTS if self.fused else _STAGED_SHIFTS)
        entries = []
        for number, layer in enumerate(self.layers):
            pointers = ["w", "r", "rh_offsets", "wx_shifts", "rh_shifts"] + ([] if self.fused else ["biases"])
            for gate in self.gates:
                pointers += [f"{gate}_starts", f"{gate}_values"] if gate in self.interpolated else [f"{gate}_table"]
            fields = [f".{name} = @_{name}_{number}" for name in pointers]
            fields.append(f".wx_offsets = @_wx_offsets_{number}" if number else ".wx_offsets = 0")
            for name in self._ranges():
                low, high = layer.range(name)
                fields.append(f".{name} = {{{low}, {high}}}")
            fields += [f".{name} = {layer.shift(*ends)}" for name, ends in shifts.items()]
            if self.fused:
                fields.append(f".z_bits = {layer.cell.format('z').exponent}")
            fields.append(f".one = {1 << layer.cell.format('z').exponent}")
            fields.append(f".h_zero = {layer.cell.format('h').zero_point}")
            entries.append("  {\n" + "".join(f"    {field},\n" for field in fields) + "  },\n")
        # The first layer's sums may have another type: @_step names its offsets.
        return f"\nstatic const @_layer @_layers[@@_LAYERS] = {{\n{''.join(entries)}}};\n"


def _self_test(gru: GruCore, name: str, header: str, x: Any) -> str:
    layers = trace(gru, x)
    inputs, outputs = (array.transpose(1, 0, 2) for array in (layers[0][0].x, layers[-1][0].tensors["h"]))
    rows, steps, _ = inputs.shape
    shape = "[ROWS][STEPS]"
    parts = [
        f"/* Runs {header} on inputs whose outputs qcore computed. Status 0 if they are the same. */\n",
        f'#include <stdio.h>\n\n#include "{header}"\n\n#define ROWS {rows}\n#define STEPS {steps}\n\n',
        _nested("@_x", "inputs", f"{shape}[@@_INPUT_SIZE]", inputs),
        _nested("@_h", "outputs", f"{shape}[@@_HIDDEN_SIZE]", outputs),
        c_source.SELF_TEST,
    ]
    return _named("".join(parts), name)
