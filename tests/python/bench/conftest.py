"""A benchmark's command may change its process; the tests share one."""

import os
import sys

import pytest
from benchmarks import libraries

import qcore


@pytest.fixture(autouse=True)
def undo(monkeypatch):
    for variable in (*libraries._THREAD_VARIABLES, "QCORE_ISA"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
        if not os.environ[variable]:
            monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")
    threads = qcore.get_num_threads()
    yield
    qcore.set_num_threads(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_grad_enabled(True)  # the next test's libraries.torch() switches gradients off again
        for library in (libraries.torch, libraries.torchao):
            library.cache_clear()
