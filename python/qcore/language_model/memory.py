"""Reads how much memory this process takes."""

from __future__ import annotations

import re
import resource
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
    peak = found.get("VmHWM", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return Memory(found.get("VmRSS", peak), peak)
