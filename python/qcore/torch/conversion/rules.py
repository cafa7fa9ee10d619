"""Decides which modules of a float model can be replaced by quantized ones, and makes those."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from qcore._options import Compute, Method, Scheme
from qcore.encode import quantize_encoded
from qcore.methods.gptq import DAMPING
from qcore.methods.samples import Hessian
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.torch import attention, experts
from qcore.torch.attention import MultiheadAttention
from qcore.torch.conv1d import Conv1d
from qcore.torch.conversion.reads import Read
from qcore.torch.embedding import Embedding
from qcore.torch.experts import Experts
from qcore.torch.gru import GRU
from qcore.torch.lstm import LSTM
from qcore.torch.lut import LutActivation, table_name
from qcore.torch.rotated import RotatedLinear
from qcore.torch.scaled_embedding import ScaledEmbedding, scale_of
from qcore.torch.weighted import Conv2d, Linear

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
RECURRENT = ("GRU", "LSTM")
"""Kinds of rules that need a calibration and have widths of 8 or 16 bits."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Settings:
    """Holds the options of one layer, with the names that :func:`qcore.torch.quantize_` gives them.

    With an ``encoding``, bits and block_size are its own, and scheme and scale_dtype have no part in it.
    """

    bits: int
    block_size: int
    compute: Compute
    method: Method
    scheme: Scheme
    scale_dtype: str
    damping: float = DAMPING
    act_order: bool = False
    rotation: str | None = None
    encoding: str | None = None

    def of_weight(self) -> dict[str, Any]:
        """Return the options of :func:`qcore.quantize`, except the method and those of "gptq"."""
        return {
            "bits": self.bits,
            "block_size": self.block_size,
            "scheme": self.scheme,
            "scale_dtype": self.scale_dtype,
        }


Make = Callable[[Any, Settings, Any], Any]
"""Makes a module of a float one, its settings and its inputs: a list of tensors, a Hessian for "gptq", or None."""


@dataclass(frozen=True)
class Rule:
    """Tells how modules of one kind are replaced.

    Attributes:
        kind: names it in messages.
        applies: whether it is for a module, subclasses included.
        refusal: why it can't replace the module, or an empty string.
        make: makes the quantized module of a float one, its settings and its inputs.
        has_weight: whether the module has one weight, which others may share.
        is_whole: whether the modules below belong to it.
    """

    kind: str
    applies: Callable[[torch.nn.Module], bool]
    refusal: Callable[[Any], str]
    make: Make
    has_weight: bool = False
    is_whole: bool = False


def rule_of(module: torch.nn.Module, activations: bool) -> Rule | None:
    """Return the rule for a module, or None if there is none."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    for rule in RULES:
        if rule.applies(module) and (activations or rule.kind != "activation"):
            return rule
    return None


def changed(module: torch.nn.Module) -> str:
    """Return how a module of a known class may compute something else than its class; an empty string if it can't."""
    if any(isinstance(each, torch.nn.parameter.UninitializedTensorMixin) for each in module.parameters()):
        return "its weights are not initialized"
    if torch.nn.utils.parametrize.is_parametrized(module):
        names = ", ".join(module.parametrizations)
        return f"its {names} is computed by a parametrization"
    for name in _HOOKS:
        hooks = getattr(module, name)
        if hooks:
            names = ", ".join(dict.fromkeys(type(hook).__name__ for hook in hooks.values()))
            return f"it has {name[1:].replace('_', ' ')} ({names})"
    if "forward" in vars(module):
        return "its forward was replaced in the instance"
    return ""


def refusal(module: torch.nn.Module, rule: Rule) -> str:
    """Return why a module must be left, judged by the module alone; an empty string if it can be replaced."""
    reason = changed(module) or rule.refusal(module)
    if reason:
        return reason
    for parameter in module.parameters():
        if parameter.is_meta:
            return "its weights are on the meta device, without values: load them first"
        if parameter.numel() == 0:
            return "its weights are empty"
        if parameter.dtype not in FLOATS:
            return f"its weights are {parameter.dtype}"
    return ""


def as_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """Return a float layer of a weight [N, K], which it shares, and a bias [N]."""
    made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
    made.bias = None if bias is None else torch.nn.Parameter(bias.detach(), requires_grad=False)
    return made


def unanswered(rule: Rule, read: Read) -> bool:
    """Return whether the rule's quantized module lacks an attribute that code reads, or gives another value."""
    probes = _probes(rule.kind)
    if probes is None:
        return read.attribute == "weight" or not hasattr(torch.nn.Module, read.attribute)
    if not hasattr(probes[1], read.attribute):
        return True
    mine, theirs = (_value(probe, read) for probe in probes)
    if theirs is None:
        return False
    if read.attribute == "weight":
        if not read.rest or mine is None:
            return True
        # Methods of the same name do something else: QuantizedTensor.to takes no dtype.
        return callable(theirs) or not (isinstance(mine, type(theirs)) or isinstance(theirs, type(mine)))
    if callable(theirs):
        return not callable(mine)
    return not isinstance(theirs, torch.Tensor) and mine != theirs


def _value(probe: torch.nn.Module, read: Read) -> Any:
    value: Any = probe
    for name in (read.attribute, *read.rest[:1]):
        value = getattr(value, name, None)
    if read.attribute != "weight":
        value = getattr(probe, read.attribute, None)
    return value


@functools.lru_cache(maxsize=16)
def _probes(kind: str) -> tuple[torch.nn.Module, torch.nn.Module] | None:
    """Return a quantized module and the float one that it was made from, to compare their attributes."""
    settings = Settings(8, 64, "int8", "rtn", "symmetric", "float32")
    floats: dict[str, Callable[[], torch.nn.Module]] = {
        "Linear": lambda: torch.nn.Linear(3, 5),
        "Conv2d": lambda: torch.nn.Conv2d(2, 6, (3, 5), stride=2, padding=1, dilation=2, groups=2),
        "Conv1d": lambda: torch.nn.Conv1d(2, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        "Embedding": lambda: torch.nn.Embedding(7, 3, padding_idx=1),
        "MultiheadAttention": lambda: torch.nn.MultiheadAttention(4, 2),
    }
    if kind not in floats:
        return None
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        made = floats[kind]()
        rule = next(rule for rule in RULES if rule.kind == kind)
        return rule.make(made, settings, None), made


def _exactly(kind: type) -> Callable[[torch.nn.Module], str]:
    """Return a function that gives the reason to leave a module if it is of a subclass, else an empty string."""

    def refuse(module: torch.nn.Module) -> str:
        return "" if type(module) is kind else f"it is a subclass of {kind.__name__}"

    return refuse


def _is_same(module: torch.nn.Module, kind: type, plain: torch.nn.Module, x: torch.Tensor) -> bool:
    """Return whether a module of a subclass has the attributes of ``kind`` only and computes the same from x."""
    known = set(vars(plain)) | {"_is_hf_initialized"}
    if set(vars(module)) - known or module._buffers or module._modules:
        return False
    try:
        with torch.no_grad():
            got, expected = module(x), kind.forward(module, x)  # type: ignore[attr-defined]
            return bool(got.shape == expected.shape and torch.allclose(got, expected, atol=1e-3, rtol=1e-2))
    except Exception:  # the module's own code, which may require other arguments
        return False


def _refuse_linear(module: torch.nn.Linear) -> str:
    kind = torch.nn.Linear
    if type(module) is kind or module.weight.is_meta or module.weight.dtype not in FLOATS:
        return ""
    x = torch.linspace(-1, 1, 2 * module.in_features).view(2, -1).to(module.weight.device, module.weight.dtype)
    if _is_same(module, kind, kind(1, 1, device="meta"), x):
        return ""
    return "it is a subclass of Linear that has or computes more"


def _refuse_convolution(module: Any) -> str:
    if module.padding_mode != "zeros":
        return f"its padding_mode is {module.padding_mode!r}"
    return _exactly(torch.nn.Conv2d if isinstance(module, torch.nn.Conv2d) else torch.nn.Conv1d)(module)


def _refuse_embedding(module: torch.nn.Embedding) -> str:
    if module.max_norm is not None:
        return "it has a max_norm, which changes the weight in every call"
    kind = torch.nn.Embedding
    if type(module) is kind or module.weight.is_meta:
        return ""
    x = torch.arange(min(4, module.num_embeddings), device=module.weight.device)
    if _is_same(module, kind, kind(1, 1, device="meta"), x) or scale_of(module) is not None:
        return ""
    return "it is a subclass of Embedding that has or computes more"


def _refuse_recurrent(kind: type[torch.nn.RNNBase]) -> Callable[[torch.nn.RNNBase], str]:
    def refuse(module: torch.nn.RNNBase) -> str:
        if module.dropout > 0 and module.training:
            return "it has dropout while training"
        return _exactly(kind)(module)

    return refuse


def _refuse_experts(module: torch.nn.Module) -> str:
    if any(parameter.is_meta for parameter in module.parameters()):
        return "its weights are empty"
    if experts.layout_of(module) is None:
        return f"{type(module).__name__} is no layout of experts that is known"
    return ""


def _make_linear(module: torch.nn.Linear, settings: Settings, samples: Any) -> Any:
    if settings.rotation is not None:
        options = settings.of_weight() | _method_options(module, settings, samples)
        return RotatedLinear.from_float(module, compute=settings.compute, **options)
    weight = _quantized(module, settings, samples)
    made = Linear(weight, module.bias, compute=settings.compute, dtype=module.weight.dtype)
    made.train(module.training)
    return made


def _quantized(module: Any, settings: Settings, samples: Any) -> QuantizedTensor:
    """Return the quantized matrix of a linear layer or an embedding, on its device."""
    weight = module.weight.detach()
    options = _method_options(module, settings, samples)
    if settings.encoding is None:
        made = quantize(weight.cpu(), **settings.of_weight(), **options)
    else:
        made = quantize_encoded(weight.cpu(), settings.encoding, **options)
    return made.to(str(weight.device))


def _make_convolution(module: Any, settings: Settings, samples: list[torch.Tensor] | None) -> Conv2d:
    options = settings.of_weight() | _method_options(module, settings, samples)
    kind = Conv2d if isinstance(module, torch.nn.Conv2d) else Conv1d
    return kind.from_float(module, compute=settings.compute, **options)


def _make_transposed(module: Any, settings: Settings, samples: Any) -> Any:
    made = _make_linear(as_linear(module.weight.t(), module.bias), settings, samples)
    made.train(module.training)
    return made


def _make_embedding(module: torch.nn.Embedding, settings: Settings, samples: Any) -> Any:
    weight = _quantized(module, settings, None)
    made = Embedding(weight, module.padding_idx, dtype=module.weight.dtype)
    made.train(module.training)
    return embedding_like(module, made)


def embedding_like(module: torch.nn.Embedding, plain: Embedding) -> Embedding:
    """Return an embedding with the scale of the float module, if it has one."""
    scale = scale_of(module)
    if scale is None:
        return plain
    made = ScaledEmbedding(plain.weight, scale, plain.padding_idx, dtype=plain.dtype)
    made.train(plain.training)
    return made


def _make_recurrent(kind: type[GRU] | type[LSTM]) -> Callable[..., GRU | LSTM]:
    def make(module: Any, settings: Settings, samples: list[torch.Tensor] | None) -> GRU | LSTM:
        batch = 0 if module.batch_first else 1
        given = [x if x.dim() == 3 else x.unsqueeze(batch) for x in samples or []]
        return kind.from_float(module, samples=given, bits=settings.bits)

    return make


def _make_activation(module: torch.nn.Module, settings: Settings, samples: list[torch.Tensor] | None) -> LutActivation:
    made = LutActivation.from_float(module)
    made.to(samples[0].device if samples else "cpu")
    return made


def _make_experts(module: torch.nn.Module, settings: Settings, samples: Any) -> Experts:
    return Experts.from_float(module, _layer_maker(settings))


def _make_attention(module: torch.nn.MultiheadAttention, settings: Settings, samples: Any) -> MultiheadAttention:
    return MultiheadAttention.from_float(module, _layer_maker(settings))


def _layer_maker(settings: Settings) -> attention.Make:
    plain = replace(settings, rotation=None)

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        made: Linear = _make_linear(as_linear(weight, bias), plain, None)
        return made

    return make


def takes_awq(module: Any, samples: list[torch.Tensor] | None) -> bool:
    """Return whether method "awq" is possible for a module with these inputs."""
    return samples is not None and hasattr(module, "weight") and getattr(module, "groups", 1) == 1


def takes_gptq(module: Any, samples: list[torch.Tensor] | None) -> bool:
    """Return whether method "gptq" is possible for a module with these inputs."""
    return samples is not None and (isinstance(module, torch.nn.Linear) or _is_transposed_linear(module))


def _method_options(module: Any, settings: Settings, samples: Any) -> dict[str, Any]:
    """Return the method and what it takes; "mse" where the settings' method is not possible."""
    if isinstance(samples, Hessian):
        return {"method": "gptq", "hessian": samples, "damping": settings.damping, "act_order": settings.act_order}
    if settings.method not in ("awq", "gptq"):
        return {"method": settings.method}
    if settings.method == "gptq" or not takes_awq(module, samples):
        return {"method": "mse"}
    channels = -3 if isinstance(module, torch.nn.Conv2d) else -2 if isinstance(module, torch.nn.Conv1d) else -1
    pixels = [x.movedim(channels, -1) for x in samples]
    return {"method": "awq", "samples": torch.cat([x.reshape(-1, x.shape[-1]).cpu() for x in pixels])}


def _is_transposed_linear(module: torch.nn.Module) -> bool:
    """Return whether a module is a linear layer with its weight as [K, N], as GPT-2 of transformers has."""
    if type(module).__name__ != "Conv1D" or set(module._parameters) != {"weight", "bias"}:
        return False
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    return weight is not None and bias is not None and weight.dim() == 2 and bias.shape == weight.shape[1:]


def _refuse_transposed(module: Any) -> str:
    with torch.no_grad():
        if module.weight.is_meta:
            return ""
        x = torch.eye(len(module.weight), dtype=module.weight.dtype, device=module.weight.device)[:2]
        if not torch.allclose(module(x), x @ module.weight + module.bias, atol=1e-3, rtol=1e-2):
            return "it computes something else than x @ weight + bias"
    return ""


RULES = (
    Rule("Linear", lambda module: isinstance(module, torch.nn.Linear), _refuse_linear, _make_linear, True),
    Rule("Conv2d", lambda module: isinstance(module, torch.nn.Conv2d), _refuse_convolution, _make_convolution, True),
    Rule("Conv1d", lambda module: isinstance(module, torch.nn.Conv1d), _refuse_convolution, _make_convolution, True),
    Rule("GRU", lambda module: isinstance(module, torch.nn.GRU), _refuse_recurrent(torch.nn.GRU), _make_recurrent(GRU)),
    Rule(
        "LSTM",
        lambda module: isinstance(module, torch.nn.LSTM),
        _refuse_recurrent(torch.nn.LSTM),
        _make_recurrent(LSTM),
    ),
    Rule(
        "Embedding",
        lambda module: isinstance(module, torch.nn.Embedding),
        _refuse_embedding,
        _make_embedding,
        True,
    ),
    Rule(
        "MultiheadAttention",
        lambda module: isinstance(module, torch.nn.MultiheadAttention),
        _exactly(torch.nn.MultiheadAttention),
        _make_attention,
        is_whole=True,
    ),
    Rule("Conv1D", _is_transposed_linear, _refuse_transposed, _make_transposed),
    Rule("experts", experts.has_experts, _refuse_experts, _make_experts, is_whole=True),
    Rule("activation", lambda module: table_name(module) is not None, lambda module: "", _make_activation),
)
"""Rules in the order in which they are tried: the first that applies to a module is used."""
