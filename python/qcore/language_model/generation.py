"""Continues a text with a causal language model, token by token, and measures the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from qcore import _checks, _core
from qcore.language_model.evaluation import positions_of

_UNFINISHED = "\ufffd"  # what tokenizers decode an incomplete UTF-8 sequence to


@dataclass(frozen=True)
class Generation:
    """Holds a text and the time that it took.

    Attributes:
        text: the continuation, without the prompt.
        tokens: its tokens, the end of the text included.
        prompt_tokens: number of tokens of the prompt.
        prefill_seconds: from the call to the first new token.
        decode_seconds: from the first new token to the last.
        end: "end" if the model ended the text, "limit" at the largest number of tokens, "interrupted" by Ctrl-C.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    end: str

    @property
    def prefill_rate(self) -> float:
        """Return prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Return new tokens per second, without the first one, which the prefill makes."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass
class TokenClock:
    """Receives the tokens of ``generate()`` as its streamer, and the time of each.

    Attributes:
        show: called with each new token.
        tokens, times: the new tokens, and when each came, by ``time.perf_counter()``.
    """

    show: Callable[[int], None] | None = None
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _started: bool = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt at the first call, and a new token at each later one.

        Args:
            value: numbers of tokens.
        """
        if not self._started:
            self._started = True
            return
        self.times.append(time.perf_counter())
        self.tokens.append(int(value.reshape(-1)[0]))
        if self.show is not None:
            self.show(self.tokens[-1])

    def end(self) -> None:
        """Do nothing: the last token is known by then."""


class IncrementalText:
    """Turns tokens into pieces of text as they come.

    A tokenizer may drop or add spaces at the start of what it decodes, so that each piece is the difference of two
    texts that start at the same earlier token. Bytes of an incomplete character wait for the rest.

    Args:
        tokenizer: of transformers.
        prompt: tokens before the first piece.
    """

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self._tokenizer, self._tokens = tokenizer, list(prompt[-8:])
        self._start, self._shown = 0, len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token completes; may be empty.

        Args:
            token: the next one.
        """
        self._tokens.append(token)
        piece = self._difference()
        if piece.endswith(_UNFINISHED):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return piece

    def rest(self) -> str:
        """Return the text of tokens that waited for more."""
        return self._difference() if self._shown < len(self._tokens) else ""

    def _difference(self) -> str:
        before, now = (self._decode(self._tokens[self._start : end]) for end in (self._shown, len(self._tokens)))
        return now[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def prompt_tokens(tokenizer: Any, prompt: str, *, chat: bool = False) -> list[int]:
    """Return the tokens of a prompt, with those that the tokenizer adds.

    Args:
        tokenizer: of transformers.
        prompt: a text.
        chat: whether the prompt is a user's message, to be put into the tokenizer's chat template.

    Raises:
        QcoreTypeError, QcoreValueError: the prompt is no text, is empty, or the tokenizer has no chat template.
    """
    if not _checks.text(prompt, "generate: prompt").strip():
        raise _core.QcoreValueError("generate: prompt is empty, expected text")
    if not chat:
        return list(tokenizer(prompt)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise _core.QcoreValueError("generate: chat is True, but the tokenizer has no chat template")
    message = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    chat: bool = False,
    show: Callable[[str], None] | None = None,
) -> Generation:
    """Continue a text.

    Args:
        model, tokenizer: of transformers.
        prompt: the text to continue.
        max_new_tokens: the largest number of new tokens; fewer where the model has no more positions.
        temperature: 0 takes the most probable token each time; other values sample, with the other settings of the
            model's generation configuration.
        seed: of the sampling. The caller's random state is left alone.
        chat: whether the prompt is a user's message, to be put into the tokenizer's chat template.
        show: called with each piece of new text.

    Returns:
        The text and the time that it took. Ctrl-C ends it early and is no error.

    Raises:
        QcoreValueError, QcoreTypeError: an empty prompt, one that fills the model's positions, or an impossible option.
    """
    limit = _checks.integer(max_new_tokens, "generate: max_new_tokens")
    heat = _checks.number(temperature, "generate: temperature")
    if limit < 1:
        raise _core.QcoreValueError(f"generate: max_new_tokens is {limit}, expected 1 or more")
    if not 0 <= heat < float("inf"):
        raise _core.QcoreValueError(f"generate: temperature is {heat}, expected 0 or more")
    prompt_ids = prompt_tokens(tokenizer, prompt, chat=chat)
    positions = positions_of(model)
    if positions is not None and len(prompt_ids) >= positions:
        raise _core.QcoreValueError(
            f"generate: prompt has {len(prompt_ids)} tokens, expected fewer than {positions}, the model's positions"
        )
    limit = limit if positions is None else min(limit, positions - len(prompt_ids))
    text: list[str] = []
    decoder = IncrementalText(tokenizer, prompt_ids)

    def take(piece: str) -> None:
        if piece:
            text.append(piece)
            if show is not None:
                show(piece)

    clock = TokenClock(lambda token: take(decoder.add(token)))
    sampling: dict[str, Any] = {"do_sample": True, "temperature": heat} if heat > 0 else {"do_sample": False}
    end = ""
    started = time.perf_counter()
    try:
        run(model, prompt_ids, clock, limit, seed=_checks.integer(seed, "generate: seed"), **sampling)
    except KeyboardInterrupt:
        end = "interrupted"
    take(decoder.rest())
    times = clock.times or [time.perf_counter()]
    end = end or ("limit" if len(clock.tokens) >= limit else "end")
    return Generation("".join(text), clock.tokens, len(prompt_ids), times[0] - started, times[-1] - times[0], end)


def run(model: Any, prompt: list[int], clock: TokenClock, limit: int, *, seed: int = 0, **options: Any) -> None:
    """Call the model's ``generate()`` with one prompt.

    Args:
        model: of transformers.
        prompt: numbers of tokens.
        clock: receives the new ones.
        limit: largest number of new tokens.
        seed: of the sampling.
        options: further arguments of ``generate()``.
    """
    device = model.device
    ids = torch.tensor([prompt], device=device)
    padding = getattr(model.generation_config, "pad_token_id", None)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=limit,
            pad_token_id=0 if padding is None else padding,
            streamer=clock,
            **options,
        )
