"""The options that the commands of the harness share."""

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .selection import Selection

Chosen = TypeVar("Chosen", bound=Selection)


@dataclass(frozen=True)
class Run:
    """Values of the shared options."""

    operator: str
    cases: str = ""
    ours: str = ""
    peers: str = ""
    no_peers: bool = False
    threads: int = 2
    isa: str | None = None
    samples: int = 15
    seconds: float = 1800
    wait: float = 300
    quick: bool = False
    json: Path | None = None
    plot: Path | None = None

    def choose(self, full: Chosen, quick: Chosen, **given: Any) -> Chosen:
        """Return `full` or `quick` with the given options in place of its own."""
        return replace(
            quick if self.quick else full,
            cases=pattern(self.cases, "--cases"),
            ours=pattern(self.ours, "--ours"),
            peers=None if self.no_peers else pattern(self.peers, "--peers"),
            **{name: value for name, value in given.items() if value is not None and value != []},
        )


BENCHMARKS: dict[str, Callable[[Run], None]] = {}
"""The body of each command by its name; its other arguments have defaults."""


def benchmark(
    cases: str, ours: str, peers: str, quick: str, seconds: float = 1800, wait: float = 300
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of ``function(run, ...)``: the shared options follow its own.

    `cases`, `ours` and `peers` are examples of names, `quick` is what that option leaves; `seconds` and `wait` are
    defaults.
    """
    seconds_by_default, wait_by_default = seconds, wait

    def shared(
        cases: Annotated[str, typer.Option(metavar="REGEX", help=f"Only cases such as '{cases}'.")] = "",
        ours: Annotated[str, typer.Option(metavar="REGEX", help=f"Only these of qcore's, as '{ours}'.")] = "",
        peers: Annotated[str, typer.Option(metavar="REGEX", help=f"Only these peers, as '{peers}'.")] = "",
        no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
        threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
        isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni, avx512vnni or amx.")] = None,
        samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
        seconds: Annotated[
            float, typer.Option(min=1, help="For the whole run; what is left over is reported.")
        ] = seconds_by_default,
        wait: Annotated[
            float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")
        ] = wait_by_default,
        quick: Annotated[bool, typer.Option("--quick", help=f"{quick}, few samples.")] = False,
        json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results, after each case.")] = None,
        plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw them: .png, .svg or .pdf.")] = None,
    ) -> None: ...

    return lambda function: _command(function, shared)


def _command(function: Callable[..., None], shared: Callable[..., None]) -> Callable[..., None]:
    name = function.__name__
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = list(inspect.signature(shared).parameters.values())

    def command(**arguments: Any) -> None:
        run = Run(name, **{parameter.name: arguments.pop(parameter.name) for parameter in common})
        function(run, **arguments)

    command.__name__, command.__doc__ = name, function.__doc__
    command.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
    BENCHMARKS[name] = function
    return command


def pattern(text: str, option: str) -> re.Pattern[str]:
    """Return the compiled expression, or raise an error that names the option."""
    try:
        return re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint=option) from None


def check_known(values: Collection[Any] | None, known: Collection[Any], option: str) -> None:
    """Raise an error that names the option unless each value is a known one."""
    for value in values or []:
        if value not in known:
            names = ", ".join(str(name) for name in known)
            raise typer.BadParameter(f"'{value}' is not one of {names}", param_hint=option)
