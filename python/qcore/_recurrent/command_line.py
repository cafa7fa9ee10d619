"""Reads options and inputs, and prints formats and progress, for `qcore gru` and `qcore lstm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from qcore import _core
from qcore._display.terminal import make_console, write_json
from qcore._files import write_whole
from qcore._recurrent.arrays import check_folder, read_arrays

Tables = Annotated[
    str, typer.Option(help="interp: 513 knots where exact has up to 65,536 entries; other integers than exact.")
]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the results here.")]


def config_of(kind: Any, path: Path | None, given: dict[str, Any]) -> Any:
    """Return the config of a file, or the default one, with what the command line says instead."""
    try:
        found = kind() if path is None else kind.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise _core.QcoreValueError(f"{kind.op} config: {path} is not text: {error}") from error
    return dataclasses.replace(found, **{key: value for key, value in given.items() if value is not None})


def inputs_of(op: str, path: Path, states: tuple[str, ...]) -> tuple[Any, ...]:
    """Return x, the states and lengths of a file, None if missing; a single array is x, whatever its name."""
    arrays = read_arrays(path, op)
    others = (*states, "lengths")
    if len(arrays) == 1:
        return (next(iter(arrays.values())), *(None for _ in others))
    unknown = sorted(set(arrays) - {"x", *others})
    if unknown or "x" not in arrays:
        names = ", ".join(sorted(arrays)) or "nothing"
        expected = f"{', '.join(others[:-1])} and {others[-1]}"
        raise _core.QcoreValueError(f"{op}: {path} has {names}, expected x and, if wanted, {expected}")
    return (arrays["x"], *(arrays.get(name) for name in others))


def whole_sequences(op: str, path: Path, states: tuple[str, ...]) -> tuple[Any, ...]:
    """Return x and the states of a file, which must not have lengths."""
    *found, lengths = inputs_of(op, path, states)
    if lengths is not None:
        raise typer.BadParameter(
            f"'{path}' has lengths, expected whole sequences: leave the padding out", param_hint="FILE"
        )
    return tuple(found)


def check_folders(op: str, *paths: Path | None) -> None:
    """Raise an error before anything is computed if the folder of a file to write is missing."""
    for path in paths:
        if path is not None:
            check_folder(path, op)


def calibrate_on(calibrator: Any, samples: list[Path], states: tuple[str, ...]) -> None:
    """Let a calibrator observe the batches of files, and show progress."""
    with progress_bar(f"calibrating on {len(samples)} batch{'es' * (len(samples) > 1)}") as update:
        for number, path in enumerate(samples):

            def observed(part: float, number: int = number) -> None:
                update((number + part) / len(samples))

            calibrator.observe(*whole_sequences(calibrator.op, path, states), progress=observed)


def show_report(model: Any, found: Any, json: Path | None, plot: Path | None) -> None:
    """Write a report as a picture and as JSON where wanted, and print it."""
    if plot is not None:
        found.plot(plot)
    if json is not None:
        write_whole(json, found.to_json().encode())
    out = make_console()
    out.print(repr(model), soft_wrap=True)
    out.print(found.table())


def show_golden(output: Path, check: Any, json: Path | None) -> None:
    """Print the check of a golden file, and write it as JSON where wanted."""
    if json is not None:
        write_json(json, {"output": str(output)} | dataclasses.asdict(check))
    make_console().print(f"{output}: {check}", soft_wrap=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """Yield a bar on stderr, if that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    stderr = make_console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda part: progress.update(task, completed=part)


def formats_of(made: Any, tensors: tuple[str, ...]) -> dict[str, Any]:
    """Return the config and the formats of all tensors, layers and directions of a quantized layer, for a JSON file."""
    import numpy as np

    rows: list[dict[str, Any]] = []
    for layer in range(made.num_layers):
        for direction in range(made.directions):
            for tensor in tensors:
                form = made.format(tensor, layer, direction)
                lowest, highest = form.decode(np.array([form.lowest, form.highest]))
                place = {"tensor": tensor, "layer": layer, "direction": direction}
                rows.append(place | dataclasses.asdict(form) | {"lowest": float(lowest), "highest": float(highest)})
    return {"repr": repr(made), "config": dataclasses.asdict(made.config), "tensors": rows}


def described(output: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return a file's name with the shapes and dtypes of its arrays, for a JSON file."""
    found = {name: {"shape": list(each.shape), "dtype": str(each.dtype)} for name, each in arrays.items()}
    return {"output": str(output), "arrays": found}


def print_formats(made: Any, tensors: tuple[str, ...]) -> None:
    """Print the formats of all tensors, layers and directions of a quantized layer."""
    import numpy as np
    from rich import box
    from rich.table import Table

    out = make_console()
    out.print(repr(made), soft_wrap=True)
    places = [(layer, side) for layer in range(made.num_layers) for side in range(made.directions)]
    grid = Table(title="from lowest to highest, step", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("tensor", no_wrap=True)
    grid.add_column("bits", justify="right", no_wrap=True)
    for layer, side in places:
        grid.add_column(f"layer {layer}" + (", backward" if side else ""), justify="right", overflow="fold")
    for tensor in tensors:
        cells = []
        for layer, side in places:
            form = made.format(tensor, layer, side)
            low, high = form.decode(np.array([form.lowest, form.highest]))
            cells.append(f"{low:.4g} to {high:.4g}, 2^{-form.exponent}")
        grid.add_row(tensor, str(made.format(tensor).bits), *cells)
    out.print(grid)


def export(model: Any, output: Path, name: str, x: Any, tables: Any, json: Path | None) -> None:
    """Write the C of a quantized layer and print what it needs of a microcontroller."""
    check_folders(model.op, output, json)
    sizes = model.export_c(output, name, x, tables=tables)
    selftest = output.with_name(f"{output.stem}_selftest.c")
    if json is not None:
        written = {"output": str(output), "selftest": str(selftest), "tables": tables}
        write_json(json, written | sizes.to_dict())
    out = make_console()
    out.print(f"{output} and {selftest}, tables {tables}", soft_wrap=True)
    for line in sizes.lines():
        out.print(line, soft_wrap=True)
