"""Tables of docs/measurements/performance.md."""

from __future__ import annotations

from collections.abc import Iterator

from ..gpu.summary import torch_row
from ..results import Case, Row
from .charts import MODELS, fastest
from .kept import digits, named, results, table


def linear_cpu() -> str:
    """Make the table of a linear layer on two cores, in milliseconds."""
    rows = []
    for case in results("zen4/linear").cases:
        if case.workload != "4096x4096":
            continue
        ours = [named(case, f"qcore {form} int8") for form in ("4b g64", "8b g64")]
        exact = [named(case, f"torch linear {name}") for name in ("fp32", "bf16")]
        other = fastest(case)
        cells = [digits(row.milliseconds) for row in (*ours, *exact, other)]
        rows.append([str(case.parameters["M"]), *cells, other.name])
    headings = ["rows", "qcore, 4 bits", "qcore, 8 bits", "torch fp32", "torch bf16", "fastest other"]
    return table([*headings, "its name"], rows)


def linear_gpu() -> str:
    """Make the table of a linear layer on an H200, in microseconds."""
    names = ["qcore int8 w4 g128", "qcore float w4 g128", "humming int8 w4 g128", "humming float w4 g128"]
    names += ["gemlite float w4 g128", "torch bf16"]
    rows = []
    for case in results("h200/linear-peers-w4").cases:
        if case.name.startswith("4096x4096 ") and case.parameters["M"] in (1, 4, 16, 64, 256, 4096):
            rows.append([str(case.parameters["M"]), *(digits(1e3 * named(case, name).milliseconds) for name in names)])
    headings = ["rows", "qcore int8", "qcore float", "humming int8", "humming float", "gemlite float", "torch bf16"]
    return table(headings, rows)


def models_cpu() -> str:
    """Make the table of a whole language model on two cores."""
    rows = []
    for row in results("zen4/models-qwen2.5-0.5b").cases[0].rows:
        if row.name not in MODELS:
            continue
        details = row.details
        memory = details["memory"]["peak"] / 2**20
        rows.append([MODELS[row.name], f"{details['decode']:.1f}", f"{details['prefill']:.0f}", f"{memory:.0f}"])
    return table(["program and weights", "tokens/s written", "tokens/s of the prompt read", "peak memory, MiB"], rows)


def _compared(operator: str, problem: str, ours: Row, other: Row, unit: float) -> list[str]:
    ratio = other.milliseconds / ours.milliseconds
    times = [digits(unit * ours.milliseconds), digits(unit * other.milliseconds)]
    return [operator, problem, *times, other.name, f"{ratio:.2f}"]


def _ours(case: Case, name: str) -> Row:
    return next(row for row in case.rows if row.ours and row.name.startswith(name))


_HEADINGS = ["operator", "problem", "qcore", "fastest other", "its name", "speed of qcore / other"]


def _chosen(file: str, problems: dict[str, str]) -> Iterator[tuple[Case, str]]:
    """Yield the cases of a file that are named, with the words for them."""
    for case in results(file).cases:
        if case.name in problems:
            yield case, problems[case.name]


_STATIC = {
    "1x64x56x56 w64x64x3x3 s1": "image 1 x 64 x 56 x 56, weight 64 x 64 x 3 x 3",
    "1x256x28x28 w256x1x3x3 s1 g256": "image 1 x 256 x 28 x 28, 3 x 3, depthwise",
}
_GRU = {
    "C=128 H=256 step B=1": "128 inputs, 256 states, one step",
    "C=128 H=512 T=200 B=64": "128 inputs, 512 states, 200 steps, 64 rows",
}
_LUT = {
    "silu fp32 16777216": "silu of 2^24 float32 values",
    "silu bf16 16777216": "silu of 2^24 bfloat16 values",
    "softmax fp32 4096x4096": "softmax of 4096 x 4096 float32 values",
}


def others_cpu() -> str:
    """Make the table of the other operators on two cores, in milliseconds."""
    rows = []
    for operator, file, name in (
        ("`static.QConv2d`", "zen4/static", "qcore channels_last"),
        ("`conv2d`, 8 bits", "zen4/conv", "qcore w8 g64"),
    ):
        for case, problem in _chosen(file, _STATIC):
            rows.append(_compared(operator, problem, _ours(case, name), fastest(case), 1.0))
    for case, problem in _chosen("zen4/gru-awake", _GRU):
        rows.append(_compared("`QuantGRU`, 8 bits", problem, _ours(case, "qcore int8"), fastest(case), 1.0))
    for case, problem in _chosen("zen4/lut", _LUT):
        other = next(row for row in case.rows if not row.ours and "copy" not in row.name)
        rows.append(_compared("`lut`", problem, _ours(case, "qcore out="), other, 1.0))
    for case, problem in _chosen("zen4/quantize", {"quantize 4096x4096 4b g64": "4096 x 4096, 4 bits, g = 64"}):
        rows.append(_compared("`quantize`", problem, _ours(case, "qcore"), fastest(case, "expression"), 1.0))
    return table(_HEADINGS, rows)


def others_gpu() -> str:
    """Make the table of the other operators on a device, in microseconds."""
    rows = []
    layer = {"1x64x56x56_w64x64x3x3": _STATIC["1x64x56x56 w64x64x3x3 s1"]}
    for case, problem in _chosen("h100/conv", layer):
        best = next(row for row in case.rows if row.ours and "conv2d int8 w8" in row.name)
        rows.append(_compared("`conv2d`, 8 bits, H100", problem, best, fastest(case), 1e3))
    for case, problem in _chosen("h200/gru", {"T=200 B=64 H=512 int8": _GRU["C=128 H=512 T=200 B=64"]}):
        peer = torch_row(case)
        assert peer is not None
        rows.append(_compared("`QuantGRU`, 8 bits, H200", problem, named(case, "qcore"), peer, 1e3))
    for case, problem in _chosen("h100/lut", {"silu float32 16777216": _LUT["silu fp32 16777216"]}):
        rows.append(_compared("`lut`, H100", problem, named(case, "qcore"), named(case, "torch"), 1e3))
    sizes = {"batch 1": "shape of an 8B Llama, 1 row", "batch 32": "shape of an 8B Llama, 32 rows"}
    for case, problem in _chosen("h200/decoder", sizes):
        best = next(row for row in case.rows if row.ours)
        rows.append(_compared("step of a decoder, H200", problem, best, named(case, "torch bfloat16"), 1e3))
    return table(_HEADINGS, rows)
