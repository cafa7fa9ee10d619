"""Defines the base of the quantized modules: their state loads, moves and keeps its dtypes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from qcore import _core

CONFIG = "qcore_config"
"""Name of the state_dict's entry that describes the module, as JSON in a uint8 tensor so that any file format for
tensors takes it."""


class QuantizedModule(torch.nn.Module, ABC):
    """Keeps a module's tensors as frozen buffers, whose dtypes ``.half()`` and ``.to(dtype)`` do not change."""

    kind = ""
    _kept: tuple[str, ...] = ()
    """Names of the buffers whose dtype never changes, because their bytes would mean something else."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return everything but the tensors, which ``load_state_dict`` compares with the state."""

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, torch.Tensor], prefix: str = "") -> Any:
        """Return the module whose state is in a state_dict, which another process may have written.

        Args:
            state_dict: tensors by name.
            prefix: beginning of this module's names, such as "encoder.0.".

        Raises:
            QcoreValueError: no quantized module has this prefix, or it is of another kind.
        """
        config = read_config(state_dict, prefix)
        if config.get("kind") != cls.kind:
            raise _core.QcoreValueError(
                f"{cls.__name__}.from_state_dict: {prefix + CONFIG} is of kind {config.get('kind')!r}, expected "
                f"{cls.kind!r}"
            )
        module = cls._empty(config, state_dict, prefix)
        module.load_state_dict({key[len(prefix) :]: state_dict[key] for key in state_dict if key.startswith(prefix)})
        return module

    @classmethod
    def _empty(cls, config: dict[str, Any], state_dict: Mapping[str, torch.Tensor], prefix: str) -> Any:
        """Make a module of that configuration, with uninitialized buffers like those of the state_dict."""
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        module._configure(config)
        for name in module._tensors():
            value = state_dict.get(prefix + name)
            buffer = None if value is None else torch.empty_like(value)
            if name == "bias" and buffer is not None:
                module.bias = torch.nn.Parameter(buffer, requires_grad=False)
            else:
                module.register_buffer(name, buffer)
        return module

    @abstractmethod
    def _configure(self, config: dict[str, Any]) -> None:
        """Set the attributes that :meth:`config` returns."""

    def _tensors(self) -> tuple[str, ...]:
        """Return the names of the buffers and of the bias, including those that are None."""
        return self._kept

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        text = json.dumps(self.config(), sort_keys=True).encode()
        destination[prefix + CONFIG] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        mine = _comparable(json.loads(json.dumps(self.config())))
        if prefix + CONFIG not in state_dict:
            missing_keys.append(prefix + CONFIG)
        elif (theirs := _comparable(read_config(state_dict, prefix))) != mine:
            differ = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
            was = ", ".join(f"{name} = {theirs.get(name)!r}" for name in differ)
            error_msgs.append(
                f"{prefix}{CONFIG}: the state has {was}, expected {', '.join(f'{mine.get(name)!r}' for name in differ)}"
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if prefix + CONFIG in unexpected_keys:
            unexpected_keys.remove(prefix + CONFIG)

    def __prepare_scriptable__(self) -> Any:
        raise _core.QcoreTypeError(
            f"torch.jit.script: {type(self).__name__} is a module of qcore.torch, which TorchScript can't compile, "
            "expected modules of torch: use torch.export, torch.compile or torch.jit.trace"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if fn(torch.empty(0, dtype=torch.float32)).dtype == torch.float64:
            raise _core.QcoreTypeError(
                f"qcore.torch.{type(self).__name__}: .double() or .to(torch.float64) is given, expected float32, "
                "float16 or bfloat16: kernels have no float64"
            )
        before = {name: self._buffers.get(name) for name in self._kept}
        # Inference mode is off because its tensors have no version counters, on which the cache of packing.py depends.
        with torch.inference_mode(False):
            super()._apply(fn, recurse)
            for name, old in before.items():
                new = self._buffers.get(name)
                if old is not None and new is not None and new.dtype != old.dtype:
                    self._buffers[name] = old.to(new.device)
        return self


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a module and a state must agree in.

    The dtype of the float weight is no part of the state, since ``.to(dtype)`` changes it, and the scale of a tensor is
    one of its values.
    """
    known = {name: value for name, value in config.items() if name != "dtype"}
    if isinstance(known.get("encoding"), dict):
        known["encoding"] = {name: value for name, value in known["encoding"].items() if name != "tensor_scale"}
    return known


def read_config(state_dict: Mapping[str, torch.Tensor], prefix: str) -> dict[str, Any]:
    """Return the checked entry :data:`CONFIG` under a prefix.

    Raises:
        QcoreValueError: there is no such entry, or it can't be read.
    """
    where = prefix + CONFIG
    if where not in state_dict:
        raise _core.QcoreValueError(f"state_dict has no {where}, expected the state of a quantized module")
    try:
        config = json.loads(state_dict[where].cpu().numpy().tobytes())
        if not isinstance(config, dict):
            raise ValueError("no dictionary")
    except (ValueError, AttributeError) as error:
        raise _core.QcoreValueError(f"state_dict: {where} can't be read: {error}") from None
    return config


def autocast(x: torch.Tensor) -> torch.Tensor:
    """Return x in the dtype that an enclosing autocast region prescribes, or x itself."""
    kind = x.device.type
    if x.is_floating_point() and not x.is_meta and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
