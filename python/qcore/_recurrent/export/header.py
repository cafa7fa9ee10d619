"""A quantized recurrent layer for other programs: a C99 header of integers only, and a program that tests it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core, _files
from qcore._recurrent.export import c_source
from qcore._recurrent.export.cell import CellSource, Direction
from qcore._recurrent.export.sizes import ExportSizes, description_bytes, stack_bytes, state_bytes
from qcore._recurrent.layers import RecurrentLayers
from qcore._recurrent.trace import input_codes

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_STEPS, _ROWS = 24, 2  # steps and rows of generated inputs
_WIDTH = 116
_INT32 = (1 << 31) - 1


def export_layers(
    model: RecurrentLayers, cell: CellSource, path: str | os.PathLike[str], name: str, x: Any
) -> ExportSizes:
    """Write the header and the self-test of a layer with the tables that it has.

    Args:
        model: the quantized layers.
        cell: their cell in C.
        path: a name that ends in .h; both files appear whole or not at all.
        name: what all names in the header begin with.
        x: inputs of the self-test, as for a call, or None.

    Returns:
        The flash, RAM and multiply-adds that it needs.

    Raises:
        QcoreValueError, QcoreTypeError: the layers are bidirectional, or the name is not a C identifier.
        OSError: a file can't be written.
    """
    where = f"{model.op} export"
    name = _checks.text(name, f"{where}: name")
    if not _IDENTIFIER.fullmatch(name):
        raise _core.QcoreValueError(f"{where}: name is {name!r}, expected a C identifier that begins with a letter")
    header = Path(path)
    if header.suffix != ".h":
        raise _core.QcoreValueError(f"{where}: path is {os.fspath(path)!r}, expected a name that ends in .h")
    if model.directions == 2:
        raise _core.QcoreValueError(
            f"{where}: a bidirectional {model.op.upper()} needs the whole sequence, expected one direction: what is "
            "exported runs step by step"
        )
    model._check_traceable()
    test = _self_test(model, name, header.name, x)
    source = _Source(model, cell)
    text = source.header(name)
    _files.write_whole(header, text.encode("ascii"))
    _files.write_whole(header.with_name(f"{header.stem}_selftest.c"), test.encode("ascii"))
    return source.sizes()


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


class _Source:
    """Writes the header of a model and counts the bytes of its constants."""

    def __init__(self, model: RecurrentLayers, cell: CellSource) -> None:
        self.model, self.cell = model, cell
        half_even = model.config.rounding == "half_even"
        self.layers = [
            cell.layer(Direction(core, parts, model.tensors, half_even)) for ((core, parts),) in model._layers
        ]
        self.biased = self.layers[0].biases.size > 0
        self.projected = self.layers[0].projection is not None
        self.peepholes = self.layers[0].peepholes is not None
        self.shown = "m" if self.projected else "h"  # what the cell computes last
        self.products = self._products()
        self.types = self._types()
        self.table_types, self.knots = self._tables()
        # A layer of another kind of table would need another function to look it up.
        self.interpolated = [name for name in cell.tables if self.knots[0][name][0]]
        if any([name for name in cell.tables if knots[name][0]] != self.interpolated for knots in self.knots):
            raise _core.QcoreValueError(
                f"{model.op} export: layers have interpolated tables of different gates, expected the same in all"
            )
        self.bytes = {"weights": 0, "offsets": 0, "tables": 0}

    def _products(self) -> list[tuple[str, int]]:
        """Return what is multiplied by weights, and how many rows of them at a time."""
        gates = self.cell.gates
        if self.cell.second:
            return [("x", gates - 1), ("x", 1), ("h", gates - 1), ("h", 1), (self.cell.second, 1)]
        return [("x", gates), ("h", gates), *([("m", 1)] if self.projected else [])]

    def _types(self) -> dict[str, str]:
        """Return types that hold the numbers of every layer."""
        model, layers = self.model, self.layers
        narrow = all(layer.direction.parts["weight_bits"] <= 8 for layer in layers)
        later = [layer.wx.bound for layer in layers[1:]]
        types = {"weight": "int8_t" if narrow else "int16_t"}
        types |= {name: f"{model.format(name).dtype}_t" for name in ("x", "h", *self.cell.states)}
        if self.projected:
            types["m"] = f"{model.format('m').dtype}_t"
            types["sum_m"] = _signed_type(layer.projection.bound for layer in layers if layer.projection is not None)
        types["sum_x"] = _signed_type([layers[0].wx.bound])
        types["sum_h"] = _signed_type([*later, *(layer.rh.bound for layer in layers)])
        wide = "int32_t" if all(layer.narrow for layer in layers) else "int64_t"
        types |= {"wide": wide, "magnitude": f"u{wide}"}
        if self.cell.second:
            types[self.cell.second] = f"{model.format(self.cell.second).dtype}_t"
            types[f"sum_{self.cell.second}"] = types["sum_h"]
        # 16 times each sum must have 32 bits, too: c_source.multiply_packed computes that.
        products = [product for layer in layers for product in (layer.wx, layer.rh, layer.projection) if product]
        self.packed = (
            all(layer.direction.parts["weight_bits"] <= 4 for layer in layers)
            and all(types[code] == "int8_t" for code, _ in self.products)
            and types["wide"] == "int32_t"
            and 16 * max(product.bound for product in products) <= _INT32
        )
        if self.packed:
            types["weight"] = "uint8_t"
        types["bias"] = _signed_type([int(value) for layer in layers for value in layer.biases])
        return types

    def _tables(self) -> tuple[dict[str, str], list[dict[str, tuple[list[int], list[int]]]]]:
        """Return the types of the tables' entries, and the knots of each layer's."""
        types = {}
        for index, name in enumerate(self.cell.tables):
            tables = [np.array(layer.direction.core.table(index)) for layer in self.layers]
            types[name] = _type_of(min(int(each.min()) for each in tables), max(int(each.max()) for each in tables))
        cores = [layer.direction.core for layer in self.layers]
        return types, [{name: core.knots(index) for index, name in enumerate(self.cell.tables)} for core in cores]

    def header(self, name: str) -> str:
        """Return the header."""
        cell = self.cell
        arrays = "".join(self._arrays(number) for number in range(len(self.layers)))
        parts = [self._declared(), arrays, self._initialized(), c_source.SHIFT[self.model.config.rounding]]
        parts.append(c_source.CLAMP)
        types = {code: (self.types["weight"], self.types[code], self.types[f"sum_{code}"]) for code, _ in self.products}
        with_dsp = self.packed or any(c_source.uses_dsp(product) for product in types.values())
        parts.append(c_source.VECTORS.replace("%", c_source.DSP if with_dsp else ""))
        if self.packed:
            parts += [c_source.multiply_packed(code, rows) for code, rows in self.products]
        else:
            parts += [c_source.multiply(types[code], code, rows) for code, rows in self.products]
        for table, argument in cell.tables.items():
            source = c_source.LOOK_UP
            if table in self.interpolated:
                source = c_source.interpolate(len(self.knots[0][table][0]) - 1)
            parts.append(source.replace("$", table).replace("%", argument))
        parts += [cell.function, self._step()]
        guard = f"QCORE_{self.model.op.upper()}_@@_H"
        return _named(f"{self._intro()}#ifndef {guard}\n#define {guard}\n{''.join(parts)}\n#endif\n", name)

    def _step(self) -> str:
        if self.cell.second:
            return c_source.HALVES.replace("$", self.cell.second)
        others = "".join(
            f"    for (j = 0; j < @@_HIDDEN_SIZE; ++j) state->{state}[layer][j] = 0;\n" for state in self.cell.states
        )
        ending = c_source.PROJECT if self.projected else c_source.NEXT
        text = c_source.STEP.replace("$", others).replace("#NEXT#", ending)
        return text.replace("%", self.cell.call).replace("@_&", f"@_{self.shown}").replace("l->&", f"l->{self.shown}")

    def sizes(self) -> ExportSizes:
        """Return what the header needs; it must have been made."""
        model, gates, size = self.model, self.cell.gates, self.model.hidden_size
        outputs = model.output_size
        states = [
            (model.num_layers * model._state_size(name), model.format(name).dtype.itemsize)
            for name in ("h", *self.cell.states)
        ]
        first = self.layers[0]
        layers = description_bytes(
            len(self._pointers()) + 1, len(self.cell.ranges), len(first.numbers), len(first.shifts)
        )
        later = (model.num_layers - 1) * (outputs + outputs)
        projected = model.num_layers * outputs * size if self.projected else 0
        projected += 3 * model.num_layers * size if self.peepholes else 0
        return ExportSizes(
            **self.bytes,
            layers=layers * model.num_layers,
            state=state_bytes(states),
            stack=stack_bytes(size, self._channel_bytes(), gates, 4 if self.types["wide"] == "int32_t" else 8),
            multiply_adds=gates * size * (model.input_size + outputs + later) + projected,
        )

    def _channel_bytes(self) -> int:
        """Return the bytes that a step's arrays have for each channel."""
        names = [self.shown, *([self.cell.second] if self.cell.second else [])]
        return sum(self.model.format(name).dtype.itemsize for name in names) + (2 if self.cell.second else 0)

    def _intro(self) -> str:
        model, sizes = self.model, self.sizes()
        x, h = model.format("x"), model.format("h", model.num_layers - 1)
        article = "A" if model.op == "gru" else "An"
        projected = f" projected to {model.output_size}" if self.projected else ""
        lines = [
            f"{article} {model.op.upper()} in fixed point, made by qcore: {model.input_size} inputs, "
            f"{model.hidden_size} states{projected}, {model.num_layers} layers, {self.cell.about}, "
            f"tables {model.config.tables}.",
            "",
            f"Bytes of constants: weights {sizes.weights}, offsets, shifts and biases {sizes.offsets}, tables "
            f"{sizes.tables}; of @_state: {sizes.state}.",
            "Integers only, without allocation and without a library; the same numbers as qcore's with these tables.",
            "",
            "Codes: a number is (code - zero point) * 2^-exponent.",
            f"x: {x.bits} bits, exponent {x.exponent}, zero point {x.zero_point}.",
            f"y: {h.bits} bits, exponent {h.exponent}, zero point {h.zero_point}.",
            "",
            "Call @_start once, then @_step for each step.",
        ]
        return "/*\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"

    def _declared(self) -> str:
        model, sizes = self.model, self.sizes()
        x, h = model.format("x"), model.format("h", model.num_layers - 1)
        constants = {
            "INPUT_SIZE": model.input_size,
            "HIDDEN_SIZE": model.hidden_size,
            "OUTPUT_SIZE": model.output_size,
            "LAYERS": model.num_layers,
            "GATES": self.cell.gates,
            "ROW_OF_X": self._row(model.input_size),
            "ROW_OF_H": self._row(model.output_size),
            "X_EXPONENT": x.exponent,
            "X_ZERO_POINT": x.zero_point,
            "Y_EXPONENT": h.exponent,
            "Y_ZERO_POINT": h.zero_point,
            "STATE_BYTES": sizes.state,
            "MULTIPLY_ADDS": sizes.multiply_adds,
        }
        if self.projected:
            constants["ROW_OF_M"] = self._row(model.hidden_size)
        if self.interpolated:
            constants["SEGMENTS"] = len(self.knots[0][self.interpolated[0]][0]) - 1
        text = "\n#include <stdint.h>\n\n"
        text += "".join(f"#define @@_{name} ({value})\n" for name, value in constants.items()) + "\n"
        text += "".join(f"typedef {kind} @_{name};\n" for name, kind in self.types.items())
        states = "".join(f"  @_{name} {name}[@@_LAYERS][@@_HIDDEN_SIZE];\n" for name in self.cell.states)
        text += f"\ntypedef struct {{\n  @_h h[@@_LAYERS][@@_OUTPUT_SIZE];\n{states}}} @_state;\n"
        text += "\n/* Codes less their zero point. */\ntypedef struct {\n  int32_t lo, hi;\n} @_range;\n"
        tables = "".join(
            f"  const uint16_t *{name}_starts;\n  const {kind} *{name}_values;\n"
            if name in self.interpolated
            else f"  const {kind} *{name}_table;\n"
            for name, kind in self.table_types.items()
        )
        biases = "  const @_bias *biases;\n" if self.biased else ""
        if self.projected:
            biases += "  const @_weight *projection;\n  const @_sum_m *projection_offsets;\n"
            biases += "  const int8_t *projection_shifts;\n"
        biases += "  const int16_t *peepholes;\n" if self.peepholes else ""
        first = self.layers[0]
        return (
            f"{text}\ntypedef struct {{\n  const @_weight *w, *r;\n  const @_sum_h *wx_offsets, *rh_offsets;\n"
            f"  const int8_t *wx_shifts, *rh_shifts;\n{biases}{tables}"
            f"  @_range {', '.join(self.cell.ranges)};\n  int32_t {', '.join(first.numbers)};\n"
            f"  int8_t {', '.join(first.shifts)};\n}} @_layer;\n\n"
        )

    def _arrays(self, number: int) -> str:
        layer = self.layers[number]
        parts = layer.direction.parts

        def array(kind: str, name: str, values: Any, what: str) -> str:
            flat = [int(value) for value in np.ravel(values)]
            bits = re.search(r"\d+", self.types.get(kind[2:], kind))
            assert bits is not None
            self.bytes[what] += len(flat) * int(bits.group()) // 8
            return _array(kind, f"@_{name}_{number}", flat, f"[{len(flat)}]")

        text = ""
        for name in ("w", "r", *(["projection"] if layer.projection is not None else [])):
            rows = parts[name].tolist()
            codes = [c_source.packed_row(row) for row in rows] if self.packed else rows
            text += array("@_weight", name, codes, "weights")
        text += array("@_sum_h" if number else "@_sum_x", "wx_offsets", layer.wx.offsets, "offsets")
        text += array("@_sum_h", "rh_offsets", layer.rh.offsets, "offsets")
        text += array("int8_t", "wx_shifts", layer.wx.shifts, "offsets")
        text += array("int8_t", "rh_shifts", layer.rh.shifts, "offsets")
        if self.biased:
            text += array("@_bias", "biases", layer.biases, "offsets")
        if layer.projection is not None:
            text += array("@_sum_m", "projection_offsets", layer.projection.offsets, "offsets")
            text += array("int8_t", "projection_shifts", layer.projection.shifts, "offsets")
        if layer.peepholes is not None:
            text += array("int16_t", "peepholes", layer.peepholes, "weights")
        for index, (name, kind) in enumerate(self.table_types.items()):
            if name in self.interpolated:
                starts, values = self.knots[number][name]
                text += array("uint16_t", f"{name}_starts", starts[:-1], "tables")
                text += array(kind, f"{name}_values", values, "tables")
            else:
                text += array(kind, f"{name}_table", layer.direction.core.table(index), "tables")
        return text

    def _row(self, features: int) -> int:
        """Return the elements that a row of so many weights takes: bytes of two if they are packed."""
        return len(c_source.packed_row([0] * features)) if self.packed else features

    def _pointers(self) -> list[str]:
        """Return the arrays that a layer's description points to, without those of W's offsets."""
        names = ["w", "r", "rh_offsets", "wx_shifts", "rh_shifts"] + (["biases"] if self.biased else [])
        names += ["projection", "projection_offsets", "projection_shifts"] if self.projected else []
        names += ["peepholes"] if self.peepholes else []
        for name in self.cell.tables:
            names += [f"{name}_starts", f"{name}_values"] if name in self.interpolated else [f"{name}_table"]
        return names

    def _initialized(self) -> str:
        entries = []
        for number, layer in enumerate(self.layers):
            fields = [f".{name} = @_{name}_{number}" for name in self._pointers()]
            # The first layer's sums may have another type: @_step names its offsets.
            fields.append(f".wx_offsets = @_wx_offsets_{number}" if number else ".wx_offsets = 0")
            for name in self.cell.ranges:
                low, high = layer.direction.range(name)
                fields.append(f".{name} = {{{low}, {high}}}")
            fields += [f".{name} = {value}" for name, value in (layer.numbers | layer.shifts).items()]
            entries.append("  {\n" + "".join(f"    {field},\n" for field in fields) + "  },\n")
        return f"\nstatic const @_layer @_layers[@@_LAYERS] = {{\n{''.join(entries)}}};\n"


def _test_codes(model: RecurrentLayers, x: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the self-test's inputs and outputs, [B, T, C] and [B, T, S]."""
    form = model.format("x")
    if x is None:
        shape = (_STEPS, _ROWS, model.input_size)
        x = np.random.default_rng(0).integers(form.lowest, form.highest + 1, shape).astype(form.dtype)
        x = x.transpose(1, 0, 2) if model.batch_first else x
    codes = input_codes(form, x, f"{model.op}: x").astype(form.dtype)
    outputs = model(codes)[0]
    if outputs.size == 0:
        raise _core.QcoreValueError(
            f"{model.op} export: x has shape {list(codes.shape)}, expected at least one step and one row"
        )
    inputs, outputs = (each if model.batch_first else each.transpose(1, 0, 2) for each in (codes, outputs))
    return inputs, outputs


def _self_test(model: RecurrentLayers, name: str, header: str, x: Any) -> str:
    inputs, outputs = _test_codes(model, x)
    rows, steps, _ = inputs.shape
    shape = "[ROWS][STEPS]"
    parts = [
        f"/* Runs {header} on inputs whose outputs qcore computed. Status 0 if they are the same. */\n",
        f'#include <stdio.h>\n\n#include "{header}"\n\n#define ROWS {rows}\n#define STEPS {steps}\n\n',
        _nested("@_x", "inputs", f"{shape}[@@_INPUT_SIZE]", inputs),
        _nested("@_h", "outputs", f"{shape}[@@_OUTPUT_SIZE]", outputs),
        c_source.SELF_TEST,
    ]
    return _named("".join(parts), name)
