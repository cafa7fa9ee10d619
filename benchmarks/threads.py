"""Measures what kernels of qcore gain from running on torch's threads, where operators of torch run between them.

    python -m benchmarks.threads

Prints the table of docs/transformers.md. A process for each setting stays alive, and they take turns: while one
measures, the others wait for input. A turn begins once the machine is idle, because threads that still spin after the
turn before, and other programs, would be measured as well. It needs torch and Linux.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

N, K = 4096, 1024
ROWS = (1, 16, 128)
SETTINGS = {
    "1 thread, torch's": (1, "1"),
    "1 thread, `QCORE_OPENMP=0`": (1, "0"),
    "2 threads, torch's": (2, "1"),
    "2 threads, `QCORE_OPENMP=0`": (2, "0"),
}
SECONDS = 0.15  # of a turn, for each case
IDLE = 0.1  # CPUs that other programs may use when a turn begins
PATIENCE = 20.0  # seconds that a turn waits for it


def cases() -> dict[str, Callable[[], object]]:
    """Return the calls that are measured: a layer alone, and a transformer's gated MLP, for 1, 16 and 128 rows."""
    import torch

    import qcore.torch

    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(K)
    gate, up, down = (
        qcore.torch.Linear.from_float(
            torch.nn.Linear(*sizes), bits=4, block_size=64, method="rtn", scale_dtype="float32"
        )
        for sizes in ((K, N), (K, N), (N, K))
    )

    def mlp(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        result: torch.Tensor = x + down(torch.nn.functional.silu(gate(y)) * up(y))
        return result

    found: dict[str, Callable[[], object]] = {}
    for rows in ROWS:
        x = torch.randn(rows, K)
        found[f"one layer alone, {rows}"] = lambda x=x: up(x)  # type: ignore[misc]
        found[f"gated MLP, {rows}"] = lambda x=x: mlp(x)  # type: ignore[misc]
    return found


def work(threads: int) -> None:
    """Measure all cases whenever a line comes in; print the medians of a turn in microseconds."""
    import torch

    torch.set_num_threads(threads)
    calls = cases()
    with torch.no_grad():
        for call in calls.values():
            call()
        print("ready", flush=True)
        for line in sys.stdin:
            call, times = calls[line.strip()], list[float]()
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
            print(statistics.median(times) * 1e6, flush=True)


def busy_cpus(seconds: float = 0.05) -> float:
    """Return how many CPUs programs use, from /proc/stat."""

    def read() -> int:
        fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields[:3]) + sum(fields[5:8])  # without idle and iowait

    before, started = read(), time.perf_counter()
    time.sleep(seconds)
    return (read() - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - started)


def wait_until_idle() -> bool:
    """Wait for the other programs, and return whether the machine has become idle."""
    end = time.perf_counter() + PATIENCE
    while busy_cpus() > IDLE:
        if time.perf_counter() > end:
            return False
    return True


def start(threads: int, openmp: str) -> subprocess.Popen[str]:
    """Start the process of a setting; it is ready when it has printed a line."""
    environment = os.environ | {"QCORE_OPENMP": openmp}
    command = [sys.executable, "-m", "benchmarks.threads", "--work", str(threads)]
    made = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    made.stdout.readline()
    return made


def measure(turns: int) -> tuple[dict[str, dict[str, float]], int]:
    """Return the median of each case and setting over the turns, and how many turns began on a busy machine."""
    workers = {name: start(*setting) for name, setting in SETTINGS.items()}
    names = [f"{what}, {rows}" for what in ("one layer alone", "gated MLP") for rows in ROWS]
    times: dict[str, dict[str, list[float]]] = {name: {key: [] for key in workers} for name in names}
    disturbed = 0
    for turn in range(turns):
        for name in names:
            order = list(workers.items())
            for key, worker in order[turn % len(order) :] + order[: turn % len(order)]:
                disturbed += not wait_until_idle()
                assert worker.stdin is not None and worker.stdout is not None
                worker.stdin.write(name + "\n")
                worker.stdin.flush()
                times[name][key].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    return {name: {key: statistics.median(each) for key, each in row.items()} for name, row in times.items()}, disturbed


def main() -> None:
    """Measure all settings, or be the process of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--work", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work)
        return
    found, disturbed = measure(given.turns)
    print(f"us, medians of {given.turns} turns; {disturbed} turns began on a busy machine\n")
    print(f"| what, rows | {' | '.join(SETTINGS)} |")
    print(f"|---|{'---|' * len(SETTINGS)}")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(f'{each:,.0f}' for each in row.values())} |")


if __name__ == "__main__":
    main()
