"""Defines VllmConfig, which decides which layers of a model in vLLM are quantized, and how."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import WeightsMapper
from vllm.transformers_utils.config import get_safetensors_params_metadata

from qcore import _core
from qcore.transformers.config import LayerOptions, QcoreConfig
from qcore.vllm import METHOD, weights
from qcore.vllm.linear import (
    QcoreEmbeddingMethod,
    QcoreLinearMethod,
    QcoreOnlineEmbeddingMethod,
    QcoreOnlineLinearMethod,
)
from qcore.vllm.moe import QcoreMoeMethod, QcoreOnlineMoeMethod


class VllmConfig(QuantizationConfig):  # type: ignore[misc, unused-ignore]
    """Holds the quantization config of the method "qcore" for vLLM.

    Args:
        options: what ``quantization_config`` of config.json says; defaults of :class:`qcore.transformers.QcoreConfig`
            if None.
        online: whether the checkpoint's weights are float ones, to be quantized when they are loaded.
    """

    def __init__(self, options: QcoreConfig | None = None, online: bool = True) -> None:
        super().__init__()
        self.options = QcoreConfig() if options is None else options
        _check_widths(self.options)
        self.online = online
        self.tied = False
        self.names: dict[str, int] | None = None
        """Rows of the modules that are quantized in the checkpoint; None where its headers cannot be read."""

    def __repr__(self) -> str:
        return f"VllmConfig({self.options.to_dict()}, online={self.online})"

    @classmethod
    def get_name(cls) -> str:
        """Return "qcore"."""
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Return the dtypes of activations."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Return the smallest compute capability, times 10."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return no names: config.json has it all."""
        return []

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> VllmConfig:
        """Return the config of a checkpoint that is quantized.

        Args:
            config: ``quantization_config`` of config.json.

        Raises:
            QcoreValueError, QcoreTypeError: an option is unknown or impossible.
        """
        return cls(QcoreConfig(**config), online=False)

    @classmethod
    def from_config_dict_json(cls, text: str) -> VllmConfig:
        """Return the config that quantizes a float checkpoint: ``quantization_config_dict_json`` of ``hf_overrides``.

        Args:
            text: a JSON object with options of :class:`qcore.transformers.QcoreConfig`.

        Raises:
            QcoreValueError, QcoreTypeError: it is no such object, or an option is unknown or impossible.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise _core.QcoreValueError(f"qcore.vllm: quantization_config_dict_json is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise _core.QcoreValueError(f"qcore.vllm: quantization_config_dict_json is {found!r}, expected an object")
        return cls(QcoreConfig(**found), online=True)

    @classmethod
    def from_config_file(cls, path: str) -> VllmConfig:
        """Return the config that quantizes a float checkpoint: ``quantization_config_file`` of ``hf_overrides``.

        Args:
            path: of a JSON file, see :meth:`from_config_dict_json`.

        Raises:
            QcoreValueError, QcoreTypeError: the file holds no such object, or an option is unknown or impossible.
        """
        return cls.from_config_dict_json(Path(path).read_text())

    @staticmethod
    def get_checkpoint_weight_mapper() -> WeightsMapper:
        """Return the renaming of tensors: "X.weight.codes" becomes "X.codes", "X.qcore_config" is left out."""
        renamed: dict[str, str | None] = {f".weight.{part}": f".{part}" for part in weights.PARTS}
        return WeightsMapper(orig_to_new_suffix=renamed | {".qcore_config": None})

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Read which modules of the checkpoint are quantized.

        Args:
            model_name: folder or name of the model.
            hf_config: the model's config.
            revision: of the model.
        """
        text = getattr(hf_config, "text_config", None) or hf_config
        self.tied = bool(getattr(text, "tie_word_embeddings", False))
        if self.online:
            return
        tensors = get_safetensors_params_metadata(model_name, revision=revision)
        if tensors:
            self.names = {
                name.removesuffix(".codes").removesuffix(".weight"): int(info["shape"][0])
                for name, info in tensors.items()
                if name.endswith(".codes")
            }

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Rename modules as a model of vLLM does.

        Args:
            hf_to_vllm_mapper: names in the checkpoint to names in vLLM.
        """
        if self.names is not None:
            self.names = hf_to_vllm_mapper.apply_dict(self.names)
        left = self.options.modules_to_not_convert
        if left:
            self.options.modules_to_not_convert = hf_to_vllm_mapper.apply_list(left)
        self.options.layers = hf_to_vllm_mapper.apply_dict(self.options.layers)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """Return the method of a layer, None for vLLM's own.

        Args:
            layer: a module of vLLM.
            prefix: its name.

        Raises:
            QcoreValueError: the weights that vLLM merges into the layer are quantized in different ways.
        """
        if isinstance(layer, LinearBase):
            options = self._options(prefix)
            if options is None:
                return UnquantizedLinearMethod()
            return (QcoreOnlineLinearMethod if self.online else QcoreLinearMethod)(options, prefix)
        if isinstance(layer, VocabParallelEmbedding):
            return self._embedding_method(layer, prefix)
        if isinstance(layer, RoutedExperts):
            options = self._options(prefix, experts=True)
            if options is None:
                return UnquantizedFusedMoEMethod(layer.moe_config)
            method = QcoreOnlineMoeMethod if self.online else QcoreMoeMethod
            return method(options, layer.moe_config, prefix)
        return None

    def _embedding_method(self, layer: Any, prefix: str) -> Any:
        head = isinstance(layer, ParallelLMHead)
        prefix = prefix or self._embedding_name(layer.org_vocab_size)
        options = self._options(prefix)
        if head and self.tied:
            # tie_weights() of the method takes what the embedding has, packed or float.
            options = options or self.options.of_layer(prefix)
        elif not head and self.names is None and not self.options.embeddings:
            options = None
        if options is None:
            return UnquantizedEmbeddingMethod()
        return (QcoreOnlineEmbeddingMethod if self.online else QcoreEmbeddingMethod)(options, prefix)

    def _embedding_name(self, rows: int) -> str:
        """Return the name of an embedding that vLLM's model does not name: the quantized one with as many rows."""
        for name, found in (self.names or {}).items():
            last = name.rpartition(".")[2]
            if found == rows and ("emb" in last or last == "wte"):
                return name
        return "embed_tokens"

    def _options(self, prefix: str, experts: bool = False) -> LayerOptions | None:
        """Return the options of a layer of vLLM, None if it stays in floating point."""
        found = {name: self._options_of_module(name, experts) for name in self._merged(prefix)}
        first = next(iter(found.values()))
        for name, options in found.items():
            if options != first:
                raise _core.QcoreValueError(
                    f"qcore.vllm: {name} has {_described(options)}, expected {_described(first)} as "
                    f"{next(iter(found))}: vLLM merges them into {prefix}"
                )
        return first

    def _options_of_module(self, name: str, experts: bool) -> LayerOptions | None:
        options = self.options.of_layer(name)
        if self.names is None:
            return None if self.options.leaves(name) else options
        if experts:
            inside = f"{name.removesuffix('.routed_experts')}."
            return options if any(module.startswith(inside) for module in self.names) else None
        return options if name in self.names else None

    def _merged(self, prefix: str) -> Iterable[str]:
        parent, _, last = prefix.rpartition(".")
        merged = self.packed_modules_mapping.get(last)
        if merged is None or (self.names is not None and prefix in self.names):
            return [prefix]
        return [f"{parent}.{name}" if parent else name for name in merged]


def _check_widths(options: QcoreConfig) -> None:
    """Raise QcoreValueError for weights that are not plain ones of 4 or 8 bits, which vLLM could not shard."""
    for where, each in (("", options.to_dict()), *((f"layers[{key!r}]: ", own) for key, own in options.layers.items())):
        if each.get("encoding") is not None:
            raise _core.QcoreValueError(f"qcore.vllm: {where}encoding is {each['encoding']!r}, expected bits 4 or 8")
        if each.get("bits", 8) not in (4, 8):
            raise _core.QcoreValueError(f"qcore.vllm: {where}bits is {each['bits']}, expected 4 or 8")


def _described(options: LayerOptions | None) -> str:
    if options is None:
        return "a float weight"
    return f"{options.bits} bits, block_size {options.block_size}, {options.scheme}, {options.scale_dtype} scales"
