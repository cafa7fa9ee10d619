#!/usr/bin/env python3
"""Times qcore.awq on one device beside torch, and checks what it computes in the same run.

    pip install '.[test]' torch           # with QCORE_CUDA=on
    python benchmarks/gpu_awq.py --json benchmarks/results/awq-gpu.json
    python benchmarks/gpu_awq.py --shape 4096x11008x128

Dequantisation stands beside torch's copy_ of as many bytes, 2.5 per weight; awq.Weight beside torch's matmul with the
dequantised weight, at 1 and 512 rows. Every contender is captured in a CUDA graph of calls on weights in turn, more of
them than the second-level cache holds; graphs are replayed round after round, all contenders in turn, between CUDA
events. The figure is the median.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = ((4096, 4096, 128), (4096, 11008, 128), (8192, 28672, 128))
WORKING_SET = 256 << 20  # bytes of weights in turn: several times the second-level cache
ROWS = (1, 512)


def weight_of(torch: Any, k: int, n: int, group: int, seed: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def words(rows: int) -> Any:
        low, high = -(2**31), 2**31
        return torch.randint(low, high, (rows, n // 8), generator=generator, device="cuda").to(torch.int32)

    scales = torch.rand(k // group, n, generator=generator, device="cuda").mul_(0.01).half()
    return words(k), scales, words(k // group)


def check(torch: Any, qcore: Any, weight: tuple[Any, Any, Any]) -> int:
    """How many dequantised weights differ from the CPU's."""
    expected = qcore.awq.dequantize(*(array.cpu() for array in weight)).view(torch.int16)
    given = qcore.awq.dequantize(*weight).cpu().view(torch.int16)
    return int((expected != given).sum())


def contenders(torch: Any, qcore: Any, k: int, n: int, group: int) -> dict[str, list[Callable[[], Any]]]:
    """Calls on weights in turn."""
    copies = max(2, -(-WORKING_SET // (k * n * 5 // 2)))
    calls: dict[str, list[Callable[[], Any]]] = {}
    xs = {m: torch.randn(m, k, device="cuda").half() for m in ROWS}
    for i in range(copies):
        weight = weight_of(torch, k, n, group, i)
        out = torch.empty(k, n, dtype=torch.float16, device="cuda")
        turned = torch.empty(n, k, dtype=torch.float16, device="cuda")
        source, target = (torch.empty(k * n * 5 // 4, dtype=torch.uint8, device="cuda") for _ in range(2))
        dense, packed = qcore.awq.dequantize(*weight), qcore.awq.Weight(*weight)
        added = {
            "copy_": lambda s=source, t=target: t.copy_(s),
            "dequantize": lambda w=weight, o=out: qcore.awq.dequantize(*w, out=o),
            "dequantize transposed": lambda w=weight, o=turned: qcore.awq.dequantize(*w, transpose=True, out=o),
        }
        for m, x in xs.items():
            y = torch.empty(m, n, dtype=torch.float16, device="cuda")
            added |= {
                f"Weight, {m} rows": lambda x=x, p=packed, y=y: p(x, out=y),
                f"linear on raw arrays, {m} rows": lambda x=x, w=weight, y=y: qcore.awq.linear(x, *w, out=y),
                f"torch.matmul, {m} rows": lambda x=x, d=dense, y=y: torch.matmul(x, d, out=y),
            }
        for name, call in added.items():
            calls.setdefault(name, []).append(call)
    return calls


def capture(torch: Any, calls: list[Callable[[], Any]]) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def measure(torch: Any, qcore: Any, shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    k, n, group = shape
    differ = check(torch, qcore, weight_of(torch, k, n, group, 0))
    calls = contenders(torch, qcore, k, n, group)
    graphs = {name: capture(torch, own) for name, own in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[name].append(1e3 * begin.elapsed_time(end) / len(calls[name]))
    us = {name: statistics.median(own[1:] or own) for name, own in samples.items()}  # the first round warms up
    return {"k": k, "n": n, "group_size": group, "differ": differ, "us": us}


def print_case(case: dict[str, Any]) -> None:
    print(f"{case['k']}x{case['n']} g {case['group_size']}: {case['differ']} weights differ from the CPU's")
    us = case["us"]
    for name, time in us.items():
        text = f"  {name:32} {time:9.2f} us"
        if name.startswith("dequantize"):
            text += f"  {us['copy_'] / time:6.1%} of copy_"
        elif not name.startswith(("torch", "copy")):
            text += f"  {us['torch.matmul, ' + name.rpartition(', ')[2]] / time:6.2f} times torch's speed"
        print(text, flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="KxNxg; may be repeated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="written after every case")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        print("gpu_awq: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu_awq: torch finds no CUDA device", file=sys.stderr)
        return 2
    import qcore

    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "qcore": qcore.__version__,
        "python": platform.python_version(),
        "cases": [],
    }
    shapes = [tuple(map(int, text.split("x"))) for text in options.shape or []] or SHAPES
    for shape in shapes:
        case = measure(torch, qcore, shape, options.rounds)
        results["cases"].append(case)
        print_case(case)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
