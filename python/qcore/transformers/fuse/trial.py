"""Compares the fused layers with the unfused model, which runs some tokens to give the expected results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from qcore.transformers.fuse.stack import DTYPE_NAMES, Stack
from qcore.transformers.fuse.structure import StackParts, error
from qcore.transformers.kv_cache import CACHE, KvLayer

_TOKENS = 9
_PADDING = (0, 3)
"""Padding on the left of each sequence of the trial."""
_LIMITS = {torch.float32: 0.02, torch.bfloat16: 0.06, torch.float16: 0.03}
"""Relative L2 differences up to which results are the same. They differ by the order of sums, which moves single codes
of quantized activations, and in 16 bits by where results are rounded; another computation is off by more."""


@dataclass
class Trial:
    """Holds the unfused model's values: for a prompt, then for one more token."""

    tokens: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    inputs: list[list[torch.Tensor]] = field(default_factory=list)
    """[call][layer]: hidden states [B, T, H] that enter."""
    outputs: list[list[torch.Tensor]] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """[call]: of the last token, [B, 1, V]."""

    @property
    def first(self) -> torch.Tensor:
        """Return the first position of each sequence that holds a token, int32 [B] on the CPU."""
        return torch.tensor(_PADDING, dtype=torch.int32)

    def calls(self) -> list[slice]:
        """Return the tokens of each call."""
        return [slice(0, _TOKENS), slice(_TOKENS, _TOKENS + 1)]


def record(model: Any, parts: StackParts) -> Trial:
    """Run the unfused model and keep what went into its layers and came out."""
    generator = torch.Generator().manual_seed(16)
    vocabulary = int(model.config.get_text_config().vocab_size)
    batch, length = len(_PADDING), _TOKENS + 1
    tokens = torch.randint(0, vocabulary, (batch, length), generator=generator).to(parts.device)
    mask = (torch.arange(length) >= torch.tensor(_PADDING)[:, None]).long().to(parts.device)
    trial = Trial(tokens, mask, (mask.cumsum(1) - 1).clamp(min=0))

    def keep(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        trial.inputs[-1].append(args[0] if args else kwargs["hidden_states"])
        trial.outputs[-1].append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.module.register_forward_hook(keep, with_kwargs=True) for layer in parts.layers]
    cache = DynamicCache()
    try:
        for part in trial.calls():
            trial.inputs.append([])
            trial.outputs.append([])
            with torch.no_grad():
                output = model(
                    trial.tokens[:, part],
                    attention_mask=trial.mask[:, : part.stop],
                    position_ids=trial.positions[:, part],
                    use_cache=True,
                    logits_to_keep=1,
                    **{CACHE: cache},
                )
            trial.logits.append(output.logits)
    finally:
        for handle in handles:
            handle.remove()
    trial.keys = [layer.keys for layer in cache.layers]
    trial.values = [layer.values for layer in cache.layers]
    return trial


@torch.no_grad()
def check_layer(trial: Trial, parts: StackParts, number: int) -> None:
    """Compare one fused layer with the trial.

    Raises:
        QcoreValueError: its keys, values or results differ from those of the unfused layer.
    """
    layer = parts.layers[number]
    dtype = trial.inputs[0][number].dtype
    stack, cache = Stack(parts, [layer], ends=False), KvLayer(DTYPE_NAMES[dtype], dtype)
    valid = trial.mask.bool()
    outputs = []
    for call, part in enumerate(trial.calls()):
        hidden = trial.inputs[call][number]
        outputs.append(
            stack.run(hidden, trial.positions[:, part], [cache], trial.first, part.stop - part.start, logits=False)
        )
    for what, got, expected in (
        ("keys", cache.keys, trial.keys[number]),
        ("values", cache.values, trial.values[number]),
    ):
        assert got is not None
        both = (each.transpose(1, 2)[valid].float() for each in (got, expected))
        _compare(f"{layer.name}.self_attn", what, dtype, *both)
    before, after = (torch.cat([call[number] for call in each], 1)[valid] for each in (trial.inputs, trial.outputs))
    change = after.float() - before.float()
    # Allows for the rounding of the residual itself, which may be much larger than what the layer adds to it.
    slack = float(after.float().norm()) * torch.finfo(dtype).eps
    _compare(layer.name, "results", dtype, torch.cat(outputs, 1)[valid].float() - before.float(), change, slack)


@torch.no_grad()
def check_logits(trial: Trial, parts: StackParts) -> None:
    """Compare the last fused layer with final norm and head behind it with the trial's logits.

    Raises:
        QcoreValueError: they differ.
    """
    dtype = trial.inputs[0][-1].dtype
    stack, cache = Stack(parts, parts.layers[-1:]), KvLayer(DTYPE_NAMES[dtype], dtype)
    outputs = []
    for call, part in enumerate(trial.calls()):
        hidden = trial.inputs[call][-1]
        outputs.append(stack.run(hidden, trial.positions[:, part], [cache], trial.first, 1, logits=True))
    _compare("model", "logits", dtype, *(torch.cat(each, 1).float() for each in (outputs, trial.logits)))


def _compare(
    where: str, what: str, dtype: torch.dtype, got: torch.Tensor, expected: torch.Tensor, slack: float = 0.0
) -> None:
    limit = _LIMITS[dtype]
    difference, size = float((got - expected).norm()), float(expected.norm())
    if not difference <= limit * size + slack:
        raise error(
            f"{where}: the fused {what} differ from the unfused ones by {difference / max(size, 1e-30):.2g} of their "
            f"L2 norm on a trial, expected at most {limit:g}: the model computes something that its modules' names and "
            "attributes do not tell"
        )
