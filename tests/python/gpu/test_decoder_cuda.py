"""The decoder's operators and stacks on a CUDA device: the bits of the CPU's reference, and recorded graphs.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import dataclasses

import numpy as np
import pytest

import qcore
from qcore import decoder

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CACHES = ("float32", "float16", "bfloat16", "int8")
OPERATORS = ("rms_norm", "rotary_embedding", "gated_activation", "soft_cap", "write_cache", "attention")


def normal(*shape, seed=0, dtype=torch.float32, factor=1.0):
    values = factor * np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(values).to(dtype)


def assert_same_bits(given, expected):
    given, expected = given.cpu(), expected.cpu()
    assert given.dtype == expected.dtype
    assert given.shape == expected.shape
    integer = {4: torch.int32, 2: torch.int16, 1: torch.int8}[given.element_size()]
    same = given.contiguous().view(integer) == expected.contiguous().view(integer)
    if given.is_floating_point():
        same |= given.isnan() & expected.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ"


def moved(cache):
    """Return a copy of a cache on the device."""
    arrays = {field.name: getattr(cache, field.name) for field in dataclasses.fields(cache)}
    return decoder.KeyValueCache(**{name: None if array is None else array.cuda() for name, array in arrays.items()})


def filled(batch, heads, capacity, size, dtype, seed=0):
    like = torch.zeros(1)
    cache = decoder.KeyValueCache.empty(batch, heads, capacity, size, dtype, like=like)
    past = torch.zeros(batch, dtype=torch.int32)
    keys, values = (normal(batch, capacity, heads, size, seed=seed + i) for i in range(2))
    decoder.write_cache(keys, values, past, cache)
    return cache


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 64, 128, 512, 513, 4096, 4100, 14336])
def test_rms_norm(x_dtype, out_dtype, count):
    x, weight = normal(5, count, dtype=x_dtype), normal(count, seed=1)
    residual = normal(5, count, seed=2, dtype=out_dtype)
    for options in ({}, {"offset": 1.0, "round_normalized": True}):
        ours, theirs = residual.cuda(), residual.clone()
        y = decoder.rms_norm(x.cuda(), weight.cuda(), residual=ours, out_dtype=out_dtype, **options)
        assert qcore.last_kernel("decoder_rms_norm") == "simt"
        assert_same_bits(y, decoder.rms_norm(x, weight, residual=theirs, out_dtype=out_dtype, **options))
        assert_same_bits(ours, theirs)
    assert_same_bits(decoder.rms_norm(x.cuda()), decoder.rms_norm(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", list(decoder.ACTIVATIONS))
def test_gated_activation_and_soft_cap(dtype, activation):
    x = normal(3, 7, 2 * 1000, dtype=dtype, factor=4)
    x[0, 0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    assert_same_bits(decoder.gated_activation(x.cuda(), activation), decoder.gated_activation(x, activation))
    capped = decoder.soft_cap(x.cuda(), 30.0, multiplier=0.5)
    assert_same_bits(capped, decoder.soft_cap(x, 30.0, multiplier=0.5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (128, 128), (80, 32), (33, 20)])
def test_rotary_embedding(dtype, layout, size, rotary):
    x = normal(2, 5, 6, size, dtype=dtype)
    cos, sin = normal(40, rotary, seed=1), normal(40, rotary, seed=2)
    positions = torch.arange(10, dtype=torch.int32).reshape(2, 5) * 4
    expected = decoder.rotary_embedding(x, positions, cos, sin, layout=layout)
    on_device = x.cuda()
    tables = positions.cuda(), cos.cuda(), sin.cuda()
    assert_same_bits(decoder.rotary_embedding(on_device, *tables, layout=layout), expected)
    decoder.rotary_embedding(on_device, *tables, layout=layout, out=on_device)
    assert_same_bits(on_device, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", CACHES)
def test_write_cache(dtype, cache_dtype):
    cache = filled(2, 3, 9, 80, cache_dtype)
    ours = moved(cache)
    keys, values = normal(2, 4, 3, 80, seed=5, dtype=dtype), normal(2, 4, 3, 80, seed=6, dtype=dtype)
    past = torch.tensor([5, 0], dtype=torch.int32)
    decoder.write_cache(keys.cuda(), values.cuda(), past.cuda(), ours)
    decoder.write_cache(keys, values, past, cache)
    for field in dataclasses.fields(cache):
        if getattr(cache, field.name) is not None:
            assert_same_bits(getattr(ours, field.name), getattr(cache, field.name))


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(32, 8, 128), (14, 2, 64), (16, 1, 64), (4, 4, 80), (8, 4, 256), (2, 1, 512)]
)
@pytest.mark.parametrize("tokens", [1, 7, 70])
def test_attention(cache_dtype, heads, kv_heads, size, tokens):
    cache = filled(2, kv_heads, 1200, size, cache_dtype)
    ours = moved(cache)
    q = normal(2, tokens, heads, size, seed=3, dtype=torch.bfloat16)
    for past, options in (
        ([0, 255], {}),
        ([1100, 600], {"first": torch.tensor([300, 0], dtype=torch.int32)}),
        ([1100, 3], {"window": 300, "soft_cap": 20.0, "max_length": 1180}),
    ):
        lengths = torch.tensor(past, dtype=torch.int32)
        on_device = {name: value.cuda() if hasattr(value, "cuda") else value for name, value in options.items()}
        y = decoder.attention(q.cuda(), ours, lengths.cuda(), **on_device)
        assert qcore.last_kernel("decoder_attention") == "simt"
        assert_same_bits(y, decoder.attention(q, cache, lengths, **options))


def test_attention_over_many_positions():
    cache = filled(1, 1, 20_000, 64, "bfloat16")
    q, past = normal(1, 1, 4, 64, dtype=torch.bfloat16), torch.tensor([19_999], dtype=torch.int32)
    y = decoder.attention(q.cuda(), moved(cache), past.cuda())
    assert_same_bits(y, decoder.attention(q, cache, past))


SIZES = {"hidden_size": 256, "heads": 8, "kv_heads": 2, "head_size": 64, "intermediate_size": 512}
VOCABULARY, POSITIONS, CAPACITY = 1000, 700, 640


def packed(rows, features, bits, seed):
    values = normal(rows, features, seed=seed, factor=features**-0.5)
    return qcore.quantize(
        values,
        bits=bits,
        block_size=32,
        scheme="asymmetric" if bits == 4 else "symmetric",
        method="rtn",
        scale_dtype="float32",
    )


def stack(device, dtype, full):
    hidden, inner, size = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["head_size"]
    joint = (SIZES["heads"] + 2 * SIZES["kv_heads"]) * size

    def layer(i):
        weights = (
            packed(joint, hidden, 4, 10 * i),
            packed(hidden, SIZES["heads"] * size, 4, 10 * i + 1),
            packed(2 * inner, hidden, 4, 10 * i + 2),
            packed(hidden, inner, 8, 10 * i + 3),
        )
        made = decoder.Layer(
            *(weight.to(device) for weight in weights),
            input_norm=1 + normal(hidden, seed=i, factor=0.2),
            mlp_norm=1 + normal(hidden, seed=i + 20, factor=0.2),
        )
        if full:
            extra = {name: 1 + normal(size, seed=i, factor=0.2) for name in ("q_norm", "k_norm")}
            made = dataclasses.replace(made, **extra, qkv_bias=normal(joint, seed=i), window=100 * i)
        return made

    angles = torch.arange(POSITIONS)[:, None] * 100.0 ** -(torch.arange(size // 2) / size)[None]
    tables = torch.cat([angles, angles], -1)
    return decoder.Decoder(
        [layer(i) for i in range(3)],
        **SIZES,
        dtype=dtype,
        rotary=[(tables.cos().float(), tables.sin().float())],
        final_norm=1 + normal(hidden, seed=50, factor=0.2),
        head=packed(VOCABULARY, hidden, 8, 51).to(device),
        logit_soft_cap=30.0 if full else 0.0,
    )


def steps(full):
    """Return the numbers of tokens of successive calls."""
    return (5, 1, 300, 1, 1, 4) if full else (260, 1, 1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "int8")]
)
def test_stacks_give_what_the_cpu_gives(full, dtype, cache_dtype):
    ours, theirs = stack("cuda", dtype, full), stack("cpu", dtype, full)
    kind = getattr(torch, dtype)
    mine = ours.caches(2, CAPACITY, cache_dtype, like=torch.zeros(1, device="cuda"))
    other = theirs.caches(2, CAPACITY, cache_dtype, like=torch.zeros(1))
    past = torch.tensor([0, 3], dtype=torch.int32)
    decoder_inputs = {"first": torch.tensor([0, 3], dtype=torch.int32)}
    for number, tokens in enumerate(steps(full)):
        hidden = normal(2, tokens, SIZES["hidden_size"], seed=number, dtype=kind)
        positions = past[:, None] + torch.arange(tokens, dtype=torch.int32)
        expected = theirs.forward(hidden, positions, past, other, **decoder_inputs)
        given = ours.forward(
            hidden.cuda(), positions.cuda(), past.cuda(), mine, first=decoder_inputs["first"].cuda()
        ).cpu()
        # Products may add their blocks in another order, which activations in int8 magnify.
        scale = expected.float().abs().max()
        bound = {"float32": 2e-2, "float16": 3e-2, "bfloat16": 6e-2}[dtype]
        assert (given.float() - expected.float()).abs().max() <= bound * scale
        past = past + tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_recorded_step_is_replayed_with_growing_lengths(dtype):
    model = stack("cuda", dtype, True)
    kind = getattr(torch, dtype)
    like = torch.zeros(1, device="cuda")
    plain, recorded = (model.caches(1, CAPACITY, like=like) for _ in range(2))
    hidden = torch.zeros(1, 1, SIZES["hidden_size"], dtype=kind, device="cuda")
    positions, past = (torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in ((1, 1), (1,)))
    out = torch.zeros(1, 1, VOCABULARY, dtype=kind, device="cuda")
    for caches in (plain, recorded):
        prompt = normal(1, 250, SIZES["hidden_size"], seed=7, dtype=kind).cuda()
        places = torch.arange(250, dtype=torch.int32, device="cuda")[None]
        model.forward(prompt, places, torch.zeros_like(past), caches)
    past.fill_(250), positions.fill_(250)
    model.forward(hidden, positions, past, recorded, out=out)  # before the recording: pools and tables are made
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.forward(hidden, positions, past, recorded, out=out)
    for step in range(20):
        token = normal(1, 1, SIZES["hidden_size"], seed=100 + step, dtype=kind).cuda()
        hidden.copy_(token)
        past.fill_(250 + step), positions.fill_(250 + step)
        graph.replay()
        expected = model.forward(token, positions, past, plain)
        assert_same_bits(out, expected)


def test_operators_run_on_the_stream_that_is_current():
    stream = torch.cuda.Stream()
    x = normal(64, 4096).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = decoder.rms_norm(x)
        for _ in range(10):
            y = decoder.rms_norm(y)
    stream.synchronize()
    expected = decoder.rms_norm(x.cpu())
    for _ in range(10):
        expected = decoder.rms_norm(expected)
    assert_same_bits(y, expected)


def test_every_operator_has_a_cuda_row():
    for operator in OPERATORS:
        (row,) = [row for row in qcore.kernels(f"decoder_{operator}") if row.device == "cuda"]
        assert row.name == "simt" and row.available
