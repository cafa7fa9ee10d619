"""Quantizes mixtures of experts: modules that have the weights of all experts in one parameter."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from qcore import _checks, _core
from qcore.torch import stacked
from qcore.torch.module import QuantizedModule, read_config

_TOKENS = 4
"""Rows of a trial call, and the number of experts that it chooses from."""
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest relative L2 difference of a trial call by dtype: the orders of additions differ."""

Experts3d = dict[str, tuple[torch.Tensor, "torch.Tensor | None"]]
"""Type of projections by name: weights [E, N, K] (a view) and biases [E, N] or None."""
Matrices = Callable[[torch.Tensor], torch.Tensor]


class Source(NamedTuple):
    """Names the parameters of a projection in a module of experts.

    Attributes:
        weight: name of the parameter with the weights, with a path if it is in a module within.
        bias: name of the one with the biases [E, N], or None.
        matrices: returns the view [E, N, K] of a tensor that has the weights as the parameter has them.
        is_plain: whether the parameter itself is [E, N, K].
    """

    weight: str
    bias: str | None
    matrices: Matrices
    is_plain: bool


Make = Callable[[torch.Tensor, "torch.Tensor | None"], torch.nn.Module]
"""Makes a layer of one expert's weight [N, K] and bias [N]."""


class Experts(QuantizedModule):
    """Computes the experts of a mixture with quantized weights, in the place of a module that has 3-D parameters.

    ``projections`` holds a list of layers per projection, one layer per expert. What else the float module has (the
    activation, limits, scales) is kept in ``shell``: a copy of that module without its weights, whose own methods
    compute what lies between the projections.

    Calls are those of the float module. Weights of one format lie after each other in one memory where
    :func:`qcore.grouped_linear` can multiply them: a projection is then one call
    for all experts. Otherwise each expert with rows is a call; while torch compiles or exports, every expert then
    computes every token and the result is weighted with zero where it was not chosen, because a graph has no rows that
    depend on values.

    Args:
        shell: the float module without its weights.
        layout: how it is called: "indexed", "batched", "split" or "dbrx".
        projections: for the name of each projection, its layers, an expert each.
    """

    kind = "experts"

    def __init__(
        self, shell: torch.nn.Module, layout: str, projections: Mapping[str, Sequence[torch.nn.Module]]
    ) -> None:
        super().__init__()
        _checks.choice(layout, _FORWARDS, "qcore.torch.Experts: layout")
        self.layout = layout
        self.shell = shell
        self.projections = torch.nn.ModuleDict(
            {
                name: layers if isinstance(layers, torch.nn.ModuleList) else torch.nn.ModuleList(layers)
                for name, layers in projections.items()
            }
        )
        self.register_load_state_dict_post_hook(_arrange)
        _arrange(self)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function to all tensors, once to each: experts have one memory before and after."""
        known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def once(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype != torch.uint8:
                return cast(torch.Tensor, fn(tensor))
            return known.setdefault(id(tensor), (tensor, fn(tensor)))[1]

        super()._apply(once, recurse)
        _arrange(self)
        return self

    @classmethod
    def from_float(cls, module: torch.nn.Module, make: Make) -> Experts:
        """Quantize a module of experts.

        Args:
            module: one for which ``layout_of`` returns a layout.
            make: quantizes one expert's projection.

        Raises:
            QcoreTypeError: its layout is unknown.
        """
        layout = layout_of(module)
        if layout is None:
            raise _core.QcoreTypeError(
                f"Experts.from_float: module is a {type(module).__name__}, expected a module with the weights of all "
                "its experts in 3-D parameters, of a layout of transformers"
            )
        made = _assembled(cls, module, layout, make)
        made.train(module.training)
        return made

    @classmethod
    def from_state_dict_and_float(
        cls, module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], prefix: str
    ) -> Experts:
        """Return the module whose state is in a state_dict.

        Args:
            module: the float module, for its structure; its values don't matter.
            state_dict: tensors by name.
            prefix: of the module's names in it.

        Raises:
            QcoreValueError: the state has other projections or experts.
        """
        from qcore.torch.weighted import Linear

        layout = read_config(state_dict, prefix).get("layout", "")
        _checks.choice(layout, _FORWARDS, f"{prefix}qcore_config: layout")
        experts = projections_of(module, layout)
        projections = {
            name: [
                Linear.from_state_dict(state_dict, f"{prefix}projections.{name}.{expert}.")
                for expert in range(weights.shape[0])
            ]
            for name, (weights, _) in experts.items()
        }
        return cls(shell_of(module), layout, projections)

    def config(self) -> dict[str, Any]:
        """Return the layout and the number of experts, which ``load_state_dict`` compares with those of the state."""
        return {"kind": self.kind, "layout": self.layout, "num_experts": self.num_experts}

    def _configure(self, config: dict[str, Any]) -> None:
        raise _core.QcoreTypeError(
            "Experts.from_state_dict: the state has no activation, expected restore_(model, state_dict) with the float "
            "model"
        )

    @property
    def num_experts(self) -> int:
        """Return the number of experts (E)."""
        return len(next(iter(self.projections.values())))

    def forward(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Compute what the float module computes from the same arguments.

        Args:
            arguments: those of the float module: x [T, H] and, by the layout, the numbers [T, k] and shares [T, k] of
                the experts of each row, or the number of rows of each expert.
            keywords: likewise, by name.

        Raises:
            QcoreValueError, QcoreTypeError: x has another width, dtype or device.
        """
        result: torch.Tensor = _FORWARDS[self.layout](self, *arguments, **keywords)
        return result

    def extra_repr(self) -> str:
        return f"layout={self.layout!r}, num_experts={self.num_experts}"

    def _one(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Compute one expert's output for its rows."""
        return self._outputs(lambda name, rows: cast(torch.Tensor, self.projections[name][expert](rows)), x)

    def _is_grouped(self) -> bool:
        """Return whether each projection is one call for all experts."""
        return all(stacked.is_one_memory(layers) for layers in self.projections.values())

    def _all(self, x: torch.Tensor, row_counts: torch.Tensor) -> torch.Tensor:
        """Compute the output of rows that are sorted by expert, in one call for each projection."""
        return self._outputs(lambda name, rows: stacked.grouped(self.projections[name], rows, row_counts), x)

    def _outputs(self, product: Callable[[str, torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Compute experts' outputs for rows, given the product of rows with a projection's weight."""
        if "gate_up_proj" in self.projections:
            inner = _gated(self.shell, product("gate_up_proj", x))
        elif "gate_proj" in self.projections and hasattr(self.shell, "_apply_gate"):
            inner = _gated(self.shell, torch.cat([product("gate_proj", x), product("up_proj", x)], dim=-1))
        elif "gate_proj" in self.projections:
            inner = _activation(self.shell)(product("gate_proj", x)) * product("up_proj", x)
        else:
            inner = _activation(self.shell)(product("up_proj", x))
        result = product("down_proj", inner)
        if getattr(self.shell, "has_post_expert_norm", False):
            result = self.shell.post_expert_norm(result)
        return result


def _arrange(module: Any, *_: Any) -> None:
    """Put the experts' weights into one memory; also a hook, for what ``load_state_dict`` has loaded."""
    for layers in module.projections.values():
        stacked.arrange(layers)


def _activation(shell: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation between the projections, under the names that modules give it."""
    for owner in (shell, getattr(shell, "mlp", None)):
        for name in ("act_fn", "activation_fn", "act", "activation"):
            if callable(getattr(owner, name, None)):
                found: Callable[[torch.Tensor], torch.Tensor] = getattr(owner, name)
                return found
    raise _core.QcoreTypeError(f"Experts: {type(shell).__name__} has no activation, expected an attribute act_fn")


def _gated(shell: torch.nn.Module, gate_up: torch.Tensor) -> torch.Tensor:
    own = getattr(shell, "_apply_gate", None)
    if own is not None:
        gated: torch.Tensor = own(gate_up)
        return gated
    gate, up = gate_up.chunk(2, dim=-1)
    return _activation(shell)(gate) * up


def _indexed(self: Experts, hidden_states: torch.Tensor, *rest: Any, **keywords: Any) -> torch.Tensor:
    """Compute for each token the weighted sum of its experts.

    Arguments are x [T, H], the experts' numbers [T, k] and their shares [T, k]. Numbers from E on stand for no expert.
    """
    index, weights = [*rest, *keywords.values()][:2]
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    in_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if self._is_grouped():
        return _grouped(self, x, index, weights, in_graph).reshape(hidden_states.shape)
    if in_graph:
        total = torch.zeros_like(x)
        for expert in range(self.num_experts):
            share = (weights * (index == expert)).sum(dim=-1, keepdim=True)
            total = total + (self._one(expert, x) * share).to(x.dtype)
        return total.reshape(hidden_states.shape)
    count = index.shape[-1]
    order = torch.argsort(index.reshape(-1), stable=True)
    rows = torch.bincount(index.reshape(-1), minlength=self.num_experts)[: self.num_experts].tolist()
    chosen = x[order // count]
    results = [
        self._one(expert, part)
        for expert, part in enumerate(chosen.split([*rows, len(chosen) - sum(rows)])[:-1])
        if len(part)
    ]
    flat = x.new_zeros((len(chosen), x.shape[-1]), dtype=torch.promote_types(x.dtype, weights.dtype))
    if results:
        flat[order[: sum(rows)]] = torch.cat(results).to(flat.dtype)
    return _weighted(flat, weights, x).reshape(hidden_states.shape)


def _weighted(flat: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum [T, H] of the outputs of each token's experts, [T * k, H] in the order of tokens."""
    return (flat.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def _grouped(
    self: Experts, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, in_graph: bool
) -> torch.Tensor:
    """Compute :func:`_indexed` in one call for each projection, whose shapes do not depend on values.

    On a CUDA device nothing waits for the rows' numbers, so that a CUDA graph can have the calls.
    """
    experts, numbers = self.num_experts, index.reshape(-1)
    order = torch.argsort(numbers, stable=True)
    if in_graph or x.is_cuda:
        bins = torch.zeros(experts + 1, dtype=torch.int64, device=x.device)
        rows = bins.scatter_add(0, numbers.clamp(max=experts).long(), torch.ones_like(numbers, dtype=torch.int64))
        results = self._all(x[order // index.shape[-1]], rows[:experts])
        results = results.masked_fill((numbers[order] >= experts).unsqueeze(-1), 0)
    else:
        rows = torch.bincount(numbers, minlength=experts)[:experts]
        order = order[: int(rows.sum())]
        results = self._all(x[order // index.shape[-1]], rows)
    flat = results.new_zeros((numbers.shape[0], x.shape[-1]), dtype=torch.promote_types(x.dtype, weights.dtype))
    return _weighted(flat.index_copy(0, order, results.to(flat.dtype)), weights, x)


def _batched(self: Experts, hidden_states: torch.Tensor) -> torch.Tensor:
    """Compute every expert for its own T rows of x [E * T, H]."""
    parts = hidden_states.view(self.num_experts, -1, hidden_states.shape[-1])
    if self._is_grouped():
        counts = torch.full((self.num_experts,), parts.shape[1], dtype=torch.int64, device=parts.device)
        return self._all(parts.flatten(0, 1), counts)
    return torch.cat([self._one(expert, parts[expert]) for expert in range(self.num_experts)])


def _split(self: Experts, inputs: torch.Tensor, expert_size: Any) -> torch.Tensor:
    """Compute one projection for rows that are sorted by expert; ``expert_size`` has the number of rows of each."""
    sizes = expert_size.tolist() if isinstance(expert_size, torch.Tensor) else list(expert_size)
    layers = next(iter(self.projections.values()))
    if not torch.compiler.is_compiling() and stacked.is_one_memory(layers):
        return stacked.grouped(layers, inputs, torch.tensor(sizes, device=inputs.device))
    parts = inputs.split(sizes)
    return torch.cat([layer(part) for layer, part in zip(layers, parts, strict=True)])


_FORWARDS: dict[str, Callable[..., torch.Tensor]] = {
    "indexed": _indexed,
    "transposed": _indexed,
    "batched": _batched,
    "split": _split,
    "dbrx": _indexed,
}


def layout_of(module: torch.nn.Module) -> str | None:
    """Return how a module of experts is called and has its weights, or None if it is no such module.

    The parameters' names and shapes tell which layouts are possible. The result is the layout that gives the same
    outputs as the module itself for random inputs. A module on the meta device is tried with random weights.
    """
    candidates = _candidates(module)
    with torch.device("cpu"):  # transformers makes its models within torch.device("meta")
        if candidates and any(parameter.is_meta for parameter in module.parameters()):
            module = _with_random_weights(module)
        return next((layout for layout in candidates if _agrees(module, layout)), None)


def has_experts(module: torch.nn.Module) -> bool:
    """Return whether a module has parameters of experts, of a layout that is known or not."""
    lazy = torch.nn.parameter.UninitializedTensorMixin
    given = {name: each for name, each in module._parameters.items() if each is not None and not isinstance(each, lazy)}
    threes = {name for name, each in given.items() if each.dim() == 3}
    if "weight" in threes:
        return hasattr(module, "num_experts")
    return bool(threes & {"gate_up_proj", "up_proj", "down_proj"}) or _is_dbrx(module)


def _is_dbrx(module: torch.nn.Module) -> bool:
    below = module._modules.get("mlp")
    return below is not None and {"w1", "v1", "w2"} == set(below._parameters) and hasattr(module, "num_experts")


def _candidates(module: torch.nn.Module) -> list[str]:
    names = {name for name, parameter in module._parameters.items() if parameter is not None}
    threes = {name for name in names if module._parameters[name].dim() == 3}
    if _is_dbrx(module):
        return ["dbrx"]
    if names == threes == {"weight"} and hasattr(module, "num_experts"):
        return ["split"]
    if not threes >= {"down_proj"} or not threes & {"gate_up_proj", "up_proj"} or not _is_plain(names, threes):
        return []
    parameters = list(inspect.signature(module.forward).parameters.values())
    required = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(required) == 1 and len(parameters) == 1:
        return ["batched"]
    transposed = getattr(module, "is_transposed", None)
    return ["indexed", "transposed"] if transposed is None else ["transposed" if transposed else "indexed"]


def _is_plain(names: set[str], threes: set[str]) -> bool:
    """Return whether there are no parameters but the projections and their biases."""
    known = {"gate_up_proj", "gate_proj", "up_proj", "down_proj"}
    return threes <= known and names - threes <= {f"{name}_bias" for name in threes}


def sources_of(module: torch.nn.Module, layout: str) -> dict[str, Source]:
    """Return where the weights of the projections are in a module of experts, in the order in which they are computed.

    Args:
        module: a module of experts, on the meta device or not.
        layout: its layout.
    """
    if layout == "dbrx":
        below: Any = module.mlp
        size = (-1, below.ffn_hidden_size, below.hidden_size)
        return {
            "gate_proj": Source("mlp.w1", None, lambda weights: weights.view(size), False),
            "up_proj": Source("mlp.v1", None, lambda weights: weights.view(size), False),
            "down_proj": Source("mlp.w2", None, lambda weights: weights.view(size).transpose(1, 2), False),
        }
    is_transposed = layout in ("transposed", "batched")
    matrices: Matrices = (lambda weights: weights.transpose(1, 2)) if is_transposed else (lambda weights: weights)
    names = ("weight",) if layout == "split" else ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
    return {
        name: Source(
            name,
            f"{name}_bias" if module._parameters.get(f"{name}_bias") is not None else None,
            matrices,
            not is_transposed,
        )
        for name in names
        if module._parameters.get(name) is not None
    }


def projections_of(module: torch.nn.Module, layout: str) -> Experts3d:
    """Return the projections of a module of experts, in the order in which they are computed."""
    return {
        name: (
            source.matrices(module.get_parameter(source.weight).detach()),
            None if source.bias is None else module.get_parameter(source.bias).detach(),
        )
        for name, source in sources_of(module, layout).items()
    }


def shell_of(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module of experts, and of ``mlp`` in it, without their parameters."""
    shell = _bare(module)
    for name, child in module._modules.items():
        if child is not None and child._parameters and name == "mlp":
            shell._modules[name] = _bare(child)
    return shell


def _bare(module: torch.nn.Module) -> torch.nn.Module:
    shell = copy.copy(module)
    shell.__dict__ = module.__dict__ | {
        "_parameters": {},
        "_buffers": dict(module._buffers),
        "_modules": dict(module._modules),
    }
    return shell


def _assembled(cls: type[Experts], module: torch.nn.Module, layout: str, make: Make) -> Experts:
    projections = {
        name: [make(weights[expert], None if biases is None else biases[expert]) for expert in range(weights.shape[0])]
        for name, (weights, biases) in projections_of(module, layout).items()
    }
    return cls(shell_of(module), layout, projections)


class _FloatLayer(torch.nn.Module):
    """Applies a linear layer over a view of a weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._call = functools.partial(torch.nn.functional.linear, weight=weight, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x)


def _with_random_weights(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module on the meta device with random weights of the experts that a trial call chooses.

    The weights of the others are zeros in pages that the system provides when they are written, which they never are:
    the copy takes little memory.
    """
    experts = next((each.shape[0] for each in module.parameters() if each.dim() == 3), None)
    experts = experts or int(getattr(module, "num_experts", 1))
    generator = torch.Generator().manual_seed(0)
    made = copy.deepcopy(module)
    for each in made.modules():
        for name, parameter in each._parameters.items():
            if parameter is None:
                continue
            values = torch.from_numpy(np.zeros(tuple(parameter.shape), np.float32))
            rows = values.shape[0] if values.dim() == 1 else -(-values.shape[0] * _TOKENS // experts)
            values[:rows].normal_(std=values.shape[-1] ** -0.5, generator=generator)
            each._parameters[name] = torch.nn.Parameter(values, requires_grad=False)
    return made


@torch.no_grad()
def _agrees(module: torch.nn.Module, layout: str) -> bool:
    """Return whether the module computes from random inputs what its layout says."""
    try:
        projections = projections_of(module, layout)
        weights = next(iter(projections.values()))[0]
        if weights.is_meta or weights.dtype not in _TOLERANCE:
            return False
        mine = _assembled(Experts, module, layout, _FloatLayer)
        arguments = _trial(layout, weights)
        was_training = module.training
        module.eval()
        try:
            expected, got = module(*arguments), mine(*arguments)
        finally:
            module.train(was_training)
        if expected.shape != got.shape:
            got = got.reshape(expected.shape)
        difference, size = (got - expected).float().norm(), expected.float().norm()
    except Exception:  # the module's own code runs here; if it raises, its layout is unknown
        return False
    return bool(difference <= _TOLERANCE[weights.dtype] * size)


def _trial(layout: str, weights: torch.Tensor) -> tuple[Any, ...]:
    experts, _, width = weights.shape
    generator = torch.Generator().manual_seed(0)
    rows = experts * _TOKENS if layout in ("batched", "split") else _TOKENS
    x = torch.randn(rows, width, generator=generator).to(weights.device, weights.dtype)
    if layout == "batched":
        return (x,)
    if layout == "split":
        return x, [_TOKENS] * experts
    few = min(_TOKENS, experts)
    chosen = torch.stack([torch.randperm(few, generator=generator)[: min(2, experts)] for _ in range(rows)])
    shares = torch.rand(chosen.shape, generator=generator)
    return x, chosen.to(weights.device), shares.to(weights.device, weights.dtype)
