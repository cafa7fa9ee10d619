"""Finds mixtures of experts in models of transformers that can be packed, and their weights in files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    rename_source_key,
)

from qcore import _core
from qcore.quantized_tensor import QuantizedTensor, concatenate
from qcore.torch.experts import Experts, Source, has_experts, layout_of, shell_of, sources_of
from qcore.torch.stacked import arrange
from qcore.transformers.modules import Weight, packed_module

_HALVES = ("gate_proj", "up_proj")
"""Names the projections that are the first and the second half of the rows of gate_up_proj."""
_OWN_NAME = re.compile(r"(.+)\.projections\.(\w+)\.(\d+)\.weight")
_OTHER_NAME = re.compile(r"(.+)\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True)
class Mixture:
    """Describes a module of experts of a float model, whose weights have a packed form.

    Attributes:
        path: name of the module in the model.
        module: the module, on the meta device or not.
        layout: how it is called, as of :class:`qcore.torch.Experts`.
        sources: where the weights of each projection are.
    """

    path: str
    module: torch.nn.Module
    layout: str
    sources: Mapping[str, Source]

    def parameter(self, projection: str) -> str:
        """Return the full name of the parameter that has the weights of a projection."""
        return f"{self.path}.{self.sources[projection].weight}"

    def shape(self, projection: str) -> tuple[int, int, int]:
        """Return E, N and K of a projection."""
        source = self.sources[projection]
        experts, rows, columns = source.matrices(self.module.get_parameter(source.weight)).shape
        return experts, rows, columns

    def layer(self, projection: str, expert: int) -> str:
        """Return the name of an expert's layer in the packed model."""
        return f"{self.path}.projections.{projection}.{expert}"

    def layers(self) -> list[str]:
        """Return the names of all layers in the packed model."""
        return [
            self.layer(projection, expert) for projection in self.sources for expert in range(self.shape(projection)[0])
        ]


def mixtures_of(model: torch.nn.Module) -> tuple[dict[str, Mixture], dict[str, str]]:
    """Return the mixtures of experts of a model that can be packed, by name, and why others can't.

    Args:
        model: a model of transformers, on the meta device or not.
    """
    found: dict[str, Mixture] = {}
    reasons: dict[str, str] = {}
    layouts: dict[Any, str | None] = {}
    for path, module in model.named_modules():
        if not has_experts(module):
            continue
        key = type(module), *((name, each.shape) for name, each in module.named_parameters())
        if key not in layouts:
            layouts[key] = layout_of(module)
        layout = layouts[key]
        if layout is None:
            reasons[path] = f"{type(module).__name__} is no layout of experts that is known"
        else:
            found[path] = Mixture(path, module, layout, sources_of(module, layout))
    return found, reasons


class Place(NamedTuple):
    """Says which rows of which expert a tensor of a file holds.

    Attributes:
        mixture: the module of experts.
        projection: name of the projection.
        expert: number of the expert; None for all of them in one tensor.
        half: 0 or 1 for the first or the second half of the rows; None for all of them.
        prefix: what stands before the numbers of the experts in the names of the files, renamed.
        rest: what stands behind the numbers; empty for the names of qcore.
    """

    mixture: Mixture
    projection: str
    expert: int | None
    half: int | None
    prefix: str
    rest: str


class Places:
    """Finds the places of a file's tensors in the mixtures of a model.

    Args:
        model: the model.
        conversions: transformers' for this model.
        mixtures: the model's mixtures by name.

    Attributes:
        parameters: the mixture and the projection of each of their parameters, by its full name.
    """

    def __init__(self, model: Any, conversions: list[Any], mixtures: Mapping[str, Mixture]) -> None:
        conversions = deepcopy(conversions)  # looking a name up marks a conversion as used
        self._renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        self._converters = [each for each in conversions if isinstance(each, WeightConverter)]
        self._prefix, self._state = model.base_model_prefix, model.state_dict()
        self._mixtures = mixtures
        self.parameters = {
            mixture.parameter(projection): (mixture, projection)
            for mixture in mixtures.values()
            for projection in mixture.sources
        }

    def find(self, name: str) -> Place | None:
        """Return the place of a tensor, or None if it belongs to no mixture or is joined in an unknown way.

        Args:
            name: its name in the files, NAME.weight for a packed one.
        """
        renamed = apply_renamings(name, self._renamings)
        own = _OWN_NAME.fullmatch(renamed)
        mixture = None if own is None else self._mixture(own[1])
        if own is not None and mixture is not None:
            projection, half = own[2], None
            if projection not in mixture.sources and projection in _HALVES:
                projection, half = "gate_up_proj", _HALVES.index(projection)
            if projection in mixture.sources:
                return Place(mixture, projection, int(own[3]), half, own[1], "")
        target, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._state)
        if target not in self.parameters:
            return None
        mixture, projection = self.parameters[target]
        if pattern is None:
            return Place(mixture, projection, None, None, "", "")
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        other = _OTHER_NAME.fullmatch(renamed)
        halves = len(converter.source_patterns) == 2
        if other is None or not _merges_rows(converter, halves) or not mixture.sources[projection].is_plain:
            return None
        if halves and projection != "gate_up_proj":
            return None
        half = converter.source_patterns.index(pattern) if halves else None
        return Place(mixture, projection, int(other[2]), half, other[1], other[3])

    def _mixture(self, prefix: str) -> Mixture | None:
        paths = (prefix, f"{self._prefix}.{prefix}", prefix.removeprefix(f"{self._prefix}."))
        return next((self._mixtures[path] for path in paths if path in self._mixtures), None)


def _merges_rows(converter: WeightConverter, halves: bool) -> bool:
    """Return whether a conversion stacks the experts, after whose rows those of a second tensor come if ``halves``."""
    operations = list(converter.operations)
    if not operations or type(operations[0]) is not MergeModulelist or operations[0].dim != 0:
        return False
    if not halves:
        return len(operations) == len(converter.source_patterns) == 1
    return len(operations) == 2 and type(operations[1]) is Concatenate and operations[1].dim == 1


@dataclass
class ExpertFiles:
    """Holds the names of the weights of experts in the files.

    Attributes:
        pieces: for the parameter's name, the names for each expert and half.
        wholes: for the parameter's name, that of one tensor with all experts.
        places: for the parameter's name, one place of each prefix and rest.
    """

    pieces: dict[str, dict[tuple[int, int | None], str]] = field(default_factory=dict)
    wholes: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[tuple[str, str], Place]] = field(default_factory=dict)

    def add(self, name: str, place: Place) -> None:
        """Add a tensor of the files.

        Args:
            name: its name in the files.
            place: what it holds.
        """
        parameter = place.mixture.parameter(place.projection)
        if place.expert is None:
            self.wholes[parameter] = name
            return
        self.pieces.setdefault(parameter, {})[place.expert, place.half] = name
        name_of_layer = place.rest
        if not name_of_layer:
            name_of_layer = place.projection if place.half is None else _HALVES[place.half]
        self.places.setdefault(parameter, {})[place.prefix, name_of_layer] = place

    def of_expert(self, parameter: str, expert: int) -> list[str]:
        """Return the names of the tensors of an expert, whose rows follow one another.

        Args:
            parameter: full name of the parameter.
            expert: number of the expert.
        """
        pieces = self.pieces[parameter]
        if (expert, None) in pieces:
            return [pieces[expert, None]]
        return [pieces[expert, half] for half in (0, 1)]

    def patterns(self, parts: tuple[str, ...], is_qcore: bool) -> dict[str, list[str]]:
        """Return the regular expressions of the names of the parts in the files, renamed, by what takes their place.

        Args:
            parts: ends of the names of a weight's parts.
            is_qcore: whether parts have names X.weight.PART rather than X.PART.
        """
        prefixes: dict[tuple[str, str], set[str]] = {}
        for parameter, places in self.places.items():
            for (prefix, name), place in places.items():
                # \1 is the prefix, which may lack the name of the base model.
                target = r"\1" + parameter.removeprefix(place.mixture.path)
                form = rf"\.\d+\.{re.escape(name)}" if place.rest else rf"\.projections\.{re.escape(name)}\.\d+"
                prefixes.setdefault((target, form), set()).add(prefix)
        found: dict[str, list[str]] = {}
        for (target, form), given in sorted(prefixes.items()):
            alternatives = "|".join(map(re.escape, sorted(given)))
            ends = [rf"\.weight\.{part}" if is_qcore else rf"\.{part}" for part in parts]
            found.setdefault(target, []).extend(f"^({alternatives}){form}{end}$" for end in ends)
        return found

    def check(self, mixture: Mixture, shape_of: Any, where: str) -> None:
        """Check that the packed weights of a mixture are all there.

        Args:
            mixture: the module of experts.
            shape_of: returns the shape of the packed tensor of a name.
            where: begins the texts of errors.

        Raises:
            QcoreValueError: an expert has none, or one of another shape.
        """
        for projection in mixture.sources:
            parameter = mixture.parameter(projection)
            experts, rows, columns = mixture.shape(projection)
            numbers = {expert for expert, _ in self.pieces.get(parameter, {})}
            if numbers - set(range(experts)):
                raise _core.QcoreValueError(
                    f"{where}: the files have a packed weight of expert {max(numbers)} of {mixture.path}, which has "
                    f"{experts} experts in the model"
                )
            for expert in range(experts):
                try:
                    names = self.of_expert(parameter, expert)
                except KeyError:
                    raise _core.QcoreValueError(
                        f"{where}: the files have packed weights of {mixture.path} and not all of {projection} of "
                        f"expert {expert}, expected all of them: its weights would be random"
                    ) from None
                for name in names:
                    wanted = (rows // len(names), columns)
                    if shape_of(name) != wanted:
                        raise _core.QcoreValueError(
                            f"{where}: {name} of the files is packed {list(shape_of(name))}, expected {list(wanted)} "
                            f"for {projection} of {mixture.path} of the model"
                        )


def packed_experts(
    mixture: Mixture, weights: dict[str, list[list[Weight]]], compute: Any, device: torch.device
) -> Experts:
    """Return the module over packed weights that takes the place of a float one.

    Args:
        mixture: the float module; its biases are read.
        weights: for each projection, the weights of each expert, whose rows follow one another: one, or the halves of
            gate_up_proj. They are removed, so that weights of one projection at most are in memory twice.
        compute: returns the compute mode of a projection's expert.
        device: device of the weights.

    Raises:
        QcoreValueError: halves in two weights have a bias, for which there is no layer.
    """
    projections: dict[str, torch.nn.ModuleList] = {}
    for projection, source in mixture.sources.items():
        given = weights.pop(projection)
        joined = [_joined(each) for each in given]
        bias = None if source.bias is None else mixture.module.get_parameter(source.bias).detach()
        if all(len(each) == 1 for each in joined):
            names: tuple[str, ...] = (projection,)
        else:
            names, joined = _HALVES, given
            if bias is not None:
                raise _core.QcoreValueError(
                    f"qcore.transformers: {mixture.path} has {source.bias} and its {projection} is two packed weights "
                    "in different orders, expected no bias or one order"
                )
        for half, name in enumerate(names):
            projections[name] = torch.nn.ModuleList(
                packed_module(
                    torch.nn.Linear(1, 1, device="meta"),
                    parts[half].to(str(device)),
                    None if bias is None else bias[expert].clone(),
                    compute(projection, expert),
                    mixture.layer(name, expert),
                )
                for expert, parts in enumerate(joined)
            )
        del given, joined
        for name in names:
            arrange(projections[name])
    made = Experts(shell_of(mixture.module), mixture.layout, projections)
    made.train(mixture.module.training)
    return made


def _joined(weights: list[Weight]) -> list[Weight]:
    """Return one weight with the rows of all, or the weights themselves if they differ in more than their values."""
    packed = [each for each in weights if isinstance(each, QuantizedTensor)]
    kinds = {(each.bits, each.block_size, each.scheme, each.encoding) for each in packed}
    if len(weights) == 1 or len(packed) < len(weights) or len(kinds) > 1:
        return weights
    return [concatenate(packed)]
