"""Describes the parameters of packed weights, checks what is loaded, and makes QuantizedTensors of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import qcore.torch as qt
from qcore import _core
from qcore._options import Compute
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.transformers.config import LayerOptions

PARTS = ("codes", "scales", "offsets")


@dataclass(frozen=True)
class Layout:
    """Describes the tensors of a weight [N, K], or of a tensor-parallel rank's columns of it.

    Args:
        options: bits, block size, scheme and scale dtype.
        columns: K of the rank.
        all_columns: K of the whole weight.
        name: of the layer, for errors.

    Raises:
        QcoreValueError: the rank's columns are not whole blocks, or not whole bytes.
    """

    options: LayerOptions
    columns: int
    all_columns: int
    name: str

    def __post_init__(self) -> None:
        g = self.options.block_size
        if self.columns == self.all_columns:
            return
        if self.columns % g and g < self.all_columns:
            raise _core.QcoreValueError(
                f"qcore.vllm: {self.name} has {self.columns} of {self.all_columns} input columns on each "
                f"tensor-parallel rank, expected a multiple of block_size = {g}: use fewer ranks or "
                "a smaller block size"
            )
        if self.options.bits == 4 and self.columns % 2:
            raise _core.QcoreValueError(
                f"qcore.vllm: {self.name} has {self.columns} of {self.all_columns} input columns on each "
                "tensor-parallel rank, expected an even number for codes of 4 bits"
            )

    @property
    def symmetric(self) -> bool:
        """Return whether there are no offsets."""
        return self.options.scheme == "symmetric"

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the tensors."""
        return PARTS[:2] if self.symmetric else PARTS

    @property
    def splits_blocks(self) -> bool:
        """Return whether a row is one block that all ranks share, so that each of them needs its whole scale."""
        return self.options.block_size >= self.all_columns

    def width(self, part: str, columns: int) -> int:
        """Return the elements in a row of a part.

        Args:
            part: "codes", "scales" or "offsets".
            columns: K.
        """
        if part != "codes":
            return -(-columns // self.options.block_size)
        return columns if self.options.bits == 8 else -(-columns // 2)

    def dtype(self, part: str) -> torch.dtype:
        """Return the dtype of a part.

        Args:
            part: "codes", "scales" or "offsets".
        """
        if part == "codes":
            return torch.int8 if self.options.bits == 8 else torch.uint8
        return torch.float16 if self.options.scale_dtype == "float16" else torch.float32

    def empty(self, part: str, *rows: int) -> torch.Tensor:
        """Return a tensor for a part of this rank's columns, on the default device; scales and offsets are NaN.

        Args:
            part: "codes", "scales" or "offsets".
            rows: the dimensions before the last.
        """
        shape = (*rows, self.width(part, self.columns))
        if part == "codes":
            return torch.zeros(shape, dtype=self.dtype(part))
        return torch.full(shape, torch.nan, dtype=self.dtype(part))

    def check(self, part: str, loaded: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the checkpoint, [N, ...], in the dtype of the parameter.

        Args:
            part: "codes", "scales" or "offsets".
            loaded: the tensor, with all of its columns.

        Raises:
            QcoreValueError: its dtype or width differs from what config.json says, or the dtype would change a scale.
        """
        name, dtype, width = f"{self.name}.{part}", self.dtype(part), self.width(part, self.all_columns)
        if loaded.dim() != 2 or loaded.shape[1] != width:
            raise _core.QcoreValueError(
                f"qcore.vllm: {name} in the checkpoint has shape {list(loaded.shape)}, expected [N, {width}] for K = "
                f"{self.all_columns}, {self.options.bits} bits and block_size = {self.options.block_size} of "
                "config.json"
            )
        if loaded.dtype == dtype:
            return loaded
        if part == "codes" or loaded.dtype not in (torch.float16, torch.float32):
            raise _core.QcoreValueError(f"qcore.vllm: {name} in the checkpoint is {loaded.dtype}, expected {dtype}")
        cast = loaded.to(dtype)
        if not torch.equal(cast.to(loaded.dtype), loaded):
            raise _core.QcoreValueError(
                f"qcore.vllm: {name} in the checkpoint is {loaded.dtype} with values that float16 cannot hold, "
                'expected scale_dtype = "float32" in config.json'
            )
        return cast

    def assemble(self, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None) -> QuantizedTensor:
        """Return the weight of loaded parts, on the device of the codes.

        Args:
            codes, scales, offsets: tensors [N, ...].

        Raises:
            QcoreValueError: scales or offsets were not loaded.
        """
        for part, tensor in (("scales", scales), ("offsets", offsets)):
            if tensor is not None and bool(tensor.isnan().any()):
                raise _core.QcoreValueError(
                    f"qcore.vllm: {self.name}.{part} was not loaded in full, expected one in the checkpoint for every "
                    "row: is the layer quantized there?"
                )
        values = codes.cpu().numpy()
        whole = QuantizedTensor.from_parts(
            unpack_nibbles(values, self.columns) if self.options.bits == 4 else values,
            scales.float().cpu(),
            None if offsets is None else offsets.float().cpu(),
            bits=self.options.bits,
            block_size=self.options.block_size,
        )
        return whole.to(str(codes.device))


def unpack_nibbles(nibbles: np.ndarray[Any, Any], columns: int) -> np.ndarray[Any, Any]:
    """Return codes of 4 bits as int8 [N, K].

    Args:
        nibbles: uint8 [N, ceil(K / 2)], element 2j of a row in the low half of byte j, each plus 8.
        columns: K.
    """
    codes = np.empty((nibbles.shape[0], 2 * nibbles.shape[1]), np.int8)
    codes[:, 0::2] = nibbles & 15
    codes[:, 1::2] = nibbles >> 4
    codes -= 8
    return np.ascontiguousarray(codes[:, :columns])


def quantize_rows(weight: torch.Tensor, options: LayerOptions) -> QuantizedTensor:
    """Return a float weight quantized, on its device.

    Args:
        weight: float32, float16 or bfloat16 [N, K].
        options: those of :func:`qcore.quantize`.
    """
    made = quantize(
        weight.detach().cpu(),
        bits=options.bits,
        block_size=options.block_size,
        scheme=options.scheme,
        method=options.method,
        scale_dtype=options.scale_dtype,
    )
    return made.to(str(weight.device))


def linear_module(weight: QuantizedTensor, compute: Compute) -> torch.nn.Module:
    """Return a frozen module over a weight.

    Args:
        weight: [N, K].
        compute: as for :func:`qcore.linear`.
    """
    module: torch.nn.Module = qt.Linear(weight, compute=compute)
    return module.eval()


def checked_loader(loader: Callable[..., Any], layout: Layout, part: str) -> Callable[..., Any]:
    """Return vLLM's weight loader, with a check of the tensor before it.

    Args:
        loader: takes the parameter, the checkpoint's tensor, and more.
        layout: of the weight.
        part: "codes", "scales" or "offsets".
    """

    @functools.wraps(loader)
    def load(param: Any, loaded_weight: torch.Tensor, *args: Any, **options: Any) -> Any:
        return loader(param, layout.check(part, loaded_weight), *args, **options)

    return load


def drop(layer: torch.nn.Module, *names: str) -> None:
    """Remove parameters from a layer.

    Args:
        layer: a module of vLLM.
        names: names of parameters; missing ones are ignored.
    """
    for name in names:
        if name in layer._parameters:
            delattr(layer, name)
