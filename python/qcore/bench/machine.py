"""Describes the machine of a run, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import qcore

_FLAGS = re.compile(r"^(sse4|avx|fma|f16c|amx|asimd|sve|i8mm|bf16)")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe(threads: int, libraries: dict[str, str]) -> dict[str, Any]:
    """Return the processor, its memory, versions and the date, for a results file.

    Args:
        threads: of every library.
        libraries: versions by name.
    """
    model, flags = _processor()
    return {
        "cpu": model,
        "flags": flags,
        "cpus": _cpus(),
        "caches": _caches(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "qcore": qcore.__version__,
        "qcore_isa": qcore.info()["isa"],
        "threads": threads,
        "libraries": libraries,
    }


def _processor() -> tuple[str, list[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), []

    def field(*names: str) -> str:
        match = re.search(rf"^(?:{'|'.join(names)})\s*:\s*(.*)$", text, re.MULTILINE)
        return match[1].strip() if match else ""

    family, model = field("cpu family"), field("model")
    detail = f" (family {family}, model {model})" if family else ""
    flags = field("flags", "Features").split()
    # Linux on Arm numbers processors and gives no names; the numbers are those of Arm's manuals.
    name = field("model name")
    if not name and (part := field("CPU part")):
        name = f"implementer {field('CPU implementer')}, part {part}"
    return name + detail, sorted(flag for flag in flags if _FLAGS.match(flag))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = size
    return found


def _memory_gib() -> float | None:
    try:
        match = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return round(int(match[1]) / 2**20, 1) if match else None
