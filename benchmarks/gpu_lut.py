#!/usr/bin/env python3
"""Times qcore's tables, softmax and rms_norm beside torch on one device, and checks what they compute in the same run.

    pip install '.[test]' torch           # with QCORE_CUDA=on
    python benchmarks/gpu_lut.py --json benchmarks/results/lut-gpu.json
    python benchmarks/gpu_lut.py --size 16777216 --dtype float16 --function silu

Every contender of a case is captured in a CUDA graph of calls on arrays in turn, more of them than the second-level
cache holds where they are large; graphs are replayed round after round, all contenders in turn, between CUDA events.
The figure is the median. torch's copy_ of the same arrays is the limit. Rows of softmax and rms_norm have 4096
elements, or all where there are fewer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FUNCTIONS = ("silu", "gelu", "tanh", "sigmoid", "exp", "softmax", "rms_norm")
SIZES = (1 << 24, 1 << 20, 1 << 10)
DTYPES = ("float32", "float16", "bfloat16")
WORKING_SET = 256 << 20  # bytes of arrays in turn: several times the second-level cache
MOST_COPIES = 64
GRAPH_SECONDS = 2e-3  # about what one replay takes
ROW = 4096


@dataclasses.dataclass
class Contender:
    name: str
    call: Callable[[Any, Any], Any]  # (x, y)
    samples: list[float] = dataclasses.field(default_factory=list)
    graph: Any = None
    calls: int = 0
    error: str = ""  # why there is no figure


def event_seconds(torch: Any, work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def torch_call(torch: Any, function: str) -> Callable[[Any, Any], Any]:
    aten = torch.ops.aten
    if function == "softmax":
        return lambda x, y: aten._softmax.out(x, -1, False, out=y)
    if function == "rms_norm":
        return lambda x, y: torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-6)
    operator = getattr(aten, function).out
    return lambda x, y: operator(x, out=y)


class Case:
    def __init__(self, torch: Any, qcore: Any, function: str, dtype: str, size: int) -> None:
        self.torch, self.function, self.dtype, self.size = torch, function, dtype, size
        generator = torch.Generator(device="cuda").manual_seed(size)
        shape = (-1, min(ROW, size)) if function in ("softmax", "rms_norm") else (-1,)
        kind = getattr(torch, dtype)
        one = torch.randn(size, device="cuda", generator=generator).to(kind).view(shape)
        self.bytes = 2 * one.numel() * one.element_size()
        copies = max(1, min(MOST_COPIES, -(-WORKING_SET // self.bytes)))
        self.xs = [one.clone() for _ in range(copies)]
        self.ys = [torch.empty_like(one) for _ in range(copies)]
        table = getattr(qcore.lut, function)
        self.contenders = [
            Contender("qcore", lambda x, y: table(x, out=y)),
            Contender("torch", torch_call(torch, function)),
            Contender("torch copy_", lambda x, y: y.copy_(x)),
        ]

    def capture(self, contender: Contender) -> None:
        torch, copies = self.torch, len(self.xs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            contender.call(self.xs[0], self.ys[0])
            once = min(event_seconds(torch, lambda: contender.call(self.xs[0], self.ys[0])) for _ in range(5))
            contender.calls = max(copies, min(512, int(GRAPH_SECONDS / once) + 1))
            contender.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(contender.graph, stream=stream):
                for i in range(contender.calls):
                    contender.call(self.xs[i % copies], self.ys[i % copies])
        torch.cuda.current_stream().wait_stream(stream)

    def check(self) -> float:
        """The largest difference from torch in float64."""
        torch = self.torch
        self.contenders[0].call(self.xs[0], self.ys[0])
        x = self.xs[0].double()
        if self.function == "rms_norm":
            exact = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        elif self.function == "softmax":
            exact = x.softmax(-1)
        else:
            exact = getattr(torch.ops.aten, self.function)(x)
        return float((self.ys[0].double() - exact).abs().max())

    def measure(self, rounds: int) -> dict[str, Any]:
        torch = self.torch
        error = self.check()
        for contender in self.contenders:
            try:
                self.capture(contender)
            except Exception as problem:  # a peer that does not take the case is a line of the report
                contender.graph, contender.error = None, f"{type(problem).__name__}: {problem}".splitlines()[0]
                torch.cuda.synchronize()
        for _ in range(rounds):
            for contender in self.contenders:
                if contender.graph:
                    seconds = event_seconds(torch, contender.graph.replay)
                    contender.samples.append(seconds / contender.calls)
        rows = []
        for contender in self.contenders:
            row: dict[str, Any] = {"name": contender.name, "error": contender.error}
            if contender.samples:
                row["us"] = 1e6 * statistics.median(contender.samples[1:] or contender.samples)  # the first warms up
                row["bytes_per_s"] = 1e6 * self.bytes / row["us"]
            rows.append(row)
        return {
            "function": self.function,
            "dtype": self.dtype,
            "size": self.size,
            "largest_difference": error,
            "contenders": rows,
        }


def print_case(case: dict[str, Any]) -> None:
    us = {row["name"]: row.get("us") for row in case["contenders"]}
    given, native, copy = us["qcore"], us["torch"], us["torch copy_"]
    text = f"{case['function']:9} {case['dtype']:9} {case['size']:9}"
    if given:
        text += f"  {given:8.2f} us"
    if given and copy:
        text += f"  {copy / given:6.1%} of copy_ ({copy:.2f} us)"
    if given and native:
        text += f"  {native / given:5.2f} times torch's speed ({native:.2f} us)"
    print(f"{text}  largest difference {case['largest_difference']:.2e}", flush=True)
    for row in case["contenders"]:
        if row["error"]:
            print(f"  {row['name']}: {row['error']}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", action="append", choices=FUNCTIONS, help="may be repeated")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated")
    parser.add_argument("--size", action="append", type=int, help="elements; may be repeated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="written after every case")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        print("gpu_lut: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu_lut: torch finds no CUDA device", file=sys.stderr)
        return 2
    import qcore
    import qcore.lut

    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "qcore": qcore.__version__,
        "python": platform.python_version(),
        "cases": [],
    }
    for size in options.size or SIZES:
        for dtype in options.dtype or DTYPES:
            for function in options.function or FUNCTIONS:
                case = Case(torch, qcore, function, dtype, size).measure(options.rounds)
                results["cases"].append(case)
                print_case(case)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1) + "\n")
                torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
