"""Defines methods for vLLM's linear layers, vocabulary embeddings and heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.parameter import ChannelQuantScaleParameter, ModelWeightParameter

import qcore.torch as qt
from qcore.transformers.config import LayerOptions
from qcore.vllm import weights

PACKED = "qcore_linear"
"""Name of the attribute of a layer of vLLM that holds the module over its packed weight."""


class LinearMethod(LinearMethodBase, ABC):  # type: ignore[misc, unused-ignore]
    """Applies a packed weight: the base of the methods for linear layers.

    Args:
        options: of the layer.
        prefix: name of the layer.
    """

    def __init__(self, options: LayerOptions, prefix: str) -> None:
        super().__init__()
        self.options = options
        self.prefix = prefix

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack the loaded parameters and remove them. A second call changes nothing.

        Args:
            layer: a layer of vLLM.

        Raises:
            QcoreValueError: a parameter was not loaded.
        """
        if not hasattr(layer, PACKED) and tied_to(layer) is layer:
            setattr(layer, PACKED, weights.linear_module(self._weight(layer), self.options.compute))
            weights.drop(layer, "weight", *weights.PARTS)

    @abstractmethod
    def _weight(self, layer: torch.nn.Module) -> Any:
        """Return the layer's weight, packed."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``x @ weight.T + bias`` in x's dtype.

        Args:
            layer: a layer of vLLM.
            x: float32, float16 or bfloat16 [..., K].
            bias: [N], or None.
        """
        y: torch.Tensor = getattr(tied_to(layer), PACKED)(x)
        return y if bias is None else y + bias

    def dequantize_weight(self, layer: torch.nn.Module) -> torch.Tensor:
        """Return the weight of a processed layer in float32, for vLLM's other quantization methods.

        Args:
            layer: a layer of vLLM.
        """
        module = getattr(tied_to(layer), PACKED)
        return torch.from_numpy(module.weight.dequantize()).to(module.weight.device)


@register_weight_loader_v2_supported_method
class QcoreLinearMethod(LinearMethod):
    """Runs a linear layer whose weight is quantized in the checkpoint."""

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give a layer the parameters codes, scales and offsets.

        Args:
            layer: a layer of vLLM.
            input_size_per_partition: K of this rank.
            output_partition_sizes: rows of this rank, of each weight in a merged layer.
            input_size: K.
            output_size: N.
            params_dtype: of the activations, not used.
            extra_weight_attrs: the weight loader.

        Raises:
            QcoreValueError: a rank's columns are not whole blocks.
        """
        layout = weights.Layout(self.options, input_size_per_partition, input_size, self.prefix)
        loader = extra_weight_attrs["weight_loader"]
        for part in layout.parts:
            options = {
                "data": layout.empty(part, sum(output_partition_sizes)),
                "output_dim": 0,
                "weight_loader": weights.checked_loader(loader, layout, part),
            }
            if part != "codes" and layout.splits_blocks:
                parameter = ChannelQuantScaleParameter(**options)
            else:
                parameter = ModelWeightParameter(input_dim=1, **options)
            layer.register_parameter(part, parameter)
        if layout.symmetric:
            layer.register_parameter("offsets", None)
        layer.qcore_layout = layout

    def _weight(self, layer: Any) -> Any:
        return layer.qcore_layout.assemble(layer.codes, layer.scales, layer.offsets)


@register_weight_loader_v2_supported_method
class QcoreOnlineLinearMethod(LinearMethod):
    """Quantizes the float weight of a linear layer when it is loaded."""

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give a layer its float weight.

        Args:
            layer: a layer of vLLM.
            input_size_per_partition: K of this rank, cut into blocks from its first column.
            output_partition_sizes: rows of this rank, of each weight in a merged layer.
            input_size: K.
            output_size: N.
            params_dtype: of the weight.
            extra_weight_attrs: the weight loader.
        """
        weight = ModelWeightParameter(
            data=torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype),
            input_dim=1,
            output_dim=0,
            weight_loader=extra_weight_attrs["weight_loader"],
        )
        layer.register_parameter("weight", weight)

    def _weight(self, layer: Any) -> Any:
        return weights.quantize_rows(layer.weight, self.options)


class _EmbeddingMethod(LinearMethod):
    """Adds row lookup to the linear method, for embeddings and heads that share one weight."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack the loaded parameters and remove them. A second call changes nothing.

        Args:
            layer: a VocabParallelEmbedding or a ParallelLMHead of vLLM.

        Raises:
            QcoreValueError: a parameter was not loaded.
        """
        super().process_weights_after_loading(layer)
        if hasattr(layer, PACKED) and not hasattr(layer, "qcore_embedding") and not is_head(layer):
            layer.qcore_embedding = qt.Embedding(getattr(layer, PACKED).weight, dtype=layer.params_dtype)

    def embedding(self, layer: Any, input_: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight in the layer's dtype.

        Args:
            layer: a VocabParallelEmbedding of vLLM.
            input_: int64 indices.
        """
        rows: torch.Tensor = layer.qcore_embedding(input_)
        return rows

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """Return the head, which from now on uses the weight of an embedding.

        Args:
            layer: a ParallelLMHead of vLLM.
            embed_tokens: a VocabParallelEmbedding of vLLM.
        """
        weights.drop(layer, "weight", *weights.PARTS)
        if isinstance(embed_tokens.quant_method, LinearMethod):
            layer.__dict__["qcore_tied_to"] = embed_tokens
            return layer
        layer.quant_method = UnquantizedEmbeddingMethod()
        return layer.quant_method.tie_weights(layer, embed_tokens)


class QcoreEmbeddingMethod(_EmbeddingMethod, QcoreLinearMethod):
    """Runs an embedding or a head whose weight is quantized in the checkpoint."""


class QcoreOnlineEmbeddingMethod(_EmbeddingMethod, QcoreOnlineLinearMethod):
    """Quantizes the float weight of an embedding or a head when it is loaded."""


def tied_to(layer: Any) -> Any:
    """Return the embedding whose weight a tied head uses, or the layer itself.

    Args:
        layer: a layer of vLLM.
    """
    return layer.__dict__.get("qcore_tied_to", layer)


def is_head(layer: torch.nn.Module) -> bool:
    """Return whether a layer is a ParallelLMHead, whose rows are never looked up.

    Args:
        layer: a layer of vLLM.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return isinstance(layer, ParallelLMHead)
