"""Finds, while a model runs, the linear layers that alone read what a norm or a linear layer returns.

Memory is followed, not names: a tensor belongs to the module that returned its storage, views included. Every operator
of torch that takes such a tensor is a read, except those that only make views of it, and an elementwise product, whose
result has the same channels and is followed in turn. A storage that outlives the model's call was kept by something,
which is a read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from qcore.torch.conversion.calibration import keep_rows, outputs_of
from qcore.torch.conversion.layers import Layer, storage_key


@dataclass
class Source:
    """Describes a norm or a linear layer, and what reads its output.

    Attributes:
        name: name of the module in the model.
        norm: the norm; None for a linear layer.
        layer: the linear layer; None for a norm.
        readers: linear layers whose input its output is, itself or times another tensor, in the order of their calls.
        samples: some rows of the input of ``readers[0]``.
        reason: why other code may read its output; empty if nothing but the readers does.
    """

    name: str
    norm: torch.nn.Module | None
    layer: Layer | None
    readers: list[Layer] = field(default_factory=list)
    samples: list[torch.Tensor] = field(default_factory=list)
    reason: str = ""

    @property
    def module(self) -> torch.nn.Module:
        """Return the float module."""
        module: torch.nn.Module = self.layer.module if self.layer is not None else self.norm
        return module

    @property
    def channels(self) -> int:
        """Return the number of channels of the output."""
        axis = 0 if self.layer is None else 1 - input_axis(self.layer)
        return int(self.module.weight.shape[axis])


def input_axis(layer: Layer) -> int:
    """Return the axis of a linear layer's weight that its input channels are."""
    return 0 if layer.rule is not None and layer.rule.kind == "Conv1D" else 1


def find_readers(
    model: torch.nn.Module, sources: list[Source], layers: list[Layer], batches: list[Any]
) -> list[torch.Tensor]:
    """Run the model and set ``readers``, ``samples`` and ``reason`` of the sources.

    Args:
        model: the float model.
        sources: modules whose outputs are followed.
        layers: linear layers that may read them.
        batches: inputs of the model.

    Returns:
        What :func:`qcore.torch.conversion.calibration.outputs_of` returns.
    """
    watch = _Watch(sources, layers)
    hooks = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            hooks.append(module.register_forward_pre_hook(watch.entering(name)))
            hooks.append(module.register_forward_hook(watch.leave))
    try:
        # Compiled code calls kernels of its own, which no mode sees.
        with torch.compiler.set_stance("force_eager"), watch:
            outputs = outputs_of(model, batches)
    finally:
        for hook in hooks:
            hook.remove()
    watch.finish()
    return outputs


class _Watch(TorchDispatchMode):
    """Sees all operators of torch and all calls of modules."""

    def __init__(self, sources: list[Source], layers: list[Layer]) -> None:
        super().__init__()
        self._sources = {id(source.module): source for source in sources}
        self._layers = {id(layer.module): layer for layer in layers}
        self._inputs: dict[int, list[Source | None]] = {id(layer): [] for layer in layers}
        self._followed: dict[int, tuple[StorageWeakRef, Source]] = {}
        self._names: list[str] = []
        self._reading: list[Source | None] = []
        """The source whose output each running call of a linear layer has as its input, innermost call last."""
        self._paused = False

    def entering(self, name: str) -> Any:
        """Return a hook that runs before the module of this name."""

        def enter(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
            self._names.append(name or "the model itself")
            if id(module) in self._layers:
                self._read(self._layers[id(module)], arguments)

        return enter

    def leave(self, module: torch.nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        """Run after a module."""
        self._names.pop()
        if id(module) in self._layers:
            self._reading.pop()
        if id(module) in self._sources:
            self._follow(self._sources[id(module)], arguments, result)
        if not self._names:
            self._check_kept()

    def finish(self) -> None:
        """Refuse sources of layers that have other inputs as well."""
        for source in self._sources.values():
            for layer in source.readers:
                if any(other is not source for other in self._inputs[id(layer)]):
                    self._refuse(source, f"{layer.name} has other inputs, too")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._paused or not self._followed:
            return result
        for tensor in _tensors((args, kwargs or {})):
            source = self._source_of(tensor)
            if source is None or (self._reading and self._reading[-1] is source):
                continue
            if self._is_view(func, tensor, result) or self._follow_product(func, args, tensor, source, result):
                continue
            name = self._names[-1] if self._names else "the code around the model"
            self._refuse(source, f"{name} reads its output, too ({func.overloadpacket.__name__})")
        return result

    def _read(self, layer: Layer, arguments: tuple[Any, ...]) -> None:
        x = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
        source = None if x is None else self._source_of(x)
        features = int(layer.module.weight.shape[input_axis(layer)])
        if source is not None and not (features == source.channels and _has_channels(x, features)):
            source = None
        self._inputs[id(layer)].append(source)
        self._reading.append(source)
        if source is None or x is None:
            return
        if not any(layer is each for each in source.readers):
            source.readers.append(layer)
        if layer is source.readers[0] and x.numel() > 0:
            self._paused = True
            keep_rows(source.samples, x.detach())
            self._paused = False

    def _follow(self, source: Source, arguments: tuple[Any, ...], result: Any) -> None:
        if not isinstance(result, torch.Tensor) or not _has_channels(result, source.channels):
            self._refuse(source, "it returns no tensor whose last axis is its channels")
            return
        key = storage_key(result)
        given = {storage_key(tensor) for tensor in _tensors(arguments)}
        if key is None or key in given or self._source_of(result) is not None:
            self._refuse(source, "its output has memory in common with another tensor")
            return
        self._followed[key] = StorageWeakRef(result.untyped_storage()), source

    def _follow_product(self, func: Any, args: Any, tensor: torch.Tensor, source: Source, result: Any) -> bool:
        """Follow an elementwise product of a source's output and a tensor of another origin; True if it is one."""
        if func is not torch.ops.aten.mul.Tensor or not all(isinstance(each, torch.Tensor) for each in args):
            return False
        if sum(self._source_of(each) is not None for each in args) != 1 or result.shape != tensor.shape:
            return False
        key = storage_key(result)
        if key is None or key in self._followed:
            return False
        if not (_has_channels(tensor, source.channels) and _has_channels(result, source.channels)):
            return False
        self._followed[key] = StorageWeakRef(result.untyped_storage()), source
        return True

    def _is_view(self, func: Any, tensor: torch.Tensor, result: Any) -> bool:
        made = list(_tensors(result))
        key = storage_key(tensor)
        return bool(made) and not func._schema.is_mutable and all(storage_key(each) == key for each in made)

    def _source_of(self, tensor: torch.Tensor) -> Source | None:
        key = storage_key(tensor)
        found = None if key is None else self._followed.get(key)
        return None if found is None else found[1]

    def _check_kept(self) -> None:
        for storage, source in self._followed.values():
            if not storage.expired():
                self._refuse(source, "its output is kept after the model's call")
        self._followed = {}

    def _refuse(self, source: Source, reason: str) -> None:
        source.reason = source.reason or reason


def _has_channels(tensor: torch.Tensor, channels: int) -> bool:
    """Return whether the last axis of a tensor is all channels of memory that holds rows of them, in order."""
    if tensor.dim() == 0 or tensor.shape[-1] != channels or not tensor.is_floating_point():
        return False
    strides = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    is_row = channels == 1 or tensor.stride(-1) == 1
    return is_row and all(each % channels == 0 for each in (*strides, tensor.storage_offset()))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in items:
            yield from _tensors(each)
