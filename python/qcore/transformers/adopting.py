"""Registers models with transformers that :func:`qcore.torch.quantize_` has quantized in place."""

from __future__ import annotations

from collections import Counter
from typing import Any

from qcore import _core
from qcore.transformers.config import QcoreConfig
from qcore.transformers.modules import ReorderedLinear, packed_modules
from qcore.transformers.quantizer import QcoreQuantizer


def adopt_(model: Any) -> Any:
    """Make save_pretrained and from_pretrained keep the packed weights of a model that was quantized in place.

    Without it, save_pretrained would write tensors that from_pretrained doesn't know, and a model loaded from them
    would have random weights.

    Args:
        model: a model of transformers with modules of qcore.torch.

    Returns:
        The model.

    Raises:
        QcoreValueError: the model has no such modules, or another library has quantized it.
    """
    found = {
        name: module.linear if isinstance(module, ReorderedLinear) else module for name, module in packed_modules(model)
    }
    if not found:
        raise _core.QcoreValueError("adopt_: the model has no packed weights, expected one that quantize_ has changed")
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not isinstance(quantizer, QcoreQuantizer):
        raise _core.QcoreValueError(
            f"adopt_: the model is quantized by {type(quantizer).__name__} already, expected a float model"
        )
    # The configuration describes plain weights only; in files each weight's own entry says what it has.
    plain = next((module for module in found.values() if module.encoding is None), None)
    form = {} if plain is None else {"bits": plain.bits, "block_size": plain.block_size}
    if plain is not None:
        form |= {"scheme": plain.weight.scheme, "scale_dtype": plain.weight.scale_dtype}
    compute = Counter(module.compute for module in found.values()).most_common(1)[0][0]
    config = QcoreConfig(
        **form,
        compute=compute,
        layers={name: {"compute": module.compute} for name, module in found.items() if module.compute != compute},
    )
    # model.is_quantized stays False, since it would forbid .half() and .float(), which leave packed weights unchanged.
    model.hf_quantizer = QcoreQuantizer(config, pre_quantized=True)
    model.config.quantization_config = config
    return model
