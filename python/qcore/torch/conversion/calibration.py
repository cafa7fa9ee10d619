"""Records inputs of layers and outputs of a model while it runs on samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from qcore import _core
from qcore.quantized_tensor import QuantizedTensor

_ROWS = 2048
"""Number of rows of activations that are kept for each linear layer, at most a quarter of them from one batch."""
_PIECE = 1 << 18
"""Elements of a weight whose error is measured at once."""
_BATCHES = 8
"""Number of batches that are kept for each layer that takes whole images or sequences."""


def batches_of(calibration: Any, model: torch.nn.Module) -> list[Any]:
    """Return a calibration as a list of batches; a single tensor is one batch.

    Raises:
        QcoreTypeError: calibration is neither a tensor nor an iterable of batches, or ``model.forward`` doesn't take
            the arguments of one.
        QcoreValueError: calibration has no batches.
    """
    if isinstance(calibration, torch.Tensor):
        return [calibration]
    # An array would be taken apart into its rows.
    no_batches = isinstance(calibration, (str, bytes, Mapping)) or hasattr(calibration, "__array_interface__")
    if not isinstance(calibration, Iterable) or no_batches:
        raise _core.QcoreTypeError(
            f"quantize_: calibration is a {type(calibration).__name__}, expected a tensor, or an iterable of batches: "
            "tensors, tuples of positional or dictionaries of keyword arguments"
        )
    batches = list(calibration)
    if not batches:
        raise _core.QcoreValueError("quantize_: calibration has no batches, expected at least one")
    _check_arguments(batches, model)
    return batches


def _check_arguments(batches: list[Any], model: torch.nn.Module) -> None:
    """Raise QcoreTypeError for a batch that is no tensor, or whose arguments ``model.forward`` doesn't take."""
    try:
        forward = inspect.signature(model.forward)
    except (TypeError, ValueError):  # compiled code has none
        return
    for number, batch in enumerate(batches):
        where = f"quantize_: calibration[{number}]"
        is_keywords, is_positional = isinstance(batch, Mapping), isinstance(batch, (tuple, list))
        if not is_keywords and not is_positional:
            if isinstance(batch, (str, bytes)) or hasattr(batch, "__array_interface__"):
                raise _core.QcoreTypeError(
                    f"{where} is a {type(batch).__name__}, expected a tensor, a tuple of positional or a dictionary of "
                    "keyword arguments: torch.from_numpy makes a tensor of an array"
                )
            continue
        try:
            forward.bind(**batch) if is_keywords else forward.bind(*batch)
        except TypeError as error:
            given = (
                f"a dictionary with {', '.join(map(str, batch))}"
                if is_keywords
                else f"a {type(batch).__name__} of {len(batch)}"
            )
            raise _core.QcoreTypeError(
                f"{where} is {given}, expected the arguments of {type(model).__name__}.forward{forward} ({error}): of "
                "a loader of (x, y) pass [x for x, y in loader]"
            ) from None


def outputs_of(model: torch.nn.Module, batches: list[Any]) -> list[torch.Tensor]:
    """Return all floating-point results for all batches in float32, in evaluation mode and without gradients."""
    results = []
    with evaluating(model), torch.no_grad():
        for batch in batches:
            results += list(_tensors(_call(model, batch)))
    return results


def inputs_of(
    model: torch.nn.Module, batches: list[Any], modules: Iterable[torch.nn.Module]
) -> tuple[dict[int, list[torch.Tensor]], list[torch.Tensor]]:
    """Run the model and return the first arguments of each module, by its id, and what :func:`outputs_of` returns."""
    seen: dict[int, list[torch.Tensor]] = {}

    def watch(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], torch.Tensor) and arguments[0].numel() > 0:
            _keep(seen.setdefault(id(module), []), module, arguments[0].detach())

    hooks = [module.register_forward_pre_hook(watch) for module in modules]
    try:
        outputs = outputs_of(model, batches)
    finally:
        for hook in hooks:
            hook.remove()
    return seen, outputs


def relative_error(got: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the relative L2 error over all tensors together; infinity if a value is NaN."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(got, expected, strict=True))
    size = sum(float(b.double().square().sum()) for b in expected)
    return _ratio(difference, size)


def weight_error(got: QuantizedTensor, expected: torch.Tensor, inputs: torch.Tensor | None = None) -> float:
    """Return the relative L2 error of a quantized weight, a piece at a time.

    Args:
        got: of the shape of ``expected``.
        expected: the float weight.
        inputs: float32 [M, K] on the CPU: measure the error of ``inputs @ weight.T`` instead, of a weight [N, K].
    """
    difference = size = 0.0
    rows = max(1, _PIECE // max(1, expected[0].numel()))
    for start in range(0, len(expected), rows):
        exact = expected[start : start + rows].cpu().float()
        dense = torch.from_numpy(got.slice_rows(start, start + len(exact)).to("cpu").dequantize())
        pair = dense - exact, exact
        wrong, whole = pair if inputs is None else (each @ inputs.t() for each in pair)
        size += float(whole.double().square().sum())
        difference += float(wrong.double().square().sum())
    return _ratio(difference, size)


def _ratio(difference: float, size: float) -> float:
    ratio = (difference / size) ** 0.5 if size > 0 else float(difference > 0)
    return ratio if ratio == ratio else float("inf")


def _keep(kept: list[torch.Tensor], module: torch.nn.Module, x: torch.Tensor) -> None:
    if not isinstance(module, torch.nn.Linear):
        if len(kept) < _BATCHES:
            kept.append(x.clone())
        return
    keep_rows(kept, x)


def keep_rows(kept: list[torch.Tensor], x: torch.Tensor) -> None:
    """Append some rows of a linear layer's input [..., K] while there is room for more."""
    rows = x.reshape(-1, x.shape[-1])
    room = min(_ROWS // 4, _ROWS - sum(len(each) for each in kept))
    if room > 0:
        kept.append(rows[:: -(-len(rows) // room)].clone())


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for the length of a with block."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result.detach().float()
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, (tuple, list)):
        for value in result:
            yield from _tensors(value)
