"""Registers the quantization method "qcore" with diffusers when it is imported.

diffusers has its own quantizers, chosen by two dictionaries and without a function to register one; an entry is added
to each. The options are those of :class:`qcore.transformers.QcoreConfig`, the files those of transformers.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from diffusers.quantizers import auto
from diffusers.quantizers.base import DiffusersQuantizer

from qcore import _core
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.reader import Checkpoint, open_files
from qcore.formats.checkpoint.records import PlainEntry
from qcore.transformers import modules, saving
from qcore.transformers.config import METHOD, QcoreConfig
from qcore.transformers.planning import plan_of


class QcoreDiffusersQuantizer(DiffusersQuantizer):
    """Quantizes a model while diffusers loads it, or puts packed weights of its files into it.

    Args:
        quantization_config: the options.
        options: ``pre_quantized``, as diffusers says it.
    """

    quantization_config: QcoreConfig

    def __init__(self, quantization_config: QcoreConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._planned: dict[str, torch.nn.Module] = {}
        self._checkpoint: Checkpoint | None = None
        self._model: Any = None

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Return the names in the files, those of packed weights instead of their parts'.

        Args:
            loaded_keys: names of tensors.
            checkpoint_files: the files.

        Raises:
            QcoreValueError: packed weights are described nowhere, or the files are no safetensors files.
        """
        if not self.pre_quantized:
            return loaded_keys
        where = "qcore.transformers.diffusers"
        files = [Path(file) for file in checkpoint_files]
        if any(file.suffix != ".safetensors" for file in files):
            raise _core.QcoreValueError(f"{where}: {files[0]} is no safetensors file, expected packed weights in one")
        self._checkpoint = open_files(files, {}, f"{where}: {files[0]}")
        lost = next((name for name in self._checkpoint if name.endswith(".codes")), None)
        if lost is not None:
            raise _core.QcoreValueError(
                f"{where}: {files[0]} has {lost} and no description of it in its metadata, expected {layout.KEY!r}"
            )
        return list(self._checkpoint)

    def maybe_update_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return tensors by name, a placeholder for each packed weight instead of its parts.

        Args:
            state_dict: tensors of a file.
        """
        if self._checkpoint is None:
            return state_dict
        found = {name: tensor for name, tensor in state_dict.items() if name in self._checkpoint}
        for name in state_dict:
            weight = name.removesuffix(".codes")
            if weight != name and weight in self._planned:
                found[weight] = torch.empty(0)
        return found

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> Any:
        if self._checkpoint is None:
            # weight.data is read by fuse_projections alone, which is not called here.
            self._planned = dict(plan_of(model, self.quantization_config, tolerated=("data",)))
            return model
        for name in self._checkpoint:
            if isinstance(self._checkpoint.entry(name), PlainEntry):
                continue
            module = model.get_submodule(name.removesuffix(".weight"))
            shape = self._checkpoint.info(name).shape
            if modules.unfit_reason(module) or modules.matrix_shape(module) != shape:
                raise _core.QcoreValueError(
                    f"qcore.transformers.diffusers: {name} of the files is packed {list(shape)}, expected what a "
                    f"{type(module).__name__} of {list(module.weight.shape)} holds"
                )
            self._planned[name] = module
        return model

    def check_if_quantized_param(
        self, model: Any, param_value: Any, param_name: str, state_dict: Any, **options: Any
    ) -> bool:
        """Return whether a tensor becomes a packed weight.

        Args:
            model: the model.
            param_value: the tensor.
            param_name: its name.
            state_dict: the tensors that it is one of.
            options: not used.
        """
        return param_name in self._planned

    def create_quantized_param(
        self, model: Any, param_value: torch.Tensor, param_name: str, target_device: Any, *args: Any, **options: Any
    ) -> None:
        """Put a packed module in the place of a float one.

        Args:
            model: the model.
            param_value: the float weight, or a placeholder.
            param_name: its name.
            target_device: where it goes.
            args: not used.
            options: not used.

        Raises:
            QcoreValueError: the weight can't be quantized.
        """
        name = param_name.removesuffix(".weight")
        options_of_layer = self.quantization_config.of_layer(name)
        module = model.get_submodule(name)
        weight: Any
        if self._checkpoint is not None:
            weight = self._checkpoint[param_name]
        else:
            try:
                weight = modules.quantized(param_value.detach().cpu(), options_of_layer)
            except _core.QcoreError as error:
                raise _core.QcoreValueError(f"qcore.transformers.diffusers: {param_name}: {error}") from error
        bias = module._parameters.get("bias")
        weight = weight.to(str(torch.device("cpu" if target_device is None else target_device)))
        modules.put(model, module, modules.packed_module(module, weight, bias, options_of_layer.compute, name))

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        self._planned, self._checkpoint = {}, None
        self._model = weakref.ref(model)
        return model

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Any], safe_serialization: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what save_pretrained writes: tensors by name and the files' metadata.

        Args:
            state_dict: the model's, of which nothing is used: it has no shapes of packed weights.
            safe_serialization: whether safetensors files are written.

        Raises:
            QcoreValueError: other files are to be written.
        """
        if not safe_serialization:
            raise _core.QcoreValueError(
                "save_pretrained: safe_serialization is False, expected True: metadata is needed"
            )
        return saving.state_of(self._model())

    @property
    def supports_parallel_loading(self) -> bool:
        """Return False: files are not read by several threads, because packed modules are inserted one by one."""
        return False

    @property
    def is_serializable(self) -> bool:
        """Return True: the model can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Return False: packed weights are frozen."""
        return False

    @property
    def is_compileable(self) -> bool:
        """Return True: the model can be compiled."""
        return True

    def _dequantize(self, model: Any) -> Any:
        return modules.dequantize_(model, model.dtype)


auto.AUTO_QUANTIZATION_CONFIG_MAPPING.setdefault(METHOD, QcoreConfig)
auto.AUTO_QUANTIZER_MAPPING.setdefault(METHOD, QcoreDiffusersQuantizer)
