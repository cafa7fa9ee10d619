"""Float weights of GRUs from files."""

from __future__ import annotations

import os
from pathlib import Path

from qcore import _core
from qcore.gru.files.arrays import read_arrays
from qcore.gru.weights import GruWeights

_FIRST = "weight_ih_l0"


def load_weights(path: str | os.PathLike[str], *, name: str | None = None, batch_first: bool = False) -> GruWeights:
    """Weights of a GRU.

    Args:
        path: an .onnx model, or a .safetensors or .npz file with the names of a ``torch.nn.GRU``'s state_dict
            (weight_ih_l0, weight_hh_l0, bias_ih_l0, ..., with _reverse for the other direction).
        name: which GRU, if the file has several: a node's name, or what stands before weight_ih_l0 ("encoder.rnn").
        batch_first: of torch's; an ONNX node says so itself.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        return GruWeights.from_onnx(path, name)
    tensors = read_arrays(path)
    found = sorted(key.removesuffix(_FIRST) for key in tensors if key.endswith(_FIRST))
    if name is None:
        if len(found) != 1:
            choices = ", ".join(repr(prefix.removesuffix(".")) for prefix in found) or "none"
            raise _core.QcoreValueError(f"gru weights: {path} has {len(found)} GRUs, expected a name among: {choices}")
        prefix = found[0]
    else:
        prefix = f"{name}." if name and not name.endswith(".") else name
        if prefix not in found:
            choices = ", ".join(repr(each.removesuffix(".")) for each in found) or "none"
            raise _core.QcoreValueError(
                f"gru weights: {path} has no {prefix}{_FIRST}, expected a name among: {choices}"
            )
    own = {key.removeprefix(prefix): array for key, array in tensors.items() if key.startswith(prefix)}
    return GruWeights.from_state_dict(own, batch_first=batch_first)
