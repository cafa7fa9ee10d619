"""Models for the tests of fuse_, and which of them need transformers."""

import importlib.util
import os
import sys

_missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if _missing and os.environ.get("QCORE_REQUIRE_INTEROP") != "1" else []

if not _missing:
    import decoder_oracle
    if importlib.util.find_spec("qcore.decoder") is None:
        import qcore
        sys.modules["qcore.decoder"] = qcore.decoder = decoder_oracle
    import pytest
    import torch
    from qcore.transformers import fuse_stack

    @pytest.fixture(params=("native", "oracle"))
    def decoder(request, monkeypatch):
        """Runs a test with the native decoder, then with its oracle in torch."""
        if request.param == "oracle":
            monkeypatch.setattr(fuse_stack, "native", decoder_oracle)

    @pytest.fixture(autouse=True)
    def two_threads():
        """Keeps torch from using more threads than the machine has for tests."""
        before = torch.get_num_threads()
        torch.set_num_threads(min(2, before))
        yield
        torch.set_num_threads(before)
