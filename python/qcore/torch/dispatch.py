"""Operators of torch whose body is called at once where torch's dispatcher has nothing to do.

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


_NO_TENSORS = (str, int, tuple, bool, type(None), torch.dtype)


class Operator:
    """``torch.ops.qcore.<name>`` and its body, called alike."""

    def __init__(self, name: str, schema: str, body: Callable[..., Any]) -> None:
        self.__doc__ = body.__doc__
        self.body = body
        self.definition = torch.library.custom_op(f"qcore::{name}", body, mutates_args=(), schema=schema)
        self.overload = getattr(torch.ops.qcore, name).default

    def __call__(self, *arguments: Any) -> Any:
        return self.body(*arguments) if _is_plain(arguments) else self.overload(*arguments)


def operator(schema: str) -> Callable[[Callable[..., Any]], Operator]:
    """Register a function under its name; the schema is without the name."""

    def register(body: Callable[..., Any]) -> Operator:
        return Operator(body.__name__, schema, body)

    return register


def is_plain_call(*tensors: torch.Tensor | None) -> bool:
    """Returns whether torch need not see a call on these tensors.

    Nothing records or transforms it then, and no gradient is asked for.
    """
    if torch.compiler.is_compiling() or not _can_tell:
        return False
    if _len_torch_dispatch_stack() or _len_torch_function_stack() or torch.jit.is_tracing():
        return False
    if forward_ad._current_level >= 0 or peek_interpreter_stack() is not None:
        return False
    grads = torch.is_grad_enabled()
    for each in tensors:
        if each is None:
            continue
        kind = type(each)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or each.is_meta:
            return False
        if grads and each.requires_grad:
            return False
    return True


def _is_plain(arguments: tuple[Any, ...]) -> bool:
    tensors = []
    for each in arguments:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        elif type(each) not in _NO_TENSORS:
            return False
    return is_plain_call(*tensors)
