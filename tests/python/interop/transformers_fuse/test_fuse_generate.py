"""generate() of a fused model: every way of decoding, caches, masks, and what runs layer by layer."""

import warnings

import pytest
import torch
from fused_models import tiny_models
from fused_models.calls import greedy, prompt, relative
from transformers import TextStreamer
from transformers.cache_utils import DynamicCache, StaticCache

from qcore import QcoreValueError
from qcore.transformers import LayerByLayerWarning, fuse_, unfuse_
from qcore.transformers.kv_cache import KvLayer, quantize_heads


def both(name, run, **options):
    """Return what ``run`` returns for the unfused and for the fused model."""
    model = tiny_models.make(name, compute="float")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(model)
    fuse_(model, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayerByLayerWarning)
        return expected, run(model)


@pytest.mark.parametrize(
    "options",
    (
        {"do_sample": True, "top_k": 20, "temperature": 0.7},
        {"num_beams": 3, "do_sample": False},
        {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
        {"do_sample": True, "num_return_sequences": 3},
        {"do_sample": False, "repetition_penalty": 1.3},
        {"do_sample": False, "use_cache": False},
        {"do_sample": False, "prefill_chunk_size": 4},
        {"do_sample": False, "prompt_lookup_num_tokens": 3},
    ),
    ids=str,
)
def test_ways_to_generate(options):
    inputs = prompt(1 if "prompt_lookup_num_tokens" in options else 2)

    def run(model):
        torch.manual_seed(5)
        return model.generate(**inputs, max_new_tokens=20, **options)

    expected, got = both("gemma3", run)
    assert torch.equal(got, expected)


def test_assisted_generation():
    assistant = tiny_models.make("llama", seed=1)

    def run(model):
        return model.generate(**prompt(1), max_new_tokens=20, do_sample=False, assistant_model=assistant)

    expected, got = both("mistral", run)
    assert torch.equal(got, expected)


def test_streaming(capsys):
    class Tokenizer:
        def decode(self, ids, **kwargs):
            return " ".join(str(int(each)) for each in ids) + " "

    model = tiny_models.make("llama")
    fuse_(model)
    out = model.generate(**prompt(1), max_new_tokens=5, do_sample=False, streamer=TextStreamer(Tokenizer()))
    assert capsys.readouterr().out.split() == [str(int(each)) for each in out[0]]


def test_continued_cache():
    """A cache that generate() returned goes on, also one that the unfused model began."""
    model = tiny_models.make("qwen2-window", compute="float")
    inputs = prompt(1)
    whole = greedy(model, inputs, 24).sequences
    cache = DynamicCache()
    first = greedy(model, inputs, 4, past_key_values=cache).sequences
    fuse_(model)
    second = greedy(model, {"input_ids": first}, 10, past_key_values=cache).sequences
    assert all(type(layer) is KvLayer for layer in cache.layers)
    third = greedy(model, {"input_ids": second}, 5, past_key_values=cache).sequences
    unfuse_(model)
    assert torch.equal(greedy(model, {"input_ids": third}, 5, past_key_values=cache).sequences, whole)


BY_LAYER = {
    "output_hidden_states": ({"output_hidden_states": True}, "output_hidden_states is set"),
    "output_attentions": ({"output_attentions": True}, "output_attentions is set"),
    "4-D mask": (
        {"attention_mask": torch.zeros(1, 1, 14, 14).masked_fill(torch.ones(14, 14).triu(1).bool(), -1e9)},
        "attention_mask is .1, 1, 14, 14.",
    ),
    "hole": ({"attention_mask": (torch.arange(14) != 6).long()[None]}, "zeros behind ones"),
    "right padding": ({"attention_mask": (torch.arange(14) < 9).long()[None]}, "zeros behind ones"),
}


@pytest.mark.parametrize("case", BY_LAYER)
def test_other_calls_run_layer_by_layer(case):
    options, reason = BY_LAYER[case]
    model = tiny_models.make("llama", compute="float")
    model.set_attn_implementation("eager")
    ids = prompt(1)["input_ids"]
    with torch.no_grad():
        expected = model(ids, **options)
        fuse_(model)
        with pytest.warns(LayerByLayerWarning, match=reason):
            got = model(ids, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(ids, **options)  # says it once
    assert torch.equal(got.logits, expected.logits)
    assert len(got.hidden_states or ()) == len(expected.hidden_states or ())


def test_static_cache_runs_layer_by_layer():
    model = tiny_models.make("llama", compute="float")
    expected = greedy(model, prompt(1), 6).sequences
    fuse_(model)
    with pytest.warns(LayerByLayerWarning, match="StaticCache, expected a DynamicCache"):
        got = greedy(model, prompt(1), 6, cache_implementation="static").sequences
    assert torch.equal(got, expected)
    cache = StaticCache(config=model.config, max_cache_len=64)
    assert torch.equal(greedy(model, prompt(1), 6, past_key_values=cache).sequences, expected)


def test_a_call_may_change_between_the_two_ways():
    """The cache of a fused step serves a step layer by layer, and the other way round."""
    model = tiny_models.make("gemma3", compute="float")
    ids = prompt(1)["input_ids"].repeat(1, 2)
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model)
        cache, parts = DynamicCache(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LayerByLayerWarning)
            for begin in range(0, ids.shape[1], 4):
                options = {"output_hidden_states": True} if begin % 8 else {}
                parts.append(model(ids[:, begin : begin + 4], past_key_values=cache, **options).logits)
    assert relative(torch.cat(parts, 1), expected) < 2e-6


def test_inference_mode():
    model = tiny_models.make("qwen3", compute="float")
    expected = greedy(model, prompt(), 6).sequences
    fuse_(model)
    cache = DynamicCache()
    with torch.inference_mode():
        assert torch.equal(greedy(model, prompt(), 6).sequences, expected)
        first = greedy(model, prompt(1), 3, past_key_values=cache, num_beams=2).sequences
    model.generate(first, max_new_tokens=3, do_sample=False, past_key_values=cache, num_beams=2)


def test_compiled():
    model = tiny_models.make("llama", compute="float")
    ids = prompt(1)["input_ids"]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        fuse_(model)
        got = torch.compile(model, backend="eager")(ids, use_cache=False).logits
    assert relative(got, expected) < 2e-6


def test_an_adapter_is_not_passed_by():
    model = tiny_models.make("llama", compute="float")
    ids = prompt(1)["input_ids"]
    fuse_(model)
    attention = model.model.layers[1].self_attn
    base = attention.q_proj

    class Adapter(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) * 2

    with torch.no_grad():
        plain = model(ids).logits
        attention.q_proj = Adapter(base)
        with pytest.warns(LayerByLayerWarning, match="a layer was exchanged after fuse_"):
            adapted = model(ids).logits
        assert relative(adapted, plain) > 0.01
        with pytest.raises(QcoreValueError, match="a layer was exchanged after fuse_"):
            unfuse_(model)
        attention.q_proj = base
        assert torch.equal(model(ids).logits, plain)


@pytest.mark.parametrize(("kv_cache", "limit"), (("float32", 2e-6), ("bfloat16", 0.003), ("int8", 0.008)))
def test_error_of_the_cache(kv_cache, limit):
    """Relative L2 error of logits against an unfused model, whose cache is float32; docs/transformers.md has these."""
    model = tiny_models.make("qwen3", compute="float")
    ids = prompt(1)["input_ids"].repeat(1, 4)
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model, kv_cache=kv_cache)
        cache = DynamicCache()
        got = torch.cat([model(ids[:, i : i + 7], past_key_values=cache).logits for i in range(0, 56, 7)], 1)
    assert cache.layers[0].kv_dtype == kv_cache
    assert relative(got, expected) < limit
    sizes = {"float32": 4, "bfloat16": 2, "int8": 1 + 4 / 32}
    assert cache.layers[0].nbytes == 2 * 2 * 64 * 32 * sizes[kv_cache]


class TestKvLayer:
    def states(self, batch=2, tokens=5):
        generator = torch.Generator().manual_seed(1)
        return (torch.randn(batch, 3, tokens, 8, generator=generator) for _ in range(2))

    @pytest.mark.parametrize("kv_dtype", ("float32", "bfloat16", "int8"))
    def test_grows_and_gives_back(self, kv_dtype):
        layer = KvLayer(kv_dtype, torch.float32)
        assert layer.get_seq_length() == 0 and layer.keys is None and not hasattr(layer, "batch_size")
        everything = []
        for _ in range(30):
            keys, values = self.states()
            everything.append(keys)
            assert layer.get_mask_sizes(5) == (layer.get_seq_length() + 5, 0)
            got, _ = layer.update(keys, values)
        expected = torch.cat(everything, 2)
        assert got.shape == expected.shape and layer.get_seq_length() == 150 and layer.capacity == 256
        bound = {"float32": 0.0, "bfloat16": 2**-8, "int8": 1 / 254 + 1e-6}[kv_dtype]
        assert ((got - expected).abs() <= bound * expected.abs().amax(-1, keepdim=True)).all()
        assert layer.batch_size == 2 and layer.get_max_length() == -1 and layer.is_croppable

    @pytest.mark.parametrize("kv_dtype", ("float32", "int8"))
    def test_sequences_are_exchanged(self, kv_dtype):
        layer = KvLayer(kv_dtype, torch.float32)
        layer.update(*self.states())
        before = layer.values.clone()
        layer.reorder_cache(torch.tensor([1, 0]))
        assert torch.equal(layer.values, before[[1, 0]])
        layer.batch_repeat_interleave(3)
        assert torch.equal(layer.values, before[[1, 1, 1, 0, 0, 0]])
        layer.batch_select_indices(torch.tensor([0, 3]))
        assert torch.equal(layer.values, before[[1, 0]])
        layer.crop(-2)
        assert torch.equal(layer.values, before[[1, 0], :, :3])
        layer.update(*(each[:, :, :1] for each in self.states()))
        assert layer.get_seq_length() == 4
        with pytest.raises(QcoreValueError, match="tokens_to_remove is 3"):
            layer.crop(3)
        with pytest.raises(QcoreValueError, match=r"\[5, 3, 8\], expected those of the cache, \[2, 3, 8\]"):
            layer.update(*self.states(5))
        layer.reset()
        layer.update(*self.states(5))
        assert layer.batch_size == 5

    def test_int8_codes(self):
        states = torch.tensor([[[[1.0, -254.0, 3.0], [0.0, 0.0, 0.0], [1.0, float("nan"), 2.0]]]])
        codes, scales = quantize_heads(states)
        assert codes.tolist() == [[[[0, -127, 2], [0, 0, 0], [0, 0, 0]]]]
        assert scales[0, 0, :2].tolist() == [2.0, 0.0] and bool(scales[0, 0, 2].isnan())

    def test_wrong_dtype(self):
        with pytest.raises(
            QcoreValueError, match="kv_dtype is 'int4', expected one of float32, bfloat16, float16, int8"
        ):
            KvLayer("int4", torch.float32)
