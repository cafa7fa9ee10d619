"""Times calls on a CUDA device.

Every implementation of a case is captured in a CUDA graph of calls that use copies of its data in turn, more of them
than the second-level cache holds where that is asked for. Graphs are replayed round after round, all implementations in
turn, between CUDA events. The figure is the median of all rounds but the first, which warms up.
"""

from __future__ import annotations

import gc
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import qcore

from .. import libraries
from ..results import Case, Row

GRAPH_SECONDS = 2e-3  # about what one replay takes
_WORKING_SET = 256 << 20  # bytes in turn: several times the second-level cache
_MOST_COPIES = 64
_LIMIT_BYTES, _LIMIT_EXTENT = 1 << 30, 8192
_NANO = 1e-9


def require() -> Any:
    """Return torch, or raise QcoreValueError if it is missing or find no device."""
    try:
        import torch
    except ImportError as error:
        raise qcore.QcoreValueError(f"benchmarks gpu: torch is not installed ({error})") from error
    if not torch.cuda.is_available():
        raise qcore.QcoreValueError("benchmarks gpu: torch finds no CUDA device, expected one")
    return torch


def describe(torch: Any) -> dict[str, Any]:
    """Return the device, versions and the date, for a results file."""
    return {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "qcore": qcore.__version__,
        "commit": libraries.commit(),
        "libraries": {"torch": torch.__version__},
    }


def copies_for(nbytes: int) -> int:
    """Return how many copies of so many bytes are together larger than the second-level cache."""
    return max(1, min(_MOST_COPIES, -(-_WORKING_SET // nbytes)))


@dataclass
class Timed:
    """One implementation: what is called, and what its row says beside the time."""

    name: str
    library: str
    call: Callable[[int], Any]  # with the number of the copy of its data
    copies: int = 1
    bytes_per_call: int = 0  # read and written; 0: not counted
    operations: int = 0  # whose rate is compared with the int8 limit; 0: with none
    most_calls: int = 1024  # in a graph
    plain: bool = False  # timed without a graph if it can't be captured
    facts: dict[str, Any] = field(default_factory=dict)  # further fields of its row
    samples: list[float] = field(default_factory=list)
    graph: Any = None
    calls: int = 0
    problem: str = ""  # why there is no figure

    def run(self) -> None:
        """Make all calls of one sample."""
        if self.graph is not None:
            self.graph.replay()
            return
        for number in range(self.calls):
            self.call(number % self.copies)


def event_seconds(torch: Any, work: Callable[[], Any]) -> float:
    """Return the seconds between two CUDA events around the work."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def median_seconds(torch: Any, work: Callable[[], Any], samples: int = 15) -> float:
    """Return the median of several times, after three that are not counted."""
    for _ in range(3):
        work()
    return statistics.median(event_seconds(torch, work) for _ in range(samples))


def limits(torch: Any) -> dict[str, float | None]:
    """Measure a copy's bandwidth in GB/s and the rates of torch's large products in 10^9 operations per second."""
    source = torch.empty(_LIMIT_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found: dict[str, float | None] = {
        "copy": 2 * source.numel() / median_seconds(torch, lambda: target.copy_(source)) * _NANO
    }
    n = _LIMIT_EXTENT
    a = torch.randn(n, n, device="cuda").bfloat16()
    found["bf16"] = 2 * n**3 / median_seconds(torch, lambda: a @ a) * _NANO
    b = torch.randint(-127, 128, (n, n), dtype=torch.int8, device="cuda")
    found["int8"] = 2 * n**3 / median_seconds(torch, lambda: torch._int_mm(b, b.t())) * _NANO
    return found


def capture(torch: Any, timed: Timed) -> None:
    """Capture the calls of one sample, or note why that is not possible."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            once = median_seconds(torch, lambda: timed.call(0), 5)
            timed.calls = max(timed.copies, min(timed.most_calls, int(GRAPH_SECONDS / once) + 1))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for number in range(timed.calls):
                    timed.call(number % timed.copies)
            timed.graph = graph
    except Exception as error:  # an implementation that does not take the case is a line of the report
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if timed.plain and timed.calls:
            timed.facts["details"] = timed.facts.get("details", {}) | {"note": f"not captured, plain calls: {reason}"}
        else:
            timed.calls, timed.problem = 0, reason
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def measure(torch: Any, implementations: list[Timed], rounds: int) -> None:
    """Capture all implementations and samples them in turn."""
    with torch.no_grad():
        for timed in implementations:
            capture(torch, timed)
        for _ in range(rounds):
            for timed in implementations:
                if timed.calls:
                    timed.samples.append(event_seconds(torch, timed.run) / timed.calls)


def case_of(
    name: str, parameters: dict[str, Any], operations: int, found: dict[str, float | None], timed: list[Timed]
) -> Case:
    """Make the case of a results file from what was sampled."""
    rows = [_row(each, found) for each in timed if each.samples]
    rows.sort(key=lambda row: row.milliseconds)
    skipped = {each.name: each.problem for each in timed if not each.samples}
    return Case(name, name, parameters, operations, found, rows, skipped)


def _row(timed: Timed, found: dict[str, float | None]) -> Row:
    samples = sorted(timed.samples[1:] or timed.samples)
    seconds, count = statistics.median(samples), len(samples)
    gbs = timed.bytes_per_call / seconds * _NANO if timed.bytes_per_call else None
    gops = timed.operations / seconds * _NANO if timed.operations else None
    copy, peak = found.get("copy"), found.get("int8")
    return Row(
        timed.name,
        timed.library,
        seconds * 1e3,
        minimum=samples[0] * 1e3,
        spread=(samples[3 * count // 4] - samples[count // 4]) / seconds,
        samples=count,
        weight_gbs=gbs,
        gops=gops,
        read_fraction=gbs / copy if gbs and copy else None,
        dot_fraction=gops / peak if gops and peak else None,
        **{"weight_bytes": timed.bytes_per_call or None} | timed.facts,
    )


def free(torch: Any) -> None:
    """Free graphs and arrays of a case: graphs that go while another is captured would spoil it."""
    gc.collect()
    torch.cuda.empty_cache()
