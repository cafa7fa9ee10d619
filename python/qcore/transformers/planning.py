"""Chooses the weights of a float model that are quantized while it is loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from transformers.utils import logging

from qcore import _core
from qcore.torch.conversion.reads import Read, reads_of
from qcore.torch.conversion.rules import rule_of, unanswered
from qcore.transformers.config import QcoreConfig
from qcore.transformers.mixtures import Mixture
from qcore.transformers.modules import unfit_reason

_logger = logging.get_logger("transformers.qcore")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def plan_of(
    model: Any, config: QcoreConfig, tolerated: Collection[str] = (), mixtures: Iterable[Mixture] = ()
) -> dict[str, torch.nn.Module]:
    """Return the modules whose weights are quantized, by the full names of those weights.

    A weight that several modules share is quantized if all of them can hold a packed one.

    Args:
        model: a model of transformers, on meta or not.
        config: the options.
        tolerated: as for :func:`reasons_of`.
        mixtures: the model's mixtures of experts, to whose layers patterns may apply, too.

    Raises:
        QcoreValueError: a pattern of the options matches no module.
    """
    for method in (config.method, *(options.get("method") for options in config.layers.values())):
        if method in ("awq", "gptq"):
            raise _core.QcoreValueError(
                f"QcoreConfig: method is {method!r}, expected 'rtn' or 'mse' while a model is loaded: {method} needs "
                f"samples of each layer's inputs, which `qcore quantize --method {method} --samples FILE` takes"
            )
    names = [name for name, _ in model.named_modules() if name]
    config.check_patterns([*names, *(layer for mixture in mixtures for layer in mixture.layers())])
    return {
        name: model.get_submodule(name.removesuffix(".weight"))
        for name, reason in reasons_of(model, config, tolerated).items()
        if not reason
    }


def mixtures_plan(
    model: Any, config: QcoreConfig | None, found: Mapping[str, Mixture], unknown: Mapping[str, str]
) -> tuple[dict[str, Mixture], dict[str, str]]:
    """Return the mixtures of experts that are quantized, by name, and why others are left, by their parameters' names.

    Args:
        model: a model of transformers, on meta or not.
        config: the options, or None for what is possible.
        found, unknown: what :func:`qcore.transformers.mixtures.mixtures_of` returned.
    """
    reads = reads_of(model) if found else {}
    reasons = dict(unknown) | {
        path: reason
        for path, mixture in found.items()
        if (reason := _mixture_reason(mixture, config, reads.get(id(mixture.module), set())))
    }
    by_parameter = {
        f"{path}.{name}": reason
        for path, reason in reasons.items()
        for name, _ in model.get_submodule(path).named_parameters()
    }
    return {path: mixture for path, mixture in found.items() if path not in reasons}, by_parameter


def _mixture_reason(mixture: Mixture, config: QcoreConfig | None, reads: set[Read]) -> str:
    patterns = () if config is None else map(config.leaves, mixture.layers())
    if pattern := next(filter(None, patterns), ""):
        return f"modules_to_not_convert has {pattern!r}"
    for parameter in mixture.module.parameters():
        if parameter.dtype not in _FLOATS:
            return f"its weight is {parameter.dtype}"
    return _read_reason(mixture.module, reads, ())


def warn_of_the_rest(
    model: Any, plan: Collection[str], config: QcoreConfig, mixture_reasons: Mapping[str, str] | None = None
) -> None:
    """Warn if less than nine tenths of a model's parameters are quantized, and say what is left and why.

    Args:
        model: the model.
        plan: full names of the weights that are quantized.
        config: the options.
        mixture_reasons: why mixtures of experts are left, by the names of their parameters.
    """
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    whole = sum(sizes.values())
    tied = {name for group in tied_groups(model) if group & set(plan) for name in group}
    left = {name: size for name, size in sizes.items() if name not in plan and name not in tied}
    if 10 * sum(left.values()) <= whole:
        return
    reasons = reasons_of(model, config) | dict(mixture_reasons or {})
    largest = sorted(left, key=lambda name: -left[name])[:3]
    named = "; ".join(f"{name}: {reasons.get(name) or 'no weight of a layer'}" for name in largest)
    _logger.warning(
        f"{100 - 100 * sum(left.values()) / whole:.0f}% of the model's parameters are quantized. The largest that stay "
        f"in floating point are {named}."
    )


def reasons_of(model: Any, config: QcoreConfig | None, tolerated: Collection[str] = ()) -> dict[str, str]:
    """Return why the weight of each module can't be quantized, by full name; empty if it can.

    Args:
        model: a model of transformers, on meta or not.
        config: the options, or None for what is possible.
        tolerated: attributes of weights that code may read where a packed one lacks them.
    """
    reads = reads_of(model)
    reasons = {
        f"{name}.weight": _reason(name, module, config) or _read_reason(module, reads.get(id(module), set()), tolerated)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter)
    }
    for group in tied_groups(model):
        reason = next((reasons[name] for name in sorted(group) if reasons.get(name)), "")
        if not all(name in reasons for name in group):
            reason = reason or "it shares its weight with no module"
        for name in group:
            reasons[name] = reason
    return reasons


def _reason(name: str, module: torch.nn.Module, config: QcoreConfig | None) -> str:
    if config is not None and (pattern := config.leaves(name)):
        return f"modules_to_not_convert has {pattern!r}"
    if reason := unfit_reason(module):
        return reason
    if isinstance(module, torch.nn.Embedding) and config is not None and not config.embeddings:
        return "embeddings is False"
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.dtype not in _FLOATS:
        return f"its weight is {weight.dtype}"
    return "its weight is empty" if weight.numel() == 0 else ""


def _read_reason(module: torch.nn.Module, reads: set[Read], tolerated: Collection[str]) -> str:
    """Return which attribute that a packed module lacks is read by code around a module; empty if none is."""
    rule = rule_of(module, False)
    for read in sorted(reads, key=repr):
        if read.attribute == "weight" and read.rest[:1] and read.rest[0] in tolerated:
            continue
        if rule is not None and unanswered(rule, read):
            return f"{read.reader} reads its {'.'.join((read.attribute, *read.rest)).rstrip('.*')}"
    return ""


def tied_groups(model: Any) -> list[set[str]]:
    """Return groups of names of one parameter: tied by transformers, after loading, or shared already.

    Args:
        model: a model of transformers.
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for target, source in getattr(model, "all_tied_weights_keys", {}).items():
        groups[source] |= {source, target}
    shared: dict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared[id(parameter)].add(name)
    found = [*groups.values(), *(names for names in shared.values() if len(names) > 1)]
    return found
