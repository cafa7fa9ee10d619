"""Reads state_dicts that torch.save wrote (pytorch_model.bin), as older AWQ and GPTQ folders have them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qcore import _core
from qcore.formats.checkpoint.byte_ranges import DTYPES, Section
from qcore.formats.checkpoint.files.safetensors import SafetensorsFile

_NAMES = {getattr(torch, theirs): name for name, theirs in DTYPES.items() if hasattr(torch, theirs)}


@dataclass(frozen=True)
class PickledSection(Section):
    """Holds a tensor that torch has mapped from its file; ``offset`` has no meaning."""

    tensor: torch.Tensor

    def bytes(self) -> NDArray[np.uint8]:
        """Return uint8 [nbytes], mapped from the file if the tensor is contiguous."""
        flat: NDArray[np.uint8] = self.tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        return flat

    def rows(self, start: int, stop: int) -> PickledSection:
        """Return rows ``start`` to ``stop`` of the first axis."""
        part = self.tensor[start:stop]
        return PickledSection(self.path, self.dtype, tuple(part.shape), 0, part)

    def operand(self, where: str) -> NDArray[Any]:
        """Return a floating-point array as ``_core`` takes it."""
        return self.widened()

    def widened(self) -> NDArray[Any]:
        """Return the array, bfloat16 in float32."""
        return self.tensor.float().numpy() if self.dtype == "BF16" else self.array()


def read_pickled(path: Path) -> SafetensorsFile:
    """Return the tensors of a state_dict, without running code of the file.

    Args:
        path: the file.

    Raises:
        QcoreValueError: the file holds other things than tensors by name, or has the format of torch before 1.6.
    """
    where = f"qcore.transformers: {path}"
    advice = "expected a dictionary of tensors as torch.save writes it, or safetensors files"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise _core.QcoreValueError(f"{where} can't be read safely, {advice}: {error}") from error
    if not isinstance(state, dict):
        raise _core.QcoreValueError(f"{where} holds a {type(state).__name__}, {advice}")
    sections: dict[str, Section] = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.dtype not in _NAMES:
            what = f"{tensor.dtype}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise _core.QcoreValueError(f"{where}: {name!r} is {what}, {advice}")
        sections[name] = PickledSection(path, _NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.detach())
    return SafetensorsFile(sections, {})
