"""Description of a tiny model: how it is built, and its inputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from architectures.expected import BOUNDS, COMPILED_OTHERWISE, LEAST_SHARES, NOT_EXPORTED

TOKENS, BATCH = 8, 2


@dataclass(frozen=True)
class Entry:
    """A model of transformers by its classes."""

    name: str
    model: str
    config: str
    options: dict[str, Any] = field(repr=False)
    inputs: str | Callable[[torch.Generator], dict[str, Any]]

    package = "transformers"

    @property
    def bound(self) -> float:
        """Return the largest relative L2 error of the outputs with 8 bits."""
        return BOUNDS.get(self.name, 0.1)

    @property
    def least_share(self) -> float:
        """Return the least share of the parameters that are quantized."""
        return LEAST_SHARES.get(self.name, 0.9)

    @property
    def compiles(self) -> bool:
        """Return whether the compiled float model computes the same."""
        return self.name not in COMPILED_OTHERWISE

    @property
    def exports(self) -> bool:
        """Return whether the float model can be exported."""
        return self.name not in NOT_EXPORTED

    def is_available(self) -> bool:
        """Return whether the package is installed and has the model."""
        return importlib.util.find_spec(self.package) is not None

    def missing(self) -> str:
        """Return why the model can't be made."""
        return f"{self.package} is not installed"

    def call(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        return (), arguments

    def make(self) -> torch.nn.Module:
        """Return the model in evaluation mode, with seeded weights."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        config.use_cache = False  # a cache in the outputs is no tensor
        model = getattr(transformers, self.model)(config).eval()
        spread(model)
        return model

    def sample(self) -> dict[str, Any]:
        """Return seeded arguments of a call."""
        generator = torch.Generator().manual_seed(1)
        if callable(self.inputs):
            return self.inputs(generator)
        return _INPUTS[self.inputs](generator)


def spread(model: torch.nn.Module) -> None:
    """Give the layers weights that keep the magnitude of activations.

    With the weights that the libraries initialize, the outputs of some models are zero.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind in ("Linear", "Conv1d", "Conv2d", "Conv3d", "Conv1D") or "Experts" in kind:
            for parameter in module.parameters(recurse=False):
                if parameter.dim() > 1 and parameter.requires_grad:
                    fan_in = parameter.shape[0] if kind == "Conv1D" else parameter[0].numel()
                    fan_in = parameter.shape[2] if parameter.dim() == 3 and "Experts" in kind else fan_in
                    torch.nn.init.normal_(parameter, std=fan_in**-0.5)


def tokens(generator: torch.Generator, count: int = TOKENS, vocabulary: int = 96) -> torch.Tensor:
    """Return identifiers [BATCH, count] from 3 on: the smaller ones have a special meaning."""
    return torch.randint(3, vocabulary, (BATCH, count), generator=generator)


def text(generator: torch.Generator) -> dict[str, Any]:
    """Return two sequences, the second of them padded on the right."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    mask[1, -3:] = 0
    return {"input_ids": tokens(generator), "attention_mask": mask}


def sequences(generator: torch.Generator) -> dict[str, Any]:
    """Return inputs of an encoder and of a decoder."""
    return text(generator) | {"decoder_input_ids": tokens(generator, 5)}


def pixels(size: int, channels: int = 3) -> Callable[[torch.Generator], dict[str, Any]]:
    """Return a maker of square images."""
    return lambda generator: {"pixel_values": torch.randn(BATCH, channels, size, size, generator=generator)}


def features(name: str, *shape: int) -> Callable[[torch.Generator], dict[str, Any]]:
    """Return a maker of a float argument of that name."""
    return lambda generator: {name: torch.randn(BATCH, *shape, generator=generator)}


def both(*makers: Callable[[torch.Generator], dict[str, Any]]) -> Callable[[torch.Generator], dict[str, Any]]:
    """Return a maker of the arguments of several."""

    def make(generator: torch.Generator) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for maker in makers:
            arguments |= maker(generator)
        return arguments

    return make


def results(model: Any, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Return all floating-point results of a call, with the same random numbers in each."""
    torch.manual_seed(2)
    return list(_tensors(model(**arguments)))


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result.float()
    elif result is not None and not isinstance(result, (bool, int, float, str)):
        for value in result.values() if isinstance(result, Mapping) else result:
            yield from _tensors(value)


def relative_error(got: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest relative L2 error of several tensors."""
    assert len(got) == len(expected) > 0
    errors = []
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        finite = theirs.isfinite()
        errors.append(float((mine - theirs)[finite].norm() / (theirs[finite].norm() + 1e-20)))
    return max(errors)


_INPUTS = {"text": text, "sequences": sequences}
