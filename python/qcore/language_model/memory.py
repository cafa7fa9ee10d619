"""Reads how much memory this process takes."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Memory:
    """Holds the memory of a process in bytes.

    Attributes:
        resident: pages in memory now, those of mapped files included.
        peak: the largest that `resident` has been.
    """

    resident: int
    peak: int


def measure_memory() -> Memory:
    """Return this process's memory.

    ``ru_maxrss`` is the peak where the kernel writes none into ``/proc/self/status``. It is not used elsewhere because
    a child inherits its parent's.
    """
    try:
        text = _STATUS.read_text()
    except OSError:
        text = ""
    found = {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(Vm\w+):\s*(\d+) kB", text, re.MULTILINE)}
    peak = found["VmHWM"] if "VmHWM" in found else _peak_by_getrusage()
    return Memory(found.get("VmRSS", peak), peak)


def _peak_by_getrusage() -> int:
    import resource  # which Windows lacks

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes
