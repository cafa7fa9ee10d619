"""Memory of qcore.torch.quantize_: at most the float model and one layer; afterwards the packed weights."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MEGABYTE = 1 << 20
CODE = """
    import ctypes, json, sys, torch, warnings
    import qcore.torch as qt

    def status(name):
        line = next(line for line in open("/proc/self/status") if line.startswith(name))
        return 1024 * int(line.split()[1])

    class Model(torch.nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.embed = torch.nn.Embedding(8000, 1024, dtype=dtype)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 2048, dtype=dtype) for _ in range(20))
            self.head = torch.nn.Linear(1024, 8000, bias=False, dtype=dtype)
            self.head.weight = self.embed.weight

    qt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 64)))  # loads everything
    before = status("VmRSS")
    model = Model(getattr(torch, sys.argv[1]))
    size = sum(each.nbytes for each in model.parameters())
    largest = max(each.nbytes for each in model.parameters())
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    report = qt.quantize_(model, bits=4)
    peak = status("VmHWM")
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps depends on the order in which threads gave it back
    print(json.dumps({
        "size": size, "largest": largest, "packed": report.bytes_after, "reported": report.bytes_before,
        "peak": peak - before, "after": status("VmRSS") - before, "share": report.share,
    }))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="tells memory by Linux' /proc")
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_peak_and_rest(dtype):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), dtype], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["share"] == 1
    assert found["size"] == found["reported"]
    assert found["peak"] < found["size"] + found["largest"] + 24 * MEGABYTE
    assert found["after"] < found["packed"] + 24 * MEGABYTE
    assert found["packed"] < 0.3 * found["size"]
