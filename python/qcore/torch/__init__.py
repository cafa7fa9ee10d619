"""Provides quantized modules for torch, and operators that stay in the graphs of torch.compile and torch.export.

Modules in the place of those of ``torch.nn``: :class:`Linear`, :class:`RotatedLinear`, :class:`Conv2d`,
:class:`Conv1d`, :class:`Embedding`, :class:`MultiheadAttention`, :class:`GRU`, :class:`LSTM`, :class:`LutActivation`;
:class:`Experts` in the place of mixtures of experts.
:func:`quantize_` puts them into a model, :func:`restore_` loads such a model's state_dict.
:mod:`qcore.torch.operators` has the operators ``torch.ops.qcore.*``. Importing this package imports torch, lets CPU
kernels run on torch's threads (``qcore.torch.threads``) and ``torch.load(weights_only=True)`` read qcore's weights.
"""

from typing import Any

import torch as _torch

from qcore.quantized_tensor import unpickle as _unpickle
from qcore.reordered_tensor import ReorderedTensor as _ReorderedTensor
from qcore.rotation import RotatedTensor as _RotatedTensor
from qcore.torch import operators
from qcore.torch.attention import MultiheadAttention
from qcore.torch.conv1d import Conv1d
from qcore.torch.conversion.quantize import quantize_
from qcore.torch.conversion.restore import restore_
from qcore.torch.embedding import Embedding
from qcore.torch.experts import Experts
from qcore.torch.gru import GRU
from qcore.torch.lstm import LSTM
from qcore.torch.lut import LutActivation
from qcore.torch.report import Candidate, LayerReport, Report
from qcore.torch.rotated import RotatedLinear
from qcore.torch.threads import share_threads
from qcore.torch.weighted import Conv2d, Linear

share_threads()

__all__ = [
    "GRU",
    "LSTM",
    "Candidate",
    "Conv1d",
    "Conv2d",
    "Embedding",
    "Experts",
    "LayerReport",
    "Linear",
    "LutActivation",
    "MultiheadAttention",
    "Report",
    "RotatedLinear",
    "operators",
    "quantize_",
    "restore_",
]

if hasattr(_torch.serialization, "add_safe_globals"):
    # A pickled weight is a call of one of these with bytes, numbers and another weight.
    _torch.serialization.add_safe_globals([_unpickle, _ReorderedTensor, _RotatedTensor])

_INSTEAD = {
    "quantize": "qcore.torch.quantize_(model) quantizes a model in place, qcore.quantize(weight) makes one weight",
    "restore": "qcore.torch.restore_(model, state_dict) loads a quantized model's state",
    "load": "qcore.torch.restore_(model, qcore.load(path)) loads a quantized model's state",
}


def __getattr__(name: str) -> Any:
    hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module 'qcore.torch' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
