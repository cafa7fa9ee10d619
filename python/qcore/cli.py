"""The `qcore` command line. `import qcore` does not load this module; each command loads what it needs when it runs.

A command, or a group of them, is a file beside the code that it drives, and is registered at the end of this one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import qcore

from . import _distribution as _distribution  # the command may find the other project's qcore/__init__.py
from .bench.command import bench
from .demo.command import demo
from .formats.checkpoint.command import compare, inspect, quantize
from .gru.command import gru
from .language_model.bench_command import model
from .language_model.command import evaluate, generate
from .lstm.command import lstm
from .lut.command import lut
from .runtime import package_dir

ERROR_STATUS = 2
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141  # 128 + SIGPIPE, as other programs end

# BadParameter < UsageError < ClickException, whether typer carries its own copy of click or uses the installed one.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="qcore",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _installed_directory(*parts: str) -> Path:
    directory = package_dir().joinpath(*parts)
    if not directory.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
    return directory


def _print_and_exit(text: object) -> None:
    typer.echo(text)
    raise typer.Exit


def _version(wanted: bool) -> None:
    if wanted:
        _print_and_exit(qcore.__version__)


def _cmake_dir(wanted: bool) -> None:
    if wanted:
        _print_and_exit(_installed_directory("lib", "cmake", "qcore"))


def _include_dir(wanted: bool) -> None:
    if wanted:
        _print_and_exit(_installed_directory("include"))


@app.callback(invoke_without_command=True)
def _qcore(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    cmake_dir: Annotated[
        bool, typer.Option("--cmake-dir", callback=_cmake_dir, is_eager=True, help="Print where qcoreConfig.cmake is.")
    ] = False,
    include_dir: Annotated[
        bool, typer.Option("--include-dir", callback=_include_dir, is_eager=True, help="Print where the headers are.")
    ] = False,
) -> None:
    """Low-precision neural-network operators on CPU and GPU.

    \b
    Examples:
      qcore demo
      qcore info
      cmake -S . -B build -Dqcore_DIR="$(qcore --cmake-dir)"
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def info(
    kernels: Annotated[bool, typer.Option("--kernels", help="List all kernels, and which of them run here.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all of it here.")] = None,
) -> None:
    """Show the version, this processor's instruction sets, threads and CUDA, and with --kernels all kernels.

    \b
    Examples:
      qcore info
      qcore info --kernels
      qcore info --json machine.json
    """
    from qcore._display.terminal import make_console, make_table, write_json

    facts, rows = qcore.info(), qcore.kernels()
    cuda = facts["cuda"]
    operators = list(dict.fromkeys(row.op for row in rows))
    lines = {
        "version": facts["version"],
        "library": facts["library"] or "not found",
        "instruction sets": " ".join(facts["isa"]) or "baseline",
        "threads": facts["threads"],
        "CUDA built in": "yes" if cuda["built"] else "no",
        "CUDA devices": f"{cuda['device_count']}" + (f" ({cuda['reason']})" if cuda["reason"] else ""),
    } | {f"  device {number}": device for number, device in enumerate(cuda["devices"])}
    lines["kernels"] = (
        f"{sum(row.available for row in rows)} of {len(rows)} run here, for {len(operators)} operators: qcore info "
        "--kernels lists them"
    )
    for name, value in lines.items():
        typer.echo(f"{name:<18}{value}")  # not through rich, which would cut or fold the path
    if kernels:
        table = make_table(("operator", "kernel", "device", "available", "needs", ">runs"))
        for row in rows:
            table.add_row(row.op, row.name, row.device, "yes" if row.available else "no", row.needs, str(row.runs))
        make_console().print(table)
    if json is not None:
        names = ("op", "name", "device", "available", "needs", "runs")
        write_json(json, facts | {"kernels": [{name: getattr(row, name) for name in names} for row in rows]})


app.command("demo")(demo)
app.command("info")(info)
app.command("inspect")(inspect)
app.command("compare")(compare)
app.command("quantize")(quantize)
app.command("generate")(generate)
app.command("evaluate")(evaluate)
bench.command("model")(model)
app.add_typer(bench)
app.add_typer(lut)
app.add_typer(gru)
app.add_typer(lstm)


def _message(error: Exception) -> str:
    """Return an error's text as one line."""
    if isinstance(error, _ClickException):
        text = error.format_message()  # type: ignore[attr-defined]
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        text = str(error)
    if "No such option: --group-size" in text:
        text = "No such option: --group-size, expected --block-size, which is its name here"
    return " ".join(text.split())


def run_app(application: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command of an application and return the exit status.

    Expected failures are one line on stderr, never a traceback.

    Args:
        application: the commands.
        name: of the program, with which errors begin.
        arguments: those of the command line by default.
    """
    command = typer.main.get_command(application)
    try:
        # Not command.main(), which keeps an interrupt and what it says to itself.
        with command.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
            status = command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        # The reader of stdout ended, as `head` does. What is still buffered goes nowhere when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_STATUS
    except (_ClickException, qcore.QcoreError, OSError) as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands alone, as `qcore lut`
            print(error.format_message())  # type: ignore[attr-defined]
            return 0
        print(f"{name}: error: {_message(error)}", file=sys.stderr)
        return ERROR_STATUS
    except (typer.Abort, KeyboardInterrupt) as error:
        print(f"{name}: interrupted{f': {error}' if error.args else ''}", file=sys.stderr)
        return INTERRUPTED_STATUS
    return status if isinstance(status, int) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `qcore` and return the exit status."""
    return run_app(app, "qcore", arguments)
