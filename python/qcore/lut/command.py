"""`qcore lut` on the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from qcore import _checks
from qcore import lut as tables
from qcore._display.terminal import make_console, make_table, write_json
from qcore._files import write_whole
from qcore._options import Metric, TableDtype
from qcore.lut import Table, names
from qcore.lut import fit as run
from qcore.lut.accuracy import accuracy, function_of
from qcore.lut.callables import from_text
from qcore.lut.export import export_c, export_hex
from qcore.lut.functions import FUNCTIONS
from qcore.lut.grid import FLOOR
from qcore.lut.plot import check, plot_table

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console
    from rich.table import Table as Grid


lut = typer.Typer(
    name="lut",
    help="""Look-up tables of functions: list, fit, evaluate, plot and export them.

    \b
    Examples:
      qcore lut list
      qcore lut eval silu -2.5
      qcore lut fit gelu --metric max_relative -o gelu.safetensors --plot gelu.png
      qcore lut export tanh -o lut_tanh.h
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)

_Source = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="A name of 'qcore lut list', or a file that 'qcore lut fit' wrote.")
]
_Reduction = Annotated[
    bool | None,
    typer.Option("--range-reduction/--no-range-reduction", help="Of exp, log, sin, ...: on by default."),
]


_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the results here.")]
_WIDE = 130  # columns of a terminal that has room for formulas


def list_(json: _Json = None) -> None:
    """List the functions, and how far their tables are from them on all fp16 numbers.

    Errors are relative, |table(x) - f(x)| / max(|f(x)|, 2^-14), of float32 results: mean / max over the domain.

    \b
    Examples:
      qcore lut list
    """
    grid = _grid("name", "domain")
    for heading in ("plain", "range-reduced"):
        grid.add_column(heading, justify="right", no_wrap=True)
    wide = make_console().width >= _WIDE
    if wide:
        grid.add_column("function", no_wrap=True)
    rows: list[dict[str, Any]] = []
    for name in tables.names():
        function = FUNCTIONS[name]
        plain = tables.table(name, range_reduction=False)
        errors = {"plain": accuracy(plain, function).of_table(plain)}
        if function.reduction is not None:
            reduced = tables.table(name, range_reduction=True)
            errors["range-reduced"] = accuracy(reduced, function).of_table(reduced)
        cells = [_mean_and_max(errors[kind]) if kind in errors else "-" for kind in ("plain", "range-reduced")]
        found = {kind: {"mean": float(each.mean), "max": float(each.max)} for kind, each in errors.items()}
        rows.append({"name": name, "domain": list(function.domain), "errors": found})
        low, high = function.domain
        domain = "all fp16" if (low, high) == (-65504, 65504) else f"{low:.4g} to {high:.4g}"
        grid.add_row(name, domain, *cells, *([_formula(getattr(tables, name))] if wide else []))
    make_console().print(grid)
    if json is not None:
        write_json(json, {"functions": rows})


def fit(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|EXPRESSION|MODULE:FUNCTION",
            help="A name of 'qcore lut list', an expression of x, or a function of Python.",
        ),
    ],
    metric: Annotated[
        str, typer.Option(help="mean_relative, max_relative, mean_absolute or max_absolute.")
    ] = "mean_relative",
    cuts: Annotated[int, typer.Option(help="Cut points: one more than intervals.")] = 11,
    segments: Annotated[int, typer.Option(help="Of each interval but the first and the last.")] = 32,
    table_dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    domain: Annotated[
        tuple[float, float] | None, typer.Option(metavar="LO HI", help="Where errors count; the function's by default.")
    ] = None,
    range_reduction: _Reduction = None,
    histogram: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Real activations: an x counts as often as it occurs.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.safetensors", help="Write the table here.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    json: _Json = None,
) -> None:
    """Fit a table to a function: seconds, and the same numbers on every machine.

    An expression has x, numbers, + - * / **, pi, e and NumPy's functions (exp, tanh, where, ...); a module may lie in
    the current folder, and its function takes float64 arrays or numbers.

    \b
    Examples:
      qcore lut fit silu --plot silu.png
      qcore lut fit 'x * tanh(log1p(exp(x)))' --domain -8 8 -o mish.safetensors
      qcore lut fit activations:my_gate --domain -8 8 -o gate.safetensors
      qcore lut fit gelu --metric max_relative --cuts 17 --segments 16 -o gelu.safetensors
      qcore lut fit tanh --domain -4 4 --table-dtype float32 -o tanh.safetensors
      qcore lut fit silu --histogram activations.npy -o silu.safetensors
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    _checks.suffix(output, (".safetensors",), "lut fit: --output")
    function = name if name in names() else from_text(name)
    if plot is not None:
        check(plot)
    for path in (output, plot, json):
        _folder_of(path)
    samples = None if histogram is None else _array(histogram)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"fitting {name}", total=1.0)
        table = run(
            function, domain=domain, cuts=cuts, segments=segments, table_dtype=cast(TableDtype, table_dtype),
            metric=cast(Metric, metric), samples=samples,
            range_reduction=range_reduction, progress=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
    if output is not None:
        table.save(output)
    if plot is not None:
        plot_table(table, plot, domain=domain)
    if json is not None:
        write_json(json, {"name": table.name, "repr": repr(table)} | asdict(table.report))
    _print_report(make_console(), table)


def eval_(
    source: _Source,
    x: Annotated[list[str] | None, typer.Argument(metavar="[X]...", help="Numbers.")] = None,
    range_reduction: _Reduction = None,
    input_: Annotated[
        Path | None, typer.Option("--input", metavar="FILE.npy", help="float32 or float16, any shape.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.npy", help="Where its results go, in the same dtype.")
    ] = None,
    json: _Json = None,
) -> None:
    """Evaluate a table in float32, beside the function itself; or a whole file.

    JSON has no NaN or infinity: --json writes "nan", "inf" and "-inf", and null where no exact value or error is known.

    \b
    Examples:
      qcore lut eval silu -2.5 0.1 3
      qcore lut eval silu -2.5 0.1 3 --json silu.json
      qcore lut eval exp 1 --no-range-reduction
      qcore lut eval gelu.safetensors 0.5
      qcore lut eval silu --input x.npy --output y.npy
    """
    import numpy as np

    table = _table(source, range_reduction)
    if (input_ is None) != (output is None):
        given, missing = ("--input", "--output") if output is None else ("--output", "--input")
        raise typer.BadParameter(f"is given without {missing}, expected both or none", param_hint=given)
    _checks.suffix(output, (".npy",), "lut eval: --output")
    if input_ is not None and output is not None:
        if x:
            raise typer.BadParameter(f"{x[0]!r} is given beside --input, expected one of them", param_hint="X")
        if json is not None:
            raise typer.BadParameter("is given beside --input, expected it for numbers only", param_hint="--json")
        _save_array(output, table(_array(input_)))
    elif x:
        _folder_of(json)
        rows = _evaluated(table, np.array([_number(text) for text in x]).astype(np.float32))
        if json is not None:
            write_json(json, {"name": table.name, "repr": repr(table), "values": [_of_json(row) for row in rows]})
        _print_values(table, rows)
    else:
        raise typer.BadParameter("is missing, expected numbers, or --input and --output", param_hint="X")


def plot(
    source: _Source,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help=".png, .svg or .pdf.")],
    range_reduction: _Reduction = None,
    function: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to compare with; by default the table's name.")
    ] = None,
    json: _Json = None,
) -> None:
    """Draw a table, its function, the cut points and the relative error; needs matplotlib.

    \b
    Examples:
      qcore lut plot silu -o silu.png
      qcore lut plot exp --no-range-reduction -o exp.svg
      qcore lut plot gelu.safetensors -o gelu.png
    """
    _folder_of(json)
    table = _table(source, range_reduction)
    plot_table(table, output, function)
    _write_output(json, output, table)


def export(
    source: _Source,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.h|FILE.hex", help="A C99 header, or memory for $readmemh.")
    ],
    name: Annotated[str | None, typer.Option(help="Of the C function; 'lut_' and the table's by default.")] = None,
    range_reduction: _Reduction = None,
    json: _Json = None,
) -> None:
    """Write a table as a C99 header with its function, or as a hex file for Verilog's $readmemh.

    \b
    Examples:
      qcore lut export silu -o lut_silu.h
      qcore lut export gelu.safetensors -o activation.h --name activation
      qcore lut export tanh -o tanh.hex
    """
    if output.suffix not in (".h", ".hex"):
        raise typer.BadParameter(f"'{output}' is not a name that ends in .h or .hex", param_hint="--output")
    if name is not None and output.suffix == ".hex":
        raise typer.BadParameter(f"{name!r} is given for a hex file, expected it for a C header", param_hint="--name")
    _folder_of(json)
    table = _table(source, range_reduction)
    if output.suffix == ".h":
        export_c(table, output, name)
    else:
        export_hex(table, output)
    _write_output(json, output, table)


def _write_output(json: Path | None, output: Path, table: Table) -> None:
    """Write which table went where, for commands that print nothing."""
    if json is not None:
        write_json(json, {"output": str(output), "name": table.name, "repr": repr(table)})


lut.command("list")(list_)
lut.command("fit")(fit)
# A negative number is not an option.
lut.command("eval", context_settings={"ignore_unknown_options": True})(eval_)
lut.command("plot")(plot)
lut.command("export")(export)


def _table(source: str, range_reduction: bool | None) -> Table:
    """Return a table by its name, or from a file."""
    if source in tables.names():
        return tables.table(source, range_reduction=range_reduction)
    path = Path(source)
    if not path.exists():
        raise typer.BadParameter(
            f"{source!r} is neither a file nor one of {', '.join(tables.names())}", param_hint="NAME|FILE"
        )
    if range_reduction is not None:
        raise typer.BadParameter(
            f"is given for the file {source!r}, expected it for a name only", param_hint="--range-reduction"
        )
    return tables.Table.load(path)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="X") from None


def _folder_of(path: Path | None) -> None:
    """Raise an error before anything is computed if this file can't be written."""
    import errno
    import os

    if path is not None and not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _array(path: Path) -> np.ndarray[Any, Any]:
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise typer.BadParameter(f"'{path}' is not a .npy file of numbers: {error}") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise typer.BadParameter(f"'{path}' holds several arrays, expected a .npy file with one")
    return found


def _save_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    import io

    import numpy as np

    content = io.BytesIO()
    np.save(content, array)
    write_whole(path, content.getvalue())


def _grid(*headings: str) -> Grid:
    return make_table(headings)


def _formula(function: Any) -> str:
    """Return what its docstring begins with, between double backquotes."""
    return str(function.__doc__).split("``")[1]


def _mean_and_max(errors: Any) -> str:
    return f"{errors.mean:.2e} / {errors.max:.2e}"


def _evaluated(table: Table, x: np.ndarray[Any, Any]) -> list[dict[str, float]]:
    """Return a table's results beside the exact ones, NaN where the table has no known function."""
    import numpy as np

    function, y = function_of(table), table(x).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.full(len(x), np.nan) if function is None else function.evaluate(x.astype(np.float64))
        errors = np.abs(y - exact) / np.maximum(np.abs(exact), FLOOR)
    names = ("x", "exact", "table", "relative_error")
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(x, exact, y, errors, strict=True)]


def _of_json(row: dict[str, float]) -> dict[str, Any]:
    """Return a row of numbers as JSON can hold it."""
    import math

    given: dict[str, Any] = {name: each if math.isfinite(each) else str(each) for name, each in row.items()}
    if math.isnan(row["exact"]):
        given["exact"] = None
    if not math.isfinite(row["relative_error"]):
        given["relative_error"] = None
    return given


def _print_values(table: Table, rows: list[dict[str, float]]) -> None:
    import math

    grid = _grid()
    for heading in ("x", "exact", "table", "relative error"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        known = "-" if math.isnan(row["exact"]) else f"{row['exact']:.9g}"
        error = row["relative_error"]
        cells = (f"{row['x']:.9g}", known, f"{row['table']:.9g}", f"{error:.2e}" if math.isfinite(error) else "-")
        grid.add_row(*cells)
    console = make_console()
    console.print(repr(table), style="dim", soft_wrap=True)
    console.print(grid)


def _print_report(console: Console, table: Table) -> None:
    report = table.report
    console.print(repr(table), soft_wrap=True)
    grid = _grid("error", "mean", "max")
    for kind in ("relative", "absolute"):
        grid.add_row(kind, *(f"{getattr(report, f'{which}_{kind}'):.3e}" for which in ("mean", "max")))
    console.print(grid)
    proven = "yes" if report.global_over_candidates else "no"
    console.print(
        f"{report.metric} {report.error:.3e} after {report.seconds:.1f} s; {report.points:,} fp16 numbers, "
        f"{report.candidates:,} candidates; proven smallest over them: {proven}",
        style="dim",
    )
