"""Times a call of `qcore.decoder.Decoder` with random weights in the shape of a known model: a decoding step, a prompt.

Run it on a quiet machine: `python benchmarks/decoder_step.py qwen2.5-0.5b --length 512 --threads 2`. A step's parts are
timed by themselves, over the weights and caches of all layers in turn, so that they come from memory as in the step;
"rest" is what remains of the step. The figure is the smallest of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import qcore
from qcore import _core, decoder
from qcore.linear import COMPUTE


class Shape(NamedTuple):
    """Sizes of a model."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    qkv_bias: bool


SHAPES = {
    "qwen2.5-0.5b": Shape(896, 24, 14, 2, 64, 4864, 151936, True),
    "tinyllama-1.1b": Shape(2048, 22, 32, 4, 64, 5632, 32000, False),
    "tiny": Shape(64, 2, 4, 2, 16, 96, 256, True),
}


def random_weight(rng: np.random.Generator, rows: int, features: int, bits: int, block: int) -> qcore.QuantizedTensor:
    low, high = -(2 ** (bits - 1)) + 1, 2 ** (bits - 1)
    codes = rng.integers(low, high, (rows, features), dtype=np.int8)
    scales = np.full((rows, -(-features // block)), 2.0 ** -(bits + 3), np.float32)  # exact in float16
    return qcore.QuantizedTensor.from_parts(codes, scales, bits=bits, block_size=block)


def random_layers(rng: np.random.Generator, shape: Shape, bits: int, block: int) -> list[decoder.Layer]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    norm = np.ones(hidden, np.float32)
    return [
        decoder.Layer(
            random_weight(rng, q + 2 * kv, hidden, bits, block),
            random_weight(rng, hidden, q, bits, block),
            random_weight(rng, 2 * inner, hidden, bits, block),
            random_weight(rng, hidden, inner, bits, block),
            input_norm=norm,
            mlp_norm=norm,
            qkv_bias=np.zeros(q + 2 * kv, np.float32) if shape.qkv_bias else None,
        )
        for _ in range(shape.layers)
    ]


def rotary_table(positions: int, size: int) -> tuple[Any, Any]:
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def milliseconds(call: Callable[[], object], runs: int) -> float:
    """The smallest of several runs after one that isn't counted."""
    call()
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def product_calls(layers: Sequence[decoder.Layer], head: Any, rows: int, compute: str) -> dict[str, Callable[[], None]]:
    """For each kind of product a call that runs it for all layers."""
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
                _core.linear(x, handle, None, y, COMPUTE[compute], _core.ActivationKind.none, 0.0, 0.0, 0)

        calls[name] = run
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--length", type=int, default=128, help="tokens in the caches before the call")
    parser.add_argument("--tokens", type=int, default=1, help="tokens of the call: 1 for a decoding step")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--compute", default="int8", choices=list(COMPUTE))
    parser.add_argument("--cache", default="float32", help="dtype of the caches")
    parser.add_argument("--threads", type=int, default=0, help="0 for one per CPU")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    if options.threads:
        qcore.set_num_threads(options.threads)
    shape, rng = SHAPES[options.model], np.random.default_rng(0)
    layers = random_layers(rng, shape, options.bits, options.block)
    head = random_weight(rng, shape.vocabulary, shape.hidden_size, options.bits, options.block)
    batch, tokens = options.batch, options.tokens
    capacity = options.length + tokens
    stack = decoder.Decoder(
        layers,
        hidden_size=shape.hidden_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        intermediate_size=shape.intermediate_size,
        compute=options.compute,
        rotary=[rotary_table(capacity, shape.head_size)],
        final_norm=np.ones(shape.hidden_size, np.float32),
        head=head,
    )
    caches = stack.caches(batch, capacity, options.cache)
    for layer in range(shape.layers):
        filling = rng.standard_normal((2, batch, capacity, shape.kv_heads, shape.head_size)).astype(np.float32)
        decoder.write_cache(*filling, np.zeros(batch, np.int32), caches[layer])
    hidden = rng.standard_normal((batch, tokens, shape.hidden_size)).astype(np.float32)
    past = np.full(batch, options.length, np.int32)
    positions = (past[:, None] + np.arange(tokens)).astype(np.int32)
    out = np.empty((batch, 1, shape.vocabulary), np.float32)

    times = {"step": milliseconds(lambda: stack.forward(hidden, positions, past, caches, out=out), options.runs)}
    for name, call in product_calls(layers, head, batch * tokens, options.compute).items():
        times[name] = milliseconds(call, options.runs)
    q = rng.standard_normal((batch, tokens, shape.heads, shape.head_size)).astype(np.float32)
    y = np.empty_like(q)

    def attend() -> None:
        for layer in range(shape.layers):
            decoder.attention(q, caches[layer], past, out=y)

    times["attention"] = milliseconds(attend, options.runs)
    times["rest"] = times["step"] - sum(time for name, time in times.items() if name != "step")
    print(
        f"{options.model}, {options.bits} bits in blocks of {options.block}, compute {options.compute}, {batch} x "
        f"{tokens} tokens after {options.length}, {options.cache} cache, {qcore.get_num_threads()} threads, "
        f"{stack.nbytes / 2**20:.0f} MiB of weights"
    )
    for name, value in times.items():
        print(f"{name:<10}{value:9.3f} ms")
    print(f"{batch * tokens / times['step'] * 1e3:.1f} tokens/s, {stack.nbytes / times['step'] / 1e6:.1f} GB/s")


if __name__ == "__main__":
    main()
