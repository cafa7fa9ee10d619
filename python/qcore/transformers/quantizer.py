"""Defines the quantizer that transformers' from_pretrained and save_pretrained call."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.core_model_loading import MergeModulelist, WeightConverter
from transformers.quantizers.base import HfQuantizer

from qcore import _core
from qcore._options import Compute
from qcore.transformers import modules, packed_folders, saving
from qcore.transformers.config import QcoreConfig
from qcore.transformers.mixtures import Mixture, mixtures_of, packed_experts
from qcore.transformers.operations import DeferExperts, Quantize, ReadPacked, placeholder
from qcore.transformers.planning import mixtures_plan, plan_of, warn_of_the_rest


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
        """Names of the weights that are [K, N] in the model."""
        self._made: dict[str, modules.Weight] = {}
        self._mixtures: dict[str, Mixture] = {}
        """Mixtures of experts that are packed, by name."""
        self._projections: dict[str, tuple[Mixture, str]] = {}
        """Mixture and projection of each parameter of these mixtures, by its name."""
        self._experts: dict[str, list[list[modules.Weight]]] = {}
        """Weights of each expert by the name of the parameter that they replace."""
        self._error: BaseException | None = None
        self._dtype = torch.float32

    # Before loading

    def validate_environment(self, *args: Any, **options: Any) -> None:
        """Check what from_pretrained was called with.

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
        """Return the bytes that an element of a parameter takes in the end.

        Args:
            model: the model.
            param_name: full name of the parameter.
            param: the parameter.
        """
        if param_name in self._planned:
            mixture, projection = self._projections.get(param_name, (None, ""))
            layer = param_name.removesuffix(".weight") if mixture is None else mixture.layer(projection, 0)
            options = self.quantization_config.of_layer(layer)
            return options.bits / 8 + 4 / options.block_size
        return float(param.element_size())

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> Any:
        self._dtype = torch.get_default_dtype()  # transformers has set it to that of the model
        files = [Path(file) for file in options.get("checkpoint_files") or ()]
        if self.pre_quantized:
            self._folder = packed_folders.packed_folder(files, self.quantization_config.files())
        else:
            known, unknown = mixtures_of(model)
            mixtures, reasons = mixtures_plan(model, self.quantization_config, known, unknown)
            plan = plan_of(model, self.quantization_config, mixtures=known.values())
            self._pack_mixtures(mixtures.values())
            self._planned = {*plan, *self._projections}
            warn_of_the_rest(model, self._planned, self.quantization_config, reasons)
            self._transposed = {name for name, module in plan.items() if modules.is_conv1d(module)}
            self._folder = packed_folders.float_folder(files)
        return model

    def _pack_mixtures(self, mixtures: Iterable[Mixture]) -> None:
        for mixture in mixtures:
            self._mixtures[mixture.path] = mixture
            self._projections |= {mixture.parameter(each): (mixture, each) for each in mixture.sources}

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Return the loader's conversions with those of packed weights before them.

        Args:
            weight_conversions: the model's own.
            model: the model, on meta.

        Raises:
            QcoreValueError: a packed weight of the files has no place in the model.
        """
        if self._folder is None:
            return weight_conversions
        if not self.pre_quantized:
            self._folder.find_targets(weight_conversions, model, self._mixtures)
            return [self._deferring(each) for each in weight_conversions]
        sources, target = self._folder.patterns(weight_conversions)
        self._folder.find_targets(weight_conversions, model, mixtures_of(model)[0])
        self._folder.check_modules(model)
        self._pack_mixtures(self._folder.packed_mixtures())
        self._planned = {*self._folder.targets, *self._projections}
        patterns = [*((given, made) for made, given in self._folder.expert_patterns().items()), (sources, target)]
        ours = [WeightConverter(given, made, [ReadPacked(self)], force_cpu=True) for given, made in patterns]
        return [*ours, *weight_conversions]

    def _deferring(self, conversion: Any) -> Any:
        """Return the conversion, with operations that leave the experts that are quantized to the quantizer."""
        if not self._mixtures or not any(isinstance(each, MergeModulelist) for each in _operations(conversion)):
            return conversion
        made = deepcopy(conversion)
        made.operations = [DeferExperts(self, conversion.operations)]
        return made

    def reads_experts(self, name: str) -> bool:
        """Return whether the quantizer reads the tensors of single experts by itself.

        Args:
            name: full name of the parameter of all experts.
        """
        return name in self._projections and self._folder.float_experts(*self._projections[name]) is not None

    # While tensors arrive

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """Return whether a parameter becomes a packed weight.

        Args:
            model: the model.
            param_name: full name of the parameter.
            options: not used.
        """
        return param_name in self._planned

    def get_quantize_ops(self) -> Quantize:
        """Return the operation that quantizes a float weight."""
        return Quantize(self)

    def read_packed(self, name: str) -> torch.Tensor:
        """Read a packed weight and keep it.

        Args:
            name: full name of the weight in the model.

        Returns:
            Its placeholder.
        """
        assert self._folder is not None
        if name in self._projections:
            return self._keep_experts(name, "cpu", partial(self._folder.read_expert, name))
        return self._keep(name, "cpu", partial(self._folder.read, name))

    def quantize_float(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Quantize a float weight and keep it, if it is planned.

        It is read from its file where the loader changes only its dtype, so that the loader's own view of the file
        takes no memory.

        Args:
            name: full name of the weight in the model.
            tensor: what the loader has made of it.

        Returns:
            Its placeholder, or ``tensor``.
        """
        if name not in self._planned:
            return tensor
        if name in self._projections:
            return self._quantize_experts(name, tensor)
        source = None if self._folder is None else self._folder.float_operand(name)
        return self._keep(name, tensor.device, lambda: self._quantized(name, tensor if source is None else source()))

    def _keep(self, name: str, device: Any, make: Any) -> torch.Tensor:
        try:
            weight = make()
            self._made[name] = weight.to(str(device))
            rows = weight.shape[0]
        except (_core.QcoreError, OSError) as error:
            # Raised when loading is over, because the loader would turn it into a line of its report.
            self._error = self._error or error
            rows = 0
        return placeholder(rows, device, self._dtype)

    def _quantize_experts(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Quantize the weights of all experts, each from its file where that has it."""
        mixture, projection = self._projections[name]
        read = None if self._folder is None else self._folder.float_experts(mixture, projection)
        if read is None:
            expected = mixture.module.get_parameter(mixture.sources[projection].weight).shape
            if tensor.shape != expected:
                self._error = self._error or _core.QcoreValueError(
                    f"qcore.transformers: {name} of the files is {list(tensor.shape)}, expected {list(expected)}"
                )
                return placeholder(0, tensor.device, self._dtype)
            read = mixture.sources[projection].matrices(tensor).__getitem__

        def make(expert: int) -> list[modules.Weight]:
            return [self._quantized(f"{mixture.layer(projection, expert)}.weight", read(expert))]

        return self._keep_experts(name, tensor.device, make)

    def _keep_experts(self, name: str, device: Any, make: Any) -> torch.Tensor:
        mixture, projection = self._projections[name]
        try:
            self._experts[name] = [
                [weight.to(str(device)) for weight in make(expert)] for expert in range(mixture.shape(projection)[0])
            ]
        except (_core.QcoreError, OSError) as error:
            self._error = self._error or error
        return placeholder(0, device, self._dtype)

    def _quantized(self, name: str, operand: Any) -> modules.Weight:
        layer = name.removesuffix(".weight")
        options = self.quantization_config.of_layer(layer)
        if isinstance(operand, torch.Tensor):
            operand = operand.detach().cpu()
        if name in self._transposed:
            operand = operand.T
        try:
            return modules.quantized(operand, options)
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
            self._replace_mixtures(model)
            # The operations of qcore have no reverse; save_pretrained writes packed weights without them.
            conversions = getattr(model, "_weight_conversions", None)
            model._weight_conversions = [_original(each) for each in conversions or () if not _is_ours(each)] or None
        finally:
            self._reset()
        return model

    def _quantize_rest(self, model: Any) -> None:
        """Quantize planned weights that the loader has made in another way, from several tensors for instance."""
        for name in sorted(self._planned - set(self._made) - set(self._experts)):
            module, parameter = _owner(model, name)
            if parameter is None or parameter.is_meta or parameter.shape[-1] == 0:
                continue
            if name in self._projections:
                kept = self._quantize_experts(name, parameter.detach())
            else:
                kept = self._keep(name, parameter.device, partial(self._quantized, name, parameter.detach()))
            if self._error is not None:
                raise self._error
            module._parameters[name.rpartition(".")[2]] = torch.nn.Parameter(kept, requires_grad=False)

    def _replace(self, model: Any) -> None:
        """Put packed modules where the placeholders are; those that share one share the weight."""
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

    def _replace_mixtures(self, model: Any) -> None:
        """Put modules over packed weights where the mixtures of experts are."""
        places = modules.places_of(model) if self._mixtures else {}
        for path, mixture in self._mixtures.items():
            # Taken out, so that nothing holds the weights when the module has put them into one memory.
            weights = {each: self._experts.pop(mixture.parameter(each)) for each in mixture.sources}
            name = mixture.parameter(next(iter(mixture.sources)))
            parameter = _owner(model, name)[1]
            assert parameter is not None  # the placeholder of the mixture's weights
            if parameter.is_meta:
                raise _core.QcoreValueError(_offloaded(f"device_map has left {name} off its devices"))
            made = packed_experts(mixture, weights, partial(self._expert_compute, mixture), parameter.device)
            made._is_hf_initialized = True
            for parent, attribute in places[id(model.get_submodule(path))]:
                parent._modules[attribute] = made

    def _expert_compute(self, mixture: Mixture, projection: str, expert: int) -> Compute:
        """Return the compute mode of an expert's layer, chosen as by :meth:`_compute`."""
        layer = mixture.layer(projection, expert)
        asked = self.quantization_config.of_layer(layer).compute
        if self.quantization_config.asks_compute(layer) or not self.pre_quantized:
            return asked
        return self._folder.expert_activations(mixture.parameter(projection), expert) or asked

    def _source(self, name: str, shared: str) -> str:
        """Return the name of the weight that a module gets: its own, or an equal one that shares the placeholder."""
        if name in self._made and (shared in ("", name) or self._made[name] != self._made[shared]):
            return name
        return shared

    def _compute(self, layer: str, weight: str) -> Compute:
        """Return the compute mode of a layer: the given one, else the one that the files ask for."""
        asked = self.quantization_config.of_layer(layer).compute
        if self.quantization_config.asks_compute(layer) or self._folder is None or weight not in self._folder.targets:
            return asked
        return self._folder.activations(weight) or asked

    # Saving, and what transformers asks about

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Return what save_pretrained writes: tensors by name and the files' metadata.

        Args:
            model: the model.
        """
        return saving.state_of(model)

    def is_serializable(self) -> bool:
        """Return True: packed weights are saved without loss."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Return False: packed weights are frozen."""
        return False

    @property
    def is_compileable(self) -> bool:
        """Return whether ``generate`` may compile the model."""
        return True

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        return modules.dequantize_(model, dtype or torch.float32)


def _offloaded(given: str) -> str:
    """Return the message for a model of which a part is offloaded."""
    return (
        f"qcore.transformers: {given}, expected CUDA devices that hold all of the model, or 'cpu' for all of it: "
        "accelerate copies offloaded weights to a device at each call, which it can't do with packed ones"
    )


def _owner(model: Any, name: str) -> tuple[Any, torch.nn.Parameter | None]:
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    return module, module._parameters.get(attribute)


def _operations(conversion: Any) -> list[Any]:
    return list(getattr(conversion, "operations", ()))


def _is_ours(conversion: Any) -> bool:
    return any(isinstance(each, ReadPacked) for each in _operations(conversion))


def _original(conversion: Any) -> Any:
    """Return a conversion with the operations that it had before :meth:`QcoreQuantizer._deferring`."""
    for operation in _operations(conversion):
        if isinstance(operation, DeferExperts):
            conversion.operations = operation.operations
    return conversion
