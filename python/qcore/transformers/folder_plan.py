"""Chooses the weights of a folder that `qcore quantize` quantizes: those of the layers that the model has."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from qcore import _core
from qcore.transformers.mixtures import Place, Places, mixtures_of
from qcore.transformers.modules import is_conv1d
from qcore.transformers.planning import mixtures_plan, reasons_of, tied_groups


@dataclass
class FolderPlan:
    """Holds the names of weights in a folder's files that can be quantized, and why others are left.

    Attributes:
        layers: weights that can be quantized.
        reasons: for all others, why not.
        modules: names of the model's modules by those of their weights.
        heads: weights of output heads.
        embeddings: weights of embeddings.
        experts: for the names of weights that have all experts of a projection in one tensor [E, N, K], the names that
            the weights of single experts get, with "{}" for the expert's number.
        mixtures: for the names of all weights of experts, the module that they belong to.
    """

    layers: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    heads: set[str] = field(default_factory=set)
    embeddings: set[str] = field(default_factory=set)
    experts: dict[str, str] = field(default_factory=dict)
    mixtures: dict[str, str] = field(default_factory=dict)

    def add_expert(self, name: str, place: Place, places: Places) -> None:
        """Add a tensor with weights of experts.

        Args:
            name: its name in the files.
            place: what it holds.
            places: tells whether its experts can be found under the names that they get.
        """
        mixture, projection = place.mixture, place.projection
        if place.expert is None:
            template = f"{mixture.path}.projections.{projection}.{{}}.weight"
            if not mixture.sources[projection].is_plain:
                self.reasons[name] = "its experts aren't in rows [E, N, K]: QcoreConfig quantizes them while loading"
                return
            if (again := places.find(template.format(0))) is None or again.mixture is not mixture:
                self.reasons[name] = "transformers renames its experts: QcoreConfig quantizes them while loading"
                return
            self.experts[name] = template
        self.layers.append(name)
        self.modules[name] = self.mixtures[name] = mixture.path


def folder_plan(folder: Path, names: Iterable[str]) -> FolderPlan:
    """Return the plan for a folder; the model is built without memory for its weights.

    Args:
        folder: with config.json.
        names: of all tensors in its files.

    Raises:
        QcoreValueError: the folder's model is unknown to transformers, or quantized already.
    """
    model = _model(folder)
    conversions = deepcopy(get_model_conversion_mapping(model))
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    state = model.state_dict()
    reasons = reasons_of(model, None)
    mixtures, left = mixtures_plan(model, None, *mixtures_of(model))
    places = Places(model, conversions, mixtures)
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    heads = {f"{name}.weight" for name, module in model.named_modules() if module is output}
    heads |= {name for group in tied_groups(model) if group & heads for name in group}
    found = FolderPlan()
    for name in names:
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if (place := places.find(name)) is not None:
            found.add_expert(name, place, places)
        elif target in left:
            found.reasons[name] = left[target]
        elif pattern is not None:
            found.reasons[name] = "the model joins it with other tensors"
        elif target not in reasons:
            found.reasons[name] = "no weight of a layer" if target in state else "no tensor of the model"
        elif reasons[target]:
            found.reasons[name] = reasons[target]
        else:
            module = model.get_submodule(target.removesuffix(".weight"))
            if is_conv1d(module):
                found.reasons[name] = "Conv1D is [K, N]: QcoreConfig quantizes it while loading"
                continue
            found.layers.append(name)
            found.modules[name] = target.removesuffix(".weight")
            if target in heads:
                found.heads.add(name)
            if isinstance(module, torch.nn.Embedding):
                found.embeddings.add(name)
    return found


def _model(folder: Path) -> Any:
    where = f"quantize: {folder}"
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (ValueError, OSError, KeyError) as error:
        raise _core.QcoreValueError(f"{where}: transformers can't read its config.json: {error}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise _core.QcoreValueError(f"{where} is quantized already, expected a float model")
    name = (config.architectures or [""])[0]
    kind = getattr(transformers, name, None)
    with torch.device("meta"):
        if kind is None or not hasattr(kind, "_from_config"):
            return transformers.AutoModel.from_config(config)
        return kind._from_config(config)
