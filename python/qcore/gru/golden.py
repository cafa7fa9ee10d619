"""Golden files: inputs, parameters, every intermediate of every step and outputs; and their check in NumPy integers.

A file is safetensors, all tensors int32, so that a checker needs no more than the sizes in its header. Of each layer l
and direction d (0 or 1, which runs from the last step to the first):

- ``l.x`` [T, B, C], ``l.d.h0`` [B, H]: codes;
- ``l.d.options`` [6]: fused, half to even, interpolated tables (0 or 1 each), bits of weights, of biases, reverse;
- ``l.d.formats`` [14, 4]: bits, signed, exponent and zero point in the order of :data:`qcore.gru.TENSORS`;
- ``l.d.parameters.w`` [3H, C], ``.r`` [3H, H], ``.bx``, ``.br`` and the four ``_exponents`` [3H];
- ``l.d.table_z``, ``_r``, ``_g``: a code for each code of the argument, lowest first;
- ``l.d.wx``, ``l.d.rh`` [T, B, 3H] and, [T, B, H], ``z_pre``, ``r_pre``, ``rb``, ``rrh``, ``g_pre``, ``z``, ``r``,
  ``g``, ``old_part``, ``new_part``, ``h``; without rrh, old_part and new_part if fused;

and ``y`` [T, B, directions * H], ``last`` [layers * directions, B, H].
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core, _files
from qcore._recurrent.formats import Format
from qcore.gru.core import GruCore
from qcore.gru.formats import TENSORS, UNSIGNED, ZERO_FREE
from qcore.gru.integers import Cell, replay
from qcore.gru.trace import cell_of, trace

FORMAT = "qcore.gru.golden.1"
_PARAMETERS = ("w", "r", "bx", "br", "w_exponents", "r_exponents", "bx_exponents", "br_exponents")
_GATES = (("z", "z_pre"), ("r", "r_pre"), ("g", "g_pre"))
_MOST_EXPONENT = 126

Tensors = dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class GoldenCheck:
    """Numbers of tensors that were checked and are equal.

    Args:
        layers: of the GRU.
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


def write_golden(gru: GruCore, path: str | os.PathLike[str], x: Any, h0: Any = None) -> None:
    """Write a golden file as :meth:`QuantGRU.golden`."""
    from safetensors.numpy import save

    layers = trace(gru, x, h0)
    tensors: Tensors = {}
    config = gru.config
    for number, layer in enumerate(layers):
        tensors[f"{number}.x"] = layer[0].x
        for side, each in enumerate(layer):
            parts = gru._layers[number][side][1]
            cell = cell_of(gru, number, side)
            made: Tensors = {"h0": each.h0, "formats": parts["formats"]}
            made["options"] = np.array(
                [
                    cell.fused,
                    cell.half_even,
                    config.tables == "interp",
                    parts["weight_bits"],
                    parts["bias_bits"],
                    side == 1,
                ]
            )
            made |= {f"parameters.{name}": parts[name] for name in _PARAMETERS}
            made |= {f"table_{gate}": table for (gate, _), table in zip(_GATES, cell.tables, strict=True)}
            made |= each.tensors
            tensors |= {f"{number}.{side}.{name}": array for name, array in made.items()}
    tensors["y"], tensors["last"] = _results([[each.tensors["h"] for each in layer] for layer in layers])
    whole = {name: np.ascontiguousarray(array, np.int32) for name, array in tensors.items()}
    _files.write_whole(Path(path), save(whole, {"format": FORMAT, "config": config.to_json()}))


def _results(states: list[list[NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return y and last from h of all layers and directions."""
    last = [h[0] if side else h[-1] for layer in states for side, h in enumerate(layer)]
    return np.concatenate(states[-1], axis=2), np.stack(last)


def verify_golden(path: str | os.PathLike[str]) -> GoldenCheck:
    """Compute everything in a golden file again, in NumPy integers, without the library's kernels.

    Each tensor is computed from the file's tensors before it, so that one wrong number is one difference.

    Args:
        path: a file of :meth:`QuantGRU.golden`, or one in its layout: ``help(qcore.gru.golden)``.

    Raises:
        QcoreValueError, QcoreTypeError: naming the first tensor, step, row and channel that differ, or what the file
            lacks.
        OSError: it can't be read.
    """
    where = f"gru golden: {os.fspath(path)}"
    tensors = _read(path, where)
    directions = 2 if "0.1.h0" in tensors else 1
    layers = 0
    while f"{layers}.x" in tensors:
        layers += 1
    if not layers:
        raise _core.QcoreValueError(f"{where} has no tensor 0.x")
    checked = 0
    states: list[list[NDArray[Any]]] = []
    for number in range(layers):
        x = _tensor(tensors, f"{number}.x", 3, where)
        if 0 in x.shape:
            raise _core.QcoreValueError(f"{where}: {number}.x has shape {list(x.shape)}, expected no axis of 0")
        if states:
            _compare(f"{number}.x", np.concatenate(states[-1], axis=2), x, where)
        states.append([])
        for side in range(directions):
            prefix = f"{number}.{side}"
            cell = _cell(tensors, prefix, x, where)
            _check_tables(tensors, prefix, cell, where)
            size = cell.parts["r"].shape[1]
            h0 = _coded(tensors, f"{prefix}.h0", (x.shape[1], size), cell.format("h"), where)
            _within(f"{number}.x", x, cell.format("x"), where)
            given = {}
            for name in cell.tensors:
                width = 3 * size if name in ("wx", "rh") else size
                given[name] = _coded(tensors, f"{prefix}.{name}", (*x.shape[:2], width), cell.format(name), where)
            for t, name, unclamped, codes in replay(cell, x, h0, given, reverse=side == 1):
                form = cell.format(name)
                _compare(f"{prefix}.{name}", np.clip(unclamped, form.lowest, form.highest), codes, where, step=t)
                checked += codes.size
            states[-1].append(given["h"])
    y, last = _results(states)
    for name, expected in (("y", y), ("last", last)):
        _compare(name, expected, _tensor(tensors, name, 3, where), where)
        checked += expected.size
    return GoldenCheck(layers, directions, len(y), checked)


def _read(path: str | os.PathLike[str], where: str) -> Tensors:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise _core.QcoreValueError(f"{where} is not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise _core.QcoreValueError(f"{where} has format {metadata.get('format')!r}, expected {FORMAT!r}")
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


def _cell(tensors: Tensors, prefix: str, x: NDArray[Any], where: str) -> Cell:
    options = _shaped(tensors, f"{prefix}.options", (6,), where)
    if not np.isin(options[[0, 1, 2, 5]], (0, 1)).all():
        raise _core.QcoreValueError(f"{where}: {prefix}.options is {options.tolist()}, expected 0 or 1 but for widths")
    formats = _shaped(tensors, f"{prefix}.formats", (len(TENSORS), 4), where)
    for name, (bits, signed, exponent, zero) in zip(TENSORS, formats.tolist(), strict=True):
        least = -(1 << (bits - 1)) if signed and 2 <= bits <= 16 else 0
        if not (
            2 <= bits <= 16
            and signed == int(name not in UNSIGNED)
            and abs(exponent) <= _MOST_EXPONENT
            and least <= zero < least + (1 << bits)
            and (zero == 0 or name in ZERO_FREE)
            and (name != "z" or 0 <= exponent <= 30)
        ):
            raise _core.QcoreValueError(
                f"{where}: {prefix}.formats of {name} is {[bits, signed, exponent, zero]}, expected 2 to 16 bits, "
                "signed or not as its tensor is, an exponent within 126 and a zero point that is a code"
            )
    rows = _tensor(tensors, f"{prefix}.parameters.r", 2, where).shape
    if rows[0] != 3 * rows[1] or rows[1] == 0:
        raise _core.QcoreValueError(f"{where}: {prefix}.parameters.r has shape {list(rows)}, expected [3H, H]")
    shapes = {"w": (rows[0], x.shape[2]), "r": rows}
    parts: dict[str, Any] = {"formats": formats}
    for name in _PARAMETERS:
        parts[name] = _shaped(tensors, f"{prefix}.parameters.{name}", shapes.get(name, (rows[0],)), where)
    for name, bits in (("w", options[3]), ("r", options[3]), ("bx", options[4]), ("br", options[4])):
        if not 2 <= bits <= 32:
            raise _core.QcoreValueError(f"{where}: {prefix}.options is {options.tolist()}, expected widths of 2 to 32")
        _within(f"{prefix}.parameters.{name}", parts[name], Format(int(bits), True, 0), where)
        if parts[f"{name}_exponents"].size and abs(parts[f"{name}_exponents"]).max() > _MOST_EXPONENT:
            raise _core.QcoreValueError(f"{where}: {prefix}.parameters.{name}_exponents go beyond 126")
    tables = []
    for gate, pre in _GATES:
        size = 1 << int(formats[TENSORS.index(pre)][0])
        bits, signed, exponent, zero = formats[TENSORS.index(gate)].tolist()
        form = Format(bits, bool(signed), exponent, zero)
        tables.append(_coded(tensors, f"{prefix}.table_{gate}", (size,), form, where))
    return Cell(parts, tuple(tables), bool(options[0]), bool(options[1]))


def _check_tables(tensors: Tensors, prefix: str, cell: Cell, where: str) -> None:
    """Check that exact tables are rounded correctly; interpolated ones are within 2 codes and don't fall."""
    for (gate, pre), table in zip(_GATES, cell.tables, strict=True):
        argument, result = cell.format(pre), cell.format(gate)
        interpolated = bool(tensors[f"{prefix}.options"][2]) and argument.bits > 8
        codes = np.arange(argument.lowest, argument.highest + 1, dtype=np.longdouble)
        x = np.ldexp(codes - argument.zero_point, -argument.exponent)
        with np.errstate(over="ignore"):
            function = np.tanh(x) if gate == "g" else 1 / (1 + np.exp(-x))
            exact = np.rint(np.ldexp(function, result.exponent)) + result.zero_point
        exact = np.clip(exact, result.lowest, result.highest).astype(np.int64)
        wrong = np.flatnonzero(np.abs(table - exact) > (2 if interpolated else 0))
        if not len(wrong) and interpolated:
            wrong = np.flatnonzero(np.diff(table) < 0)
        if len(wrong):
            code = int(wrong[0])
            raise _core.QcoreValueError(
                f"{where}: {prefix}.table_{gate} differs first at entry {code}: the file has {table[code]}, "
                f"the function gives {exact[code]}"
            )


def _compare(name: str, expected: Any, got: NDArray[Any], where: str, step: int | None = None) -> None:
    """Return arrays [T, B, N], or [B, N] of one step."""
    if expected.shape != got.shape:
        raise _core.QcoreValueError(f"{where}: {name} has shape {list(got.shape)}, expected {list(expected.shape)}")
    wrong = np.argwhere(expected != got)
    if not len(wrong):
        return
    index = tuple(int(i) for i in wrong[0])
    place = index if step is None else (step, *index)
    # `last` has a layer and direction where others have a step.
    first = "layer and direction" if name == "last" else "step"
    raise _core.QcoreValueError(
        f"{where}: {name} differs first at {first} {place[0]}, row {place[1]}, channel {place[2]}: the file has "
        f"{got[index]}, the definition gives {expected[index]}"
    )
