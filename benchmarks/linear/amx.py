"""The command `python -m benchmarks amx`: many rows on AMX beside AVX-512 and torch.

Other work on a machine changes what it delivers from minute to minute, so only calls that take turns are compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import qcore

from .. import libraries
from ..implementation import Array, Unavailable
from ..options import pattern
from ..results import Case, Document, Row
from .command import parse_shape

_CALLS = 3
_LEAST_ROUNDS = 3
_CHECKED = 48
"""Rows and channels of a result that are compared with the reference or with sums in float64."""

_FORMS = ((8, 64), (4, 64), (8, 128), (8, None))
_FLOAT_FORMS = ((8, 64), (4, 64), (8, None))
_INT8_KERNELS = ("int8_amx", "int8_avx512vnni")
_INT16_KERNELS = ("int16_amx", "int16_avx512vnni")
_FLOAT_KERNELS = ("float_amx", "float_avx512bf16")


@dataclass
class _Contender:
    row: Row
    call: Callable[[], object]


class Layer:
    """A weight in all its forms, and the calls that multiply by it."""

    def __init__(self, n: int, k: int) -> None:
        self.torch = libraries.torch()
        values = np.random.default_rng(0).standard_normal((n, k), np.float32)
        self.n, self.k, self.values = n, k, values / np.float32(np.sqrt(k))
        self._available = {row.name for row in qcore.kernels("linear") if row.available}
        self._quantized = cache(self._quantize)
        self._torch_layers = cache(self._make_torch_layers)

    def _quantize(self, bits: int, block: int | None) -> qcore.QuantizedTensor:
        return qcore.quantize(self.values, bits=bits, block_size=block or self.k, method="rtn", scale_dtype="float16")

    def _make_torch_layers(self) -> tuple[Any, Any]:
        torch = self.torch
        dense = torch.nn.Linear(self.k, self.n, bias=False)
        dense.weight.data = torch.from_numpy(self.values)
        dynamic = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(dense), {torch.nn.Linear}, torch.qint8)
        return dense.to(torch.bfloat16), dynamic

    def contenders(self, m: int, ours: re.Pattern[str]) -> Iterator[_Contender]:
        """Yield the calls for `m` rows that this machine has, after a check of qcore's, whose names `ours` finds."""
        torch = self.torch
        wide = np.random.default_rng([1, m]).standard_normal((m, self.k), np.float32)
        narrow = torch.from_numpy(wide).to(torch.bfloat16)
        for forms, kernels, compute, x in (
            (_FORMS, _INT8_KERNELS, "int8", wide),
            (_FORMS, _INT16_KERNELS, "int16", wide),
            (_FLOAT_FORMS, _FLOAT_KERNELS, "float", narrow),
        ):
            for bits, block in forms:
                for kernel in kernels:
                    name = f"qcore {bits}b g{'=K' if block is None else block} {kernel}"
                    if kernel in self._available and ours.search(name):
                        yield self._ours(name, x, bits, block, compute, kernel)
        dense, dynamic = self._torch_layers()
        yield _Contender(Row("torch bf16", "torch", 0.0, 16), lambda: dense(narrow))
        rows = torch.from_numpy(wide)
        yield _Contender(Row("torch dynamic int8", "torch", 0.0, 8), lambda: dynamic(rows))

    def _ours(self, name: str, x: Any, bits: int, block: int | None, compute: str, kernel: str) -> _Contender:
        weight = self._quantized(bits, block)
        options: Any = {"compute": compute}
        floating = compute == "float"
        out = self.torch.empty(len(x), self.n, dtype=x.dtype) if floating else np.empty((len(x), self.n), np.float32)

        def call() -> None:
            with qcore.force_kernel("linear", kernel):
                qcore.linear(x, weight, out=out, **options)

        call()
        row = Row(name, "qcore", 0.0, bits, block or self.k, kernel=qcore.last_kernel("linear"))
        row.weight_bytes = weight.nbytes
        if floating:
            row.details["error_over_bound"] = self._error_over_bound(x, weight, kernel)
        else:
            row.same_as_reference = self._same_as_reference(x, weight, compute, out)
        return _Contender(row, call)

    def _sample(self, weight: qcore.QuantizedTensor, m: int) -> tuple[Array, Array, qcore.QuantizedTensor]:
        rows = np.unique(np.linspace(0, m - 1, _CHECKED).astype(int))
        channels = np.unique(np.linspace(0, self.n - 1, _CHECKED).astype(int))
        return rows, channels, qcore.concatenate([weight.slice_rows(int(c), int(c) + 1) for c in channels])

    def _same_as_reference(self, x: Array, weight: qcore.QuantizedTensor, compute: Any, y: Array) -> bool:
        rows, channels, part = self._sample(weight, len(x))
        with qcore.force_kernel("linear", "reference"):
            expected = qcore.linear(x[rows], part, compute=compute)
        return bool(np.array_equal(y[rows][:, channels], expected))

    def _error_over_bound(self, x: Any, weight: qcore.QuantizedTensor, kernel: str) -> float:
        """Return the largest error of a result over the bound of a float sum."""
        rows, channels, part = self._sample(weight, len(x))
        with qcore.force_kernel("linear", kernel):
            y = qcore.linear(x, weight, compute="float", out_dtype="float32").numpy()[rows][:, channels]
        wide = x.float().numpy()[rows].astype(np.float64)
        weights = part.dequantize().astype(np.float64)
        roundings = -(-self.k // weight.block_size) + min(weight.block_size, self.k)
        bound = 4 * roundings * 2.0**-24 * (np.abs(wide) @ np.abs(weights).T)
        return float((np.abs(y - wide @ weights.T) / bound).max())


def _measure(contenders: list[_Contender], seconds: float) -> None:
    """Time the contenders in turn, three calls each after one that is not timed; the least time counts."""
    times: list[list[float]] = [[] for _ in contenders]
    ends = time.perf_counter() + seconds
    while len(times[-1]) < _LEAST_ROUNDS * _CALLS or time.perf_counter() < ends:
        for contender, taken in zip(contenders, times, strict=True):
            contender.call()
            for _ in range(_CALLS):
                started = time.perf_counter()
                contender.call()
                taken.append(time.perf_counter() - started)
    for contender, taken in zip(contenders, times, strict=True):
        contender.row.milliseconds = contender.row.minimum = round(1e3 * min(taken), 5)
        contender.row.samples = len(taken)


def amx(
    shape: Annotated[str, typer.Option(metavar="NxK", help="The layer.")] = "4096x4096",
    m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, max=1024, help="8 and 16 by default; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="For each number of rows and threads.")] = 8,
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as '8b g64 float'.")] = "",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results, after each case.")] = None,
) -> None:
    """Measure linear layers of many rows on AMX beside AVX-512 and torch's bf16 and dynamic int8, in turn.

    Kernels that the machine lacks are left out. The status is 1 if an integer result has other bits than the
    reference's, or a float one is out of its bound.

    \b
    Examples:
      python -m benchmarks amx --json amx.json
      python -m benchmarks amx --shape 384x1536 --m 2048 --threads 8 --ours float
      python -m benchmarks amx --ours int16 --json amx-int16.json
    """
    n, k = parse_shape(shape)
    started = time.perf_counter()
    counts = threads or [8, 16]
    named = pattern(ours, "--ours")
    libraries.set_threads(max(counts))
    try:
        layer = Layer(n, k)
    except Unavailable as error:
        raise qcore.QcoreValueError(f"benchmarks amx: {error}") from error
    settings = {"statistic": f"minimum of interleaved rounds of {_CALLS} calls"}
    document = Document("linear", settings, libraries.describe(max(counts)))
    wrong = []
    for count in counts:
        qcore.set_num_threads(count)
        layer.torch.set_num_threads(count)
        for rows in m or [16, 32, 64, 128, 512, 2048]:
            contenders = list(layer.contenders(rows, named))
            _measure(contenders, seconds)
            parameters = {"M": rows, "N": n, "K": k, "threads": count}
            found = sorted((contender.row for contender in contenders), key=lambda row: row.milliseconds)
            for row in found:
                row.gops = round(2e-6 * rows * n * k / row.milliseconds, 1)
                if row.same_as_reference is False or row.details.get("error_over_bound", 0) > 1:
                    wrong.append(f"{row.name}, M = {rows}")
                print(f"threads {count:3} M {rows:5} {row.milliseconds:9.3f} ms  {row.name}", flush=True)
            name = f"{shape} M={rows} threads={count}"
            document.cases.append(Case(name, shape, parameters, 2 * rows * n * k, {}, found))
            document.seconds = round(time.perf_counter() - started, 1)
            if json is not None:
                document.save(json)
    for name in wrong:
        print(f"wrong: {name}")
    if wrong:
        raise typer.Exit(1)
