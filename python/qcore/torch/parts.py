"""Weights, tables and GRUs as plain tensors, and back."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qcore.lut.table import Table
from qcore.quantized_tensor import QuantizedTensor
from qcore.torch.packing import packed

Parts = tuple[torch.Tensor, torch.Tensor, "torch.Tensor | None"]


def parts_of(weight: QuantizedTensor) -> Parts:
    """Codes, scales and offsets, on the weight's device.

    Codes are int8 of the weight's shape, or for 4 bits uint8 [N, ceil(K / 2)] as of ``nibbles()``; the others
    float32 [N, P], or None for the offsets of a symmetric weight.
    """
    here = weight.to("cpu")
    codes = here.nibbles() if weight.bits == 4 else here.codes()
    offsets = None if weight.scheme == "symmetric" else _tensor(here.offsets(), weight.device)
    return _tensor(codes, weight.device), _tensor(here.scales(), weight.device), offsets


def weight_of(
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    shape: Sequence[int],
    bits: int,
    block_size: int,
) -> QuantizedTensor:
    """The weight of these parts, packed once."""

    def make() -> QuantizedTensor:
        values = codes.detach().cpu().numpy()
        whole = QuantizedTensor.from_parts(
            _codes_of(values, shape) if bits == 4 else values,
            scales.detach().cpu(),
            None if offsets is None else offsets.detach().cpu(),
            bits=bits,
            block_size=block_size,
        )
        return whole.to(str(codes.device))

    weight: QuantizedTensor = packed((codes, scales, offsets), (tuple(shape), bits, block_size), make)
    return weight


def _codes_of(nibbles: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    columns = math.prod(shape[1:])
    both = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(len(nibbles), 2 * nibbles.shape[1])[:, :columns]
    return np.ascontiguousarray(both.astype(np.int8) - np.int8(8)).reshape(tuple(shape))


def dequantized(
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    shape: Sequence[int],
    bits: int,
    block_size: int,
) -> torch.Tensor:
    """float32 [N, K] of a linear layer's weight, in operations that torch traces."""
    # By index, not by repeat_interleave and a slice: inductor of torch 2.13 leaves the columns of a short last block
    # unwritten there.
    k = torch.arange(shape[1], device=codes.device)
    if bits == 4:
        codes = ((codes.index_select(1, k // 2).int() >> (4 * (k % 2)).int()) & 15) - 8
    block = k // block_size
    wide = scales.index_select(1, block) * codes.float()
    return wide if offsets is None else wide + offsets.index_select(1, block)


def table_parts(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut points and values as the table stores them."""
    return _tensor(table.cuts, "cpu"), _tensor(table.values, "cpu")


def table_of(cuts: torch.Tensor, values: torch.Tensor, range_reduction: str) -> Table:
    """The table of these parts, made once."""

    def make() -> Table:
        return Table.from_parts(cuts.detach().cpu(), values.detach().cpu(), range_reduction=range_reduction)

    table: Table = packed((cuts, values), (range_reduction,), make)
    return table


def gru_bytes(gru: Any) -> torch.Tensor:
    """uint8: the file that ``QuantGRU.save`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gru.safetensors"
        gru.save(path)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def gru_of(state: torch.Tensor) -> Any:
    """The QuantGRU of such bytes, made once."""

    def make() -> Any:
        from qcore.gru import QuantGRU

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gru.safetensors"
            path.write_bytes(state.detach().cpu().numpy().tobytes())
            return QuantGRU.load(path)

    return packed((state,), ("gru",), make)


def _tensor(array: np.ndarray[Any, Any], device: str) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
