"""Defines methods for vLLM's routed experts: one product with packed weights for each expert that has tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase

from qcore import _core
from qcore.transformers.config import LayerOptions
from qcore.vllm import weights

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}
_SHARDS = {"w1": ("w13", 0), "w3": ("w13", 1), "w2": ("w2", 0)}


@dataclass(frozen=True)
class _Projection:
    """Describes one of the two weights of an expert: gate and up ("w13"), or down ("w2")."""

    layout: weights.Layout
    rows: int
    pieces: int


class MoeMethod(FusedMoEMethodBase, ABC):  # type: ignore[misc, unused-ignore]
    """Applies packed experts: the base of the methods for routed experts.

    Args:
        options: of the experts.
        moe: vLLM's description of the experts.
        prefix: name of the layer.

    Raises:
        QcoreValueError: the experts have an activation, a bias, a clamp or a padding that is not supported.
    """

    def __init__(self, options: LayerOptions, moe: Any, prefix: str) -> None:
        super().__init__(moe)
        self.options = options
        self.prefix = prefix
        activation = moe.activation.value
        self.gated = not activation.endswith("_no_mul")
        name = activation.removesuffix("_no_mul")
        if name not in _ACTIVATIONS or moe.swiglu_limit is not None:
            clamp = "" if moe.swiglu_limit is None else f" with swiglu_limit = {moe.swiglu_limit}"
            raise _core.QcoreValueError(
                f"qcore.vllm: {prefix} has the activation {activation!r}{clamp}, expected one of "
                f"{', '.join(_ACTIVATIONS)} without a limit"
            )
        if moe.has_bias:
            raise _core.QcoreValueError(f"qcore.vllm: {prefix} has experts with a bias, expected experts without")
        self.activation = _ACTIVATIONS[name]

    def _projections(self, hidden: int, intermediate: int) -> dict[str, _Projection]:
        unpadded = self.moe.hidden_dim_unpadded or hidden
        if hidden != unpadded or intermediate * self.moe.tp_size != self.moe.intermediate_size:
            raise _core.QcoreValueError(
                f"qcore.vllm: {self.prefix} has padded experts ({hidden} x {intermediate} on a rank), expected "
                f"{unpadded} x {self.moe.intermediate_size // self.moe.tp_size}"
            )
        pieces = 2 if self.gated else 1
        down = weights.Layout(self.options, intermediate, self.moe.intermediate_size, f"{self.prefix}.w2")
        up = weights.Layout(self.options, hidden, hidden, f"{self.prefix}.w13")
        return {"w13": _Projection(up, intermediate, pieces), "w2": _Projection(down, hidden, 1)}

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """Return None: vLLM's own kernels do not run.

        Args:
            layer: vLLM's RoutedExperts.
        """
        return None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the loaded parameters and remove them. A second call changes nothing.

        Args:
            layer: vLLM's RoutedExperts.

        Raises:
            QcoreValueError: a parameter was not loaded.
        """
        if hasattr(layer, "qcore_w13"):
            return
        for name in ("w13", "w2"):
            packed = (
                weights.linear_module(self._weight(layer, name, expert), self.options.compute)
                for expert in range(layer.local_num_experts)
            )
            setattr(layer, f"qcore_{name}", torch.nn.ModuleList(packed))
            weights.drop(layer, *(f"{name}_{part}" for part in ("weight", *weights.PARTS)))

    @abstractmethod
    def _weight(self, layer: Any, name: str, expert: int) -> Any:
        """Return one projection of one expert, packed."""

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the weighted sum of each token's experts; on a rank, of its part of them.

        The tokens of an expert are found on the CPU, which waits for the device. While a CUDA graph is recorded that is
        impossible: all experts then run over all tokens, and a token weights the experts that it does not use with 0.

        Args:
            layer: vLLM's RoutedExperts.
            x: [M, H] of the activations' dtype.
            topk_weights: [M, top_k].
            topk_ids: [M, top_k], numbers of experts in the whole model.
            shared_experts: run by vLLM, not used.
            shared_experts_input: not used.
        """
        if layer.expert_map is not None:
            topk_ids = layer.expert_map[topk_ids.long()]
        recording = x.is_cuda and torch.cuda.is_current_stream_capturing()
        sums = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        given = range(layer.local_num_experts) if recording else topk_ids[topk_ids >= 0].unique().tolist()
        for expert in given:
            chosen = topk_ids == expert
            share = (topk_weights.float() * chosen).sum(-1, keepdim=True)
            if recording:
                sums += self._expert(layer, expert, x, share)
            else:
                tokens = chosen.any(-1).nonzero().flatten()
                sums.index_add_(0, tokens, self._expert(layer, expert, x[tokens], share[tokens]))
        return sums.to(x.dtype)

    def _expert(self, layer: Any, expert: int, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        if layer.apply_router_weight_on_input:
            # A token without this expert has share 0: its products are 0, unless x is not finite.
            x = (x * share).to(x.dtype)
        between = layer.qcore_w13[expert](x)
        if self.gated:
            gate, up = between.chunk(2, dim=-1)
            between = self.activation(gate) * up
        else:
            between = self.activation(between)
        y = layer.qcore_w2[expert](between).float()
        result: torch.Tensor = y if layer.apply_router_weight_on_input else y * share
        return result


class QcoreMoeMethod(MoeMethod):
    """Runs experts whose weights are quantized in the checkpoint, expert by expert."""

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give a layer the parameters w13_codes, w2_codes and so on, [E, rows, ...].

        Args:
            layer: vLLM's RoutedExperts.
            num_experts: experts of this rank.
            hidden_size: H.
            intermediate_size_per_partition: I of this rank.
            params_dtype: of the activations, not used.
            extra_weight_attrs: vLLM's weight loader, not used.

        Raises:
            QcoreValueError: a rank's columns are not whole blocks.
        """
        layer.qcore_projections = self._projections(hidden_size, intermediate_size_per_partition)
        for name, projection in layer.qcore_projections.items():
            for part in projection.layout.parts:
                data = projection.layout.empty(part, num_experts, projection.pieces * projection.rows)
                parameter = torch.nn.Parameter(data, requires_grad=False)
                parameter.weight_loader = self._loader(layer, part)
                layer.register_parameter(f"{name}_{part}", parameter)

    def _loader(self, layer: Any, part: str) -> Callable[..., bool | None]:
        def load(
            param: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            local = layer._map_global_expert_id_to_local_expert_id(expert_id)
            if local != -1:
                name, piece = _SHARDS[shard_id]
                projection = layer.qcore_projections[name]
                loaded = projection.layout.check(part, loaded_weight)
                rank, target = self.moe.tp_rank, param.data[local]
                if name == "w13":
                    loaded = loaded.narrow(0, rank * projection.rows, projection.rows)
                    target = target.narrow(0, piece * projection.rows, projection.rows)
                elif part == "codes" or not projection.layout.splits_blocks:
                    loaded = loaded.narrow(1, rank * target.shape[1], target.shape[1])
                target.copy_(loaded)
            return local != -1 if return_success else None

        load.supports_moe_loading = True  # type: ignore[attr-defined]
        return load

    def _weight(self, layer: Any, name: str, expert: int) -> Any:
        parts = [getattr(layer, f"{name}_{part}", None) for part in weights.PARTS]
        layout = layer.qcore_projections[name].layout
        return layout.assemble(*(None if part is None else part.data[expert] for part in parts))


class QcoreOnlineMoeMethod(MoeMethod):
    """Quantizes the float weights of experts when they are loaded."""

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Give a layer the float parameters w13_weight and w2_weight.

        Args:
            layer: vLLM's RoutedExperts.
            num_experts: experts of this rank.
            hidden_size: H.
            intermediate_size_per_partition: I of this rank, cut into blocks from its first column.
            params_dtype: of the weights.
            extra_weight_attrs: attributes for the parameters: the weight loader.
        """
        pieces = 2 if self.gated else 1
        shapes = {
            "w13_weight": (num_experts, pieces * intermediate_size_per_partition, hidden_size),
            "w2_weight": (num_experts, hidden_size, intermediate_size_per_partition),
        }
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(torch.empty(shape, dtype=params_dtype), requires_grad=False)
            for attribute, value in extra_weight_attrs.items():
                setattr(parameter, attribute, value)
            layer.register_parameter(name, parameter)

    def _weight(self, layer: Any, name: str, expert: int) -> Any:
        return weights.quantize_rows(getattr(layer, f"{name}_weight").data[expert], self.options)
