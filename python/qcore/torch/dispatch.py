"""Registers operators of torch, whose body is called directly where torch's dispatcher has nothing to do.

The dispatcher takes some 30 us for an operator written in Python, a small layer takes less than 10.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from qcore import _core

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
        if _is_plain(arguments):
            return self.body(*arguments)
        if not _is_compiling() and _get_tracing_state() is not None:
            _refuse_onnx(self.body.__name__)
        return self.overload(*arguments)

    def batch_over(self, axes: int) -> None:
        """Let ``torch.vmap`` join the mapped dimension of the first argument with its leading ones.

        Args:
            axes: number of dimensions of the first argument that stay as they are; 0 if all of them may.
        """
        if not hasattr(self.definition, "register_vmap"):  # a version of torch before 2.5
            return

        def rule(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
            if in_dims[0] is None or any(isinstance(dim, int) for dim in in_dims[1:]):
                raise _core.QcoreValueError(
                    f"{self.body.__name__}: torch.vmap maps over a weight or a bias, expected to map over x only"
                )
            x = x.movedim(in_dims[0], 0)
            if axes == 0:
                return self.overload(x, *rest), 0
            joined = self.overload(x.flatten(0, x.dim() - axes), *rest)
            return joined.unflatten(0, x.shape[: x.dim() - axes + 1]), 0

        self.definition.register_vmap(rule)


def _refuse_onnx(name: str) -> None:
    """Raise QcoreTypeError if the exporter of ONNX that traces is at work: it has no node for the operator."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is not None and onnx.is_in_onnx_export():
        raise _core.QcoreTypeError(
            f"torch.onnx.export: the model has the operator qcore::{name}, which ONNX lacks, expected one of torch: "
            "export the float model and quantize its weights with qcore.formats.to_onnx, or a checkpoint with `qcore "
            "quantize IN OUT.onnx`"
        )


def operator(schema: str) -> Callable[[Callable[..., Any]], Operator]:
    """Return a decorator that registers a function under its name; the schema is given without the name."""

    def register(body: Callable[..., Any]) -> Operator:
        return Operator(body.__name__, schema, body)

    return register


def is_plain_call(x: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Return whether a call on these tensors may bypass torch's dispatcher.

    True if nothing records or transforms the call and no gradient is needed. It runs at every call of a module, in a
    microsecond.
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
