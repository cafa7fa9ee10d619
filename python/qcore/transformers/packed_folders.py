"""Opens the files of a model, and finds packed weights by their names in the files and in the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers.core_model_loading import WeightConverter, WeightRenaming, apply_renamings, rename_source_key

from qcore import _core
from qcore._options import Compute
from qcore.formats.checkpoint import layout
from qcore.formats.checkpoint.byte_ranges import Section
from qcore.formats.checkpoint.files.safetensors import read_header
from qcore.formats.checkpoint.frameworks import as_torch
from qcore.formats.checkpoint.layers import bitsandbytes, compressed_tensors, hqq
from qcore.formats.checkpoint.reader import Checkpoint, open_files
from qcore.formats.checkpoint.records import Entry, PlainEntry
from qcore.transformers.mixtures import ExpertFiles, Mixture, Places
from qcore.transformers.modules import matrix_shape, unfit_reason
from qcore.transformers.pickled_files import read_pickled

_WHERE = "qcore.transformers"
Patterns = tuple[list[str], str]
"""Regular expressions of the parts of a weight in the files, and what takes their place in the name."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "qcore": ("codes", "scales", "offsets", "super_scales", "super_offsets", "order"),
    "packed": ("qweight", "qzeros", "scales", "g_idx"),
    "compressed": (*(part for part in compressed_tensors.PARTS if part != "weight"), *compressed_tensors.UNUSED),
    "bitsandbytes": tuple(re.escape(part) for part in bitsandbytes.PARTS if part != "weight"),
    "hqq": hqq.PARTS,
}
"""Patterns of the ends of the names of a weight's parts, by kind of folder."""
_NAMED = ("compressed", "bitsandbytes", "hqq")
"""Kinds of folders in which some parts have names that parameters of other modules may have, too."""
_COMMON = tuple(part for part in hqq.PARTS if part != "W_q")
"""Such names of HQQ: scale, shape and others. One pattern has them, because each has the names of all layers."""
_KINDS = {compressed_tensors.METHOD: "compressed", bitsandbytes.METHOD: "bitsandbytes", hqq.METHOD: "hqq"}
"""Kinds of folders by quant_method, of those that aren't "packed"."""


class Weights(Protocol):
    """Describes the packed weights of the files that a model is loaded from.

    Attributes:
        targets: names in the files by the names in the model.
    """

    targets: dict[str, str]

    def read(self, target: str) -> Any:
        """Return a packed weight by its name in the model."""

    def activations(self, target: str) -> Compute | None:
        """Return the compute mode that the files ask for, or None."""


class PackedFolder:
    """Holds the weights of a model's files, each of which is read when it is needed.

    Attributes:
        targets: names in the files by the names in the model.
        experts: names in the files of the weights of experts, which are several tensors of the model in one, or one in
            several.
    """

    def __init__(self, checkpoint: Checkpoint, kind: str) -> None:
        self._checkpoint = checkpoint
        self._kind = kind
        self.targets: dict[str, str] = {}
        self.experts = ExpertFiles()
        self._mixtures: Mapping[str, Mixture] = {}
        self._unmatched: list[str] = []

    def entries(self) -> dict[str, Entry]:
        """Return the weights by their names in the files."""
        found = {name: self._checkpoint.entry(name) for name in self._checkpoint}
        plain = self._kind == "float"
        return {name: entry for name, entry in found.items() if isinstance(entry, PlainEntry) == plain}

    def patterns(self, conversions: list[Any]) -> Patterns:
        """Return the patterns of parts, for the loader, after whose renamings they apply.

        Args:
            conversions: transformers' for this model.
        """
        target = r"\1" if self._kind == "qcore" else r"\1.weight"
        found = [rf"^(.+)\.{part}$" for part in _PARTS[self._kind] if part not in _COMMON]
        if self._kind in _NAMED:
            # Codes of int-quantized layers, for instance, have the names of float weights: only these names.
            renamings = [each for each in deepcopy(conversions) if isinstance(each, WeightRenaming)]
            names = [apply_renamings(name, renamings).removesuffix(".weight") for name in self.entries()]
            ends = r"\.weight" if self._kind != "hqq" else rf"\.(?:{'|'.join(_COMMON)})"
            if names:
                found.append(rf"^({'|'.join(map(re.escape, names))}){ends}$")
        return found, target

    def expert_patterns(self) -> dict[str, list[str]]:
        """Return the patterns of parts of experts' weights, for the loader, by what takes their place in the name."""
        parts = _PARTS[self._kind] + (("weight",) if self._kind in ("compressed", "bitsandbytes") else ())
        return self.experts.patterns(parts, self._kind == "qcore")

    def find_targets(self, conversions: list[Any], model: Any, mixtures: Mapping[str, Mixture]) -> None:
        """Find the names in the model.

        Args:
            conversions: transformers' for this model.
            model: the model.
            mixtures: those of its mixtures of experts that may be packed.
        """
        self._mixtures = mixtures
        places = Places(model, conversions, mixtures)
        # Names are looked up in a copy, because a look-up marks a conversion as used.
        conversions = deepcopy(conversions)
        renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        converters = (
            [each for each in conversions if isinstance(each, WeightConverter)] if self._kind == "float" else []
        )
        state = model.state_dict()
        for name in self.entries():
            target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
            if target not in state and name in state:
                target = name
            if target in state and pattern is None and target not in places.parameters:
                self.targets[target] = name
            elif (place := places.find(name)) is not None:
                self.experts.add(name, place)
            else:
                self._unmatched.append(target)

    def check_modules(self, model: Any) -> None:
        """Check that packed weights have a place in the model, before any is read.

        Args:
            model: the model, on meta.

        Raises:
            QcoreValueError: a weight has another shape than its module, which can't hold it, or a module of the model
                lacks what the weight is of.
        """
        for target, name in self.targets.items():
            layer = target.removesuffix(".weight")
            module = model.get_submodule(layer)
            about = self._checkpoint.info(name)
            where = f"{_WHERE}: {name} of the files is {about.format}"
            if reason := unfit_reason(module):
                raise _core.QcoreValueError(f"{where}, expected floating point: {reason}")
            if matrix_shape(module) != about.shape:
                raise _core.QcoreValueError(
                    f"{where} {list(about.shape)}, expected {list(matrix_shape(module))} for {layer} of the model"
                )
        for mixture in self.packed_mixtures():
            self.experts.check(mixture, lambda name: self._checkpoint.info(name).shape, _WHERE)
        for name in self._unmatched:
            self._check_unmatched(name, model)

    def _check_unmatched(self, name: str, model: Any) -> None:
        """Raise QcoreValueError if a weight that the model lacks belongs to a module that has other parameters.

        That module would keep random weights. A weight without any such module is ignored, like the head for a model
        without one.
        """
        path = name.removesuffix(".weight")
        while path:
            path = path.rpartition(".")[0]
            module = None
            try:
                module = model.get_submodule(path) if path else None
            except AttributeError:
                continue
            if module is not None and next(module.parameters(recurse=False), None) is not None:
                raise _core.QcoreValueError(
                    f"{_WHERE}: the files have the packed weight {name}, and {path} of the model, a "
                    f"{type(module).__name__}, has no such layer, expected one: its weights would be random"
                )
            if module is not None:
                return

    def packed_mixtures(self) -> list[Mixture]:
        """Return the mixtures of experts that have packed weights in the files."""
        return [
            mixture
            for mixture in self._mixtures.values()
            if any(mixture.parameter(projection) in self.experts.pieces for projection in mixture.sources)
        ]

    def read_expert(self, parameter: str, expert: int) -> list[Any]:
        """Return the packed weights of an expert, whose rows follow one another.

        Args:
            parameter: full name of the parameter of all experts.
            expert: number of the expert.
        """
        return [self._checkpoint[name] for name in self.experts.of_expert(parameter, expert)]

    def expert_activations(self, parameter: str, expert: int) -> Compute | None:
        """Return the compute mode that the files ask for, or None.

        Args:
            parameter: full name of the parameter of all experts.
            expert: number of the expert.
        """
        entry = self._checkpoint.entry(self.experts.of_expert(parameter, expert)[0])
        return getattr(entry, "activations", None)

    def float_experts(self, mixture: Mixture, projection: str) -> Callable[[int], Any] | None:
        """Return a function that reads the float weight of an expert as the files have it, or None if there is none.

        There is none if the loader makes the weight by a conversion that is unknown here, or from tensors that don't
        fit.

        Args:
            mixture: the module of experts.
            projection: name of the projection.
        """
        parameter = mixture.parameter(projection)
        if parameter in self.experts.wholes:
            section = self._section(self.experts.wholes[parameter])
            matrices = mixture.sources[projection].matrices
            if section.shape != mixture.module.get_parameter(mixture.sources[projection].weight).shape:
                return None
            return lambda expert: matrices(as_torch(section))[expert]
        if parameter not in self.experts.pieces:
            return None
        experts, rows, columns = mixture.shape(projection)
        for expert in range(experts):
            try:
                names = self.experts.of_expert(parameter, expert)
            except KeyError:
                return None
            if any(self._section(name).shape != (rows // len(names), columns) for name in names):
                return None

        # One buffer holds the rows of all experts in turn: with a new one for each, packed weights would be allocated
        # where the last buffer was, and the heap would grow by almost a whole float tensor per expert.
        joined: list[torch.Tensor] = []

        def read(expert: int) -> Any:
            parts = [as_torch(self._section(name)) for name in self.experts.of_expert(parameter, expert)]
            if len(parts) == 1:
                return parts[0]
            dtype = torch.promote_types(parts[0].dtype, parts[1].dtype)
            if not joined or joined[0].dtype != dtype:
                joined[:] = [torch.empty((rows, columns), dtype=dtype)]
            return torch.cat(parts, out=joined[0])

        return read

    def _section(self, name: str) -> Section:
        entry = self._checkpoint.entry(name)
        assert isinstance(entry, PlainEntry)
        return entry.section

    def read(self, target: str) -> Any:
        """Return a packed weight.

        Args:
            target: its name in the model.
        """
        return self._checkpoint[self.targets[target]]

    def activations(self, target: str) -> Compute | None:
        """Return the compute mode that the files ask for, or None.

        Args:
            target: the weight's name in the model.
        """
        return getattr(self._checkpoint.entry(self.targets[target]), "activations", None)

    def float_operand(self, target: str) -> Callable[[], Any] | None:
        """Return a function that reads a float weight as its file has it, or None if it is made from other tensors.

        Args:
            target: its name in the model.
        """
        name = self.targets.get(target)
        entry = None if name is None else self._checkpoint.entry(name)
        if not isinstance(entry, PlainEntry):
            return None
        section = entry.section
        return lambda: as_torch(section)


def packed_folder(files: list[Path], config: Mapping[str, Any]) -> PackedFolder:
    """Open the files of a model that is quantized.

    Args:
        files: safetensors files, or state_dicts that torch.save wrote (.bin).
        config: its ``quantization_config``.

    Raises:
        QcoreValueError: files of another kind, or as :func:`qcore.formats.open_checkpoint`.
    """
    suffixes = {file.suffix for file in files}
    if len(suffixes) > 1 or not suffixes <= {".safetensors", ".bin"}:
        raise _core.QcoreValueError(
            f"{_WHERE}: the packed weights are in {files[0].name} and {len(files) - 1} other files, expected "
            ".safetensors files only, or .bin files only"
        )
    where = f"{_WHERE}: {files[0] if len(files) == 1 else files[0].parent}"
    read = read_pickled if suffixes == {".bin"} else read_header
    checkpoint = open_files(files, {"quantization_config": dict(config)}, where, read)
    method = config.get("quant_method")
    if method != "qcore":
        return PackedFolder(checkpoint, _KINDS.get(str(method), "packed"))
    for name in checkpoint:
        if name.endswith(".codes"):
            raise _core.QcoreValueError(
                f"{where} has {name} and no description of it in the files' metadata, expected {layout.KEY!r} and "
                "'weights': a program that copied the tensors has lost them"
            )
    return PackedFolder(checkpoint, "qcore")


def float_folder(files: list[Path]) -> PackedFolder | None:
    """Open the files of a float model, or return None if some are no safetensors files.

    Args:
        files: as transformers found them.
    """
    if not files or any(file.suffix != ".safetensors" for file in files):
        return None
    return PackedFolder(open_files(files, {}, f"{_WHERE}: {files[0]}"), "float")
