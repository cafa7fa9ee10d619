"""torch's own functions, with and without an output array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import libraries
from ...copying import TORCH, torch_copy
from ...implementation import Array, Bound, Implementation
from ..problem import EPSILON, Data, Problem

_LIBRARY = "torch"
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def implementations(problem: Problem) -> list[Implementation]:
    libraries.torch()
    made = [problem.implementation("torch", _LIBRARY, lambda data: _bound(problem, data, with_out=False))]
    if problem.function != "rms_norm":  # has no such form
        made.append(problem.implementation("torch out=", _LIBRARY, lambda data: _bound(problem, data, with_out=True)))
    made.append(problem.implementation(TORCH, _LIBRARY, _copy))
    return made


def _dtype(problem: Problem) -> Any:
    return getattr(libraries.torch(), DTYPES[problem.dtype])


def _tensor(problem: Problem, values: Array) -> Any:
    return libraries.torch().from_numpy(values).to(_dtype(problem), copy=True)


def _copy(data: Data) -> Bound:
    return Bound(torch_copy(data.problem.elements, DTYPES[data.problem.dtype]), lambda: np.empty(0))


def _bound(problem: Problem, data: Data, *, with_out: bool) -> Bound:
    torch = libraries.torch()
    x = _tensor(problem, data.x)
    if with_out:
        out = torch.empty_like(x)
        call = _with_out(torch, problem.function, x, out)
    else:
        call = _without_out(torch, problem, data, x)
    return Bound(lambda _: call(), lambda: call().float().numpy())


def _without_out(torch: Any, problem: Problem, data: Data, x: Any) -> Callable[[], Any]:
    functional = torch.nn.functional
    if problem.function == "softmax":
        return lambda: torch.softmax(x, -1)
    if problem.function == "rms_norm":
        weight, extent = _tensor(problem, data.weight), (x.shape[-1],)
        return lambda: functional.rms_norm(x, extent, weight, EPSILON)
    call = getattr(functional if problem.function in ("silu", "gelu") else torch, problem.function)
    return lambda: call(x)


def _with_out(torch: Any, function: str, x: Any, out: Any) -> Callable[[], Any]:
    if function == "softmax":
        return lambda: torch.softmax(x, -1, out=out)
    if function in ("silu", "gelu"):
        call = getattr(torch.ops.aten, function).out
        return lambda: call(x, out=out)
    call = getattr(torch, function)
    return lambda: call(x, out=out)
