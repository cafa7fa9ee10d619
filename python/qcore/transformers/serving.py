"""Makes from_pretrained use qcore for folders and files that other programs have quantized.

transformers chooses a quantizer by two dictionaries, ``AUTO_QUANTIZATION_CONFIG_MAPPING`` and
``AUTO_QUANTIZER_MAPPING``. :func:`enable` replaces their entries for the methods that qcore reads, and :func:`disable`
puts back what was there. A call of from_pretrained with a :class:`QcoreConfig` does so for its own duration: for this,
``transformers.modeling_utils.get_hf_quantizer`` is wrapped when this package is imported.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import modeling_utils
from transformers.quantizers import auto
from transformers.utils import logging
from transformers.utils.quantization_config import GgufConfig

from qcore import _core
from qcore.formats.checkpoint.files.folder import read_config
from qcore.transformers.config import METHOD, QcoreConfig

METHODS = ("awq", "gptq", "compressed-tensors", "bitsandbytes", "hqq", "gguf")
_KEYS = {"bitsandbytes": ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")}
"""The dictionaries' keys of methods that have others than their name."""
_lock = threading.RLock()
_replaced: dict[str, tuple[Any, Any]] = {}
"""Keeps the replaced entries of the two dictionaries, by method."""
_options: list[QcoreConfig] = []
"""Options of :func:`enable`, followed by those of the calls that are running, the innermost last."""
_logger = logging.get_logger("transformers.qcore")


class _FilesConfig:
    """Stands for a method's own configuration class."""

    @classmethod
    def from_dict(cls, values: dict[str, Any], **options: Any) -> QcoreConfig:
        """Return the options of a folder that is quantized.

        Args:
            values: ``quantization_config`` of its config.json.
            options: not used.
        """
        return QcoreConfig.of_files(values, current_options())


class GgufOptions(GgufConfig):  # type: ignore[misc, unused-ignore]
    """Carries a QcoreConfig where transformers takes only its own class for GGUF files."""

    def __init__(self, options: QcoreConfig) -> None:
        super().__init__()
        self.options = options


def current_options() -> QcoreConfig | None:
    """Return the options of the innermost running call, or of :func:`enable`; None without either."""
    return _options[-1] if _options else None


def enable(*methods: str, config: QcoreConfig | None = None) -> None:
    """Make from_pretrained use qcore for folders of these methods, without an argument, until :func:`disable`.

    Args:
        methods: "awq", "gptq", "compressed-tensors", "bitsandbytes", "hqq" or "gguf"; all by default.
        config: its ``compute`` and ``layers`` count.

    Raises:
        QcoreValueError: another method.
    """
    for method in methods:
        if method not in METHODS:
            raise _core.QcoreValueError(
                f"enable: {method!r} is no method that qcore reads, expected {', '.join(METHODS)}"
            )
    with _lock:
        _replace(methods or METHODS)
        del _options[:]
        if config is not None:
            _options.append(config)


def disable() -> None:
    """Give all methods back to transformers' own quantizers."""
    with _lock:
        _restore(list(_replaced))
        del _options[:]


def _replace(methods: Iterable[str]) -> list[str]:
    from qcore.transformers.gguf_quantizer import GgufQuantizer

    keys = [key for method in methods for key in _KEYS.get(method, (method,))]
    changed = [key for key in keys if key not in _replaced]
    for method in changed:
        configs, quantizers = auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING
        _replaced[method] = configs.get(method), quantizers.get(method)
        if method == "gguf":
            quantizers[method] = GgufQuantizer
        else:
            configs[method] = _FilesConfig
    return changed


def _restore(methods: Iterable[str]) -> None:
    for method in methods:
        config, quantizer = _replaced.pop(method)
        for mapping, value in (
            (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, config),
            (auto.AUTO_QUANTIZER_MAPPING, quantizer),
        ):
            if value is None:
                mapping.pop(method, None)
            else:
                mapping[method] = value


@contextmanager
def _served(options: QcoreConfig) -> Iterator[None]:
    with _lock:
        changed = _replace((METHOD, *METHODS))
        _options.append(options)
        try:
            yield
        finally:
            _options.pop()
            _restore(changed)


def install() -> None:
    """Wrap transformers' ``get_hf_quantizer``, once."""
    original = modeling_utils.get_hf_quantizer
    if getattr(original, "_qcore", False):
        return

    @functools.wraps(original)
    def get_hf_quantizer(
        config: Any, quantization_config: Any, *args: Any, gguf_file: Any = None, **options: Any
    ) -> Any:
        if quantization_config is None and gguf_file is None:
            _restore_hidden(config)
        if not isinstance(quantization_config, QcoreConfig):
            return original(config, quantization_config, *args, gguf_file=gguf_file, **options)
        with _served(quantization_config):
            if gguf_file is not None:
                quantization_config = GgufOptions(quantization_config)
            elif (method := _method_of(config)) is not None:
                _check_method(method)
                quantization_config = None
            return original(config, quantization_config, *args, gguf_file=gguf_file, **options)

    get_hf_quantizer._qcore = True  # type: ignore[attr-defined]
    modeling_utils.get_hf_quantizer = get_hf_quantizer


def _restore_hidden(config: Any) -> None:
    """Read quantization_config of a folder of qcore again where ``quantization_config=None`` has hidden it.

    Otherwise the model would have random weights.
    """
    folder = Path(str(getattr(config, "name_or_path", "") or ""))
    if getattr(config, "quantization_config", "") is not None or not (folder / "config.json").is_file():
        return
    values = (read_config(folder) or {}).get("quantization_config")
    if isinstance(values, dict) and values.get("quant_method") == METHOD:
        config.quantization_config = values


def _method_of(config: Any) -> str | None:
    """Return ``quant_method`` of the folder that is loaded, as transformers finds it, or None."""
    values = getattr(config, "quantization_config", None)
    if values is None:
        values = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if values is None:
        return None
    found = values.get("quant_method") if isinstance(values, dict) else values.quant_method
    return str(getattr(found, "value", found))


def _check_method(method: str) -> None:
    if method not in (METHOD, *METHODS):
        raise _core.QcoreValueError(
            f"from_pretrained: the model is quantized with {method!r} and quantization_config is a QcoreConfig, "
            f"expected a float model or one of {', '.join((METHOD, *METHODS))}"
        )
    _logger.warning(
        f"The model's files are quantized ({method}): their weights are taken as they are. Of the QcoreConfig only "
        "compute counts."
    )
