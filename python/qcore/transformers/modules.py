"""Makes modules with a packed weight and puts them into a model in the place of float ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import qcore.torch as qt
from qcore import _core
from qcore._options import Compute
from qcore.encode import quantize_encoded
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.reordered_tensor import ReorderedTensor
from qcore.torch.conversion.rules import embedding_like
from qcore.torch.weighted import WeightedModule
from qcore.transformers.config import LayerOptions

Weight = QuantizedTensor | ReorderedTensor
_SCALE = "embed_scale"
"""Names the attribute by which the embeddings of Gemma and BART multiply their rows."""


class ReorderedWeight(ReorderedTensor):
    """Holds a module's reordered weight and answers code that reads dtype and device of a float weight."""

    __slots__ = ()

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the float weight that it replaces."""
        dtype: torch.dtype = self.weight.dtype  # type: ignore[attr-defined]  # a ModuleWeight
        return dtype

    @property
    def device(self) -> torch.device:
        """Device as a ``torch.device``, where ReorderedTensor has its name."""
        return torch.device(self.weight.device)


class ReorderedLinear(torch.nn.Module):
    """Computes a linear layer with a weight whose columns are in another order: GPTQ's "act-order".

    Args:
        linear: a :class:`qcore.torch.Linear` over the reordered columns.
        order: column ``order[i]`` of x goes to column i of the weight; int64 [K].
    """

    order: torch.Tensor

    def __init__(self, linear: Any, order: torch.Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("order", order)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self) -> ReorderedWeight:
        """Return the weight and its order."""
        return ReorderedWeight(self.linear.weight, self.order.cpu().numpy())

    @property
    def bias(self) -> Any:
        """Return the linear layer's bias."""
        return self.linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the columns of x and apply the layer.

        Args:
            x: float32, float16 or bfloat16 [..., K].
        """
        result: torch.Tensor = self.linear(x.index_select(-1, self.order))
        return result


def quantized(operand: Any, options: LayerOptions) -> QuantizedTensor:
    """Return a float weight quantized; that of a convolution, which is no matrix, in the next of 4 and 8 bits.

    Args:
        operand: [N, K] or [Co, Ci, kh, kw] on the CPU, as :func:`qcore.quantize` takes it.
        options: of its layer, with a method that needs no samples.
    """
    is_matrix = len(operand.shape) == 2
    if options.encoding is not None and is_matrix:
        return quantize_encoded(operand, options.encoding, method=options.method)  # type: ignore[arg-type]
    return quantize(
        operand,
        bits=options.bits if is_matrix else 4 if options.bits <= 4 else 8,
        block_size=options.block_size,
        scheme=options.scheme if options.encoding is None else "symmetric",
        method=options.method,
        scale_dtype=options.scale_dtype,
    )


def is_conv1d(module: torch.nn.Module) -> bool:
    """Return whether a module is GPT-2's Conv1D, whose weight is [K, N]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def unfit_reason(module: torch.nn.Module) -> str:
    """Return why a module can't hold a packed weight; empty if it can."""
    if type(module) is torch.nn.Linear or is_conv1d(module):
        return ""
    if type(module) is torch.nn.Embedding or (isinstance(module, torch.nn.Embedding) and hasattr(module, _SCALE)):
        return "max_norm is given" if module.max_norm is not None else ""
    if type(module) is torch.nn.Conv2d:
        return "" if module.padding_mode == "zeros" else f"padding_mode is {module.padding_mode!r}"
    return f"{type(module).__name__} has no packed form"


def matrix_shape(module: torch.nn.Module) -> tuple[int, ...]:
    """Return the shape of the packed weight that takes the place of the module's."""
    shape = tuple(module.weight.shape)
    return shape[::-1] if is_conv1d(module) else shape


def packed_module(module: torch.nn.Module, weight: Weight, bias: Any, compute: Compute, name: str) -> torch.nn.Module:
    """Return the module over a packed weight that takes the place of a float one.

    Args:
        module: the float module, of which options are read and no values.
        weight: the packed weight.
        bias: a floating-point tensor, on the weight's device or on meta, or None.
        compute: compute mode of linear layers and convolutions.
        name: of the module, for errors.

    Raises:
        QcoreValueError: the weight has another shape, or the module none that can be packed.
    """
    reason = unfit_reason(module)
    if reason:
        raise _core.QcoreValueError(f"qcore.transformers: {name} can't hold a packed weight: {reason}")
    inner = weight.weight if isinstance(weight, ReorderedTensor) else weight
    made: torch.nn.Module
    if isinstance(module, torch.nn.Embedding):
        made = _embedding(module, inner, name)
    elif isinstance(module, torch.nn.Conv2d):
        made = qt.Conv2d(
            inner,
            bias,
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            compute=compute,
            dtype=module.weight.dtype,
        )
    else:
        made = qt.Linear(inner, bias, compute=compute, dtype=module.weight.dtype)
    if isinstance(weight, ReorderedTensor):
        if isinstance(module, (torch.nn.Embedding, torch.nn.Conv2d)):
            raise _core.QcoreValueError(f"qcore.transformers: {name} has a reordered weight, expected that of a Linear")
        made = ReorderedLinear(made, torch.from_numpy(weight.order.copy()).to(weight.device))
    made.train(module.training)
    return made


def _embedding(module: torch.nn.Embedding, weight: QuantizedTensor, name: str) -> torch.nn.Module:
    plain = qt.Embedding(weight, module.padding_idx, dtype=module.weight.dtype)
    if type(module) is torch.nn.Embedding:
        return plain
    # The rows of a subclass are multiplied by a number, which a call with a few rows of weights reveals.
    rows = torch.rand(min(8, weight.shape[0]), weight.shape[1], dtype=module.weight.dtype)
    module.weight = torch.nn.Parameter(rows.to(module.weight.device), requires_grad=False)
    made = embedding_like(module, plain)
    if made is plain:
        raise _core.QcoreValueError(
            f"qcore.transformers: {name} is a {type(module).__name__}, which does more than multiply its rows by a "
            "number, expected embeddings=False or its name in modules_to_not_convert"
        )
    return made


def places_of(model: torch.nn.Module) -> dict[int, list[tuple[torch.nn.Module, str]]]:
    """Return all places of the modules of a model, parent and attribute, by the modules' ids.

    Args:
        model: the model.
    """
    found: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for parent in model.modules():
        for attribute, child in parent._modules.items():
            if child is not None:
                found.setdefault(id(child), []).append((parent, attribute))
    return found


def put(model: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> None:
    """Replace a module in all places of a model."""
    for parent in model.modules():
        for attribute, child in parent._modules.items():
            if child is old:
                parent._modules[attribute] = new


def dequantize_(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Replace linear layers with packed weights by float ones, in place.

    Args:
        model: the model.
        dtype: of the new weights.

    Raises:
        QcoreValueError: another module has a packed weight, or experts have.
    """
    for name, module in model.named_modules():
        if isinstance(module, qt.Experts):
            raise _core.QcoreValueError(f"dequantize: {name} is an Experts, expected linear layers only")
    for name, module in list(packed_modules(model)):
        if not isinstance(module, (qt.Linear, ReorderedLinear)):
            raise _core.QcoreValueError(f"dequantize: {name} is a {type(module).__name__}, expected linear layers only")
    for _, module in list(packed_modules(model)):
        weight = torch.from_numpy(module.weight.to("cpu").dequantize()).to(module.weight.device, dtype)
        float_module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None, device="meta")
        float_module.weight = torch.nn.Parameter(weight, requires_grad=False)
        if module.bias is not None:
            float_module.bias = torch.nn.Parameter(module.bias.detach().to(dtype), requires_grad=False)
        float_module.train(module.training)
        put(model, module, float_module)
    return model


def packed_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules with a packed weight, each by its first name."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, ReorderedLinear):
            inside.add(id(module.linear))
        if isinstance(module, (WeightedModule, ReorderedLinear)) and id(module) not in inside:
            yield name, module


Ties = list[tuple[Any, str, dict[str, str]]]


def ties_of(model: torch.nn.Module) -> Ties:
    """Return the tied parameters of a model and of the models within: the model, the prefix of its names, its ties.

    Args:
        model: a model of transformers.
    """
    from transformers import PreTrainedModel

    return [
        (module, f"{path}." if path else "", module.get_expanded_tied_weights_keys(all_submodels=False))
        for path, module in model.named_modules()
        if isinstance(module, PreTrainedModel)
    ]


def forget_ties(ties: Ties, gone: set[str]) -> None:
    """Remove packed weights, which are no parameters, from transformers' lists of tied parameters.

    Args:
        ties: what :func:`ties_of` returned while the parameters were there.
        gone: full names of the weights.
    """
    for module, prefix, expanded in ties:
        left = {target: source for target, source in expanded.items() if not {prefix + target, prefix + source} & gone}
        if len(left) != len(expanded):
            module._tied_weights_keys = left
        known = getattr(module, "all_tied_weights_keys", None)
        if known:
            module.all_tied_weights_keys = {
                target: source for target, source in known.items() if not {prefix + target, prefix + source} & gone
            }
