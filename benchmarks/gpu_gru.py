#!/usr/bin/env python3
"""Times qcore's fixed-point GRU beside torch.nn.GRU (cuDNN) on one device, and checks its integers in the same run.

    pip install '.[test]' torch           # with QCORE_CUDA=on
    python benchmarks/gpu_gru.py --json benchmarks/results/gru-gpu.json
    python benchmarks/gpu_gru.py --steps 50 --batch 8 --hidden 256 --bits 8

All contenders of a case take and give floats on the device and run one layer. Each is captured in a CUDA graph of
several calls; graphs are replayed round after round, all contenders in turn, between CUDA events. The figure is the
median. cuDNN calls that can't be captured are timed as plain calls, which the table says. qcore's rows are its kernels,
forced one by one, and "qcore", the one that it takes by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = (1, 50, 200)
BATCHES = (1, 8, 64)
HIDDEN = (128, 256, 512)
BITS = (8, 16)
INPUTS = 128
GRAPH_SECONDS = 2e-3  # about what one replay takes


@dataclasses.dataclass
class Contender:
    name: str
    call: Callable[[], Any]
    samples: list[float] = dataclasses.field(default_factory=list)
    graph: Any = None
    calls: int = 0
    note: str = ""  # why there is no figure, or what it is of


def event_seconds(torch: Any, work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


class Case:
    def __init__(self, torch: Any, qcore: Any, steps: int, batch: int, hidden: int, bits: int) -> None:
        self.torch, self.qcore, self.shape, self.bits = torch, qcore, (steps, batch, hidden), bits
        from qcore.gru import Calibrator, Config, GruWeights

        torch.manual_seed(hidden)
        gru = torch.nn.GRU(INPUTS, hidden)
        x = torch.rand(steps, batch, INPUTS) * 1.5 - 0.7
        sample = np.random.default_rng(1).uniform(-0.7, 0.8, (50, 8, INPUTS))
        weights = GruWeights.from_torch(gru)
        config = Config(bits=bits, pipeline="fused")
        self.quantised = q = Calibrator(weights, "minmax").observe(sample).finish(config)
        self.x = x
        on_device = x.cuda()
        self.contenders = [Contender("qcore", lambda: q(on_device))]
        for row in qcore.kernels("gru"):
            if row.device == "cuda":
                self.contenders.append(Contender(f"qcore {row.name}", self.forced(row.name, on_device)))
        for dtype in (torch.float32, torch.float16):
            module, inputs = torch.nn.GRU(INPUTS, hidden).to("cuda", dtype).eval(), on_device.to(dtype)
            module.load_state_dict(gru.state_dict())
            module.flatten_parameters()
            self.contenders.append(
                Contender(f"torch {str(dtype).rpartition('.')[2]}", lambda module=module, inputs=inputs: module(inputs))
            )

    def forced(self, kernel: str, x: Any) -> Callable[[], Any]:
        def call() -> Any:
            with self.qcore.force_kernel("gru", kernel):
                return self.quantised(x)

        return call

    def prepare(self, contender: Contender) -> None:
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            contender.call()
            once = min(event_seconds(torch, contender.call) for _ in range(5))
            contender.calls = max(1, min(64, int(GRAPH_SECONDS / once) + 1))
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(contender.calls):
                        contender.call()
                contender.graph = graph
            except RuntimeError as problem:
                contender.note = f"not captured, plain calls: {problem}".splitlines()[0]
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def seconds(self, contender: Contender) -> float:
        def calls() -> None:
            for _ in range(contender.calls):
                contender.call()

        return event_seconds(self.torch, contender.graph.replay if contender.graph else calls) / contender.calls

    def check(self) -> bool:
        """Whether the device's results are the CPU's, on as many rows as that takes little time for."""
        x = self.x[:50, :8]
        given, expected = self.quantised(x.cuda()), self.quantised(x)
        return all(self.torch.equal(a.cpu(), b) for a, b in zip(given, expected, strict=True))

    def measure(self, rounds: int) -> dict[str, Any]:
        same = self.check()
        with self.torch.no_grad():
            for contender in self.contenders:
                try:
                    self.prepare(contender)
                except (RuntimeError, ValueError, self.qcore.QcoreValueError) as problem:
                    contender.calls, contender.note = 0, str(problem).splitlines()[0]
            for _ in range(rounds):
                for contender in self.contenders:
                    if contender.calls:
                        contender.samples.append(self.seconds(contender))
        self.quantised(self.x.cuda())
        steps, batch, hidden = self.shape
        rows = []
        for contender in self.contenders:
            row: dict[str, Any] = {"name": contender.name, "note": contender.note}
            if contender.samples:
                row["us"] = 1e6 * statistics.median(contender.samples[1:] or contender.samples)  # the first warms up
            rows.append(row)
        return {
            "steps": steps,
            "batch": batch,
            "inputs": INPUTS,
            "hidden": hidden,
            "bits": self.bits,
            "kernel": self.qcore.last_kernel("gru"),
            "same_integers": same,
            "contenders": rows,
        }


def print_case(case: dict[str, Any]) -> None:
    us = {row["name"]: row.get("us") for row in case["contenders"]}
    text = f"T {case['steps']:4} B {case['batch']:3} H {case['hidden']:4} int{case['bits']:<2} {case['kernel']:10}"
    for name, value in us.items():
        text += f"  {name} {value:.1f}" if value else f"  {name} -"
    peers = [value for name, value in us.items() if name.startswith("torch") and value]
    if us["qcore"] and peers:
        text += f"  us; {min(peers) / us['qcore']:.2f} times the faster torch"
    print(text + ("" if case["same_integers"] else "  OTHER INTEGERS THAN THE CPU"), flush=True)
    for row in case["contenders"]:
        if row["note"]:
            print(f"  {row['name']}: {row['note']}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="append", type=int, help="may be repeated, as the next ones")
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--hidden", action="append", type=int)
    parser.add_argument("--bits", action="append", type=int, choices=BITS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="written after every case")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import torch
    except ImportError:
        print("gpu_gru: torch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu_gru: torch finds no CUDA device", file=sys.stderr)
        return 2
    import qcore
    import qcore.gru

    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "qcore": qcore.__version__,
        "python": platform.python_version(),
        "cases": [],
    }
    wrong = 0
    for hidden in options.hidden or HIDDEN:
        for bits in options.bits or BITS:
            for steps in options.steps or STEPS:
                for batch in options.batch or BATCHES:
                    case = Case(torch, qcore, steps, batch, hidden, bits).measure(options.rounds)
                    wrong += not case["same_integers"]
                    results["cases"].append(case)
                    print_case(case)
                    if options.json:
                        options.json.write_text(json.dumps(results, indent=1) + "\n")
                    gc.collect()  # graphs that go while another is captured would spoil it
                    torch.cuda.empty_cache()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
