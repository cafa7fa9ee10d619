"""Golden files: inputs, parameters, every intermediate of every step and outputs; and their check in NumPy integers.

A file is safetensors, all tensors int32, so that a checker needs no more than the sizes in its header. Of each layer l
and direction d (0 or 1, which runs from the last step to the first):

- ``l.x`` [T, B, C] and, of each state s, ``l.d.s0`` [B, H]: codes;
- ``l.d.options``: the cell's (0 or 1 each), then interpolated tables (0 or 1), bits of weights, of biases, reverse;
- ``l.d.formats`` [14, 4]: bits, signed, exponent and zero point;
- ``l.d.parameters.w`` [gates * H, C], ``.r`` [gates * H, H], biases and all their ``_exponents`` [gates * H]; what else
  the cell has;
- ``l.d.table_t`` for each tensor t that comes from one: a code for each code of the argument, lowest first;
- ``l.d.wx``, ``l.d.rh`` [T, B, gates * H] and all other tensors that a step computes, [T, B, H];

and ``y`` [T, B, directions * H], ``last`` [layers * directions, B, H]; of several states ``last_s`` of each.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core, _files
from qcore._recurrent.formats import Format
from qcore._recurrent.integers import CellBase, replay
from qcore._recurrent.layers import RecurrentLayers
from qcore._recurrent.trace import trace

_MOST_EXPONENT = 126

Tensors = dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class GoldenCheck:
    """Holds the numbers of tensors that were checked and are equal.

    Args:
        layers: of the model.
        directions: of each layer.
        steps: of the inputs.
        integers: that were compared.
    """

    layers: int
    directions: int
    steps: int
    integers: int

    def __str__(self) -> str:
        shape = f"{self.layers} layers of {self.directions} directions, {self.steps} steps"
        return f"{shape}: {self.integers:,} integers equal"


def file_format(cell_type: type[CellBase]) -> str:
    """Return the name and version in the metadata of an operator's golden files."""
    return f"qcore.{cell_type.op}.golden.1"


def write_golden(model: RecurrentLayers, path: str | os.PathLike[str], x: Any, states: Sequence[Any]) -> None:
    """Write a golden file; `states` are the initial ones, or None for zeros.

    Args:
        model: the quantized layers.
        path: a safetensors file; it appears whole or not at all.
        x: as for a call, on the CPU: numbers or codes, at least one step and one row.
        states: numbers or codes [layers * directions, B, H] each, or None for zeros.
    """
    from safetensors.numpy import save

    layers = trace(model, x, states)
    tensors: Tensors = {}
    config = model.config
    for number, layer in enumerate(layers):
        tensors[f"{number}.x"] = layer[0].x
        for side, each in enumerate(layer):
            cell, parts = each.cell, each.cell.parts
            flags = [getattr(cell, name) for name in cell.options]
            widths = [parts["weight_bits"], parts["bias_bits"]]
            made: Tensors = {f"{name}0": codes for name, codes in zip(cell.states, each.states, strict=True)}
            made["formats"] = parts["formats"]
            made["options"] = np.array([*flags, config.tables == "interp", *widths, side == 1])
            made |= {f"parameters.{name}": parts[name] for name in _parameters(cell)}
            made |= {f"table_{name}": table for name, table in zip(cell.functions, cell.tables, strict=True)}
            made |= each.tensors
            tensors |= {f"{number}.{side}.{name}": array for name, array in made.items()}
    tensors |= _results(model.cell_type, [[each.tensors for each in layer] for layer in layers])
    whole = {name: np.ascontiguousarray(array, np.int32) for name, array in tensors.items()}
    metadata = {"format": file_format(model.cell_type), "config": config.to_json()}
    _files.write_whole(Path(path), save(whole, metadata))


def _parameters(cell_type: type[CellBase] | CellBase) -> list[str]:
    names = (*cell_type.matrices, *cell_type.biases, *cell_type.others)
    return [*names, *(f"{name}_exponents" for name in names)]


def _results(cell_type: type[CellBase], traces: list[list[Tensors]]) -> Tensors:
    """Return y and the last states from the tensors of all layers and directions."""
    results = {"y": np.concatenate([tensors["h"] for tensors in traces[-1]], axis=2)}
    for name in cell_type.states:
        last = [tensors[name][0 if side else -1] for layer in traces for side, tensors in enumerate(layer)]
        results["last" if len(cell_type.states) == 1 else f"last_{name}"] = np.stack(last)
    return results


def verify(cell_type: type[CellBase], path: str | os.PathLike[str]) -> GoldenCheck:
    """Compute everything in a golden file again, in NumPy integers, without the library's kernels.

    Each tensor is computed from the file's tensors before it, so that one wrong number is one difference.

    Args:
        cell_type: the operator's cell.
        path: the file.

    Raises:
        QcoreValueError, QcoreTypeError: naming the first tensor, step, row and channel that differ, or what the file
            lacks.
        OSError: it can't be read.
    """
    where = f"{cell_type.op} golden: {os.fspath(path)}"
    tensors = _read(cell_type, path, where)
    directions = 2 if "0.1.h0" in tensors else 1
    layers = 0
    while f"{layers}.x" in tensors:
        layers += 1
    if not layers:
        raise _core.QcoreValueError(f"{where} has no tensor 0.x")
    checked = 0
    traces: list[list[Tensors]] = []
    for number in range(layers):
        x = _tensor(tensors, f"{number}.x", 3, where)
        if 0 in x.shape:
            raise _core.QcoreValueError(f"{where}: {number}.x has shape {list(x.shape)}, expected no axis of 0")
        if traces:
            _compare(f"{number}.x", np.concatenate([each["h"] for each in traces[-1]], axis=2), x, where)
        traces.append([])
        for side in range(directions):
            found, count = _check_direction(cell_type, tensors, f"{number}.{side}", x, where)
            traces[-1].append(found)
            checked += count
    results = _results(cell_type, traces)
    for name, expected in results.items():
        _compare(name, expected, _tensor(tensors, name, 3, where), where)
        checked += expected.size
    return GoldenCheck(layers, directions, len(results["y"]), checked)


def _check_direction(
    cell_type: type[CellBase], tensors: Tensors, prefix: str, x: NDArray[Any], where: str
) -> tuple[Tensors, int]:
    """Return the tensors of one direction of a layer, and the number of integers that were compared."""
    own = [name.removeprefix(f"{prefix}.") for name in tensors if name.startswith(f"{prefix}.")]
    names = {name.removeprefix("parameters.") for name in own}
    cell = _cell(cell_type.variant(names), tensors, prefix, x, where)
    _check_tables(tensors, prefix, cell, where)
    states = [
        _coded(tensors, f"{prefix}.{name}0", (x.shape[1], cell.width(name)), cell.format(name), where)
        for name in cell.states
    ]
    _within(f"{prefix.partition('.')[0]}.x", x, cell.format("x"), where)
    given: Tensors = {}
    for name in cell.tensors:
        shape = (*x.shape[:2], cell.width(name))
        given[name] = _coded(tensors, f"{prefix}.{name}", shape, cell.format(name), where)
    checked = 0
    for t, name, unclamped, codes in replay(cell, x, states, given, reverse=prefix.endswith(".1")):
        form = cell.format(name)
        _compare(f"{prefix}.{name}", np.clip(unclamped, form.lowest, form.highest), codes, where, step=t)
        checked += codes.size
    return given, checked


def _read(cell_type: type[CellBase], path: str | os.PathLike[str], where: str) -> Tensors:
    from safetensors import SafetensorError, safe_open

    _files.check_input(Path(path))
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise _core.QcoreValueError(f"{where} is not a safetensors file: {error}") from error
    expected = file_format(cell_type)
    if metadata.get("format") != expected:
        raise _core.QcoreValueError(f"{where} has format {metadata.get('format')!r}, expected {expected!r}")
    return tensors


def _tensor(tensors: Tensors, name: str, rank: int, where: str) -> NDArray[Any]:
    array = tensors.get(name)
    if array is None:
        raise _core.QcoreValueError(f"{where} has no tensor {name}")
    if array.dtype != np.int32:
        raise _core.QcoreTypeError(f"{where}: {name} has dtype {array.dtype}, expected int32")
    if array.ndim != rank:
        raise _core.QcoreValueError(f"{where}: {name} has shape {list(array.shape)}, expected {rank} axes")
    return array


def _shaped(tensors: Tensors, name: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    array = _tensor(tensors, name, len(shape), where)
    if array.shape != shape:
        raise _core.QcoreValueError(f"{where}: {name} has shape {list(array.shape)}, expected {list(shape)}")
    return array


def _within(name: str, array: NDArray[Any], form: Format, where: str) -> None:
    outside = np.argwhere((array < form.lowest) | (array > form.highest))
    if len(outside):
        index = tuple(int(i) for i in outside[0])
        raise _core.QcoreValueError(
            f"{where}: {name} has the code {array[index]} at {list(index)}, expected {form.lowest} to {form.highest}"
        )


def _coded(tensors: Tensors, name: str, shape: tuple[int, ...], form: Format, where: str) -> NDArray[Any]:
    array = _shaped(tensors, name, shape, where)
    _within(name, array, form, where)
    return array


def _cell(cell_type: type[CellBase], tensors: Tensors, prefix: str, x: NDArray[Any], where: str) -> CellBase:
    """Return the parameters of one direction of a layer, checked."""
    flags = len(cell_type.options)
    options = _shaped(tensors, f"{prefix}.options", (flags + 4,), where)
    if not np.isin(options[[*range(flags + 1), -1]], (0, 1)).all():
        raise _core.QcoreValueError(f"{where}: {prefix}.options is {options.tolist()}, expected 0 or 1 but for widths")
    parts: dict[str, Any] = {"formats": _formats(cell_type, tensors, prefix, where)}
    for name, shape in _shapes(cell_type, tensors, prefix, x.shape[2], where).items():
        parts[name] = _shaped(tensors, f"{prefix}.parameters.{name}", shape, where)
    weight_bits, bias_bits = (int(bits) for bits in options[flags + 1 : flags + 3])
    widths = dict.fromkeys(cell_type.matrices, weight_bits) | dict.fromkeys(cell_type.biases, bias_bits)
    for name, bits in (widths | dict.fromkeys(cell_type.others, 16)).items():
        if not 2 <= bits <= 32:
            raise _core.QcoreValueError(f"{where}: {prefix}.options is {options.tolist()}, expected widths of 2 to 32")
        _within(f"{prefix}.parameters.{name}", parts[name], Format(bits, True, 0), where)
        if parts[f"{name}_exponents"].size and abs(parts[f"{name}_exponents"]).max() > _MOST_EXPONENT:
            raise _core.QcoreValueError(f"{where}: {prefix}.parameters.{name}_exponents go beyond 126")
    tables = []
    rows_of_formats = dict(zip(cell_type.formats, parts["formats"].tolist(), strict=True))
    for name, (argument, _) in cell_type.functions.items():
        bits, signed, exponent, zero = rows_of_formats[name]
        form, entries = Format(bits, bool(signed), exponent, zero), 1 << int(rows_of_formats[argument][0])
        tables.append(_coded(tensors, f"{prefix}.table_{name}", (entries,), form, where))
    named = dict(zip(cell_type.options, (bool(value) for value in options), strict=False))
    return cell_type(parts, tuple(tables), **named)


def _shapes(
    cell_type: type[CellBase], tensors: Tensors, prefix: str, inputs: int, where: str
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters, as those of r say."""
    rows, outputs = _tensor(tensors, f"{prefix}.parameters.r", 2, where).shape
    projected = "projection" in cell_type.matrices
    if outputs == 0 or rows == 0 or rows % cell_type.gates or not (projected or rows == cell_type.gates * outputs):
        raise _core.QcoreValueError(
            f"{where}: {prefix}.parameters.r has shape {[rows, outputs]}, expected [{cell_type.gates}H, "
            f"{'P' if projected else 'H'}]"
        )
    shapes = cell_type.shapes(inputs, rows, outputs)
    return shapes | {f"{name}_exponents": shape[:1] for name, shape in shapes.items()}


def _formats(cell_type: type[CellBase], tensors: Tensors, prefix: str, where: str) -> NDArray[Any]:
    formats = _shaped(tensors, f"{prefix}.formats", (len(cell_type.formats), 4), where)
    for name, (bits, signed, exponent, zero) in zip(cell_type.formats, formats.tolist(), strict=True):
        least = -(1 << (bits - 1)) if signed and 2 <= bits <= 16 else 0
        if not (
            2 <= bits <= 16
            and signed == int(name not in cell_type.unsigned)
            and abs(exponent) <= _MOST_EXPONENT
            and least <= zero < least + (1 << bits)
            and (zero == 0 or name in cell_type.zero_free)
            and cell_type.allows(name, exponent)
        ):
            raise _core.QcoreValueError(
                f"{where}: {prefix}.formats of {name} is {[bits, signed, exponent, zero]}, expected 2 to 16 bits, "
                "signed or not as its tensor is, an exponent within 126 and a zero point that is a code"
            )
    return formats


def _check_tables(tensors: Tensors, prefix: str, cell: CellBase, where: str) -> None:
    """Check that exact tables are rounded correctly; interpolated ones are within 2 codes and don't fall."""
    for (name, (source, function)), table in zip(cell.functions.items(), cell.tables, strict=True):
        argument, result = cell.format(source), cell.format(name)
        interpolated = bool(tensors[f"{prefix}.options"][len(cell.options)]) and argument.bits > 8
        codes = np.arange(argument.lowest, argument.highest + 1, dtype=np.longdouble)
        x = np.ldexp(codes - argument.zero_point, -argument.exponent)
        with np.errstate(over="ignore"):
            values = np.tanh(x) if function == "tanh" else 1 / (1 + np.exp(-x))
            exact = np.rint(np.ldexp(values, result.exponent)) + result.zero_point
        exact = np.clip(exact, result.lowest, result.highest).astype(np.int64)
        wrong = np.flatnonzero(np.abs(table - exact) > (2 if interpolated else 0))
        if not len(wrong) and interpolated:
            wrong = np.flatnonzero(np.diff(table) < 0)
        if len(wrong):
            code = int(wrong[0])
            raise _core.QcoreValueError(
                f"{where}: {prefix}.table_{name} differs first at entry {code}: the file has {table[code]}, "
                f"the function gives {exact[code]}"
            )


def _compare(name: str, expected: Any, got: NDArray[Any], where: str, step: int | None = None) -> None:
    """Raise an error if arrays differ: [T, B, N], or [B, N] of one step."""
    if expected.shape != got.shape:
        raise _core.QcoreValueError(f"{where}: {name} has shape {list(got.shape)}, expected {list(expected.shape)}")
    wrong = np.argwhere(expected != got)
    if not len(wrong):
        return
    index = tuple(int(i) for i in wrong[0])
    place = index if step is None else (step, *index)
    # The last states have a layer and direction where others have a step.
    first = "layer and direction" if name.startswith("last") else "step"
    raise _core.QcoreValueError(
        f"{where}: {name} differs first at {first} {place[0]}, row {place[1]}, channel {place[2]}: the file has "
        f"{got[index]}, the definition gives {expected[index]}"
    )
