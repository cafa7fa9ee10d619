"""Other libraries, imported with the same number of threads for each."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import subprocess
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import qcore
from qcore.bench import machine

from .implementation import Unavailable

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TBB_NUM_THREADS")
_threads = 1


def set_threads(threads: int) -> None:
    """To be called before any other library is imported: some read the environment only then."""
    global _threads
    _threads = threads
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def threads() -> int:
    return _threads


def _import(module: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module} is not installed ({error})") from error
    except (OSError, RuntimeError, AttributeError) as error:
        raise Unavailable(f"{module} does not import: {type(error).__name__}: {error}") from error


@cache
def torch() -> Any:
    module = _import("torch")
    module.set_num_threads(_threads)
    module.set_grad_enabled(False)
    return module


@cache
def torchao() -> Any:
    torch()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it reports every CUDA library that it can't load
    try:
        return _import("torchao.quantization")
    finally:
        logging.disable(before)


@cache
def onnxruntime() -> tuple[Any, Any]:
    """(onnxruntime, onnx); all sessions share one thread pool."""
    runtime, onnx = _import("onnxruntime"), _import("onnx")
    runtime.set_default_logger_severity(3)
    runtime.set_global_thread_pool_sizes(_threads, 1)
    return runtime, onnx


@cache
def openvino() -> Any:
    return _import("openvino")


@cache
def mlx() -> Any:
    module = _import("mlx.core")
    module.set_default_device(module.cpu)
    return module


# Distributions whose versions matter, by the library name that implementations carry.
DISTRIBUTIONS = {
    "numpy": "numpy",
    "torch": "torch",
    "torchao": "torchao",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "mlx": "mlx",
    "ggml": "ggml_python",
}


def versions() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for library, distribution in DISTRIBUTIONS.items():
        try:
            found[library] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def reason(error: Exception) -> str:
    """One line on why something did not work."""
    text = " ".join(str(error).split()) or "no message"
    prefix = "" if isinstance(error, Unavailable) else f"{type(error).__name__}: "
    return (prefix + text)[:200]


def gather(sources: list[tuple[str, Callable[[], list[Any]]]], unavailable: dict[str, str]) -> list[Any]:
    """Collect what all sources offer; a source that fails is noted with its reason."""
    found = []
    for name, source in sources:
        try:
            found += source()
        except Unavailable as error:
            unavailable[name] = reason(error)
    return found


def describe(threads: int) -> dict[str, Any]:
    """Return the machine, versions and the commit, for a results file of the CPU."""
    return machine.describe(threads, versions()) | {"commit": commit()}


def commit() -> str | None:
    """Return the commit of the checkout that holds qcore, or else the current folder; a plus sign means changes."""
    for folder in (Path(qcore.__file__).resolve().parents[2], Path.cwd()):
        if not (folder / "python" / "qcore").is_dir():
            continue
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        if head:
            return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    return None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
