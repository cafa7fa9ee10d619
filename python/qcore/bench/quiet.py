"""Detect other programs on the processor, by Linux's own counters where they exist."""

from __future__ import annotations

import time
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
_LOAD = Path("/proc/loadavg")


def stalled_seconds() -> float:
    """Return the total time in which some runnable task waited for a CPU; 0 where the kernel does not count it."""
    try:
        some = _PRESSURE.read_text().partition("\n")[0]
        return int(some.rpartition("total=")[2]) * 1e-6
    except (OSError, ValueError):
        return 0.0


def others_running() -> bool:
    """Return whether a task besides the calling one is running or wants to."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0]) > 1
    except (OSError, ValueError, IndexError):
        return False


def wait_until_idle(longest: float = 0.25) -> None:
    """Wait until this process's other threads have stopped.

    Libraries' workers spin for a while after a call, ONNX Runtime's for some 45 ms.
    """
    step = 0.01  # the time of other threads is counted in ticks of the kernel, 4 ms
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(step)
        if time.process_time() - before < 0.1 * step:
            return


class WaitBudget:
    """A budget of seconds for waiting until the machine is quiet."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self.waited = 0.0

    def wait(self, longest: float = 10.0) -> None:
        start = time.perf_counter()
        end = start + min(longest, self._left)
        calm = 0
        while calm < 3 and time.perf_counter() < end:
            time.sleep(0.02)
            calm = 0 if others_running() else calm + 1
        spent = time.perf_counter() - start
        self._left -= spent
        self.waited += spent
