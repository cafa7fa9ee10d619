"""A decoding step on a device: `qcore.decoder.Decoder` beside the same stack of torch's operators in bfloat16.

Both run with random weights from a CUDA graph, take turns, and the figures are medians. Each layer has memory of its
own, so that weights come from the device's memory as in a model. Before anything is timed, qcore's step of two layers
must give the bits of the CPU's.

With ``products`` the linear layers alone are timed, those of all layers and the head one after another.

With ``parts`` a stack of layers made of the single operators is timed, whole and without each kind of them: the
difference is what this kind adds to a step. A Decoder rotates the heads and writes them to the cache by one kernel, the
single operators by three.

With ``humming`` this stack is timed with the products of humming-kernels as well, which must be installed and compiles
its kernels first; the other operators and the memory between them are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import qcore
from qcore import decoder

from ..decoder.stack import SHAPES, Shape, layer_weights, make_decoder, make_layer, random_weight, rotary_table
from ..results import Case, Row
from .device import Timed, case_of, free, measure
from .peers import HummingProduct

_CALLS = 10  # in a graph
_CHECKED_VOCABULARY = 4096


def _stack(weights: list[Any], head: Any, shape: Shape, device: str, compute: str, capacity: int) -> decoder.Decoder:
    """Make a Decoder whose layers hold copies of the same weights."""

    def copy(weight: Any) -> Any:
        return weight.to(device) if device == "cuda" else weight

    layers = [make_layer(shape, [copy(weight) for weight in weights]) for _ in range(shape.layers)]
    return make_decoder(shape, layers, copy(head), capacity, compute, dtype="bfloat16")


def _qcore_step(torch: Any, model: decoder.Decoder, shape: Shape, batch: int, past: int) -> Callable[[], Any]:
    like = torch.zeros(1, device="cuda")
    hidden = torch.randn(batch, 1, shape.hidden_size, device="cuda", dtype=torch.bfloat16)
    caches = model.caches(batch, past + 1, "bfloat16", like=like)
    lengths = torch.full((batch,), past, dtype=torch.int32, device="cuda")
    out = torch.empty(batch, 1, shape.vocabulary, device="cuda")
    return lambda: model.forward(hidden, lengths[:, None], lengths, caches, out=out, max_length=past + 1)


class _TorchStack:
    """The same layers in bfloat16, each with weights of its own."""

    def __init__(self, torch: Any, shape: Shape, batch: int, past: int) -> None:
        self.functional, self.torch, self.shape, self.past = torch.nn.functional, torch, shape, past
        options = {"device": "cuda", "dtype": torch.bfloat16}
        sizes = shape.products.values()
        self.layers = [[torch.randn(size, **options) / 64 for size in sizes] for _ in range(shape.layers)]
        self.caches = torch.randn(shape.layers, 2, batch, shape.kv_heads, past + 1, shape.head_size, **options)
        self.norm = torch.ones(shape.hidden_size, **options)
        self.head = torch.randn(shape.vocabulary, shape.hidden_size, **options) / 64
        tables = rotary_table(shape, past + 1)
        self.cos, self.sin = (torch.from_numpy(table[past]).to(**options) for table in tables)
        self.x = torch.randn(batch, shape.hidden_size, **options)

    def rotate(self, x: Any) -> Any:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + self.torch.cat([-high, low], dim=-1) * self.sin

    def forward(self) -> Any:
        f, s, x = self.functional, self.shape, self.x
        size = (s.hidden_size,)
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, self.caches, strict=True):
            heads = f.linear(f.rms_norm(x, size, self.norm), qkv).view(len(x), -1, 1, s.head_size)
            q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
            keys[:, :, self.past :] = self.rotate(k)
            values[:, :, self.past :] = v
            mixed = f.scaled_dot_product_attention(self.rotate(q), keys, values, enable_gqa=True)
            x = x + f.linear(mixed.reshape(len(x), -1), out)
            gate, up = f.linear(f.rms_norm(x, size, self.norm), gate_up).chunk(2, dim=-1)
            x = x + f.linear(f.silu(gate) * up, down)
        return f.linear(f.rms_norm(x, size, self.norm), self.head)


_Product = Callable[[int, Any, Any], Callable[[], Any]]
"""Makes a product of a layer's weight of that number, x and the result, with memory of its own."""


def _qcore_products(weights: list[Any], compute: str) -> _Product:
    def make(number: int, x: Any, out: Any) -> Callable[[], Any]:
        return functools.partial(qcore.linear, x, weights[number].to("cuda"), compute=compute, out=out)

    return make


def _humming_products(torch: Any, shape: Shape, block: int, activations: str) -> _Product:
    """Return the same over humming's kernels, with weights of 4 bits and activations in "bfloat16" or "int8"."""
    made = [
        HummingProduct(torch, torch.randn(*size, device="cuda") / 64, 4, block, activations, torch.bfloat16, [1])
        for size in shape.products.values()
    ]

    def make(number: int, x: Any, out: Any) -> Callable[[], Any]:
        return functools.partial(made[number].copy(), x.flatten(0, 1), out.flatten(0, 1))

    return make


def _operators(torch: Any, shape: Shape, past: int, product: _Product) -> list[tuple[str, Callable[[], Any]]]:
    """Return the calls of a step of one sequence through all layers, each with the part that it belongs to."""
    heads, kv, size, inner = shape.heads, shape.kv_heads, shape.head_size, shape.intermediate_size

    def array(*extents: int) -> Any:
        return torch.zeros(1, 1, *extents, device="cuda", dtype=torch.bfloat16)

    branch, residual, normed = (array(shape.hidden_size) for _ in range(3))
    qkv, mixed, gate_up, gated = array(heads + 2 * kv, size), array(heads, size), array(2 * inner), array(inner)
    q, k, v = qkv.split([heads, kv, kv], dim=2)
    norm = torch.ones(shape.hidden_size, device="cuda")
    cos, sin = (torch.from_numpy(table).cuda() for table in rotary_table(shape, past + 1))
    lengths = torch.full((1,), past, dtype=torch.int32, device="cuda")
    add_and_norm = functools.partial(decoder.rms_norm, branch, norm, residual=residual, out=normed)
    calls: list[tuple[str, Callable[[], Any]]] = []
    for _ in range(shape.layers):
        cache = decoder.KeyValueCache.empty(1, kv, past + 1, size, "bfloat16", like=branch)
        cache.keys.normal_()
        cache.values.normal_()
        given = (normed, mixed.flatten(2), normed, gated)
        results = (qkv.flatten(2), branch, gate_up, branch)
        products = [product(number, *arrays) for number, arrays in enumerate(zip(given, results, strict=True))]
        calls += [
            ("norms", add_and_norm),
            ("products", products[0]),
            ("heads", functools.partial(decoder.rotary_embedding, q, lengths[:, None], cos, sin, out=q)),
            ("heads", functools.partial(decoder.rotary_embedding, k, lengths[:, None], cos, sin, out=k)),
            ("heads", functools.partial(decoder.write_cache, k, v, lengths, cache)),
            ("attention", functools.partial(decoder.attention, q, cache, lengths, max_length=past + 1, out=mixed)),
            ("products", products[1]),
            ("norms", add_and_norm),
            ("products", products[2]),
            ("gate", functools.partial(decoder.gated_activation, gate_up, out=gated)),
            ("products", products[3]),
        ]
    return calls


def _products_case(
    torch: Any, weights: list[Any], head: Any, dense: _TorchStack, shape: Shape, block: int, rounds: int
) -> Case:
    """Measure the linear layers of all layers and the head, each with weights of its own."""
    batch = len(dense.x)
    order = [*range(len(weights))] * shape.layers + [len(weights)]
    matrices = [*weights, head]
    options = {"device": "cuda", "dtype": torch.bfloat16}
    given = [torch.randn(batch, weight.shape[1], **options) for weight in matrices]
    results = [torch.empty(batch, weight.shape[0], **options) for weight in matrices]
    dense_weights = [*(weight for layer in dense.layers for weight in layer), dense.head]

    def run_qcore(moved: list[Any], mode: str) -> None:
        for number, weight in zip(order, moved, strict=True):
            qcore.linear(given[number], weight, compute=mode, out=results[number])

    def run_torch() -> None:
        for number, weight in zip(order, dense_weights, strict=True):
            torch.mm(given[number], weight.t(), out=results[number])

    timed = []
    for mode in ("int8", "float"):
        moved = [matrices[number].to("cuda") for number in order]
        facts = {"weight_bits": 4, "weight_bytes": sum(weight.nbytes for weight in moved), "activations": mode}
        timed.append(_timed(f"qcore 4 bits {mode}", functools.partial(run_qcore, moved, mode), **facts))
    timed.append(_timed("torch bfloat16", run_torch, weight_bits=16))
    measure(torch, timed, rounds)
    return case_of(f"linear layers, batch {batch}", {"batch": batch, "g": block}, 0, {}, timed)


def _parts_case(torch: Any, weights: list[Any], shape: Shape, past: int, rounds: int) -> Case:
    """Measure the whole stack and what each part adds to it."""
    calls = _operators(torch, shape, past, _qcore_products(weights, "int8"))

    def run(without: str) -> None:
        for part, call in calls:
            if part != without:
                call()

    parts = list(dict.fromkeys(part for part, _ in calls))
    timed = [_timed(name, functools.partial(run, name)) for name in ("whole", *parts)]
    measure(torch, timed, rounds)
    measured = {row.name: row for row in case_of("", {}, 0, {}, timed).rows}
    whole = measured["whole"].milliseconds
    rows = [Row(name, "qcore", whole if name == "whole" else whole - measured[name].milliseconds) for name in measured]
    rows.sort(key=lambda row: -row.milliseconds)
    return Case("parts of batch 1", "parts", {"batch": 1, "past": past}, 0, {}, rows)


def _loops_case(torch: Any, weights: list[Any], shape: Shape, block: int, past: int, rounds: int) -> Case:
    """Measure the stack of single operators, without the head, with our products and with humming's."""
    makers = {
        "qcore int8": _qcore_products(weights, "int8"),
        "qcore float": _qcore_products(weights, "float"),
        "humming int8": _humming_products(torch, shape, block, "int8"),
        "humming bfloat16": _humming_products(torch, shape, block, "bfloat16"),
    }

    def run(calls: list[tuple[str, Callable[[], Any]]]) -> None:
        for _, call in calls:
            call()

    loops = {name: _operators(torch, shape, past, make) for name, make in makers.items()}
    timed = [_timed(name, functools.partial(run, calls)) for name, calls in loops.items()]
    measure(torch, timed, rounds)
    return case_of("operators at batch 1", {"batch": 1, "past": past, "g": block}, 0, {}, timed)


def _timed(name: str, call: Callable[[], Any], **facts: Any) -> Timed:
    return Timed(name, name.partition(" ")[0], lambda _: call(), copies=_CALLS, most_calls=_CALLS, facts=facts)


def _check(torch: Any, rng: np.random.Generator, shape: Shape, block: int) -> None:
    """Raise QcoreValueError unless two layers have the CPU's bits."""
    small = replace(shape, layers=2, vocabulary=_CHECKED_VOCABULARY)
    weights = layer_weights(rng, small, 4, block)
    head = random_weight(rng, small.vocabulary, small.hidden_size, 4, block)
    hidden = torch.randn(2, 3, small.hidden_size).bfloat16()
    lengths, positions = torch.zeros(2, dtype=torch.int32), torch.arange(3, dtype=torch.int32).repeat(2, 1)
    got = []
    for device in ("cpu", "cuda"):
        model = _stack(weights, head, small, device, "int8", 8)
        caches = model.caches(2, 8, "bfloat16", like=torch.zeros(1, device=device))
        arrays = [array.to(device) for array in (hidden, positions, lengths)]
        got.append(model.forward(*arrays, caches).cpu())
    if not torch.equal(*got):
        raise qcore.QcoreValueError("benchmarks gpu decoder: the device's step differs from the CPU's")


def cases(
    torch: Any,
    *,
    model: str = "llama-3.1-8b",
    block_size: int = 128,
    past: int = 512,
    batches: Sequence[int] = (1, 8, 32),
    products: bool = False,
    parts: bool = False,
    humming: bool = False,
    rounds: int = 15,
) -> Iterator[Case]:
    """Measure a step of all batches, and its parts."""
    shape, rng = SHAPES[model], np.random.default_rng(0)
    _check(torch, rng, shape, block_size)
    head = random_weight(rng, shape.vocabulary, shape.hidden_size, 4, block_size)
    weights = layer_weights(rng, shape, 4, block_size)
    models = {mode: _stack(weights, head, shape, "cuda", mode, past + 1) for mode in ("int8", "float")}
    for batch in batches:
        dense = _TorchStack(torch, shape, batch, past)
        timed = [
            _timed(
                f"qcore 4 bits {mode}",
                _qcore_step(torch, each, shape, batch, past),
                weight_bits=4,
                weight_bytes=each.nbytes,
                activations=mode,
            )
            for mode, each in models.items()
        ]
        timed.append(_timed("torch bfloat16", dense.forward, weight_bits=16))
        measure(torch, timed, rounds)
        case = case_of(f"batch {batch}", {"batch": batch, "past": past, "g": block_size}, 0, {}, timed)
        for row in case.rows:
            row.details["tokens_per_s"] = batch * 1e3 / row.milliseconds
        yield case
        if products:
            yield _products_case(torch, weights, head, dense, shape, block_size, rounds)
        del dense, timed
        free(torch)
    if parts:
        yield _parts_case(torch, weights, shape, past, rounds)
    if humming:
        del models
        free(torch)
        yield _loops_case(torch, weights, shape, block_size, past, rounds)
