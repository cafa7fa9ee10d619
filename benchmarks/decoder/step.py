"""Times a call of a decoder on the CPU: a decoding step or a prompt, whole and in parts.

Parts are timed by themselves, over the weights and caches of all layers in turn, so that they come from memory as in
the step; "rest" is what remains of the step. The figure is the smallest of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import qcore
from qcore import _core, decoder
from qcore.linear import COMPUTE

from ..results import Case, Row
from .stack import SHAPES, layer_weights, make_decoder, make_layer, random_weight


def _milliseconds(call: Callable[[], object], runs: int) -> float:
    """Return the smallest of several runs after one that isn't counted."""
    call()
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def _product_calls(
    layers: Sequence[decoder.Layer], head: Any, rows: int, compute: str
) -> dict[str, Callable[[], None]]:
    """Return for each kind of product a call that runs it for all layers."""
    calls: dict[str, Callable[[], None]] = {}
    kinds = {name: [getattr(layer, name) for layer in layers] for name in ("qkv", "out", "gate_up", "down")}
    kinds["head"] = [head]
    for name, weights in kinds.items():
        n, k = weights[0].shape
        count = 1 if name == "head" else rows
        x = np.random.default_rng(0).standard_normal((count, k)).astype(np.float32)
        y = np.empty((count, n), np.float32)
        handles = [weight._handle for weight in weights]

        def run(handles: list[Any] = handles, x: Any = x, y: Any = y) -> None:
            for handle in handles:
                _core.linear(x, handle, None, y, COMPUTE[compute], 0.0, _core.ActivationKind.none, 0.0, 0.0, 0)

        calls[name] = run
    return calls


def measure_step(
    model: str, *, length: int, tokens: int, batch: int, bits: int, block: int, compute: str, cache: str, runs: int
) -> Case:
    """Time a call of ``tokens`` tokens after ``length`` others, and its parts.

    Args:
        model: a name of :data:`SHAPES`.
        length: tokens in the caches before the call.
        tokens: of the call; 1 for a decoding step.
        batch: sequences.
        bits, block: of the weights.
        compute: as for :func:`qcore.linear`.
        cache: dtype of the caches.
        runs: of which the fastest counts.
    """
    shape, rng = SHAPES[model], np.random.default_rng(0)
    layers = [make_layer(shape, layer_weights(rng, shape, bits, block)) for _ in range(shape.layers)]
    head = random_weight(rng, shape.vocabulary, shape.hidden_size, bits, block)
    capacity = length + tokens
    stack = make_decoder(shape, layers, head, capacity, compute)
    caches = stack.caches(batch, capacity, cache)
    for layer in range(shape.layers):
        filling = rng.standard_normal((2, batch, capacity, shape.kv_heads, shape.head_size)).astype(np.float32)
        decoder.write_cache(*filling, np.zeros(batch, np.int32), caches[layer])
    hidden = rng.standard_normal((batch, tokens, shape.hidden_size)).astype(np.float32)
    past = np.full(batch, length, np.int32)
    positions = (past[:, None] + np.arange(tokens)).astype(np.int32)
    out = np.empty((batch, 1, shape.vocabulary), np.float32)

    times = {"step": _milliseconds(lambda: stack.forward(hidden, positions, past, caches, out=out), runs)}
    for name, call in _product_calls(layers, head, batch * tokens, compute).items():
        times[name] = _milliseconds(call, runs)
    q = rng.standard_normal((batch, tokens, shape.heads, shape.head_size)).astype(np.float32)
    y = np.empty_like(q)

    def attend() -> None:
        for layer in range(shape.layers):
            decoder.attention(q, caches[layer], past, out=y)

    times["attention"] = _milliseconds(attend, runs)
    times["rest"] = times["step"] - sum(value for name, value in times.items() if name != "step")
    rows = [Row(name, "qcore", value, weight_bits=bits, block_size=block) for name, value in times.items()]
    rows[0].weight_bytes = stack.nbytes
    rows[0].details = {"tokens_per_s": batch * tokens / times["step"] * 1e3}
    parameters = {
        "length": length,
        "tokens": tokens,
        "batch": batch,
        "bits": bits,
        "g": block,
        "compute": compute,
        "cache": cache,
        "threads": qcore.get_num_threads(),
    }
    return Case(f"{model} {batch}x{tokens} after {length}", model, parameters, 0, {}, rows)
