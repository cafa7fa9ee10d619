"""Loads causal language models and their tokenizers from folders and GGUF files."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcore import _checks, _core

_BITS = {None: 0, 4: 4, 8: 8}
_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Source:
    """Describes where a model is stored, and in which format.

    Attributes:
        folder: the folder of config.json, or of the GGUF file.
        gguf: name of the GGUF file in it, or "".
        method: "float", "gguf", or ``quant_method`` of config.json: "qcore", "awq", "gptq", "compressed-tensors", ...
    """

    folder: Path
    gguf: str
    method: str


@dataclass(frozen=True)
class LoadedModel:
    """Holds a model that is ready to run.

    Attributes:
        model: a model of transformers, in evaluation mode.
        source: where it came from.
        bits: of the weights quantized while loading; None for weights as they were stored.
        seconds: time to load it.
        unfused: why :func:`qcore.transformers.fuse_` was not applied; "" if it was.
    """

    model: Any
    source: Source
    bits: int | None
    seconds: float
    unfused: str


def require_transformers(where: str) -> None:
    """Raise an error that says how to install transformers and torch, if one of them is missing.

    Args:
        where: name of the command or function, for the error.

    Raises:
        QcoreError: a package is missing.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise _core.QcoreError(
                f"{where}: the package {package} is not installed: pip install 'libqcore[transformers]'"
            )


def find_source(path: Any) -> Source:
    """Find the model that a path stands for.

    Args:
        path: a folder with config.json, a GGUF file, or a folder with one GGUF file and no config.json.

    Raises:
        FileNotFoundError: there is nothing at the path.
        QcoreValueError: no model lies there, or config.json is damaged.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise _core.QcoreValueError(f"{path} is a file, expected a folder with config.json or a .gguf file")
        return Source(path.parent, path.name, "gguf")
    path.stat()
    if (path / "config.json").is_file():
        return Source(path, "", _method(path / "config.json"))
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Source(path, files[0].name, "gguf")
    raise _core.QcoreValueError(
        f"{path} has no config.json and {len(files)} .gguf files, expected config.json or one file"
    )


def _method(file: Path) -> str:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = content.get("quantization_config") or {}
        method = found.get("quant_method", "float") if found else "float"
    except (ValueError, AttributeError):
        raise _core.QcoreValueError(f"{file} is no JSON object of a model's configuration") from None
    return str(method)


def load_model(
    path: Any,
    *,
    bits: int | None = None,
    compute: str | None = None,
    dtype: str | None = None,
    device: Any = "cpu",
    fuse: bool = False,
) -> LoadedModel:
    """Load a causal language model such that qcore's kernels run its quantized layers.

    Nothing is downloaded, and no code of the folder is run.

    Args:
        path: as for ``find_source``: a float model, one that qcore wrote, AWQ, GPTQ, compressed-tensors, bitsandbytes,
            HQQ or GGUF.
        bits: 4 or 8 quantizes a float model while it is loaded; None takes weights as they are.
        compute: compute mode of the quantized layers, as for :func:`qcore.linear`; by default that of ``QcoreConfig``.
        dtype: "float32", "bfloat16", "float16", or "auto": what config.json says. It is the type of what stays
            unquantized and of everything between the layers. By default float32 for quantized models on the CPU,
            because torch's own operators are slower there in bfloat16, and "auto" elsewhere.
        device: of torch.
        fuse: whether to apply :func:`qcore.transformers.fuse_`.

    Raises:
        QcoreValueError: an unknown option, bits for a model that is quantized already, or no model at the path.
        QcoreError: transformers is missing, can't load the model, or finds no weights for a part of it.
    """
    _checks.choice(bits, _BITS, "load_model: bits")
    if dtype is not None:
        _checks.choice(dtype, dict.fromkeys(_DTYPES), "load_model: dtype")
    require_transformers("load_model")
    source = find_source(path)
    if bits is not None and source.method != "float":
        raise _core.QcoreValueError(f"load_model: bits is {bits}, but {path} is quantized already ({source.method})")
    quantized = bits is not None or source.method != "float"
    if compute is not None and not quantized:
        raise _core.QcoreValueError(f"load_model: compute is {compute!r}, but {path} is a float model: give bits too")
    if dtype is None:
        dtype = "float32" if quantized and str(device) == "cpu" else "auto"
    options = _options(source, bits, compute)
    started = time.perf_counter()
    model = _from_pretrained(source, path, dtype, options).to(device).eval()
    unfused = "not asked for"
    if fuse:
        unfused = _fuse(model) if quantized else "its weights are not quantized"
    return LoadedModel(model, source, bits, time.perf_counter() - started, unfused)


def _options(source: Source, bits: int | None, compute: str | None) -> dict[str, Any]:
    """Return the arguments of from_pretrained that choose qcore's kernels."""
    options: dict[str, Any] = {}
    if source.gguf:
        options["gguf_file"] = source.gguf
    if source.method == "float" and bits is None:
        return options
    from qcore.transformers import QcoreConfig

    chosen: dict[str, Any] = {
        name: value for name, value in (("bits", bits), ("compute", compute)) if value is not None
    }
    if chosen or source.method != "qcore":
        options["quantization_config"] = QcoreConfig(**chosen)
    return options


def _from_pretrained(source: Source, path: Any, dtype: str, options: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    with _as_library_error(f"{path}: transformers can't load it"):
        model, report = AutoModelForCausalLM.from_pretrained(
            source.folder, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise _core.QcoreError(f"{path} has no weights for {len(missing)} tensors of the model, such as {missing[0]}")
    return model


def _fuse(model: Any) -> str:
    """Fuse a model, or return the reason why it was not."""
    import qcore.transformers

    fuse = getattr(qcore.transformers, "fuse_", None)
    if fuse is None:
        return "this version of qcore has no fuse_"
    try:
        fuse(model)
    except _core.QcoreError as error:
        return " ".join(str(error).split())
    return ""


def load_tokenizer(path: Any) -> Any:
    """Load the tokenizer that lies beside a model, or inside of its GGUF file.

    Args:
        path: as for ``find_source``.

    Raises:
        QcoreValueError: no model at the path.
        QcoreError: transformers is missing, or can't make a tokenizer of the files.
    """
    require_transformers("load_tokenizer")
    source = find_source(path)
    from transformers import AutoTokenizer

    options = {"gguf_file": source.gguf} if source.gguf else {}
    with _as_library_error(f"{path} has no tokenizer that transformers can load"):
        return AutoTokenizer.from_pretrained(source.folder, local_files_only=True, **options)


@contextlib.contextmanager
def _as_library_error(message: str) -> Iterator[None]:
    """Turn errors of transformers and safetensors into one of qcore with their first sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except _core.QcoreError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        ImportError,
        LookupError,
        AttributeError,
        RuntimeError,
        SafetensorError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _core.QcoreError(f"{message}: {reason[:300]}") from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from writing warnings and progress bars to stderr."""
    import warnings

    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
