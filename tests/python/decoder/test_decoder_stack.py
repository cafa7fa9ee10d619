"""Stacks of layers: against the public operators one after another (same bits), and against NumPy in float64."""

import dataclasses
import threading

import decoder_oracle as oracle
import ml_dtypes
import numpy as np
import pytest
from decoder_oracle import bits

import qcore
from qcore import decoder

SIZES = {"hidden_size": 48, "heads": 4, "kv_heads": 2, "head_size": 16, "intermediate_size": 80}
POSITIONS, VOCABULARY = 320, 53


def vector(generator, size, center=0.0):
    return (center + 0.2 * generator.standard_normal(size)).astype(np.float32)


def weight(generator, rows, features, bits=8):
    values = generator.standard_normal((rows, features)).astype(np.float32) / np.float32(features) ** 0.5
    return qcore.quantize(values, bits=bits, block_size=16, scheme="asymmetric" if bits == 4 else "symmetric")


def make_layer(generator, full, sizes=SIZES):
    hidden, size, inner = sizes["hidden_size"], sizes["head_size"], sizes["intermediate_size"]
    qkv = (sizes["heads"] + 2 * sizes["kv_heads"]) * size
    layer = decoder.Layer(
        weight(generator, qkv, hidden, 4),
        weight(generator, hidden, sizes["heads"] * size),
        weight(generator, 2 * inner, hidden, 4),
        weight(generator, hidden, inner),
        input_norm=vector(generator, hidden, 1),
        mlp_norm=vector(generator, hidden, 1),
    )
    if full:
        layer = dataclasses.replace(
            layer,
            post_attention_norm=vector(generator, hidden, 1),
            post_mlp_norm=vector(generator, hidden, 1),
            q_norm=vector(generator, size, 1),
            k_norm=vector(generator, size, 1),
            qkv_bias=vector(generator, qkv),
            out_bias=vector(generator, hidden),
            gate_up_bias=vector(generator, 2 * inner),
            down_bias=vector(generator, hidden),
            window=6,
            rotary=1,
        )
    return layer


PLAIN = {"eps": 1e-5}
FULL = {
    "eps": 1e-6,
    "norm_offset": 0.25,
    "round_normalized": True,
    "activation": "gelu_tanh",
    "attention_scale": 0.3,
    "attention_soft_cap": 5.0,
    "input_multiplier": 1.5,
    "residual_multiplier": 0.75,
    "logit_multiplier": 0.5,
    "logit_soft_cap": 3.0,
    "rotary_layout": "interleaved",
}


class Model:
    """A decoder, and the same layers for the operators one by one."""

    def __init__(self, kind="plain", dtype="float32", compute="int8", layers=3, head=True, sizes=SIZES):
        generator = np.random.default_rng(len(kind))
        full = kind == "full"
        self.options = FULL if full else PLAIN
        self.dtype, self.compute, self.sizes = oracle_dtype(dtype), compute, sizes
        self.layers = [make_layer(generator, full and i % 2 == 1, sizes) for i in range(layers)]
        rotary = sizes["head_size"] // (2 if full else 1)
        self.tables = [oracle.rotary_tables(POSITIONS, rotary), oracle.rotary_tables(POSITIONS, rotary, 500.0)]
        self.final_norm = vector(generator, sizes["hidden_size"], 1)
        self.head = weight(generator, VOCABULARY, sizes["hidden_size"]) if head else None
        self.decoder = decoder.Decoder(
            self.layers,
            **sizes,
            dtype=dtype,
            compute=compute,
            rotary=self.tables,
            final_norm=self.final_norm,
            head=self.head,
            **self.options,
        )

    def caches(self, batch, capacity, dtype="float32"):
        return self.decoder.caches(batch, capacity, dtype)

    def by_operators(self, hidden, positions, past, caches, *, first=None, logits=True):
        """Return all tokens' results with the public operators."""
        o = {**dict.fromkeys(("norm_offset", "attention_soft_cap", "logit_soft_cap"), 0.0), **self.options}
        branch_multiplier, dtype = o.get("residual_multiplier", 1.0), self.dtype
        batch, tokens, _ = hidden.shape
        heads, kv_heads, size = (self.sizes[name] for name in ("heads", "kv_heads", "head_size"))

        def norm(x, given):
            return decoder.rms_norm(
                x, given, o["eps"], offset=o["norm_offset"], round_normalized=o.get("round_normalized", False)
            )

        def product(x, w, bias):
            return qcore.linear(x, w, bias, compute=self.compute)

        def add(residual, branch):
            scaled = branch.astype(np.float32) * np.float32(branch_multiplier)
            return (scaled + residual.astype(np.float32)).astype(dtype)

        residual = (hidden.astype(np.float32) * np.float32(o.get("input_multiplier", 1.0))).astype(dtype)
        for layer, cache in zip(self.layers, caches, strict=True):
            joint = product(norm(residual, layer.input_norm), layer.qkv, layer.qkv_bias)
            joint = joint.reshape(batch, tokens, -1, size)
            q, k, v = joint[:, :, :heads], joint[:, :, heads : heads + kv_heads], joint[:, :, heads + kv_heads :]
            q = q if layer.q_norm is None else norm(q, layer.q_norm)
            k = k if layer.k_norm is None else norm(k, layer.k_norm)
            cos, sin = self.tables[layer.rotary]
            layout = o.get("rotary_layout", "halves")
            q, k = (decoder.rotary_embedding(x, positions, cos, sin, layout=layout) for x in (q, k))
            decoder.write_cache(k, v, past, cache)
            attended = decoder.attention(
                q,
                cache,
                past,
                first=first,
                scale=o.get("attention_scale"),
                window=layer.window,
                soft_cap=o["attention_soft_cap"],
            )
            branch = product(attended.reshape(batch, tokens, -1), layer.out, layer.out_bias)
            if layer.post_attention_norm is not None:
                branch = norm(branch, layer.post_attention_norm)
            residual = add(residual, branch)
            joint = product(norm(residual, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            branch = product(decoder.gated_activation(joint, o.get("activation", "silu")), layer.down, layer.down_bias)
            if layer.post_mlp_norm is not None:
                branch = norm(branch, layer.post_mlp_norm)
            residual = add(residual, branch)
        normed = norm(residual, self.final_norm)
        if not logits:
            return normed
        scores = product(normed, self.head, None)
        multiplier, cap = o.get("logit_multiplier", 1.0), o["logit_soft_cap"]
        return decoder.soft_cap(scores, cap, multiplier=multiplier) if (multiplier, cap) != (1.0, 0.0) else scores


def oracle_dtype(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def inputs(batch, tokens, dtype=np.float32, seed=3, hidden=SIZES["hidden_size"]):
    return np.random.default_rng(seed).standard_normal((batch, tokens, hidden)).astype(dtype)


def positions_of(past, tokens):
    return (np.asarray(past)[:, None] + np.arange(tokens)).astype(np.int32)


def same(a, b):
    return np.array_equal(bits(a), bits(b))


@pytest.mark.parametrize("compute", ["int8", "float"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["plain", "full"])
@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
def test_same_bits_as_the_operators(cache_dtype, kind, dtype, compute):
    model = Model(kind, dtype, compute)
    ours, theirs = model.caches(2, 40, cache_dtype), model.caches(2, 40, cache_dtype)
    past = np.array([0, 0], np.int32)
    for tokens in (9, 1, 1, 3):
        hidden, positions = inputs(2, tokens, model.dtype, seed=tokens), positions_of(past, tokens)
        logits = model.decoder.forward(hidden, positions, past, ours, last=None)
        expected = model.by_operators(hidden, positions, past, theirs)
        assert logits.dtype == model.dtype and logits.shape == (2, tokens, VOCABULARY)
        assert same(logits, expected)
        assert np.isfinite(logits.astype(np.float32)).all()
        past = (past + tokens).astype(np.int32)
    for a, b in zip(ours, theirs, strict=True):
        assert same(a.keys[:, :, :14], b.keys[:, :, :14]) and same(a.values[:, :, :14], b.values[:, :, :14])


def silu_layer_in_float64(model, layer, x, positions):
    """Compute one layer of plain structure over whole sequences without padding."""
    heads, kv_heads, size = (model.sizes[name] for name in ("heads", "kv_heads", "head_size"))
    w = {name: getattr(layer, name).dequantize().astype(np.float64) for name in ("qkv", "out", "gate_up", "down")}
    batch, tokens, _ = x.shape
    joint = (oracle.rms_norm(x, layer.input_norm, 1e-5) @ w["qkv"].T).reshape(batch, tokens, -1, size)
    cos, sin = model.tables[0]
    q = oracle.rotary_embedding(joint[:, :, :heads], positions, cos, sin)
    k = oracle.rotary_embedding(joint[:, :, heads : heads + kv_heads], positions, cos, sin).swapaxes(1, 2)
    v = joint[:, :, heads + kv_heads :].swapaxes(1, 2)
    x = x + oracle.attention(q, k, v, np.zeros(batch, int)).reshape(batch, tokens, -1) @ w["out"].T
    joint = oracle.rms_norm(x, layer.mlp_norm, 1e-5) @ w["gate_up"].T
    return x + oracle.gated_activation(joint, "silu") @ w["down"].T


@pytest.mark.parametrize("cache_dtype", ["float32", "float16"])
def test_against_float64(cache_dtype):
    model = Model(compute="float")
    hidden, past = inputs(2, 20), np.zeros(2, np.int32)
    positions = positions_of(past, 20)
    x = hidden.astype(np.float64)
    for layer in model.layers:
        x = silu_layer_in_float64(model, layer, x, positions)
    normed = oracle.rms_norm(x, model.final_norm, 1e-5)
    caches = model.caches(2, 20, cache_dtype)
    result = model.decoder.forward(hidden, positions, past, caches, last=None, result="hidden")
    tolerance = 1e-5 if cache_dtype == "float32" else 1e-2
    assert np.abs(result - normed).max() < tolerance * np.abs(normed).max()
    logits = model.decoder.forward(hidden, positions, past, caches, last=None)
    expected = normed @ model.head.dequantize().astype(np.float64).T
    assert np.abs(logits - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["plain", "full"])
def test_tokens_one_by_one_and_sequences_alone_give_the_same_bits(kind):
    model = Model(kind, "bfloat16")
    hidden, past = inputs(3, 12, model.dtype), np.zeros(3, np.int32)
    positions = positions_of(past, 12)
    together = model.decoder.forward(hidden, positions, past, model.caches(3, 12), last=None)
    single = model.caches(3, 12)
    for t in range(12):
        step = (past + t).astype(np.int32)
        logits = model.decoder.forward(hidden[:, t : t + 1], positions[:, t : t + 1], step, single)
        assert same(logits[:, 0], together[:, t])
    alone = model.decoder.forward(hidden[1:2], positions[1:2], past[1:2], model.caches(1, 30), last=None)
    assert same(alone[0], together[1])


def test_padding_on_the_left_gives_the_bits_of_the_sequence_alone():
    model = Model("plain")
    hidden, past = inputs(2, 10), np.zeros(2, np.int32)
    first = np.array([4, 0], np.int32)
    positions = np.maximum(positions_of(past, 10) - first[:, None], 0).astype(np.int32)
    caches = model.caches(2, 10)
    padded = model.decoder.forward(hidden, positions, past, caches, first=first, last=None)
    alone = model.decoder.forward(hidden[:1, 4:], positions[:1, 4:], past[:1], model.caches(1, 10), last=None)
    # Chunks of attention start elsewhere, which doesn't matter within the first one, but for the order of a sum.
    assert np.abs(padded[0, 4:] - alone[0]).max() < 2e-2
    assert same(
        padded[1], model.decoder.forward(hidden[1:], positions[1:], past[1:], model.caches(1, 10), last=None)[0]
    )


def test_last_tokens_result_and_out():
    model = Model("full")
    hidden, past = inputs(2, 7), np.zeros(2, np.int32)
    arguments = (hidden, positions_of(past, 7), past, model.caches(2, 9))
    everything = model.decoder.forward(*arguments, last=None)
    for last in (1, 3, 7):
        assert same(model.decoder.forward(*arguments, last=last), everything[:, -last:])
    out = np.full((2, 3, 2 * VOCABULARY), np.nan, np.float16)
    assert model.decoder.forward(*arguments, out=out[..., ::2]).base is out
    logits = model.decoder.forward(*arguments, last=3, out_dtype="float16")
    assert same(out[..., ::2], logits) and np.isnan(out[..., 1::2]).all()
    normed = model.decoder.forward(*arguments, last=2, result="hidden")
    expected = model.by_operators(*arguments[:3], model.caches(2, 9), logits=False)
    assert same(normed, expected[:, -2:])
    bare = Model("full", head=False).decoder
    assert (bare.vocabulary, model.decoder.vocabulary) == (0, VOCABULARY)
    assert bare.forward(hidden, arguments[1], past, bare.caches(2, 9)).shape == (2, 1, SIZES["hidden_size"])


def test_long_prompts_are_computed_in_parts():
    sizes = {"hidden_size": 16, "heads": 1, "kv_heads": 1, "head_size": 16, "intermediate_size": 16}
    model = Model(layers=1, sizes=sizes)
    hidden, past = inputs(5, 300, hidden=16), np.zeros(5, np.int32)
    positions = positions_of(past, 300)
    together = model.decoder.forward(hidden, positions, past, model.caches(5, 300), last=None)
    for b in range(5):
        alone = model.decoder.forward(hidden[b : b + 1], positions[:1], past[:1], model.caches(1, 300), last=None)
        assert same(alone[0], together[b])


def test_threads_and_kernels_do_not_change_results():
    model = Model("full", "bfloat16")
    hidden, past = inputs(2, 40, model.dtype), np.zeros(2, np.int32)
    positions = positions_of(past, 40)

    def run():
        return model.decoder.forward(hidden, positions, past, model.caches(2, 40), last=None)

    expected, before = run(), qcore.get_num_threads()
    try:
        for threads in (1, 3):
            qcore.set_num_threads(threads)
            assert same(run(), expected)
    finally:
        qcore.set_num_threads(before)
    for op in ("rms_norm", "rotary_embedding", "gated_activation", "write_cache", "attention", "soft_cap"):
        with qcore.force_kernel(f"decoder_{op}", "reference"):
            assert same(run(), expected)


def test_one_decoder_in_several_threads():
    model = Model("plain")
    hidden, past = inputs(1, 30), np.zeros(1, np.int32)
    positions = positions_of(past, 30)
    expected = model.decoder.forward(hidden, positions, past, model.caches(1, 30))
    results = [None] * 4

    def run(index):
        for _ in range(5):
            results[index] = model.decoder.forward(hidden, positions, past, model.caches(1, 30))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(result, expected) for result in results)


def test_layers_without_norms_and_rotation():
    generator = np.random.default_rng(0)
    layer = dataclasses.replace(make_layer(generator, False), input_norm=None, mlp_norm=None, rotary=-1)
    stack = decoder.Decoder([layer], **SIZES)
    assert (stack.layers, stack.max_positions, stack.device) == (1, 0, "cpu")
    hidden, past = inputs(1, 4), np.zeros(1, np.int32)
    y = stack.forward(hidden, positions_of(past, 4), past, stack.caches(1, 4), last=None)
    joint = qcore.linear(hidden, layer.qkv).reshape(1, 4, -1, 16)
    cache = decoder.KeyValueCache.empty(1, 2, 4, 16)
    decoder.write_cache(joint[:, :, 4:6], joint[:, :, 6:], past, cache)
    attended = decoder.attention(joint[:, :, :4], cache, past).reshape(1, 4, -1)
    x = qcore.linear(attended, layer.out) + hidden
    expected = qcore.linear(decoder.gated_activation(qcore.linear(x, layer.gate_up)), layer.down) + x
    assert same(y, expected)
    empty = decoder.Decoder([], **SIZES)
    assert same(empty.forward(hidden, positions_of(past, 4), past, [], last=None), hidden)


def cut(w, *sizes):
    """Return rows of a weight that follow each other as weights of their own."""
    ends = np.cumsum(sizes)
    return [w.slice_rows(end - size, end) for end, size in zip(ends.tolist(), sizes, strict=True)]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("batch, tokens", [(1, 1), (2, 5)])
def test_weights_in_parts_give_the_bits_of_whole_ones(full, batch, tokens):
    layer = make_layer(np.random.default_rng(0), full)
    parts = dataclasses.replace(layer, qkv=cut(layer.qkv, 64, 32, 32), gate_up=tuple(cut(layer.gate_up, 80, 80)))
    tables = [oracle.rotary_tables(9, 16), oracle.rotary_tables(7, 16)]
    hidden, past = inputs(batch, tokens), np.zeros(batch, np.int32)
    results = []
    for each in (layer, parts):
        stack = decoder.Decoder([each], **SIZES, rotary=tables)
        caches = stack.caches(batch, tokens)
        results.append(stack.forward(hidden, positions_of(past, tokens), past, caches, last=None))
    assert same(*results)


def test_parts_of_different_formats():
    generator = np.random.default_rng(0)
    layer = dataclasses.replace(make_layer(generator, False), input_norm=None, mlp_norm=None, rotary=-1)
    qkv = [weight(generator, rows, 48, bits) for rows, bits in ((64, 4), (32, 4), (32, 8))]
    stack = decoder.Decoder([dataclasses.replace(layer, qkv=qkv)], **SIZES)
    hidden, past = inputs(1, 4), np.zeros(1, np.int32)
    y = stack.forward(hidden, positions_of(past, 4), past, stack.caches(1, 4), last=None)
    joint = np.concatenate([qcore.linear(hidden, w) for w in qkv], axis=-1).reshape(1, 4, -1, 16)
    cache = decoder.KeyValueCache.empty(1, 2, 4, 16)
    decoder.write_cache(joint[:, :, 4:6], joint[:, :, 6:], past, cache)
    attended = decoder.attention(joint[:, :, :4], cache, past).reshape(1, 4, -1)
    x = qcore.linear(attended, layer.out) + hidden
    expected = qcore.linear(decoder.gated_activation(qcore.linear(x, layer.gate_up)), layer.down) + x
    assert same(y, expected)
    assert stack.nbytes == sum(w.nbytes for w in (*qkv, layer.out, layer.gate_up, layer.down))


def test_empty_calls_and_sizes():
    model = Model()
    past = np.zeros(2, np.int32)
    caches = model.caches(2, 3)
    nobody = model.decoder.forward(
        np.zeros((0, 2, 48), np.float32), np.zeros((0, 2), np.int32), past[:0], model.caches(0, 3)
    )
    assert nobody.shape == (0, 1, VOCABULARY)
    weights = [getattr(layer, name) for layer in model.layers for name in ("qkv", "out", "gate_up", "down")]
    assert model.decoder.nbytes > sum(w.nbytes for w in (*weights, model.head))
    assert model.decoder.max_positions == POSITIONS
    assert len(caches) == 3 and caches[1].keys.shape == (2, 2, 3, 16)
