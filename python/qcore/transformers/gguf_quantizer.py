"""Loads GGUF files in transformers: packed weights unchanged, all others as transformers' own loader reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import modeling_gguf_pytorch_utils as gguf_utils
from transformers.core_model_loading import WeightConverter
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.integrations.gguf.utils import is_gguf_arch_supported
from transformers.utils import logging

from qcore import _core
from qcore.formats.checkpoint.files.gguf import GgufEntry, read_gguf
from qcore.formats.gguf_blocks import TYPES
from qcore.transformers import serving
from qcore.transformers.config import QcoreConfig
from qcore.transformers.modules import is_conv1d, matrix_shape, unfit_reason
from qcore.transformers.operations import ReadPacked
from qcore.transformers.planning import tied_groups
from qcore.transformers.quantizer import QcoreQuantizer

_logger = logging.get_logger("transformers.qcore")


class GgufWeights:
    """Holds the packed weights of a GGUF file.

    Args:
        entries: the file's tensors.

    Attributes:
        targets: names in the file by the names in the model.
    """

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = entries
        self._orders: dict[str, NDArray[np.intp] | None] = {}
        self.targets: dict[str, str] = {}

    def add(self, target: str, name: str, order: NDArray[np.intp] | None) -> None:
        """Add a weight.

        Args:
            target: its name in the model.
            name: its name in the file.
            order: int [N], the order of the file's rows in the model, or None if it is the same.
        """
        self.targets[target] = name
        self._orders[target] = order

    def read(self, target: str) -> Any:
        """Return a weight in the file's bytes, with the rows in the model's order.

        Args:
            target: its name in the model.
        """
        name = self.targets[target]
        return self._entries[name].read(name, self._orders[target])

    def activations(self, target: str) -> None:
        """Return None: GGUF files say nothing about activations.

        Args:
            target: name of a weight in the model.
        """


class GgufQuantizer(QcoreQuantizer):
    """Puts the packed weights of a GGUF file into a model, unchanged.

    transformers' tables say how tensors are named and which rows its converter has permuted. What can't stay packed
    becomes floating point, and a note names it.

    Args:
        quantization_config: transformers' GgufConfig, or :class:`qcore.transformers.serving.GgufOptions`.
        options: not used.
    """

    def __init__(self, quantization_config: Any, **options: Any) -> None:
        super().__init__(quantization_config, pre_quantized=True)
        self._given = getattr(quantization_config, "options", None) or serving.current_options()

    def read_header(self, gguf_file: str) -> None:
        """Read the header of the file that transformers has found.

        Args:
            gguf_file: its path.
        """
        self._path = Path(gguf_file)

    def update_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """Return the dtype of what stays in floating point: float32 unless another is given.

        Args:
            dtype: as from_pretrained was called.
        """
        return torch.float32 if dtype is None else dtype

    def preprocess_model(self, model: Any, dtype: torch.dtype | None = None, **options: Any) -> None:
        """Prepare the quantizer; the model stays as it is.

        Args:
            model: the model, on meta.
            dtype: of what stays in floating point.
            options: what else transformers says, not used.
        """
        self.quantization_config = QcoreConfig.of_files({"quant_method": "gguf"}, self._given)
        super().preprocess_model(model, dtype=dtype, **options)

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> Any:
        self._dtype = torch.get_default_dtype()  # transformers has set it to that of the model
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Return the conversion of packed weights alone: names are the model's already.

        Args:
            weight_conversions: the model's own, for safetensors files.
            model: the model.
        """
        return [WeightConverter([r"^(.+)\.codes$"], r"\1", [ReadPacked(self)], force_cpu=True)]

    def get_state_dict(self, checkpoint_file: str, model: Any) -> dict[str, torch.Tensor]:
        """Return the file's tensors by the model's names; a packed one as an empty NAME.codes.

        Args:
            checkpoint_file: path of the file.
            model: the model, on meta.

        Raises:
            QcoreValueError: the file is broken, or transformers doesn't know its architecture.
        """
        entries = read_gguf(self._path)
        parsed: dict[str, Any] = {"config": model.config.get_text_config(decoder=True).to_dict(), "tensors": {}}
        processor = _processor(checkpoint_file, parsed["config"])
        names = gguf_utils.get_gguf_hf_weights_map(_Names(model), processor)
        weights = GgufWeights(entries)
        left: list[str] = []
        candidates = {
            names[name]: (name, order)
            for name, entry in entries.items()
            if name in names
            and not isinstance(order := _row_order(model, names[name], name, entry, processor, parsed), bool)
        }
        unpacked = {name for group in tied_groups(model) for name in group if not _fits_all(model, group)}
        for target, (name, order) in candidates.items():
            if target not in unpacked:
                weights.add(target, name, order)
        packed = set(weights.targets.values())
        for name, entry in entries.items():
            if name in packed:
                continue
            if isinstance(entry, GgufEntry):
                left.append(f"{name} ({entry.kind.name})")
            self._add_float(name, entry, processor, names, parsed)
        if left:
            _logger.warning(
                f"{len(left)} tensors of {self._path.name} become {self._dtype}: no module of the model holds them "
                f"packed, or their type has no exact form here: {', '.join(left[:8])}{', ...' if len(left) > 8 else ''}"
            )
        self._folder = weights
        self._planned = set(weights.targets)
        tensors = parsed["tensors"] | {f"{target}.codes": torch.empty(0) for target in weights.targets}
        return dict(tensors)

    def _add_float(self, name: str, entry: Any, processor: Any, names: dict[str, str], parsed: Any) -> None:
        values = _float_values(name, entry, self._path)
        result = processor.process(weights=values, name=name, tensor_key_mapping=names, parsed_parameters=parsed)
        if result.name in names:
            parsed["tensors"][names[result.name]] = torch.from_numpy(np.copy(result.weights)).to(self._dtype)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
        super()._process_model_after_weight_loading(model, **options)
        model._weight_conversions = None
        return model


class _Names:
    """Stands for a model where transformers looks names up.

    With the model itself it would make gguf's table of names again for every module, but it needs only the tables of
    the model and of the model within.
    """

    def __init__(self, model: Any, is_whole: bool = True) -> None:
        self.config, self._model, self._is_whole = model.config, model, is_whole

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors by name."""
        found: dict[str, Any] = self._model.state_dict()
        return found

    def named_children(self) -> list[tuple[str, Any]]:
        """Return the model within, whose tensors the files of some architectures hold."""
        name = self._model.base_model_prefix if self._is_whole else ""
        inner = getattr(self._model, name, None) if name else None
        return [] if inner is None or inner is self._model else [(name, _Names(inner, False))]


def _processor(path: str, config: dict[str, Any]) -> Any:
    """Return transformers' processor of the values of this architecture's tensors."""
    metadata, _ = read_gguf_metadata(path)
    architecture = metadata["general.architecture"]
    if is_gguf_arch_supported(architecture):
        raise _core.QcoreValueError(
            f"qcore.transformers: {path} has the architecture {architecture!r}, expected one that transformers loads "
            "by its tables of names: without qcore it loads with transformers' own quantizer"
        )
    return gguf_utils.TENSOR_PROCESSORS.get(architecture, gguf_utils.TensorProcessor)(config=config)


def _float_values(name: str, entry: Any, path: Path) -> Any:
    """Return the values of a tensor in float32, by the package gguf where qcore has no form for its type."""
    if not isinstance(entry, GgufEntry):
        return entry.section.widened()
    if entry.kind.name in TYPES and len(entry.shape) == 2:
        return entry.read(name).dequantize()
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise _core.QcoreTypeError(
            "gguf: GGUF files need the package gguf: pip install 'libqcore[transformers]'"
        ) from error
    raw = entry.raw()
    return dequantize(raw, GGMLQuantizationType[entry.kind.name]).reshape(entry.shape)


def _row_order(
    model: Any, target: str, name: str, entry: Any, processor: Any, parsed: Any
) -> NDArray[np.intp] | bool | None:
    """Return the order of the file's rows in the model, None for the same, False if the weight can't stay packed.

    transformers' processor of the tensor is applied to the numbers of the rows, in two columns. The result tells
    whether it only permutes rows.
    """
    if not isinstance(entry, GgufEntry) or entry.kind.name not in TYPES or len(entry.shape) != 2:
        return False
    if not target.endswith(".weight"):
        return False
    module = model.get_submodule(target.removesuffix(".weight"))
    if unfit_reason(module) or matrix_shape(module) != entry.shape:
        return False
    rows = entry.shape[0]
    numbers = np.stack([np.arange(rows), np.arange(rows) + rows], axis=1)
    try:
        result = processor.process(weights=numbers, name=name, tensor_key_mapping={}, parsed_parameters=parsed)
    except Exception:  # the processor may need the whole tensor
        return False
    found = np.asarray(result.weights)
    if result.name != name:
        return False
    if is_conv1d(module):
        return None if np.array_equal(found, numbers.T) else False
    if found.shape != numbers.shape or not np.array_equal(found[:, 1], found[:, 0] + rows):
        return False
    order = found[:, 0]
    if not np.array_equal(np.sort(order), np.arange(rows)):
        return False
    return None if np.array_equal(order, np.arange(rows)) else order.astype(np.intp)


def _fits_all(model: Any, group: set[str]) -> bool:
    return all(
        name.endswith(".weight") and not unfit_reason(model.get_submodule(name.removesuffix(".weight")))
        for name in group
    )
