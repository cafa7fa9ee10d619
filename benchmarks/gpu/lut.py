"""Tables, softmax and rms_norm on a device beside torch's functions and its copy_ of the same arrays.

Rows of softmax and rms_norm have 4096 elements, or all where there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qcore import lut

from ..results import Case
from .device import Timed, case_of, copies_for, free, measure

FUNCTIONS = ("silu", "gelu", "tanh", "sigmoid", "exp", "softmax", "rms_norm")
SIZES = (1 << 24, 1 << 20, 1 << 10)
DTYPES = ("float32", "float16", "bfloat16")
_ROW = 4096
_MOST_CALLS = 512  # in a graph


def _torch_call(torch: Any, function: str) -> Callable[[Any, Any], Any]:
    aten = torch.ops.aten
    if function == "softmax":
        return lambda x, y: aten._softmax.out(x, -1, False, out=y)
    if function == "rms_norm":
        return lambda x, y: torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-6)
    operator = getattr(aten, function).out
    return lambda x, y: operator(x, out=y)


def _exact(torch: Any, function: str, x: Any) -> Any:
    if function == "rms_norm":
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    if function == "softmax":
        return x.softmax(-1)
    return getattr(torch.ops.aten, function)(x)


def _case(torch: Any, function: str, dtype: str, size: int, rounds: int) -> Case:
    generator = torch.Generator(device="cuda").manual_seed(size)
    shape = (-1, min(_ROW, size)) if function in ("softmax", "rms_norm") else (-1,)
    one = torch.randn(size, device="cuda", generator=generator).to(getattr(torch, dtype)).view(shape)
    moved = 2 * one.numel() * one.element_size()
    copies = copies_for(moved)
    xs, ys = [one.clone() for _ in range(copies)], [torch.empty_like(one) for _ in range(copies)]
    table = getattr(lut, function)
    table(xs[0], out=ys[0])
    difference = float((ys[0].double() - _exact(torch, function, xs[0].double())).abs().max())
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "qcore": lambda x, y: table(x, out=y),
        "torch": _torch_call(torch, function),
        "torch copy_": lambda x, y: y.copy_(x),
    }

    def timed(name: str, call: Callable[[Any, Any], Any]) -> Timed:
        facts = {"details": {"largest_difference": difference}} if name == "qcore" else {}
        library = name.partition(" ")[0]
        return Timed(
            name, library, lambda i: call(xs[i], ys[i]), copies, moved, most_calls=_MOST_CALLS, facts=dict(facts)
        )

    implementations = [timed(name, call) for name, call in calls.items()]
    measure(torch, implementations, rounds)
    parameters = {"function": function, "dtype": dtype, "elements": size}
    return case_of(f"{function} {dtype} {size}", parameters, size, {}, implementations)


def cases(
    torch: Any,
    *,
    functions: Sequence[str] = FUNCTIONS,
    dtypes: Sequence[str] = DTYPES,
    sizes: Sequence[int] = SIZES,
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure all functions on all arrays."""
    for size in sizes:
        for dtype in dtypes:
            for function in functions:
                yield _case(torch, function, dtype, size, rounds)
                free(torch)
