"""Settings of all tests: deterministic hypothesis, and a report of the frameworks that are not installed."""

import importlib.util
import os
from pathlib import Path

# Before NumPy is loaded: the oracle's many small products are slower on several threads than on one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

import qcore

# The same examples on every run: a failure can be repeated on every machine. An emulator takes fewer.
EXAMPLES = int(os.environ.get("QCORE_TEST_EXAMPLES", "60"))
settings.register_profile("qcore", derandomize=True, deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("qcore")

FRAMEWORKS = ("torch", "jax", "array_api_strict", "onnx", "onnxruntime", "mlx", "distributed", "transformers", "vllm")
INTEROP = Path(__file__).parent / "interop"
REQUIRED = os.environ.get("QCORE_REQUIRE_INTEROP") == "1"


def _needed(module):
    """Return the frameworks that a module of interop/ names in its own name."""
    return [name for name in FRAMEWORKS if f"_{name}_" in f"_{module.stem}_"]


_missing = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
_left_out = [
    module
    for module in sorted(INTEROP.rglob("test_*.py"))
    if not REQUIRED and any(name in _missing for name in _needed(module))
]
collect_ignore = [str(module) for module in _left_out]


def pytest_configure(config):
    """Let a worker of pytest-xdist without tests take some of another's: they differ in length a thousandfold."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_report_header():
    info = qcore.info()
    kernels = ", ".join(row.name for row in qcore.kernels() if row.available)
    lines = [f"qcore: {info['version']}, isa {info['isa']}, {info['threads']} threads, kernels {kernels}"]
    if _left_out:
        names = ", ".join(f"interop/{module.relative_to(INTEROP)}" for module in _left_out)
        lines.append(f"qcore: NOT TESTED, for want of {' and '.join(_missing)}: {names}")
    return lines
