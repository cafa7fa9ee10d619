"""Float weights of recurrent networks from files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qcore import _core
from qcore._recurrent.arrays import read_arrays

_FIRST = "weight_ih_l0"


def load_weights(kind: Any, path: str | os.PathLike[str], *, name: str | None = None, batch_first: bool = False) -> Any:
    """Return the weights in a file.

    Args:
        kind: ``GruWeights`` or ``LstmWeights``.
        path: an .onnx model, or a .safetensors or .npz file with the names of a torch.nn module's state_dict
            (weight_ih_l0, weight_hh_l0, bias_ih_l0, ..., with _reverse for the other direction).
        name: which network, if the file has several: a node's name, or what stands before weight_ih_l0 ("encoder.rnn").
        batch_first: of torch's; an ONNX node says so itself.

    Raises:
        QcoreValueError, QcoreTypeError: the file has no such weights, or which are wanted is unclear.
        OSError: it can't be read.
    """
    op, path = kind.op, Path(path)
    if path.suffix == ".onnx":
        return kind.from_onnx(path, name)
    tensors = read_arrays(path, op)
    found = sorted(key.removesuffix(_FIRST) for key in tensors if key.endswith(_FIRST))
    if not found:
        raise _core.QcoreValueError(
            f"{op} weights: {path} has no {op.upper()} weights, expected names such as {_FIRST}"
        )
    choices = ", ".join(repr(prefix.removesuffix(".")) for prefix in found)
    if name is None:
        if len(found) != 1:
            raise _core.QcoreValueError(
                f"{op} weights: {path} has {len(found)} {op.upper()}s, expected a name among: {choices}"
            )
        prefix = found[0]
    else:
        prefix = f"{name}." if name and not name.endswith(".") else name
        if prefix not in found:
            raise _core.QcoreValueError(
                f"{op} weights: {path} has no {prefix}{_FIRST}, expected a name among: {choices}"
            )
    own = {key.removeprefix(prefix): array for key, array in tensors.items() if key.startswith(prefix)}
    return kind.from_state_dict(own, batch_first=batch_first)
