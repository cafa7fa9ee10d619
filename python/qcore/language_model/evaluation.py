"""Perplexity of a causal language model, and its distance from another one, over windows of text."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qcore import _checks, _core

_CHUNK = 1 << 21
"""Logits that are turned into float64 log-probabilities at a time: 16 MB of them."""


@dataclass(frozen=True)
class Window:
    """Holds a range of tokens that a model sees in one call.

    Attributes:
        start, end: the range; the end is exclusive.
        first: the first token that is predicted and counted here. Earlier ones are context.
    """

    start: int
    end: int
    first: int


@dataclass(frozen=True)
class Comparison:
    """Holds the distance of a model's predictions from those of a reference model.

    Attributes:
        perplexity: of the reference model on the same tokens.
        kl_divergence: mean over the tokens of KL(reference || model), in nats.
        kl_standard_error: standard error of that mean, as if tokens were independent.
        kl_99: the 99th percentile of the tokens' divergences.
        same_first_choice: share of the tokens at which both models have the same most probable token.
    """

    perplexity: float
    kl_divergence: float
    kl_standard_error: float
    kl_99: float
    same_first_choice: float


@dataclass(frozen=True)
class Evaluation:
    """Holds the measurements of :func:`evaluate`.

    Attributes:
        tokens: number of predicted tokens.
        windows: number of calls of the model.
        negative_log_likelihood: mean over the tokens, in nats.
        perplexity: exp of that.
        seconds: wall time.
        comparison: the distance from the reference model, where one was given.
    """

    tokens: int
    windows: int
    negative_log_likelihood: float
    perplexity: float
    seconds: float
    comparison: Comparison | None = None


def plan_windows(length: int, context: int, stride: int) -> list[Window]:
    """Split a text into overlapping windows such that each token but the first is predicted once.

    Args:
        length: number of tokens.
        context: tokens of a window at most.
        stride: tokens between the starts of windows; all but the first window predict so many tokens at most.

    Raises:
        QcoreValueError: fewer than two tokens, or a stride that leaves a token without context.
    """
    if length < 2:
        raise _core.QcoreValueError(f"evaluate: a text has {length} tokens, expected 2 or more")
    if context < 2:
        raise _core.QcoreValueError(f"evaluate: context is {context}, expected 2 or more")
    if not 1 <= stride < context:
        raise _core.QcoreValueError(f"evaluate: stride is {stride}, expected 1 to context - 1 = {context - 1}")
    windows = [Window(0, min(context, length), 1)]
    while windows[-1].end < length:
        start = windows[-1].start + stride
        windows.append(Window(start, min(start + context, length), windows[-1].end))
    return windows


def evaluate(
    model: Any,
    tokens: Any,
    *,
    against: Any = None,
    context: int | None = None,
    stride: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure how well a causal language model predicts text.

    The text is cut into windows of ``context`` tokens that begin ``stride`` tokens apart, and each token but the first
    is predicted once, from the tokens before it in its window. Both models are in memory and see a window one after the
    other; nothing of a window is kept but sums and one divergence per token, so that memory does not grow with the
    length of the text times the vocabulary. Log-probabilities are computed in float64.

    Args:
        model: a causal language model of transformers, quantized or not; called in evaluation mode.
        tokens: numbers of tokens: a sequence or tensor [T] of a text, or a list of such for several texts.
        against: the reference model, with the same vocabulary: the unquantized one. None measures perplexity alone.
        context: tokens of a window at most; 512 by default, or the model's number of positions where that is smaller.
        stride: tokens between windows; half the context by default, so that a token has as much before it at least.
        progress: called with the number of tokens that each window predicted.

    Returns:
        The means over all predicted tokens.

    Raises:
        QcoreValueError: a text of fewer than 2 tokens, a context beyond the model's positions, a stride of the context
            or more, models of different vocabularies, a token outside the vocabulary, or logits that are not finite.
        QcoreTypeError: tokens that are not integers.
    """
    pieces = _pieces(tokens)
    context = _context(model, against, context)
    stride = context // 2 if stride is None else _checks.integer(stride, "evaluate: stride")
    planned = [(piece, window) for piece in pieces for window in plan_windows(len(piece), context, stride)]
    started = time.perf_counter()
    losses = [0.0, 0.0]
    divergences: list[torch.Tensor] = []
    count = same = 0
    modes = [(each, each.training) for each in (model, against) if each is not None]
    try:
        for each, _ in modes:
            each.eval()
        with torch.no_grad():
            for piece, window in planned:
                targets = piece[window.first : window.end]
                logits = _logits(model, piece, window)
                reference = None if against is None else _logits(against, piece, window)
                for rows, other, wanted in _chunks(logits, reference, targets):
                    losses[0] -= _chosen(rows, wanted)
                    if other is not None:
                        losses[1] -= _chosen(other, wanted)
                        divergences.append((other.exp() * (other - rows)).sum(dim=-1).cpu())
                        same += int((other.argmax(dim=-1) == rows.argmax(dim=-1)).sum())
                count += len(targets)
                if progress is not None:
                    progress(len(targets))
    finally:
        for each, training in modes:
            each.train(training)
    seconds = time.perf_counter() - started
    comparison = None if against is None else _comparison(losses[1] / count, torch.cat(divergences), same / count)
    loss = losses[0] / count
    return Evaluation(count, len(planned), loss, _exp(loss), seconds, comparison)


def _pieces(tokens: Any) -> list[torch.Tensor]:
    """Return the texts as int64 tensors [T]."""
    several = isinstance(tokens, Sequence) and len(tokens) > 0 and not isinstance(tokens[0], int)
    pieces = []
    for given in tokens if several else [tokens]:
        try:
            piece = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise _core.QcoreTypeError(f"evaluate: tokens has a {type(given).__name__}, expected integers") from None
        if piece.numel() == 0:
            raise _core.QcoreValueError("evaluate: a text has 0 tokens, expected 2 or more")
        if piece.dim() != 1 or piece.is_floating_point() or piece.is_complex() or piece.dtype == torch.bool:
            raise _core.QcoreTypeError(
                f"evaluate: tokens has {piece.dtype} {list(piece.shape)}, expected integers [T] or a list of such"
            )
        pieces.append(piece.long())
    return pieces


def _context(model: Any, against: Any, context: int | None) -> int:
    positions = [positions_of(each) for each in (model, against) if each is not None]
    most = min((number for number in positions if number is not None), default=None)
    if context is None:
        return 512 if most is None else min(512, most)
    given = _checks.integer(context, "evaluate: context")
    if most is not None and given > most:
        raise _core.QcoreValueError(f"evaluate: context is {given}, expected {most} or less, the model's positions")
    return given


def positions_of(model: Any) -> int | None:
    """Return the number of positions that a model's configuration names, or None."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    number = getattr(config, "max_position_embeddings", None)
    return number if isinstance(number, int) else None


def _logits(model: Any, piece: torch.Tensor, window: Window) -> torch.Tensor:
    """Return the logits [targets, V] of a window's predicted tokens."""
    kept = window.end - window.first
    options: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = kept
    vocabulary = model.get_input_embeddings().weight.shape[0] if hasattr(model, "get_input_embeddings") else None
    ids = piece[window.start : window.end]
    if vocabulary is not None and (int(ids.max()) >= vocabulary or int(ids.min()) < 0):
        raise _core.QcoreValueError(
            f"evaluate: tokens has a {int(ids.max() if ids.max() >= vocabulary else ids.min())}, "
            f"expected 0 to {vocabulary - 1}, the model's vocabulary"
        )
    logits: torch.Tensor = model(input_ids=ids[:-1].unsqueeze(0).to(_device(model)), **options).logits[0]
    return logits[-kept:]


def _device(model: Any) -> Any:
    return getattr(model, "device", "cpu")


def _chunks(
    logits: torch.Tensor, reference: torch.Tensor | None, targets: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]]:
    """Yield log-probabilities in float64 of some rows of both models, and the tokens that follow."""
    if reference is not None and reference.shape != logits.shape:
        raise _core.QcoreValueError(
            f"evaluate: against has a vocabulary of {reference.shape[-1]}, expected the model's {logits.shape[-1]}"
        )
    step = max(1, _CHUNK // logits.shape[-1])
    for first in range(0, len(targets), step):
        rows = _log_probabilities(logits[first : first + step], "model")
        other = None
        if reference is not None:
            other = _log_probabilities(reference[first : first + step], "against").to(rows.device)
        yield rows, other, targets[first : first + step].to(rows.device)


def _log_probabilities(logits: torch.Tensor, argument: str) -> torch.Tensor:
    found = torch.log_softmax(logits.double(), dim=-1)
    if not torch.isfinite(found).all():
        raise _core.QcoreValueError(f"evaluate: {argument} gives logits that are not finite, expected finite ones")
    return found


def _chosen(log_probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    return float(log_probabilities.gather(1, targets.unsqueeze(1)).sum())


def _comparison(loss: float, divergences: torch.Tensor, same: float) -> Comparison:
    error = float(divergences.std()) / math.sqrt(len(divergences)) if len(divergences) > 1 else 0.0
    ordered = divergences.sort().values
    return Comparison(
        perplexity=_exp(loss),
        kl_divergence=float(divergences.mean()),
        kl_standard_error=error,
        kl_99=float(ordered[math.ceil(0.99 * len(ordered)) - 1]),
        same_first_choice=same,
    )


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # above it float64 has no value
