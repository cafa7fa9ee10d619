"""torch's multi-head attention over quantized projections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from qcore import _core
from qcore.torch.module import QuantizedModule

Make = Callable[[torch.Tensor, "torch.Tensor | None"], torch.nn.Module]
"""Makes a layer of a weight [N, K] and a bias [N]."""

_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


class MultiheadAttention(QuantizedModule):
    """Computes multi-head attention like ``torch.nn.MultiheadAttention``, with a quantized layer per projection.

    Its arguments, masks and results are those of torch's module. Dropout is applied while training.

    Args:
        layers: of q, k, v and the output, by ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``.
        num_heads: number of heads; it divides the width of q.
        dropout: probability for an attention weight, while training.
        batch_first: whether x is [B, T, E] rather than [T, B, E].
        add_zero_attn: whether a key and a value of zeros are appended.
        bias_k, bias_v: a key and a value [1, 1, E] to append, or None.
    """

    kind = "multihead_attention"

    bias_k: torch.nn.Parameter | None
    bias_v: torch.nn.Parameter | None

    # torch.nn.TransformerEncoderLayer reads these attributes of its attention.
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        layers: Mapping[str, torch.nn.Module],
        num_heads: int,
        *,
        dropout: float = 0.0,
        batch_first: bool = False,
        add_zero_attn: bool = False,
        bias_k: torch.Tensor | None = None,
        bias_v: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        for name in _NAMES:
            if name not in layers:
                raise _core.QcoreValueError(
                    f"qcore.torch.MultiheadAttention: layers has {sorted(layers)}, expected {', '.join(_NAMES)}"
                )
            setattr(self, name, layers[name])
        self.num_heads, self.dropout = num_heads, dropout
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        for name, value in (("bias_k", bias_k), ("bias_v", bias_v)):
            parameter = None if value is None else torch.nn.Parameter(value.detach().clone(), requires_grad=False)
            self.register_parameter(name, parameter)

    @classmethod
    def from_float(cls, module: torch.nn.MultiheadAttention, make: Make) -> MultiheadAttention:
        """Quantize a ``torch.nn.MultiheadAttention``.

        Args:
            module: float32, float16 or bfloat16.
            make: quantizes one projection.

        Raises:
            QcoreTypeError: module is another module.
        """
        if not isinstance(module, torch.nn.MultiheadAttention):
            raise _core.QcoreTypeError(
                f"MultiheadAttention.from_float: module is a {type(module).__name__}, expected a "
                "torch.nn.MultiheadAttention"
            )
        layers = {name: make(weight, bias) for name, (weight, bias) in projections_of(module).items()}
        made = cls._around(module, layers)
        made.train(module.training)
        return made

    @classmethod
    def from_state_dict_and_float(
        cls, module: torch.nn.MultiheadAttention, state_dict: Mapping[str, torch.Tensor], prefix: str
    ) -> MultiheadAttention:
        """Return the module whose state is in a state_dict.

        Args:
            module: the float module, for its options; its values don't matter.
            state_dict: tensors by name.
            prefix: of the module's names in it.

        Raises:
            QcoreValueError: a projection's state is missing or damaged.
        """
        from qcore.torch.weighted import Linear

        layers = {name: Linear.from_state_dict(state_dict, f"{prefix}{name}.") for name in _NAMES}
        made = cls._around(module, layers)
        for name in ("bias_k", "bias_v"):
            if getattr(made, name) is not None and prefix + name in state_dict:
                value = state_dict[prefix + name].detach().clone()
                setattr(made, name, torch.nn.Parameter(value, requires_grad=False))
        return made

    @classmethod
    def _around(cls, module: torch.nn.MultiheadAttention, layers: Mapping[str, torch.nn.Module]) -> MultiheadAttention:
        return cls(
            layers,
            module.num_heads,
            dropout=module.dropout,
            batch_first=module.batch_first,
            add_zero_attn=module.add_zero_attn,
            bias_k=module.bias_k,
            bias_v=module.bias_v,
        )

    def config(self) -> dict[str, Any]:
        """Return the options, which ``load_state_dict`` compares with those of the state."""
        names = ("kind", "num_heads", "dropout", "batch_first", "add_zero_attn")
        return {name: getattr(self, name) for name in names}

    def _configure(self, config: dict[str, Any]) -> None:
        raise _core.QcoreTypeError(
            "MultiheadAttention.from_state_dict: expected restore_(model, state_dict) with the float model"
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention as ``torch.nn.MultiheadAttention`` does.

        Args:
            query, key, value: [T, B, E], [S, B, Ek] and [S, B, Ev] ([B, T, E] and so on if batch_first), or without B.
            key_padding_mask: [B, S] or [S], True or minus infinity at keys to ignore.
            need_weights: whether to return the attention weights.
            attn_mask: [T, S] or [B * heads, T, S], True at what may not be seen, or numbers to add.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: whether attn_mask is the causal mask.

        Returns:
            The outputs like query, and the weights [B, T, S] ([B, heads, T, S] if not averaged) or None.

        Raises:
            QcoreValueError: is_causal without attn_mask.
        """
        if is_causal and attn_mask is None:
            raise _core.QcoreValueError("MultiheadAttention: attn_mask is None, expected a mask with is_causal=True")
        single = query.dim() == 2
        if single:
            batch = 0 if self.batch_first else 1
            query, key, value = (each.unsqueeze(batch) for each in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        batches, targets, width = q.shape
        k, v, extra = self._appended(k, v)
        heads = [each.view(batches, -1, self.num_heads, width // self.num_heads).transpose(1, 2) for each in (q, k, v)]
        mask = self._mask(attn_mask, key_padding_mask, q.dtype, batches, extra)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = heads[0] @ heads[1].transpose(2, 3) / math.sqrt(width // self.num_heads)
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = torch.nn.functional.dropout(weights, dropout)
            mixed = weights @ heads[2]
        else:
            mixed = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout)
        y = self.out_proj(mixed.transpose(1, 2).reshape(batches, targets, width))
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not self.batch_first:
            y = y.transpose(0, 1)
        if single:
            y, weights = y.squeeze(batch), None if weights is None else weights.squeeze(0)
        return y, weights

    def _appended(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return keys and values with those that the options append, and their number."""
        before = k.shape[1]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, b.to(x.dtype).expand(len(x), 1, -1)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
        if self.add_zero_attn:
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return k, v, k.shape[1] - before

    def _mask(
        self, attn_mask: torch.Tensor | None, padding: torch.Tensor | None, dtype: torch.dtype, batches: int, extra: int
    ) -> torch.Tensor | None:
        """Return numbers to add to the scores [B or 1, heads or 1, T or 1, S + extra]."""
        total = None
        if attn_mask is not None:
            total = _numbers(attn_mask, dtype)
            total = total.view(batches, self.num_heads, *total.shape[1:]) if total.dim() == 3 else total[None, None]
        if padding is not None:
            row = _numbers(padding, dtype)[:, None, None, :]
            total = row if total is None else total + row
        return total if total is None or not extra else torch.nn.functional.pad(total, (0, extra))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, batch_first={self.batch_first}"


def _numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))


def projections_of(module: torch.nn.MultiheadAttention) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Return weights (views) and biases of the four projections."""
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.detach().chunk(3)
    else:
        weights = tuple(each.detach() for each in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight))
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.detach().chunk(3)
    return dict(zip(_NAMES, zip(weights, biases, strict=True), strict=False)) | {
        "out_proj": (module.out_proj.weight.detach(), module.out_proj.bias)
    }
