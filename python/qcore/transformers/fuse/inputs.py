"""Reads padding and positions of a fused model's calls, on the host as rarely as possible.

``generate`` makes a longer attention mask and longer positions at each step. On a device, reading them makes the host
wait for all earlier work. So what was read once is remembered for the tensor, and carried over to the tensors that
``generate`` derives from it: ones are appended to a mask, and each next position is the last one plus 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

_known: Any = WeakIdKeyDictionary()


class _Facts(NamedTuple):
    """Holds what is known of a tensor.

    Attributes:
        version: the tensor's counter of changes in place.
        derived: whether ``generate`` made the tensor, so that no other code can change it.
        value: for a mask the first position of each sequence, or None; for positions the lowest and the exclusive end.
    """

    version: int
    derived: bool
    value: Any


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def remember(tensor: torch.Tensor, value: Any, *, derived: bool = False) -> None:
    """Remember what was read from a tensor as long as the tensor lives."""
    _known[tensor] = _Facts(_version(tensor), derived, value)


def recall(tensor: torch.Tensor, *, just_read: bool = False) -> _Facts | None:
    """Return what is known of a tensor, or None if it may have changed since.

    Args:
        tensor: a mask or positions.
        just_read: whether :func:`read_arguments` has read it in this step, so that it cannot have changed since.
    """
    facts: _Facts | None = _known.get(tensor)
    if facts is None or facts.version != _version(tensor):
        return None
    # A tensor of inference mode has no version counter.
    return facts if facts.derived or just_read or not tensor.is_inference() else None


def first_positions(mask: Any, batch: int, length: int) -> torch.Tensor | str | None:
    """Return the first position of each sequence that holds a token, int32 [B] on the CPU, or None if all are 0.

    Args:
        mask: [B, past + T], ones behind zeros in each row, or None.
        batch, length: B and past + T.

    Returns:
        The positions, the same tensor at every step for a mask that ``generate`` derived; a text that says what else
        the mask holds if it is not ones behind zeros; or None.
    """
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (batch, length):
        given = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        return f"attention_mask is {given}, expected [B, past + T] = {[batch, length]}"
    if mask.is_floating_point():
        return f"attention_mask is {mask.dtype}, expected integers or booleans"
    facts = recall(mask)
    return _read_mask(mask) if facts is None else facts.value


def _read_mask(mask: torch.Tensor) -> torch.Tensor | str | None:
    length = mask.shape[1]
    seen = mask.cpu().numpy() != 0
    if seen.all():
        return None
    first = length - seen.sum(1)
    if (seen != (np.arange(length) >= first[:, None])).any():
        return "attention_mask has zeros behind ones, expected padding on the left only"
    return torch.from_numpy(first.astype(np.int32))


def position_range(positions: torch.Tensor) -> tuple[int, int]:
    """Return the lowest position and the exclusive end of positions [B, T]."""
    facts = recall(positions)
    if facts is not None:
        lowest, end = facts.value
        return lowest, end
    lowest, largest = torch.stack(torch.aminmax(positions)).tolist()
    return int(lowest), int(largest) + 1


def read_arguments(arguments: dict[str, Any]) -> None:
    """Read the mask and the positions that ``generate`` has for a call, and remember what they hold."""
    mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
    if _is_index(mask) and recall(mask) is None:
        first = _read_mask(mask)
        if not isinstance(first, str):
            remember(mask, first)
    if _is_index(positions) and recall(positions) is None:
        remember(positions, position_range(positions))


def carry_to_inputs(arguments: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Carry what is known of ``generate``'s arguments over to the inputs of a call, their last columns or copies."""
    for name in ("attention_mask", "position_ids"):
        source, made = arguments.get(name), inputs.get(name)
        if source is made or not _is_index(source) or not _is_index(made):
            continue
        facts = recall(source, just_read=True)
        # A call gets the last columns of the positions. A mask is only copied to another device.
        same = made.shape == source.shape and made.device != source.device
        if facts is not None and (same if name == "attention_mask" else made.shape[1] <= source.shape[1]):
            remember(made, facts.value, derived=True)


def carry_to_next(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Carry what is known of the arguments of one step over to those of the next, which have more columns.

    Args:
        before: the arguments before ``_update_model_kwargs_for_generation``, which appends ones to the mask and the
            next numbers to the positions.
        after: those after it.
    """
    for name in ("attention_mask", "position_ids"):
        source, made = before.get(name), after.get(name)
        if source is made or not _is_index(source) or not _is_index(made):
            continue
        facts = recall(source, just_read=True)
        tokens = made.shape[1] - source.shape[1]
        if facts is None or made.shape[0] != source.shape[0] or tokens <= 0:
            continue
        value = facts.value
        if name == "position_ids":
            value = (value[0], value[1] + tokens)
        remember(made, value, derived=True)


def _is_index(tensor: Any) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(tensor, torch.Tensor) and tensor.dim() == 2 and not tensor.is_floating_point() and tensor.numel() > 0
    )
