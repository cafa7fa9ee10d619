"""fuse_ on models of every family: the same logits and tokens as the unfused model, and the same state."""

import copy
import gc
import io
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers
from fused_models import stack_oracle, tiny_models
from fused_models.calls import LENGTH, greedy, prompt, relative
from transformers.cache_utils import DynamicCache

import qcore.torch
from qcore import QcoreTypeError, QcoreValueError
from qcore.transformers import fuse_, unfuse_
from qcore.transformers.fuse import model as fuse_model
from qcore.transformers.fuse import stack as fuse_stack
from qcore.transformers.fuse import structure as fuse_structure
from qcore.transformers.fuse import weights as fuse_weights
from qcore.transformers.fuse.weights import JointLinear, RowsLinear
from qcore.transformers.kv_cache import CACHE


@pytest.mark.parametrize("name", tiny_models.CONFIGS)
def test_tokens_equal_those_of_the_unfused_model(name):
    model = tiny_models.make(name, compute="float")
    inputs = prompt()
    expected = greedy(model, inputs)
    fuse_(model)
    got = greedy(model, inputs)
    assert torch.equal(got.sequences, expected.sequences)
    assert relative(torch.stack(got.logits), torch.stack(expected.logits)) < 2e-6


@pytest.mark.parametrize("compute", ("int8", "int8_asym", "int16"))
@pytest.mark.parametrize("name", ("llama-llama3", "gemma3", "qwen2"))
def test_tokens_equal_with_quantized_activations(name, compute):
    model = tiny_models.make(name, bits=4, compute=compute)
    inputs = prompt()
    expected = greedy(model, inputs)
    fuse_(model)
    got = greedy(model, inputs)
    assert torch.equal(got.sequences, expected.sequences)
    # A single code that rounds to the other side makes some thousandths.
    assert relative(torch.stack(got.logits), torch.stack(expected.logits)) < 0.01


@pytest.mark.parametrize("name", tiny_models.CONFIGS)
def test_bfloat16_chooses_the_same_token_wherever_its_lead_is_more_than_rounding(name):
    """Logits of bfloat16 have 8 bits, so that two tokens often tie; each step gets the unfused model's tokens."""
    model = tiny_models.make(name, torch.bfloat16, compute="float")
    inputs = prompt()
    expected = greedy(model, inputs)
    fuse_(model)
    cache, mask, ids = DynamicCache(), inputs["attention_mask"], inputs["input_ids"]
    steps = sure = 0
    for step, logits in enumerate(expected.logits):
        if name == "phi3-longrope" and LENGTH + step > 32:
            break  # from here generate() begins anew, with other angles
        with torch.no_grad():
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            output = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        got = output.logits[:, -1].float()
        assert output.logits.dtype == torch.bfloat16
        assert relative(got, logits) < 0.04
        best = logits.float().topk(2).values
        lead = best[:, 0] - best[:, 1] > 0.05 * logits.float().std()
        steps, sure = steps + len(lead), sure + int(lead.sum())
        assert torch.equal(got.argmax(-1)[lead], logits.argmax(-1)[lead])
        ids = expected.sequences[:, LENGTH + step, None]
        mask = torch.cat((mask, torch.ones_like(ids)), 1)
    assert sure >= steps / 2 or name == "gemma2"  # its soft cap makes large logits equal


@pytest.mark.parametrize("kv_cache", (None, "int8"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", tiny_models.CONFIGS)
def test_native_stack_does_what_its_oracle_does(name, dtype, kv_cache, monkeypatch):
    """Same roundings, so that in bfloat16 only sums that lie between two numbers differ."""
    model = tiny_models.make(name, dtype, compute="float")
    ids, mask = prompt().values()
    after = torch.tensor([[7, 8, 9], [11, 12, 13]])
    fuse_(model, kv_cache=kv_cache)
    results = []
    for stand_in in (None, stack_oracle):
        if stand_in is not None:
            monkeypatch.setattr(fuse_stack, "native", stand_in)
            model._qcore_stack.release()
        cache = DynamicCache()
        with torch.no_grad():
            prefill = model(ids, attention_mask=mask, past_key_values=cache).logits[mask.bool()]
            longer = torch.cat((mask, torch.ones_like(after)), 1)
            step = model(after, attention_mask=longer, past_key_values=cache).logits
        keys = [layer.keys[longer.bool()[:, None].expand(layer.keys.shape[:3])] for layer in cache.layers]
        results.append((prefill, step, torch.stack(keys)))
    limit = 3e-6 if dtype == torch.float32 and kv_cache is None else 0.02
    for got, expected in zip(*results, strict=True):
        assert got.dtype == dtype
        assert relative(got, expected) < limit


@pytest.mark.parametrize("name", sorted({CACHE, "past_key_values"}))
def test_prompts_longer_than_the_window_and_in_pieces(name):
    model = tiny_models.make("gemma3", compute="float")
    ids = prompt(1)["input_ids"].repeat(1, 3)
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model)
        whole = model(ids).logits
        cache, pieces = DynamicCache(), []
        for begin, end in ((0, 5), (5, 6), (6, 30), (30, 42)):
            pieces.append(model(ids[:, begin:end], **{name: cache}).logits)
    assert relative(whole, expected) < 2e-6
    assert relative(torch.cat(pieces, 1), expected) < 2e-6


def test_logits_to_keep_and_labels():
    model = tiny_models.make("granite", compute="float")
    ids = prompt(1)["input_ids"]
    kept = (0, 1, 4, torch.tensor([2, 7]), torch.tensor([[3, 1]]), (torch.arange(LENGTH) % 3 == 0)[None])
    with torch.no_grad():
        expected = [model(ids, logits_to_keep=keep).logits for keep in kept]
        loss = model(ids, labels=ids).loss
        fuse_(model)
        for keep, logits in zip(kept, expected, strict=True):
            torch.testing.assert_close(model(ids, logits_to_keep=keep).logits, logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(ids, labels=ids).loss, loss, rtol=1e-5, atol=1e-6)
        as_tuple = model(ids, None, use_cache=False, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == 1
    assert model(ids).past_key_values.get_seq_length() == LENGTH
    assert model(ids, use_cache=False).past_key_values is None


def test_inputs_embeds():
    model = tiny_models.make("granite", compute="float")
    embeddings = model.get_input_embeddings()(prompt(1)["input_ids"]).detach()
    with torch.no_grad():
        expected = model(inputs_embeds=embeddings).logits
        fuse_(model)
        assert relative(model(inputs_embeds=embeddings).logits, expected) < 2e-6


def test_state_is_that_of_the_unfused_model():
    model = tiny_models.make("llama-biases", bits=4)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    linears = [module for module in model.modules() if isinstance(module, qcore.torch.Linear)]
    gone = [weakref.ref(module) for module in linears if module.__class__ is not RowsLinear]
    names = [name for name, module in model.named_modules() if isinstance(module, qcore.torch.Linear)]
    fuse_(model)
    fused = model.state_dict()
    assert list(fused) == list(state)
    assert all(torch.equal(fused[key], state[key]) for key in state)
    joined = [name for name, module in model.named_modules() if type(module) is RowsLinear]
    assert joined == [name for name in names if name.endswith(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))]
    weight = model.model.layers[0].self_attn.k_proj.weight
    assert np.array_equal(weight.nibbles(), state["model.layers.0.self_attn.k_proj.codes"].numpy())
    assert (weight.dtype, weight.device) == (torch.float32, torch.device("cpu"))
    del linears
    gc.collect()
    # The joined layers are gone: per layer o_proj and down_proj are left, and the head.
    assert sum(each() is not None for each in gone) == len(names) - len(joined)
    assert sum(isinstance(module, JointLinear) for module in model.modules()) == 2 * model.config.num_hidden_layers
    with pytest.raises(RuntimeError, match=r"call qcore\.transformers\.unfuse_"):
        model.load_state_dict(state)
    unfuse_(model)
    assert not any(type(module) is RowsLinear for module in model.modules())
    assert type(model).__mro__[0].__module__.startswith("transformers.")
    plain = model.state_dict()
    assert list(plain) == list(state) and all(torch.equal(plain[key], state[key]) for key in state)
    model.load_state_dict(state)


@pytest.mark.parametrize("compute", ("float", "int8"))
@pytest.mark.parametrize("name", ("llama-biases", "gemma3"))
def test_projections_of_different_formats(name, compute):
    """Some layers have others, as those of GGUF's K_M files do."""
    model = tiny_models.make(name, bits=4, compute=compute)
    for layer in (model.model.layers[0], model.model.layers[2]):
        for parent, key in ((layer.self_attn, "v_proj"), (layer.mlp, "up_proj")):
            old = getattr(parent, key)
            values = torch.from_numpy(old.weight.dequantize())
            weight = qcore.quantize(values, bits=8, block_size=16, scheme="asymmetric")
            setattr(parent, key, qcore.torch.Linear(weight, old.bias, compute=compute))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    inputs = prompt()
    expected = greedy(model, inputs)
    fuse_(model)
    assert type(model.model.layers[0].self_attn.q_proj) is qcore.torch.Linear
    assert type(model.model.layers[1].self_attn.q_proj) is RowsLinear
    got = greedy(model, inputs)
    assert torch.equal(got.sequences, expected.sequences)
    limit = 2e-6 if compute == "float" else 0.01
    assert relative(torch.stack(got.logits), torch.stack(expected.logits)) < limit
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    unfuse_(model)
    assert not any(type(module) is RowsLinear for module in model.modules())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_separate_weights_are_freed_layer_by_layer(monkeypatch):
    model = tiny_models.make("llama", bits=4)
    separate = [weakref.ref(layer.self_attn.q_proj) for layer in model.model.layers]
    alive = []

    def join(places):
        gc.collect()
        alive.append([each() is not None for each in separate])
        return fuse_weights.join(places)

    monkeypatch.setattr(fuse_model, "join", join)
    fuse_(model)
    # Two weights of a layer are joined one after the other.
    assert alive[::2] == [[True, True, True], [False, True, True], [False, False, True]]


def test_calls_from_several_threads():
    model = tiny_models.make("qwen3", compute="float")
    prompts = [torch.randint(2, 128, (1, 5 + 3 * i), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    expected = [greedy(model, {"input_ids": ids}, 12).sequences for ids in prompts]
    fuse_(model)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda ids: greedy(model, {"input_ids": ids}, 12).sequences, prompts))
    assert all(map(torch.equal, got, expected))


def test_copies_and_pickles():
    model = tiny_models.make("qwen3")
    ids = prompt(1)["input_ids"]
    fuse_(model)
    with torch.no_grad():
        expected = model(ids).logits
        other = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        for each in (other, loaded):
            assert type(each) is type(model)
            assert torch.equal(each(ids).logits, expected)
        unfuse_(other)
        assert torch.equal(model(ids).logits, expected)
        unfuse_(loaded)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fuse_weights\nRowsLinear", RowsLinear),
        ("fuse_weights\nJointLinear", JointLinear),
        ("fuse_structure\nStackParts", fuse_structure.StackParts),
        ("fuse_structure\nLayerParts", fuse_structure.LayerParts),
        ("fuse\nFusedStack", fuse_model.FusedStack),
        ("fuse\n_remake", fuse_model._remake),
    ],
)
def test_pickles_of_earlier_versions_find_their_classes(name, found):
    assert pickle.loads(f"cqcore.transformers.{name}\n.".encode()) is found


def test_another_host_dtype_after_fusing():
    model = tiny_models.make("qwen3", compute="float")
    ids = prompt(1)["input_ids"]
    fuse_(model)
    model.to(torch.bfloat16)
    with torch.no_grad():
        got = model(ids).logits
        assert got.dtype == torch.bfloat16
        unfuse_(model)
        assert relative(got, model(ids).logits) < 0.04


def test_separate_modules_still_work():
    """The layers may be called one by one, as the fallback does."""
    model = tiny_models.make("llama-biases")
    ids = prompt(1)["input_ids"]
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
        fuse_(model)
        assert torch.equal(model.model(ids).last_hidden_state, expected)
        mlp = model.model.layers[0].mlp
        x = torch.randn(3, 64)
        gate = mlp.gate_proj(x)
        x[0] = 0.0  # not what the kept product was computed from
        assert torch.equal(mlp.up_proj(x)[1:], mlp.up_proj(x.clone())[1:])
        assert torch.equal(mlp.up_proj(x), mlp.up_proj(x.clone()))
        assert gate.shape == (3, 96)


def unknown_activation(model):
    model.model.layers[1].mlp.act_fn = torch.nn.Tanh()


def extra_module(model):
    model.model.layers[1].self_attn.gate = torch.nn.Linear(4, 4)


def float_layer(model):
    model.model.layers[2].mlp.down_proj = torch.nn.Linear(96, 64)


def other_bits(model):
    attention = model.model.layers[2].self_attn
    attention.v_proj = qcore.torch.Linear.from_float(torch.nn.Linear(64, 32, bias=False), bits=4, block_size=32)


def other_compute(model):
    model.model.layers[2].self_attn.v_proj.compute = "int16"


def other_order(model):
    layer = model.model.layers[1]
    run = layer.forward
    layer.forward = lambda hidden_states, **kwargs: run(hidden_states, **kwargs) + 0.5 * hidden_states


def other_norm(model):
    model.model.norm = torch.nn.LayerNorm(64)


def other_logits(model):
    run = model.forward

    def forward(*args, **kwargs):
        output = run(*args, **kwargs)
        output.logits = output.logits.abs()
        return output

    model.forward = forward


def other_embedding(model):
    model.model.layers[0].register_forward_pre_hook(lambda _, args: (args[0] + 1, *args[1:]))


def other_scale(model):
    model.model.layers[1].self_attn.scaling = 0.1


def other_keys(model):
    model.model.layers[1].self_attn.k_proj.register_forward_hook(lambda _, __, output: output * 2)


REFUSED = {
    unknown_activation: r"model\.layers\.1\.mlp has the activation Tanh, expected silu, gelu",
    extra_module: r"model\.layers\.1\.self_attn has a module 'gate'",
    float_layer: r"model\.layers\.2\.mlp\.down_proj is a torch\.nn\.modules\.linear\.Linear, expected a qcore\.torch",
    other_compute: r"model\.layers\.2\.self_attn: q_proj, k_proj, v_proj have compute int8 and int16",
    other_order: r"model\.layers\.1: the fused results differ from the unfused ones by",
    other_norm: r"model\.norm is a LayerNorm that computes something else than an RMS norm",
    other_logits: "logits are the head's result changed in another way",
    other_embedding: "the first layer gets something else than the embedding",
    other_scale: r"the layers have scales 0\.1 and 0\.25",
    other_keys: r"self_attn\.k_proj has forward hooks",
}


@pytest.mark.parametrize("change", REFUSED)
def test_refused_models_are_left_as_they_were(change):
    model = tiny_models.make("llama")
    change(model)
    kinds = [type(module) for module in model.modules()]
    state = model.state_dict()
    with pytest.raises(QcoreValueError, match=REFUSED[change]):
        fuse_(model)
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


OTHER_MODELS = {
    "Olmo": ({}, "LayerNorm without eps or weight, expected an RMS norm"),
    "Olmo2": ({}, r"q_norm has a weight \[64\], expected \[16\]"),
    "StableLm": ({}, "LayerNorm that computes something else than an RMS norm"),
    "Starcoder2": ({}, r"gate_proj is missing, expected a qcore\.torch\.Linear"),
    "Cohere": ({}, "has the norms input_layernorm, expected"),
    "Mixtral": ({"num_local_experts": 2}, "model.layers.0"),
    "Qwen2Moe": ({"num_experts": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, "gate_proj"),
    "GptOss": ({"num_local_experts": 2, "head_dim": 16, "layer_types": ["full_attention"] * 3}, "model.layers.0"),
    "Phi": ({}, "has no module 'norm'"),
    "GPT2": ({}, "has no module 'embed_tokens'"),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models_are_refused_by_name(name):
    options, message = OTHER_MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny_models.config(name, **options)).eval()
    qcore.torch.quantize_(model, bits=8, block_size=32, progress=False)
    with pytest.raises(QcoreValueError, match=message):
        fuse_(model)


def test_wrong_arguments():
    with pytest.raises(QcoreTypeError, match="fuse_: model is a Linear"):
        fuse_(torch.nn.Linear(2, 2))
    model = tiny_models.make("llama")
    with pytest.raises(QcoreValueError, match="kv_cache"):
        fuse_(model, kv_cache="int4")
    with pytest.raises(QcoreValueError, match="that is not fused"):
        unfuse_(model)
    model.train()
    with pytest.raises(QcoreValueError, match=r"call model\.eval"):
        fuse_(model)
    model.eval()
    fuse_(model)
    with pytest.raises(QcoreValueError, match="fused already"):
        fuse_(model)
    elsewhere = tiny_models.make("llama")
    elsewhere.model.norm.to("meta")
    with pytest.raises(QcoreValueError, match="model is on cpu and meta, expected the CPU or one CUDA device"):
        fuse_(elsewhere)
    half = tiny_models.make("llama", torch.float16)
    with pytest.raises(QcoreValueError, match=r"torch\.float16 on cpu, expected torch\.float32 or torch\.bfloat16"):
        fuse_(half)
