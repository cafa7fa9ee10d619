"""Leaves the tests of fuse_ out where torch or transformers is missing."""

import importlib.util
import os

import pytest

_missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if _missing and os.environ.get("QCORE_REQUIRE_INTEROP") != "1" else []


@pytest.fixture(autouse=True)
def two_threads():
    """Keep torch from using more threads than the machine has for tests."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)
