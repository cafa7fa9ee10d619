"""Causal language models of transformers: loaded, run, evaluated and timed.

The commands ``qcore generate``, ``qcore evaluate`` and ``qcore bench model`` are made of it. It needs torch and
transformers (``pip install 'libqcore[transformers]'``), which are imported when a name of it is used that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qcore.language_model.evaluation import Comparison, Evaluation, evaluate
    from qcore.language_model.generation import Generation, generate
    from qcore.language_model.loading import LoadedModel, Source, load_model, load_tokenizer

__all__ = [
    "Comparison",
    "Evaluation",
    "Generation",
    "LoadedModel",
    "Source",
    "evaluate",
    "generate",
    "load_model",
    "load_tokenizer",
]

_MODULES = {
    "Comparison": "evaluation",
    "Evaluation": "evaluation",
    "Generation": "generation",
    "LoadedModel": "loading",
    "Source": "loading",
    "evaluate": "evaluation",
    "generate": "generation",
    "load_model": "loading",
    "load_tokenizer": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
