"""Defines an embedding over a per-block quantized weight."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _core
from qcore._options import BITS, BLOCK_SIZE, METHOD, SCALE_DTYPE, SCHEME, Method, Scheme, option_names
from qcore.linear import embedding
from qcore.quantized_tensor import QuantizedTensor
from qcore.torch import operators
from qcore.torch.dispatch import is_plain_call
from qcore.torch.weighted import WeightedModule, quantize_weight


class Embedding(WeightedModule):
    """Looks up rows of a quantized weight, in the place of ``torch.nn.Embedding``; without gradients.

    A head over the same QuantizedTensor shares its memory: ``Linear(embedding.weight)``.

    Args:
        weight: a QuantizedTensor [N, K].
        padding_idx: kept for callers that read it; lookups don't depend on it.
        dtype: dtype of the results: float32, float16 or bfloat16. ``.to(dtype)`` changes it.

    A call takes int32 or int64 [...] and returns [..., K]. On the CPU an index outside of 0 to N - 1 is an error, on
    CUDA it gives a row of NaN.
    """

    kind = "embedding"

    def __init__(
        self, weight: QuantizedTensor, padding_idx: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(weight, dtype=dtype)
        self.padding_idx = padding_idx

    @classmethod
    @option_names("Embedding.from_float")
    def from_float(
        cls,
        module: torch.nn.Embedding,
        *,
        bits: int = BITS,
        block_size: int = BLOCK_SIZE,
        scheme: Scheme = SCHEME,
        method: Method = METHOD,
        scale_dtype: Any = SCALE_DTYPE,
    ) -> Embedding:
        """Quantize a ``torch.nn.Embedding``.

        Args:
            module: float32, float16 or bfloat16, on any device, where the result will be too.
            bits, block_size, scheme, method, scale_dtype: as for :func:`qcore.quantize`.

        Raises:
            QcoreValueError, QcoreTypeError: module is no embedding or has a ``max_norm``, or an option is impossible.
        """
        if not isinstance(module, torch.nn.Embedding):
            raise _core.QcoreTypeError(
                f"Embedding.from_float: module is a {type(module).__name__}, expected a torch.nn.Embedding"
            )
        if module.max_norm is not None:
            raise _core.QcoreValueError(
                f"Embedding.from_float: max_norm is {module.max_norm}, expected None: lookups don't change the weight"
            )
        weight = quantize_weight(module, bits, block_size, scheme, method, None, scale_dtype)
        made = cls(weight, module.padding_idx, dtype=module.weight.dtype)
        made.train(module.training)
        return made

    @property
    def num_embeddings(self) -> int:
        """Return N, the number of rows."""
        return self.shape[0]

    @property
    def embedding_dim(self) -> int:
        """Return K, the length of a row."""
        return self.shape[1]

    def config(self) -> dict[str, Any]:
        """Return shape and options, which ``load_state_dict`` compares with those of the state, except the dtype."""
        names = ("kind", "shape", "bits", "block_size", "encoding", "dtype")
        known = super().config()
        return {name: known[name] for name in names if name in known} | {"padding_idx": self.padding_idx}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config | {"compute": "int8", "activation": None})
        self.padding_idx = config["padding_idx"]

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows of the indices.

        Args:
            indices: int32 or int64 [...].

        Returns:
            [..., K] of this module's dtype.

        Raises:
            QcoreValueError, QcoreTypeError: an index is outside of the rows, or of another dtype or device.
        """
        if is_plain_call(indices):
            plain: torch.Tensor = embedding(indices, self._current_view().weight, out_dtype=self.dtype)
            return plain
        packed, _, *form = self._operands()
        result: torch.Tensor = operators.embedding(indices, packed, *form, self.dtype, self.encoding)
        return result

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self._details()}"

    def _details(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self._weight_details()}, dtype={self.dtype}{padding}"
