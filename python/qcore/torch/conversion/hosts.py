"""Informs the library that a quantized model belongs to."""

from __future__ import annotations

import sys

import torch

from qcore.torch.weighted import WeightedModule


def tell_transformers(model: torch.nn.Module) -> None:
    """Register the packed weights of a transformers model with transformers, so that it saves and load them.

    Does nothing for another model, for one that another library has quantized too, and with a transformers that is too
    old for qcore.transformers.

    Args:
        model: any module.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return
    if not any(isinstance(module, WeightedModule) for module in model.modules()):
        return
    try:
        from qcore.transformers.adopting import adopt_
        from qcore.transformers.quantizer import QcoreQuantizer
    except ImportError:
        return
    if isinstance(getattr(model, "hf_quantizer", None), (QcoreQuantizer, type(None))):
        adopt_(model)
