"""Registers operators of torch, whose body is called directly where torch's dispatcher has nothing to do.

The dispatcher takes some 30 us for an operator written in Python, a small layer takes less than 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

try:
    from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
    from torch._C._functorch import peek_interpreter_stack
    from torch.autograd import forward_ad

    _ = forward_ad._current_level
except (ImportError, AttributeError):  # another version of torch: always through the dispatcher
    _can_tell = False
else:
    _can_tell = True


_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_is_compiling, _is_grad_enabled, _get_tracing_state = (
    torch.compiler.is_compiling,
    torch.is_grad_enabled,
    torch._C._get_tracing_state,
)
_NO_TENSORS = (str, int, tuple, bool, type(None), torch.dtype)


class Operator:
    """Calls an operator's body directly, or ``torch.ops.qcore.<name>`` where torch must see the call."""

    def __init__(self, name: str, schema: str, body: Callable[..., Any]) -> None:
        self.__doc__ = body.__doc__
        self.body = body
        self.definition = torch.library.custom_op(f"qcore::{name}", body, mutates_args=(), schema=schema)
        self.overload = getattr(torch.ops.qcore, name).default

    def __call__(self, *arguments: Any) -> Any:
        return self.body(*arguments) if _is_plain(arguments) else self.overload(*arguments)


def operator(schema: str) -> Callable[[Callable[..., Any]], Operator]:
    """Return a decorator that registers a function under its name; the schema is given without the name."""

    def register(body: Callable[..., Any]) -> Operator:
        return Operator(body.__name__, schema, body)

    return register


def is_plain_call(x: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Return whether torch need not see a call on these tensors.

    Nothing records or transforms it then, and no gradient is asked for. A module asks this at every call, so that it is
    written for speed: a microsecond.
    """
    if (
        _is_compiling()
        or not _can_tell
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or peek_interpreter_stack() is not None
    ):
        return False
    if type(x) is not _Tensor and type(x) is not _Parameter:
        return False
    if x.is_meta or (x.requires_grad and _is_grad_enabled()):
        return False
    return bias is None or not (bias.is_meta or (bias.requires_grad and _is_grad_enabled()))


def _is_plain(arguments: tuple[Any, ...]) -> bool:
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if not is_plain_call(each):
                return False
        elif type(each) not in _NO_TENSORS:
            return False
    return True
