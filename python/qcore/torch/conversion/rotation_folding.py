"""Folds Hadamard rotations into the weights of a decoder-only language model, as QuaRot and SpinQuant do.

The residual stream is rotated by one matrix: the embedding and the layers that add to the stream make it rotated, the
layers that read it have weights that undo that. Each head's values are rotated by another one, which the output
projection undoes. Neither needs a transform at run time. The norms in between commute with the rotation once their
weights are folded into the layers behind them.

Both are tried by hooks first, which rotate and undo what the folded weights would, on some tokens. Weights are changed
only if the logits stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from qcore.rotation import hadamard
from qcore.rotation.hadamard import largest_block
from qcore.torch.conversion.calibration import evaluating, relative_error
from qcore.torch.conversion.decoder_parts import Decoder, FoldingError, Values, find_decoder
from qcore.torch.conversion.layers import Layer, untie

FOLDED = "rotation folded"
"""Note of a layer whose weight has a rotation in it."""
_TOKENS = (2, 12)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest relative L2 error of the logits of the trial: rounding makes far less of it, another function far more."""


@dataclass
class Folding:
    """Describes rotations that can be folded into a model.

    Attributes:
        model: the float model.
        decoder: its parts; None if nothing can be folded.
        has_values: whether the rotation of the values can be folded, too.
        reason: why not all can be folded; empty if all can.
    """

    model: torch.nn.Module
    decoder: Decoder | None = None
    has_values: bool = False
    reason: str = ""
    added_bytes: int = 0

    def modules(self) -> list[Any]:
        """Return the modules whose inputs are rotated by folded weights, and the embedding."""
        if self.decoder is None:
            return []
        found = [each for _, readers in self.decoder.readers() for each in readers] + [self.decoder.embedding]
        return found + ([layer.out for layer in self.decoder.layers] if self.has_values else [])

    def mark(self, layers: list[Layer]) -> None:
        """Set ``folded`` of the layers that need no rotation at run time; the weight of each is its own then."""
        folded = {id(module) for module in self.modules()}
        for layer in layers:
            if id(layer.module) in folded:
                layer.folded, layer.shared = True, None

    def apply(self) -> None:
        """Fold the rotations in place, one matrix after another.

        Weights are computed in float32 and rounded once to their dtype. After an interrupt the rest is folded before
        it is raised, because a model that is folded by half computes something else.
        """
        if self.decoder is None:
            return
        if self.decoder.is_tied:
            self.added_bytes = self.decoder.head.weight.nbytes
            untie(self.model, self.decoder.head)
        steps = list(_steps(self.decoder, self.has_values))
        try:
            for step in steps:
                step()
        except BaseException:
            for step in steps:
                step()
            raise

    def text(self, layers: list[Layer], online: int) -> str:
        """Return what became of the rotation, for the report; ``online`` is the number of layers that compute it."""
        folded = sum(layer.folded for layer in layers)
        if not folded and not online and not self.reason:
            return ""
        if not folded:
            count = "1 layer" if online == 1 else f"{online} layers"
            return f"online in {count}" + (f", not folded: {self.reason}" if self.reason else "")
        text = f"folded into {folded} layers, online in {online}"
        if self.reason:
            text += f"; that of the values not folded: {self.reason}"
        if self.added_bytes:
            text += f"; the head has a weight of its own now, {self.added_bytes:,} bytes before quantization"
        return text


def find_folding(model: torch.nn.Module) -> Folding:
    """Return the rotations that can be folded into a model; it is left as it is."""
    try:
        decoder = find_decoder(model)
        expected = _logits(model, decoder)
        reason = next((layer.reason for layer in decoder.layers if layer.reason), "")
        for has_values in (True, False) if not reason else (False,):
            with _hooked(decoder, has_values):
                got = _logits(model, decoder)
            if relative_error([got], [expected]) <= _TOLERANCE[decoder.embedding.weight.dtype]:
                return Folding(model, decoder, has_values, reason)
            reason = "the logits would change"
    except FoldingError as error:
        reason = str(error)
    return Folding(model, reason=reason)


def _logits(model: Any, decoder: Decoder) -> torch.Tensor:
    count, (rows, length) = decoder.embedding.num_embeddings, _TOKENS
    tokens = torch.arange(rows * length, device=decoder.embedding.weight.device) * 7919 % count
    try:
        with evaluating(model), torch.no_grad():
            logits: torch.Tensor = model(input_ids=tokens.view(rows, length), use_cache=False).logits
    except Exception as error:  # the model's own code, which may require other arguments
        raise FoldingError(f"the model fails on {rows} x {length} tokens: {type(error).__name__}: {error}") from error
    if not bool(torch.isfinite(logits).all()):
        raise FoldingError(f"logits of {rows} x {length} tokens are not finite")
    return logits.float()


def _rotate(x: torch.Tensor, block: int | None = None) -> torch.Tensor:
    """Return ``x @ H`` in float32 on x's device; H is its own inverse."""
    block = largest_block(x.shape[-1]) if block is None else block
    rotated: torch.Tensor = hadamard(x.detach().cpu().contiguous(), block, out_dtype="float32")
    return rotated.to(x.device)


@contextmanager
def _hooked(decoder: Decoder, has_values: bool) -> Iterator[None]:
    """Make a model compute with rotated activations for the length of a with block, by hooks, with the same weights."""
    norms = [(norm, norm.gain, norm.module.weight.detach().clone()) for norm, _ in decoder.readers()]
    hooks = [_after(decoder.embedding, _rotate)]
    for (_, readers), (_, gain, _) in zip(decoder.readers(), norms, strict=True):
        hooks += [_before(each, partial(_unrotate, gain=gain)) for each in readers]
    for layer in decoder.layers:
        hooks += [_after(each, _rotate) for each in (layer.out, layer.down)]
        values = layer.values
        if has_values and values is not None:
            hooks.append(_after(values.module, partial(_rotate_values, values=values)))
            hooks.append(_before(layer.out, partial(_rotate, block=largest_block(values.head_size))))
    try:
        for norm, _, _ in norms:
            norm.neutralize()
        yield
    finally:
        with torch.no_grad():
            for norm, _, weight in norms:
                norm.module.weight.copy_(weight)
        for hook in hooks:
            hook.remove()


def _unrotate(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Return what a norm with this gain gives in the basis of the model."""
    return _rotate(x) * gain


def _scale_and_rotate(weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Return the weight [N, K] that does the same with x as the given one does with :func:`_unrotate` of x."""
    return _rotate(weight * gain)


def _before(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return module.register_forward_pre_hook(
        lambda _, given: (change(given[0].float()).to(given[0].dtype), *given[1:])  # as folded weights would
    )


def _after(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return module.register_forward_hook(lambda _, given, made: change(made.float()).to(made.dtype))


def _rotate_values(y: torch.Tensor, values: Values) -> torch.Tensor:
    """Rotate the values [..., rows] of a result, which are its last channels, head by head."""
    first = y.shape[-1] - values.rows
    return torch.cat([y[..., :first], _rotate(y[..., first:], largest_block(values.head_size))], dim=-1)


class _Step:
    """Folds a rotation into one module; a call after an interrupt finishes what the interrupted one began."""

    def __init__(self, module: Any, fold: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._module, self._fold = module, fold
        self._made: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._done = False

    def __call__(self) -> None:
        """Change the weight, and the bias of a module that writes the stream or values."""
        if self._done:
            return
        if not self._made:
            self._made = [(self._module.weight, self._fold(self._module.weight.detach().float()))]
        with torch.no_grad():
            for parameter, values in self._made:
                parameter.copy_(values)
        self._done, self._made = True, []


class _OutputStep(_Step):
    """Folds a rotation of the outputs, which are the weight's rows and the bias's elements."""

    def __call__(self) -> None:
        """Change weight and bias."""
        if not self._done and not self._made:
            self._made = [
                (each, self._fold(each.detach().float().t()).t())
                for each in (self._module.weight, self._module.bias)
                if each is not None
            ]
        super().__call__()


def _steps(decoder: Decoder, has_values: bool) -> Iterator[Callable[[], None]]:
    """Yield functions that fold a rotation into one module each; all can be called again."""
    yield _Step(decoder.embedding, _rotate)
    for norm, readers in decoder.readers():
        gain = norm.gain
        for each in readers:
            yield _Step(each, partial(_scale_and_rotate, gain=gain))
        yield norm.neutralize
    for layer in decoder.layers:
        values = layer.values
        if has_values and values is not None:
            yield _OutputStep(values.module, partial(_rotate_values, values=values))
            yield _Step(layer.out, partial(_rotate, block=largest_block(values.head_size)))
        for each in (layer.out, layer.down):
            yield _OutputStep(each, _rotate)
