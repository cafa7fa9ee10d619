"""The quantizer that transformers' from_pretrained and save_pretrained call."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.core_model_loading import WeightConverter
from transformers.quantizers.base import HfQuantizer

import qcore
from qcore import _core
from qcore.transformers import modules, packed_folders, saving
from qcore.transformers.config import QcoreConfig
from qcore.transformers.operations import Quantize, ReadPacked, placeholder
from qcore.transformers.planning import plan_of, warn_of_the_rest


class QcoreQuantizer(HfQuantizer):  # type: ignore[misc, unused-ignore]
    """Quantizes a model while transformers loads it, or puts packed weights of its files into it.

    While weights are loaded the model keeps its float modules, on meta. A packed weight waits in the quantizer, and
    the module's parameter is a placeholder without elements; when all are there, modules are replaced.

    Args:
        quantization_config: the options.
        options: ``pre_quantized``, as transformers says it.
    """

    requires_calibration = False
    quantization_config: QcoreConfig

    def __init__(self, quantization_config: QcoreConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._reset()

    def _reset(self) -> None:
        self._folder: Any = None
        self._planned: set[str] = set()
        """Names of the weights that become packed ones."""
        self._transposed: set[str] = set()
        """Names of those that are [K, N] in the model."""
        self._made: dict[str, modules.Weight] = {}
        self._error: BaseException | None = None
        self._dtype = torch.float32

    # Before loading

    def validate_environment(self, *args: Any, **options: Any) -> None:
        """Checks what from_pretrained was called with.

        Args:
            args: not used.
            options: arguments of from_pretrained, of which ``device_map`` counts.

        Raises:
            QcoreValueError: a part of the model is to stay on disk, or in host memory beside others on devices.
        """
        device_map = options.get("device_map")
        places = {str(place) for place in device_map.values()} if isinstance(device_map, dict) else set()
        if "disk" in places:
            raise _core.QcoreValueError(
                "qcore.transformers: device_map has 'disk', expected devices: packed weights have no place there"
            )
        if "cpu" in places and len(places) > 1:
            raise _core.QcoreValueError(_offloaded("device_map has 'cpu' beside other devices"))

    def param_element_size(self, model: Any, param_name: str, param: torch.Tensor) -> float:
        """Returns the bytes that an element of a parameter takes in the end.

        Args:
            model: the model.
            param_name: full name of the parameter.
            param: the parameter.
        """
        if param_name in self._planned:
            options = self.quantization_config.of_layer(param_name.removesuffix(".weight"))
            return options.bits / 8 + 4 / options.block_size
        return float(param.element_size())

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> Any:
        self._dtype = torch.get_default_dtype()  # transformers has set it to that of the model
        files = [Path(file) for file in options.get("checkpoint_files") or ()]
        if self.pre_quantized:
            self._folder = packed_folders.packed_folder(files, self.quantization_config.files())
        else:
            plan = plan_of(model, self.quantization_config)
            warn_of_the_rest(model, plan, self.quantization_config)
            self._planned = set(plan)
            self._transposed = {name for name, module in plan.items() if modules.is_conv1d(module)}
            self._folder = packed_folders.float_folder(files)
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Returns the loader's conversions with those of packed weights before them.

        Args:
            weight_conversions: the model's own.
            model: the model, on meta.

        Raises:
            QcoreValueError: a packed weight of the files has no place in the model.
        """
        if self._folder is None:
            return weight_conversions
        if not self.pre_quantized:
            self._folder.find_targets(weight_conversions, model)
            return weight_conversions
        sources, target = self._folder.patterns(weight_conversions)
        ours = WeightConverter(sources, target, [ReadPacked(self)], force_cpu=True)
        self._folder.find_targets(weight_conversions, model)
        self._folder.check_modules(model)
        self._planned = set(self._folder.targets)
        return [ours, *weight_conversions]

    # While tensors arrive

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """Returns whether a parameter becomes a packed weight.

        Args:
            model: the model.
            param_name: full name of the parameter.
            options: not used.
        """
        return param_name in self._planned

    def get_quantize_ops(self) -> Quantize:
        """Returns the operation that quantizes a float weight."""
        return Quantize(self)

    def read_packed(self, name: str) -> torch.Tensor:
        """Reads a packed weight and keeps it.

        Args:
            name: full name of the weight in the model.

        Returns:
            Its placeholder.
        """
        assert self._folder is not None
        return self._keep(name, "cpu", partial(self._folder.read, name))

    def quantize_float(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Quantizes a float weight and keeps it, if it is to be; from its file where the loader changes nothing but its
        dtype, so that nothing of the loader's own view of the file is in memory.

        Args:
            name: full name of the weight in the model.
            tensor: what the loader has made of it.

        Returns:
            Its placeholder, or ``tensor``.
        """
        if name not in self._planned:
            return tensor
        source = None if self._folder is None else self._folder.float_operand(name)
        return self._keep(name, tensor.device, lambda: self._quantized(name, tensor if source is None else source()))

    def _keep(self, name: str, device: Any, make: Any) -> torch.Tensor:
        try:
            weight = make()
            self._made[name] = weight.to(str(device))
            rows = weight.shape[0]
        except (_core.QcoreError, OSError) as error:
            # Raised when loading is over: the loader would turn it into a line of its report.
            self._error = self._error or error
            rows = 0
        return placeholder(rows, device, self._dtype)

    def _quantized(self, name: str, operand: Any) -> modules.Weight:
        layer = name.removesuffix(".weight")
        options = self.quantization_config.of_layer(layer)
        if isinstance(operand, torch.Tensor):
            operand = operand.detach().cpu()
        if name in self._transposed:
            operand = operand.T
        try:
            return qcore.quantize(
                operand,
                bits=options.bits,
                block_size=options.block_size,
                scheme=options.scheme,
                method=options.method,
                scale_dtype=options.scale_dtype,
            )
        except _core.QcoreError as error:
            raise _core.QcoreValueError(f"qcore.transformers: {name}: {error}") from error

    # After loading

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        try:
            if self._error is not None:
                raise self._error
            if not self.pre_quantized:
                self._quantize_rest(model)
            self._replace(model)
            # Ours have no reverse; save_pretrained writes packed weights by itself.
            conversions = getattr(model, "_weight_conversions", None)
            model._weight_conversions = [each for each in conversions or () if not _is_ours(each)] or None
        finally:
            self._reset()
        return model

    def _quantize_rest(self, model: Any) -> None:
        """Quantizes planned weights that the loader has made in another way, from several tensors for instance."""
        for name in sorted(self._planned - set(self._made)):
            module, parameter = _owner(model, name)
            if parameter is None or parameter.is_meta or parameter.shape[-1] == 0:
                continue
            kept = self._keep(name, parameter.device, partial(self._quantized, name, parameter.detach()))
            if self._error is not None:
                raise self._error
            module.weight = torch.nn.Parameter(kept, requires_grad=False)

    def _replace(self, model: Any) -> None:
        """Puts packed modules where the placeholders are; those that share one share the weight."""
        by_placeholder: dict[int, str] = {}
        for name in self._made:
            _, parameter = _owner(model, name)
            if parameter is not None:
                by_placeholder[id(parameter)] = name
        gone: set[str] = set()
        places = modules.places_of(model)
        modules_by_name, ties = dict(model.named_modules()), modules.ties_of(model)
        for layer, module in modules_by_name.items():
            parameter = module._parameters.get("weight")
            name = f"{layer}.weight"
            source = self._source(name, by_placeholder.get(id(parameter), ""))
            if parameter is None or not source:
                continue
            if parameter.is_meta:
                raise _core.QcoreValueError(_offloaded(f"device_map has left {name} off its devices"))
            weight = self._made[source].to(str(parameter.device))
            self._made[source] = weight
            compute = self._compute(layer, source)
            made = modules.packed_module(module, weight, module._parameters.get("bias"), compute, layer)
            made._is_hf_initialized = True
            for parent, attribute in places[id(module)]:
                parent._modules[attribute] = made
            gone.add(name)
        modules.forget_ties(ties, gone)

    def _source(self, name: str, shared: str) -> str:
        """The weight that a module gets: its own, unless it is the one that its placeholder is shared with."""
        if name in self._made and (shared in ("", name) or self._made[name] != self._made[shared]):
            return name
        return shared

    def _compute(self, layer: str, weight: str) -> str:
        """The compute mode of a layer: what was asked for, else what the files ask for."""
        asked = self.quantization_config.of_layer(layer).compute
        if self.quantization_config.compute_given or self._folder is None or weight not in self._folder.targets:
            return asked
        return self._folder.activations(weight) or asked

    # Saving, and what transformers asks about

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Returns what save_pretrained writes: tensors by name and the files' metadata.

        Args:
            model: the model.
        """
        return saving.state_of(model)

    def is_serializable(self) -> bool:
        """Returns True: packed weights are saved without loss."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether packed weights can be trained: they are frozen."""
        return False

    @property
    def is_compileable(self) -> bool:
        """Whether ``generate`` may compile the model."""
        return True

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        return modules.dequantize_(model, dtype or torch.float32)


def _offloaded(given: str) -> str:
    """Returns the message for a model of which a part is offloaded."""
    return (
        f"qcore.transformers: {given}, expected CUDA devices that hold all of the model, or 'cpu' for all of it: "
        "accelerate copies offloaded weights to a device at each call, which it can't do with packed ones"
    )


def _owner(model: Any, name: str) -> tuple[Any, torch.nn.Parameter | None]:
    module = model.get_submodule(name.removesuffix(".weight"))
    return module, module._parameters.get("weight")


def _is_ours(conversion: Any) -> bool:
    return any(isinstance(each, ReadPacked) for each in getattr(conversion, "operations", ()))
