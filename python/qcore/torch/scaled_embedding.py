"""Defines an embedding whose rows are multiplied by a number."""

from __future__ import annotations

from typing import Any

import torch

from qcore import _checks
from qcore.quantized_tensor import QuantizedTensor
from qcore.torch.embedding import Embedding


class ScaledEmbedding(Embedding):
    """Looks up rows of a quantized weight and multiplies them, as the embeddings of Gemma and BART do.

    Args:
        weight, padding_idx, dtype: as for :class:`Embedding`.
        scale: number by which all rows are multiplied.
    """

    kind = "scaled_embedding"

    def __init__(
        self,
        weight: QuantizedTensor,
        scale: float,
        padding_idx: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(weight, padding_idx, dtype=dtype)
        self.scale = _checks.number(scale, "qcore.torch.ScaledEmbedding: scale")

    def config(self) -> dict[str, Any]:
        """Return shape, options and scale, which ``load_state_dict`` compares with those of the state."""
        return super().config() | {"scale": self.scale}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        self.scale = config["scale"]

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows of the indices, times the scale."""
        return super().forward(indices) * self.scale

    def _details(self) -> str:
        return f"{super()._details()}, scale={self.scale:g}"


def scale_of(module: torch.nn.Embedding) -> float | None:
    """Return the number by which an embedding multiplies its rows; None if it does something else."""
    given: Any = getattr(module, "embed_scale", None)
    if given is None or module.weight.is_meta or module.weight.numel() == 0:
        return None
    exact = float(given)
    indices = torch.arange(min(8, module.num_embeddings), device=module.weight.device)
    rows = torch.nn.functional.embedding(indices, module.weight)
    try:
        with torch.no_grad():
            got = module(indices)
    except Exception:  # the module's own code, which may require other arguments
        return None
    # Some embeddings round the scale to the weight's dtype first.
    for scale in (exact, float(torch.tensor(exact, dtype=module.weight.dtype))):
        if got.shape == rows.shape and torch.equal(got, rows * scale):
            return scale
    return None
