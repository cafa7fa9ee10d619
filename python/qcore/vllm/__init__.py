"""Provides the quantization method "qcore" for vLLM, an out-of-tree plugin.

vLLM finds :func:`register` by the entry point ``qcore`` of the group ``vllm.general_plugins`` and calls it in each of
its processes. Importing this package imports neither vLLM nor torch.
"""

from __future__ import annotations

METHOD = "qcore"
"""The method's name: ``quant_method`` in config.json and the value of ``--quantization``."""

__all__ = ["METHOD", "register"]


def register() -> None:
    """Register the method "qcore" with vLLM. A second call changes nothing.

    Raises:
        QcoreValueError: vLLM cannot be imported, or lacks the interfaces that the plugin needs.
    """
    from qcore import _core

    try:
        from vllm.model_executor.layers.quantization import register_quantization_config

        from qcore.vllm.config import VllmConfig
    except ImportError as error:
        raise _core.QcoreValueError(
            f"qcore.vllm.register: vLLM's interfaces cannot be imported ({error}), expected vLLM 0.33 or a version "
            "with the same ones"
        ) from error
    register_quantization_config(METHOD)(VllmConfig)
