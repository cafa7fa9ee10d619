"""Fixed-point GRUs and LSTMs on a device beside torch's (cuDNN), whole calls from floats to floats of one layer.

cuDNN calls that can't be captured are timed as plain calls, which their rows say. qcore's rows are its kernels, forced
one by one, and "qcore", the one that it takes by itself; its integers are compared with the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import qcore
from qcore import gru, lstm

from ..results import Case
from .device import Timed, case_of, free, measure

STEPS = (1, 50, 200)
BATCHES = (1, 8, 64)
HIDDEN = (128, 256, 512)
BITS = (8, 16)
INPUTS = 128
_MOST_CALLS = 64  # in a graph
_CHECKED_STEPS, _CHECKED_ROWS = 50, 8


def _quantized(operator: str, layer: Any, bits: int) -> Any:
    """Quantize a layer of torch on samples of the measured range."""
    sample = np.random.default_rng(1).uniform(-0.7, 0.8, (50, 8, INPUTS))
    if operator == "gru":
        observed = gru.Calibrator(gru.GruWeights.from_torch(layer), "minmax").observe(sample)
        return observed.finish(gru.Config(bits=bits, pipeline="fused"))
    return lstm.Calibrator(lstm.LstmWeights.from_torch(layer), "minmax").observe(sample).finish(lstm.Config(bits=bits))


def _case(torch: Any, operator: str, steps: int, batch: int, hidden: int, bits: int, rounds: int) -> Case:
    torch.manual_seed(hidden)
    kind = torch.nn.GRU if operator == "gru" else torch.nn.LSTM
    layer = kind(INPUTS, hidden)
    x = torch.rand(steps, batch, INPUTS) * 1.5 - 0.7
    quantized = _quantized(operator, layer, bits)
    on_device = x.cuda()
    part = x[:_CHECKED_STEPS, :_CHECKED_ROWS]
    given, expected = quantized(part.cuda()), quantized(part)
    same = all(torch.equal(a.cpu(), b) for a, b in zip(given, expected, strict=True))
    quantized(on_device)
    chosen = {"kernel": qcore.last_kernel(operator), "same_as_reference": same, "weight_bits": bits}
    implementations: list[Timed] = []

    def add(name: str, call: Callable[[], Any], **facts: Any) -> None:
        library = name.partition(" ")[0]
        implementations.append(Timed(name, library, lambda _: call(), most_calls=_MOST_CALLS, plain=True, facts=facts))

    def forced(kernel: str) -> Callable[[], Any]:
        def call() -> Any:
            with qcore.force_kernel(operator, kernel):
                return quantized(on_device)

        return call

    add("qcore", lambda: quantized(on_device), **chosen)
    for row in qcore.kernels(operator):
        if row.device == "cuda":
            add(f"qcore {row.name}", forced(row.name), kernel=row.name, weight_bits=bits)
    for dtype in (torch.float32, torch.float16):
        module, inputs = kind(INPUTS, hidden).to("cuda", dtype).eval(), on_device.to(dtype)
        module.load_state_dict(layer.state_dict())
        module.flatten_parameters()
        add(f"torch {str(dtype)[6:]}", lambda module=module, inputs=inputs: module(inputs))
    measure(torch, implementations, rounds)
    parameters = {"T": steps, "B": batch, "C": INPUTS, "H": hidden, "bits": bits}
    operations = (6 if operator == "gru" else 8) * steps * batch * hidden * (INPUTS + hidden)
    return case_of(f"T={steps} B={batch} H={hidden} int{bits}", parameters, operations, {}, implementations)


def cases(
    torch: Any,
    operator: str = "gru",
    *,
    steps: Sequence[int] = STEPS,
    batches: Sequence[int] = BATCHES,
    hidden: Sequence[int] = HIDDEN,
    bits: Sequence[int] = BITS,
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure all layers of "gru" or "lstm" on all sequences."""
    for size in hidden:
        for width in bits:
            for length in steps:
                for batch in batches:
                    yield _case(torch, operator, length, batch, size, width, rounds)
                    free(torch)
