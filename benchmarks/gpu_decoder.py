"""Times a decoding step of an 8B model's shape on a CUDA device: `qcore.decoder.Decoder` beside torch in bfloat16.

    python benchmarks/gpu_decoder.py --json gpu-decoder.json

Both run the same stack with random weights from a CUDA graph, take turns, and the figures are medians. Each layer has
memory of its own, so that weights come from the device's memory as in a model. Before it times, it checks that qcore's
step of two layers gives the bits of the CPU's.

With `--humming` the loop of single operators is timed twice more with the products of humming-kernels, which must be
installed and compiles its kernels first; the other operators and the memory between them are the same.

With `--parts` it also times a stack of layers made of the single operators, whole and without each kind of them: the
difference is what this kind adds to a step. A Decoder rotates the heads and writes them to the cache by one kernel, the
single operators by three.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import statistics
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import qcore
from qcore import decoder

# Llama-3.1-8B: hidden size, layers, heads, KV heads, head size, intermediate size, vocabulary.
SHAPE = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "size": 128, "inner": 14336, "vocabulary": 128256}
SMALL = SHAPE | {"layers": 2, "vocabulary": 4096}


def weight(rng, rows, features, bits, block):
    codes = rng.integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), (rows, features), dtype=np.int8)
    scales = np.full((rows, features // block), 2.0 ** -(bits + 3), np.float32)
    return qcore.QuantizedTensor.from_parts(codes, scales, bits=bits, block_size=block)


def layer_weights(rng, shape, bits, block):
    q, kv = shape["heads"] * shape["size"], shape["kv_heads"] * shape["size"]
    hidden, inner = shape["hidden"], shape["inner"]
    sizes = [(q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)]
    return [weight(rng, *size, bits, block) for size in sizes]


def rotary_table(positions, size):
    angles = np.arange(positions)[:, None] * 500000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def stack(weights, head, shape, device, compute, capacity):
    """A Decoder whose layers hold copies of the same weights."""
    norm = np.ones(shape["hidden"], np.float32)

    def copy(w):
        return w.to(device) if device == "cuda" else w

    layers = [
        decoder.Layer(*(copy(w) for w in weights), input_norm=norm, mlp_norm=norm) for _ in range(shape["layers"])
    ]
    return decoder.Decoder(
        layers,
        hidden_size=shape["hidden"],
        heads=shape["heads"],
        kv_heads=shape["kv_heads"],
        head_size=shape["size"],
        intermediate_size=shape["inner"],
        dtype="bfloat16",
        compute=compute,
        rotary=[rotary_table(capacity, shape["size"])],
        final_norm=norm,
        head=copy(head),
    )


def qcore_step(model, batch, past, capacity, vocabulary, cache):
    """The call of one step on the device, and its result."""
    like = torch.zeros(1, device="cuda")
    hidden = torch.randn(batch, 1, SHAPE["hidden"], device="cuda", dtype=torch.bfloat16)
    caches = model.caches(batch, capacity, cache, like=like)
    lengths = torch.full((batch,), past, dtype=torch.int32, device="cuda")
    out = torch.empty(batch, 1, vocabulary, device="cuda")
    return lambda: model.forward(hidden, lengths[:, None], lengths, caches, out=out, max_length=past + 1)


class TorchStack(torch.nn.Module):
    """The same layers in bfloat16, each with weights of its own."""

    def __init__(self, shape, batch, past):
        super().__init__()
        self.shape, self.past = shape, past
        q, kv = shape["heads"] * shape["size"], shape["kv_heads"] * shape["size"]
        hidden, inner = shape["hidden"], shape["inner"]
        sizes = [(q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)]
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.layers = [[torch.randn(size, **options) / 64 for size in sizes] for _ in range(shape["layers"])]
        self.caches = torch.randn(shape["layers"], 2, batch, shape["kv_heads"], past + 1, shape["size"], **options)
        self.norm = torch.ones(hidden, **options)
        self.head = torch.randn(shape["vocabulary"], hidden, **options) / 64
        cos, sin = (torch.from_numpy(table[past]).to(**options) for table in rotary_table(past + 1, shape["size"]))
        self.cos, self.sin = cos, sin

    def rotate(self, x):
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-high, low], dim=-1) * self.sin

    def forward(self, x):
        s, size = self.shape, (self.shape["hidden"],)
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, self.caches, strict=True):
            heads = functional.linear(functional.rms_norm(x, size, self.norm), qkv).view(len(x), -1, 1, s["size"])
            q, k, v = heads.split([s["heads"], s["kv_heads"], s["kv_heads"]], dim=1)
            keys[:, :, self.past :] = self.rotate(k)
            values[:, :, self.past :] = v
            mixed = functional.scaled_dot_product_attention(self.rotate(q), keys, values, enable_gqa=True)
            x = x + functional.linear(mixed.reshape(len(x), -1), out)
            gate, up = functional.linear(functional.rms_norm(x, size, self.norm), gate_up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(functional.rms_norm(x, size, self.norm), self.head)


def recorded(call):
    """A CUDA graph of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def microseconds(graph, replays):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / replays


def medians(graphs):
    """The median time of each graph in microseconds; the graphs take turns."""
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(15):
        for name, graph in graphs.items():
            samples[name].append(microseconds(graph, 10))
    return {name: statistics.median(times) for name, times in samples.items()}


def qcore_products(weights, compute):
    """Returns what makes a product of a layer's weight of that number, x and the result, with memory of its own."""

    def make(number, x, out):
        return functools.partial(qcore.linear, x, weights[number].to("cuda"), compute=compute, out=out)

    return make


def humming_products(shape, block, activations):
    """Returns the same over humming's kernels, with weights of 4 bits and activations in "bfloat16" or "int8"."""
    from humming.forward import humming_forward
    from humming.kernel.humming import HummingKernel
    from humming.layer import HummingLayer
    from humming.tune import get_heuristics_config

    compute = json.dumps({"use_f16_accum": False, "use_m_major_input_scale": False, "gemm_type": "dense"})
    names = ("weight", "weight_scale", "zero_point", "bias", "weight_scale_2")
    q, kv, hidden, inner = shape["heads"], shape["kv_heads"], shape["hidden"], shape["inner"]
    sizes = [((q + 2 * kv) * shape["size"], hidden), (hidden, q * shape["size"]), (2 * inner, hidden), (hidden, inner)]
    made = []
    for n, k in sizes:
        layer = HummingLayer(
            shape_n=n,
            shape_k=k,
            weight_config={"dtype": "int4", "group_size": block},
            input_config={"dtype": activations},
            torch_dtype=torch.bfloat16,
        ).to("cuda")
        layer.load_from_unquantized(torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / 64)
        layer.transform()
        config = layer.humming_config
        intervals = get_heuristics_config(layer_config=config, gemm_type="dense")
        if isinstance(intervals, dict):
            intervals = [(0, 1 << 30, intervals)]
        tuning = json.dumps([list(entry) for entry in intervals if entry[0] < 1 <= entry[1]])
        HummingKernel.prepare_kernels(config.to_str(), compute, tuning, torch.cuda.current_device())
        tensors = {name: getattr(layer, name, None) for name in names}
        made.append((config, tuning, {name: None if t is None else t.detach() for name, t in tensors.items()}))

    def make(number, x, out):
        config, tuning, tensors = made[number]
        return functools.partial(
            humming_forward,
            config,
            inputs=x.flatten(0, 1),
            outputs=out.flatten(0, 1),
            locks=torch.zeros(2048, dtype=torch.int32, device="cuda"),
            compute_config=compute,
            tuning_config=tuning,
            **{name: None if t is None else t.clone() for name, t in tensors.items()},
        )

    return make


def operators(shape, past, product):
    """The calls of a step of one sequence through all layers, as pairs of the part that they belong to and the call."""
    heads, kv, size, inner = (shape[name] for name in ("heads", "kv_heads", "size", "inner"))

    def array(*extents):
        return torch.zeros(1, 1, *extents, device="cuda", dtype=torch.bfloat16)

    branch, residual, normed = (array(shape["hidden"]) for _ in range(3))
    qkv, mixed, gate_up, gated = array(heads + 2 * kv, size), array(heads, size), array(2 * inner), array(inner)
    q, k, v = qkv.split([heads, kv, kv], dim=2)
    norm = torch.ones(shape["hidden"], device="cuda")
    cos, sin = (torch.from_numpy(table).cuda() for table in rotary_table(past + 1, size))
    lengths = torch.full((1,), past, dtype=torch.int32, device="cuda")
    add_and_norm = functools.partial(decoder.rms_norm, branch, norm, residual=residual, out=normed)
    calls = []
    for _ in range(shape["layers"]):
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


def part_times(calls):
    """Measures the whole stack and what each part adds to it, in microseconds."""

    def run(without):
        for part, call in calls:
            if part != without:
                call()

    parts = list(dict.fromkeys(part for part, _ in calls))
    times = medians({name: recorded(functools.partial(run, name)) for name in ("nothing", *parts)})
    whole = times.pop("nothing")
    return {"whole": whole} | {name: whole - time for name, time in times.items()}


def loop_times(weights, options):
    """Measures the loop of single operators with our products and humming's, in microseconds; the head is left out."""
    makers = {
        "qcore int8": qcore_products(weights, "int8"),
        "qcore float": qcore_products(weights, "float"),
        "humming int8": humming_products(SHAPE, options.block, "int8"),
        "humming bfloat16": humming_products(SHAPE, options.block, "bfloat16"),
    }

    def run(calls):
        for _, call in calls:
            call()

    with torch.no_grad():
        loops = {name: operators(SHAPE, options.past, make) for name, make in makers.items()}
        return medians({name: recorded(functools.partial(run, calls)) for name, calls in loops.items()})


def check(rng, bits, block):
    """Raises AssertionError unless two layers have the CPU's bits."""
    weights, head = layer_weights(rng, SMALL, bits, block), weight(rng, 4096, 4096, bits, block)
    hidden = torch.randn(2, 3, 4096).bfloat16()
    lengths, positions = torch.zeros(2, dtype=torch.int32), torch.arange(3, dtype=torch.int32).repeat(2, 1)
    got = []
    for device in ("cpu", "cuda"):
        model = stack(weights, head, SMALL, device, "int8", 8)
        caches = model.caches(2, 8, "bfloat16", like=torch.zeros(1, device=device))
        arrays = [array.to(device) for array in (hidden, positions, lengths)]
        got.append(model.forward(*arrays, caches).cpu())
    assert torch.equal(*got), "the device's step differs from the CPU's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--past", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--parts", action="store_true", help="time what each kind of operator adds to a step")
    parser.add_argument("--humming", action="store_true", help="time a loop of operators with humming's products too")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    check(rng, 4, options.block)
    print("bits: two layers of the device equal the CPU's", flush=True)
    results = []
    head = weight(rng, SHAPE["vocabulary"], SHAPE["hidden"], 4, options.block)
    weights = layer_weights(rng, SHAPE, 4, options.block)
    models = {mode: stack(weights, head, SHAPE, "cuda", mode, options.past + 1) for mode in ("int8", "float")}
    sizes = {name: model.nbytes for name, model in models.items()}
    for batch in options.batch:
        steps = {
            f"qcore 4 bits {mode}": qcore_step(
                model, batch, options.past, options.past + 1, SHAPE["vocabulary"], "bfloat16"
            )
            for mode, model in models.items()
        }
        dense = TorchStack(SHAPE, batch, options.past)
        x = torch.randn(batch, SHAPE["hidden"], device="cuda", dtype=torch.bfloat16)
        steps["torch bfloat16"] = lambda dense=dense, x=x: dense(x)
        with torch.no_grad():
            graphs = {name: recorded(step) for name, step in steps.items()}
        times = medians(graphs)
        base = times["torch bfloat16"]
        for name, middle in times.items():
            results.append({"batch": batch, "name": name, "us": middle, "tokens_per_s": batch * 1e6 / middle})
            print(f"batch {batch:3}  {name:22} {middle:9.1f} us  {base / middle:5.2f} of torch bfloat16", flush=True)
        del graphs, steps, dense
        torch.cuda.empty_cache()
    parts = {}
    if options.parts:
        with torch.no_grad():
            parts = part_times(operators(SHAPE, options.past, qcore_products(weights, "int8")))
        for name, time in parts.items():
            print(f"parts of batch 1  {name:10} {time:9.1f} us", flush=True)
    loops = {}
    if options.humming:
        del models
        torch.cuda.empty_cache()
        loops = loop_times(weights, options)
        for name, time in loops.items():
            print(f"loop of operators at batch 1, without the head  {name:24} {time:9.1f} us", flush=True)
    facts = {
        "schema": "qcore.bench.gpu_decoder/1",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "qcore": qcore.__version__,
        "date": datetime.date.today().isoformat(),
        "weights": "random",
        "shape": SHAPE,
        "block_size": options.block,
        "past": options.past,
        "bytes": sizes,
        "results": results,
        "parts": parts,
        "loops": loops,
    }
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
