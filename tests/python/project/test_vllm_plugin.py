"""The plugin for vLLM where vLLM is missing."""

import subprocess
import sys

import pytest

import qcore
import qcore.vllm


def test_importing_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, qcore, qcore.vllm; "
        "print([name for name in ('vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_registering_without_vllm_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.quantization", None)
    with pytest.raises(qcore.QcoreValueError, match=r"qcore\.vllm\.register: vLLM's interfaces cannot be imported"):
        qcore.vllm.register()
