"""The command `python -m benchmarks overhead`: calls so small that only the way to the kernel counts."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import qcore
from qcore import _core

from . import libraries
from .results import Case, Document, Row
from .tables import Operator, make_console, no_summary, plain_table

if TYPE_CHECKING:
    from rich.table import Table


def _microseconds(call: Callable[[], object], calls: int, runs: int) -> float:
    """Return the smallest mean of many short runs: whatever disturbs a call only adds to it."""
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - started) / calls)
    return best * 1e6


def case_table(case: Case, most: int | None = None) -> Table:
    """Show the calls in their order."""
    table = plain_table(case.name)
    table.add_column("arrays")
    table.add_column("us", justify="right")
    for row in case.rows:
        table.add_row(row.name, f"{row.milliseconds * 1e3:.2f}")
    return table


OPERATOR = Operator("overhead", (), no_summary, case_table, "us: the smallest mean of many short runs.", None)


def overhead(
    calls: Annotated[int, typer.Option(min=1, help="Of each run.")] = 5000,
    runs: Annotated[int, typer.Option(min=1, help="Of which the fastest counts.")] = 15,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results.")] = None,
) -> None:
    """Measure the time of a call of qcore.linear on a tiny layer, with arrays of NumPy, torch and jax.

    \b
    Examples:
      python -m benchmarks overhead
    """
    rng = np.random.default_rng(0)
    weight = qcore.quantize(
        rng.standard_normal((8, 32), dtype=np.float32), bits=8, block_size=32, method="rtn", scale_dtype="float32"
    )
    x = rng.standard_normal((1, 32), dtype=np.float32)
    out = np.empty((1, 8), np.float32)
    handle = weight._handle
    options = (_core.ComputeMode.int8, 0.0, _core.ActivationKind.none, 0.0, 0.0, 0)

    measured: dict[str, Callable[[], object]] = {
        "the compiled function alone, numpy": lambda: _core.linear(x, handle, None, out, *options),
        "numpy, out=": lambda: qcore.linear(x, weight, out=out),
        "numpy": lambda: qcore.linear(x, weight),
    }
    if importlib.util.find_spec("torch"):
        import torch

        x_torch, out_torch = torch.from_numpy(x.copy()), torch.empty(1, 8)
        measured |= {
            "torch, out=": lambda: qcore.linear(x_torch, weight, out=out_torch),
            "torch": lambda: qcore.linear(x_torch, weight),
            "torch.empty alone": lambda: torch.empty((1, 8), dtype=x_torch.dtype, device=x_torch.device),
        }
    if importlib.util.find_spec("jax"):
        import jax.numpy as jnp

        x_jax = jnp.asarray(x)
        measured["jax"] = lambda: qcore.linear(x_jax, weight)
    rows = [Row(name, "qcore", _microseconds(call, calls, runs) * 1e-3) for name, call in measured.items()]
    case = Case("a call of linear, 1x32 by 8x32", "overhead", {"M": 1, "N": 8, "K": 32}, 2 * 8 * 32, {}, rows)
    make_console().print(case_table(case))
    if json is not None:
        about = libraries.describe(qcore.get_num_threads())
        Document("overhead", {"calls": calls, "runs": runs}, about, cases=[case]).save(json)
