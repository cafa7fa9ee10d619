"""Calls that qcore.decoder refuses, each with the whole message; nothing is written then."""

import dataclasses

import decoder_oracle as oracle
import numpy as np
import pytest
from test_decoder_stack import PLAIN, SIZES, Model, inputs, make_layer, positions_of

import qcore
from qcore import decoder


def refused(call, message, kind=qcore.QcoreValueError):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message


X = np.ones((2, 3, 4, 8), np.float32)
COS, SIN = oracle.rotary_tables(5, 4)
POSITIONS = np.zeros((2, 3), np.int32)
PAST = np.zeros(2, np.int32)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"x": X.astype(int)}, "type", "x has dtype int64, expected float32, float16 or bfloat16"),
        ({"x": np.float32(3)}, "value", "x has shape [], expected at least one axis"),
        ({"weight": np.ones(7, np.float32)}, "value", "weight has shape [7], expected [8]"),
        ({"eps": -1.0}, "value", "eps is -1, expected a number from 0 to 1e30"),
        ({"eps": "1"}, "type", "eps is '1', expected a number"),
        ({"offset": np.inf}, "value", "offset is inf, expected a finite number"),
        (
            {"residual": np.ones((2, 3, 4, 7), np.float32)},
            "value",
            "residual has shape [2, 3, 4, 7], expected [2, 3, 4, 8]",
        ),
        ({"residual": X}, "value", "residual overlaps x in memory, expected separate arrays"),
        ({"out": X[..., ::-1]}, "value", "out overlaps x in memory, expected separate arrays"),
        ({"out_dtype": "int8"}, "type", "out_dtype is 'int8', expected float32, float16 or bfloat16"),
        ({"out": X, "out_dtype": "float32"}, "value", "out and out_dtype are both given, expected at most one of them"),
    ],
)
def test_rms_norm(change, kind, message):
    given = {"x": X, **change}
    error = qcore.QcoreTypeError if kind == "type" else qcore.QcoreValueError
    refused(lambda: decoder.rms_norm(given.pop("x"), **given), f"rms_norm: {message}", error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[0]}, "x has shape [3, 4, 8], expected [B, T, heads, D]"),
        ({"cos": COS[:, :3]}, "cos has shape [5, 3], expected [P, R] with R even and at most the head size 8"),
        (
            {"cos": np.ones((5, 10), np.float32)},
            "cos has shape [5, 10], expected [P, R] with R even and at most the head size 8",
        ),
        ({"sin": SIN[:4]}, "sin has shape [4, 4], expected [5, 4]"),
        ({"positions": POSITIONS[:1]}, "positions has shape [1, 3], expected [2, 3]"),
        (
            {"positions": np.array([[0, 1, 2], [3, 4, 5]], np.int32)},
            "positions has the element 5 at index [1, 2], expected 0 to 4, the rows of cos and sin",
        ),
        (
            {"positions": np.array([[0, -1, 2], [3, 4, 5]], np.int32)},
            "positions has the element -1 at index [0, 1], expected 0 to 4, the rows of cos and sin",
        ),
        ({"layout": "pairs"}, "layout is 'pairs', expected one of 'halves', 'interleaved'"),
    ],
)
def test_rotary_embedding(change, message):
    given = {"x": X, "positions": POSITIONS, "cos": COS, "sin": SIN, **change}
    refused(lambda: decoder.rotary_embedding(**given), f"rotary_embedding: {message}")


def test_rotary_embedding_dtypes():
    refused(
        lambda: decoder.rotary_embedding(X, POSITIONS.astype(np.int16), COS, SIN),
        "rotary_embedding: positions has dtype int16, expected int32",
        qcore.QcoreTypeError,
    )
    refused(
        lambda: decoder.rotary_embedding(X, POSITIONS, COS.astype(np.float16), SIN),
        "rotary_embedding: cos has dtype float16, expected float32",
        qcore.QcoreTypeError,
    )


def test_gated_activation_and_soft_cap():
    refused(
        lambda: decoder.gated_activation(np.ones((2, 3), np.float32)),
        "gated_activation: x has shape [2, 3], expected an even last dimension: the gate, then what it multiplies",
    )
    refused(
        lambda: decoder.gated_activation(X, "tanh"),
        "gated_activation: activation is 'tanh', expected one of 'silu', 'gelu', 'gelu_tanh', 'relu'",
    )
    refused(
        lambda: decoder.gated_activation(X, out=np.ones((2, 3, 4, 5), np.float32)),
        "gated_activation: out has shape [2, 3, 4, 5], expected [2, 3, 4, 4]",
    )
    refused(lambda: decoder.soft_cap(X, -1.0), "soft_cap: cap is -1, expected 0 or a positive number")
    refused(
        lambda: decoder.soft_cap(X, 1.0, multiplier=np.nan), "soft_cap: multiplier is nan, expected a finite number"
    )


def cache(dtype="float32", **arrays):
    return dataclasses.replace(decoder.KeyValueCache.empty(2, 4, 6, 8, dtype), **arrays)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"cache": cache(values=np.ones((2, 4, 5, 8), np.float32))},
            "cache.values has shape [2, 4, 5, 8], expected [2, 4, 6, 8]",
        ),
        (
            {"cache": cache(keys=np.ones((2, 4, 6, 7), np.float32))},
            "cache.keys has shape [2, 4, 6, 7], expected [2, 4, 6, 8]",
        ),
        (
            {"cache": cache(keys=np.ones((4, 6, 8), np.float32))},
            "cache.keys has shape [4, 6, 8], expected [B, Hkv, C, D]",
        ),
        (
            {"cache": cache(keys=np.ones((2, 4, 6, 16), np.float32)[..., ::2])},
            "cache.keys has elements of a head at a stride of 2, expected 1",
        ),
        (
            {"cache": cache("int8", key_scales=None)},
            "the cache of dtype int8 has scales, expected key_scales and value_scales for int8 and none otherwise",
        ),
        (
            {"cache": cache(key_scales=np.ones((2, 4, 6), np.float32))},
            "the cache of dtype float32 has scales, expected key_scales and value_scales for int8 and none otherwise",
        ),
        ({"past": np.zeros(3, np.int32)}, "past has shape [3], expected [2]"),
        (
            {"past": np.array([0, 4], np.int32)},
            "past has the element 4 at index [1], expected 0 to 3: 3 tokens more in a cache for 6",
        ),
        (
            {"past": np.array([-1, 0], np.int32)},
            "past has the element -1 at index [0], expected 0 to 3: 3 tokens more in a cache for 6",
        ),
    ],
)
def test_caches(given, message):
    given = {"cache": cache(), "past": PAST, **given}
    refused(lambda: decoder.attention(X, **given), f"attention: {message}")
    refused(lambda: decoder.write_cache(X, X, given["past"], given["cache"]), f"write_cache: {message}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": -1}, "window is -1, expected 0 or a number of keys"),
        ({"soft_cap": -2.0}, "soft_cap is -2, expected 0 or a positive number"),
        ({"scale": np.inf}, "scale is inf, expected a finite number"),
        ({"max_length": 2}, "max_length is 2, expected 0 or 3 to 6"),
        ({"max_length": 7}, "max_length is 7, expected 0 or 3 to 6"),
        (
            {"first": np.array([0, 7], np.int32)},
            "first has the element 7 at index [1], expected 0 to 6, the positions of the cache",
        ),
        ({"out": np.ones((2, 3, 4, 7), np.float32)}, "out has shape [2, 3, 4, 7], expected [2, 3, 4, 8]"),
    ],
)
def test_attention(given, message):
    refused(lambda: decoder.attention(X, cache(), PAST, **given), f"attention: {message}")


def test_attention_of_other_heads_and_things():
    refused(
        lambda: decoder.attention(X[:, :, :3], cache(), PAST),
        "attention: q has 3 heads, expected a multiple of the cache's 4",
    )
    refused(
        lambda: decoder.attention(X, (X, X), PAST),
        "attention: cache is a tuple, expected a KeyValueCache",
        qcore.QcoreTypeError,
    )
    own = cache()
    refused(
        lambda: decoder.attention(X, own, PAST, out=own.keys.transpose(0, 2, 1, 3)[:, :3]),
        "attention: out overlaps the cache in memory, expected separate arrays",
    )
    refused(
        lambda: decoder.write_cache(own.keys.transpose(0, 2, 1, 3)[:, :3], X, PAST, own),
        "write_cache: the cache overlaps keys in memory, expected separate arrays",
    )
    refused(
        lambda: decoder.write_cache(X, X[:, :2], PAST, own),
        "write_cache: values has shape [2, 2, 4, 8], expected [2, 3, 4, 8]",
    )
    read_only = cache()
    read_only.keys.flags.writeable = False
    refused(
        lambda: decoder.write_cache(X, X, PAST, read_only),
        "write_cache: cache.keys is read-only, expected a writable array",
    )


def test_making_a_cache():
    refused(
        lambda: decoder.KeyValueCache.empty(1, 2, -3, 4),
        "KeyValueCache.empty: capacity is -3, expected 0 or a positive number",
    )
    refused(
        lambda: decoder.KeyValueCache.empty(2**40, 2, 2**20, 4),
        "KeyValueCache.empty: a result would be float32 [1099511627776, 2, 1048576, 4], 36893488147419103232 bytes, "
        "expected one that fits in memory",
    )
    refused(
        lambda: decoder.KeyValueCache.empty(1, 2, 3, 4, "int4"),
        "KeyValueCache.empty: dtype is 'int4', expected one of float32, float16, bfloat16, int8",
        qcore.QcoreTypeError,
    )
    refused(
        lambda: decoder.Caches([X]), "decoder: caches[0] is a ndarray, expected a KeyValueCache", qcore.QcoreTypeError
    )


# Building a stack

WEIGHTS = ("out", "down")

TABLES = [oracle.rotary_tables(9, 16), oracle.rotary_tables(7, 16)]


def make(layer=None, **changes):
    """Return a stack of one layer; a string stands for that weight of the layer."""
    full = make_layer(np.random.default_rng(0), True)

    def named(given):
        return {
            key: [getattr(full, name) for name in value]
            if key in ("qkv", "gate_up") and isinstance(value, list)
            else value
            for key, value in given.items()
        } | {key: getattr(full, value) for key, value in given.items() if isinstance(value, str) and value in WEIGHTS}

    changed = dataclasses.replace(full, name="model.layers.7", **named(layer or {}))
    return decoder.Decoder([changed], **{**SIZES, "rotary": TABLES, **PLAIN, **named(changes)})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"qkv": "out"}, "qkv has shape [48, 64], expected [128, 48]"),
        ({"qkv": ["out", "out"]}, "qkv has 96 rows in 2 weights, expected 128"),
        ({"gate_up": ["out", "down", "out", "out"]}, "gate_up has 192 rows in 4 weights, expected 160"),
        ({"qkv": ["down", "gate_up"]}, "qkv has 208 rows in 2 weights, expected 128"),
        ({"qkv": []}, "qkv is an empty sequence, expected at least one QuantizedTensor"),
        ({"out": "down"}, "out has shape [48, 80], expected [48, 64]"),
        ({"gate_up": "down"}, "gate_up has shape [48, 80], expected [160, 48]"),
        ({"down": "out"}, "down has shape [48, 64], expected [48, 80]"),
        ({"input_norm": np.ones(47, np.float32)}, "input_norm has shape [47], expected [48]"),
        ({"k_norm": np.ones(48, np.float32)}, "k_norm has shape [48], expected [16]"),
        ({"qkv_bias": np.ones((128, 1), np.float32)}, "qkv_bias has shape [128, 1], expected [128]"),
        ({"window": -1}, "window is -1, expected 0 or a number of keys"),
        ({"rotary": 2}, "rotary is 2, expected the index of one of the 2 tables, or -1 for none"),
    ],
)
def test_a_layer(layer, message):
    refused(lambda: make(layer), f"decoder: model.layers.7: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads is 3, expected a multiple of kv_heads = 2"),
        ({"hidden_size": 0}, "hidden_size is 0, expected a positive number"),
        ({"eps": -1.0}, "eps is -1, expected a number from 0 to 1e30"),
        ({"compute": "int4"}, "compute is 'int4', expected one of 'float', 'int8', 'int8_asym', 'int16'"),
        ({"activation": "tanh"}, "activation is 'tanh', expected one of 'silu', 'gelu', 'gelu_tanh', 'relu'"),
        ({"residual_multiplier": np.nan}, "residual_multiplier is nan, expected a finite number"),
        ({"logit_soft_cap": -1.0}, "logit_soft_cap is -1, expected 0 or a positive number"),
        ({"final_norm": np.ones(3, np.float32)}, "final_norm has shape [3], expected [48]"),
        ({"head": "out"}, "head has shape [48, 64], expected [48, 48]"),
        ({"head_bias": np.ones(3, np.float32)}, "head_bias is given without a head, expected none"),
        (
            {"rotary": [oracle.rotary_tables(9, 18)]},
            "rotary[0].cos has shape [9, 18], expected [P, R] with R even and at most the head size 16",
        ),
        (
            {"rotary": [TABLES[0], oracle.rotary_tables(9, 8)]},
            "rotary[1].cos has shape [9, 8], expected 16 columns like the first table",
        ),
    ],
)
def test_options(options, message):
    refused(lambda: make(**options), f"decoder: {message}")


def test_kinds_of_arguments():
    for call, message in (
        (lambda: make({"qkv": np.ones((128, 48))}), "model.layers.7: qkv is a ndarray, expected a QuantizedTensor"),
        (
            lambda: make({"qkv": ["out", "name"]}),
            "model.layers.7: qkv[1] is a str, expected a QuantizedTensor",
        ),
        (
            lambda: make({"input_norm": np.ones(48)}),
            "model.layers.7: input_norm has dtype float64, expected float32, float16 or bfloat16",
        ),
        (lambda: make(hidden_size=4.5), "hidden_size is 4.5, expected an integer"),
        (lambda: make(dtype="int8"), "dtype is 'int8', expected float32, float16 or bfloat16"),
        (lambda: decoder.Decoder([TABLES], **SIZES), "layers[0] is a list, expected a Layer"),
        (lambda: decoder.Decoder(None, **SIZES), "layers is a NoneType, expected a sequence of Layers"),
        (lambda: make(rotary=None), "rotary is a NoneType, expected a sequence of tables (cos, sin)"),
        (lambda: make(rotary=[1]), "rotary[0] is a int, expected two arrays: (cos, sin)"),
        (lambda: make(rotary=[TABLES[0] * 2]), "rotary[0] is a tuple, expected two arrays: (cos, sin)"),
        (lambda: make(head=np.ones(3)), "head is a ndarray, expected a QuantizedTensor"),
    ):
        refused(call, f"decoder: {message}", qcore.QcoreTypeError)


# Calls of a stack

HIDDEN = inputs(2, 3)
CALL = {"hidden": HIDDEN, "positions": positions_of([0, 0], 3), "past": PAST}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hidden": HIDDEN[..., :40]}, "hidden has shape [2, 3, 40], expected [B, T, 48] with at least one token"),
        ({"hidden": HIDDEN[0]}, "hidden has shape [3, 48], expected [B, T, 48] with at least one token"),
        ({"hidden": HIDDEN[:, :0]}, "hidden has shape [2, 0, 48], expected [B, T, 48] with at least one token"),
        (
            {"hidden": HIDDEN[:, :0], "last": None},
            "hidden has shape [2, 0, 48], expected [B, T, 48] with at least one token",
        ),
        (
            {"hidden": HIDDEN[:, :0], "out": np.ones((2, 1, 53), np.float32)},
            "hidden has shape [2, 0, 48], expected [B, T, 48] with at least one token",
        ),
        ({"positions": CALL["positions"][:, :2]}, "positions has shape [2, 2], expected [2, 3]"),
        (
            {"positions": CALL["positions"] + np.int32(318)},
            "positions has the element 320 at index [0, 2], expected 0 to 319, the rows of the rotary tables",
        ),
        (
            {"past": np.array([0, 6], np.int32)},
            "past has the element 6 at index [1], expected 0 to 5: 3 tokens more in a cache for 8",
        ),
        (
            {"first": np.array([0, 9], np.int32)},
            "first has the element 9 at index [1], expected 0 to 8, the positions of the caches",
        ),
        ({"max_length": 2}, "max_length is 2, expected 0 or 3 to 8"),
        ({"last": 0}, "last is 0, expected 1 to 3, or None for all"),
        ({"last": 4}, "last is 4, expected 1 to 3, or None for all"),
        ({"result": "scores"}, "result is 'scores', expected one of 'logits', 'hidden'"),
        (
            {"out": np.ones((2, 4, 53), np.float32)},
            "logits has shape [2, 4, 53], expected [2, R, 53] with R from 1 to 3",
        ),
        (
            {"out": np.ones((2, 1, 53), np.float32), "out_dtype": "float32"},
            "out and out_dtype are both given, expected at most one of them",
        ),
    ],
)
def test_forward(given, message):
    model = Model()
    caches = model.caches(2, 8)
    for cache in caches:
        cache.keys[:] = cache.values[:] = 7
    refused(lambda: model.decoder.forward(**{**CALL, "caches": caches, **given}), f"decoder: {message}")
    assert all((cache.keys == 7).all() and (cache.values == 7).all() for cache in caches)


def test_forward_with_other_caches():
    model = Model()
    refused(
        lambda: model.decoder.forward(**CALL, caches=list(model.caches(2, 8))[:2]),
        "decoder: there are 2 caches, expected one for each of the 3 layers",
    )
    refused(
        lambda: model.decoder.forward(**CALL, caches=None),
        "decoder: caches is a NoneType, expected Caches or a KeyValueCache for each layer",
        qcore.QcoreTypeError,
    )
    caches = list(model.caches(2, 8))
    caches[1] = decoder.KeyValueCache.empty(2, 2, 8, 15)
    refused(
        lambda: model.decoder.forward(**CALL, caches=caches),
        "decoder: layers.1: cache.keys has shape [2, 2, 8, 15], expected [2, 2, 8, 16]",
    )
    bare = Model(head=False).decoder
    refused(
        lambda: bare.forward(**CALL, caches=bare.caches(2, 8), result="logits", out=np.ones((2, 1, 53), np.float32)),
        "decoder: logits are wanted, but the decoder has no head",
    )
