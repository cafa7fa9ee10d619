"""fuse_ on a CUDA device: the unfused model's tokens, and steps that are replayed from CUDA graphs.

tests/python/interop/transformers_fuse has what does not depend on the device.
"""

import copy
import io
import warnings

import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
transformers = pytest.importorskip("transformers", minversion="5.20")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

qt = pytest.importorskip("qcore.torch")

from transformers.cache_utils import DynamicCache  # noqa: E402

from qcore import QcoreValueError  # noqa: E402
from qcore.transformers import LayerByLayerWarning, fuse_, unfuse_  # noqa: E402
from qcore.transformers.fuse import graphs as fuse_graphs  # noqa: E402
from qcore.transformers.fuse import model as fuse_model  # noqa: E402

pytestmark = pytest.mark.gpu

NAMES = ("Llama", "Qwen2")
PADDING = (0, 5, 2)
LENGTH = 14
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def make(name="Llama", dtype=torch.float32, *, compute="int8", device="cuda", **options):
    """Return a quantized tiny model whose logits have some distance from one another."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE | options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.0 if "embed" in key else parameter.shape[1] ** -0.5))
    model = model.to(dtype).eval()
    model.generation_config.eos_token_id = None
    qt.quantize_(model, bits=8, block_size=32, compute=compute, progress=False)
    return model.to(device)


def prompt(batch=1, device="cuda"):
    """Return tokens and a mask, padded on the left if there are several sequences."""
    ids = torch.randint(2, 128, (batch, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for row in range(batch):
        ids[row, : PADDING[row]] = mask[row, : PADDING[row]] = 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def greedy(model, inputs, tokens=24, **options):
    return model.generate(
        **inputs,
        max_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )


def graphs(model):
    return model._qcore_stack.graphs


def relative(got, expected):
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def assert_same_generation(got, expected, limit):
    """Compare logits, relative L2, until two tokens are so close that the difference of the logits may exchange them.

    Such tokens are at most ``2 * limit`` times the standard deviation of the logits apart, and another text follows.
    """
    start = expected.sequences.shape[1] - len(expected.logits)
    for row in range(expected.sequences.shape[0]):
        for step, (ours, theirs) in enumerate(zip(got.logits, expected.logits, strict=True)):
            assert relative(ours[row], theirs[row]) < limit, f"row {row}, step {step}"
            chosen = int(got.sequences[row, start + step])
            best = int(expected.sequences[row, start + step])
            if chosen != best:
                lead = float(theirs[row, best] - theirs[row, chosen])
                assert lead <= 2 * limit * float(theirs[row].std()), f"row {row}, step {step}: token {chosen}"
                break


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("compute", "limit"), [("int8", 0.02), ("float", 0.001)])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_those_of_the_unfused_model(name, compute, limit, batch):
    model = make(name, compute=compute)
    inputs = prompt(batch)
    expected = greedy(model, inputs)
    fuse_(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayerByLayerWarning)
        warnings.simplefilter("error", RuntimeWarning)  # a recording that failed
        got = greedy(model, inputs)
    assert graphs(model).recorded == 1 and graphs(model).replayed == 22
    # A single code that rounds to the other side makes some thousandths.
    assert_same_generation(got, expected, limit)


@pytest.mark.parametrize(("compute", "limit"), [("int8", 0.02), ("float", 0.001)])
def test_projections_of_different_formats(compute, limit):
    model = make("Qwen2", compute=compute, device="cpu")
    for layer in (model.model.layers[0], model.model.layers[2]):
        old = layer.self_attn.v_proj
        values = torch.from_numpy(old.weight.dequantize())
        weight = qcore.quantize(values, bits=4, block_size=16, scheme="asymmetric", method="rtn", scale_dtype="float32")
        layer.self_attn.v_proj = qt.Linear(weight, old.bias, compute=compute)
    model.to("cuda")
    inputs = prompt(2)
    expected = greedy(model, inputs)
    fuse_(model)
    assert_same_generation(greedy(model, inputs), expected, limit)
    assert graphs(model).recorded == 1 and graphs(model).replayed == 22


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_near_those_of_the_cpu(name):
    """The prompt and one step; both devices quantize the same activations but for the order of sums."""
    inputs = prompt(3, "cpu")
    outputs = []
    for device in ("cpu", "cuda"):
        model = make(name, device=device)
        fuse_(model)
        outputs.append(greedy(model, {key: value.to(device) for key, value in inputs.items()}, 1).logits[0].cpu())
    assert relative(outputs[1], outputs[0]) < 0.02


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "kv_cache"),
    [
        (torch.float32, None),
        (torch.float32, "int8"),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float16, "int8"),
    ],
    ids=str,
)
def test_a_replayed_step_has_the_bits_of_a_plain_one(dtype, kv_cache, batch):
    model = make("Qwen2", dtype)
    inputs = prompt(batch)
    fuse_(model, kv_cache=kv_cache)
    graphs(model).enabled = False
    plain = greedy(model, inputs, 80)
    assert (graphs(model).recorded, graphs(model).replayed) == (0, 0)
    graphs(model).enabled = True
    got = greedy(model, inputs, 80)
    assert torch.equal(torch.stack(got.logits), torch.stack(plain.logits))
    assert torch.equal(got.sequences, plain.sequences)
    # 79 steps, over caches for 64 and for 128 positions; the first step of each is not replayed.
    assert (graphs(model).recorded, graphs(model).replayed) == (2, 77)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_generation_makes_the_cache_grow(name):
    model = make(name)
    inputs = prompt(3)
    fuse_(model)
    graphs(model).enabled = False
    plain = greedy(model, inputs, 290)
    graphs(model).enabled = True
    got = greedy(model, inputs, 290)
    assert graphs(model).recorded == 4  # for 64, 128, 256 and 512 positions
    assert torch.equal(got.sequences, plain.sequences)
    assert torch.equal(torch.stack(got.logits), torch.stack(plain.logits))


def test_the_model_generates_again_and_for_other_batches():
    model = make()
    fuse_(model)
    first = {batch: greedy(model, prompt(batch)) for batch in (1, 3, 2)}
    for _ in range(3):
        for batch, expected in first.items():
            again = greedy(model, prompt(batch))
            assert torch.equal(again.sequences, expected.sequences)
            assert torch.equal(torch.stack(again.logits), torch.stack(expected.logits))
    assert len(graphs(model)._steps) <= fuse_graphs._MAX_STEPS


def test_results_of_a_step_are_not_overwritten_by_the_next():
    model = make()
    fuse_(model)
    ids = prompt()["input_ids"]
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
        logits = [model(ids[:, step : step + 1], past_key_values=cache).logits for step in range(8)]
        kept = [each.clone() for each in logits]
        model(ids[:, :1], past_key_values=cache)
    assert graphs(model).replayed >= 6
    assert all(map(torch.equal, logits, kept))
    assert not any(torch.equal(logits[0], each) for each in logits[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_k": 20, "temperature": 0.7},
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 3, "do_sample": False},
    ],
    ids=str,
)
def test_other_ways_to_generate_do_not_depend_on_graphs(options):
    model = make("Qwen2")
    fuse_(model)
    results = []
    for enabled in (False, True):
        graphs(model).enabled = enabled
        torch.manual_seed(5)
        results.append(model.generate(**prompt(2), max_new_tokens=20, **options))
    assert torch.equal(*results)
    assert graphs(model).replayed == 18


def test_inference_mode_and_other_modes_share_graphs():
    model = make()
    fuse_(model)
    expected = greedy(model, prompt(3)).sequences
    with torch.inference_mode():
        assert torch.equal(greedy(model, prompt(3)).sequences, expected)
    assert torch.equal(greedy(model, prompt(3)).sequences, expected)


def test_a_step_makes_the_host_wait_for_nothing(monkeypatch):
    model = make()
    fuse_(model)
    inputs = prompt(3)
    expected = greedy(model, inputs).sequences
    forward, calls = fuse_model.FusedMixin._qcore_forward, []

    def watched(self, arguments):
        calls.append(arguments["input_ids"].shape[1])
        if len(calls) < 4:  # the prompt, the step that is not replayed, and the one that is recorded
            return forward(self, arguments)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return forward(self, arguments)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(fuse_model.FusedMixin, "_qcore_forward", watched)
    assert torch.equal(greedy(model, inputs).sequences, expected)
    assert calls == [LENGTH] + [1] * 23


def test_another_stream():
    model = make()
    fuse_(model)
    expected = greedy(model, prompt(3))
    stream = torch.cuda.Stream()
    inputs = prompt(3)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        got = greedy(model, inputs)
    stream.synchronize()
    assert graphs(model).recorded == 2
    assert torch.equal(got.sequences, expected.sequences)
    assert torch.equal(torch.stack(got.logits), torch.stack(expected.logits))


def test_a_step_may_be_part_of_a_graph_of_the_caller():
    model = make()
    fuse_(model)
    ids = prompt()["input_ids"]
    token = ids[:, :1].clone()
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
        expected = model(token, past_key_values=cache).logits
        cache.crop(-1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = model(token, past_key_values=cache).logits
        assert graphs(model).recorded == 0
        got.zero_()
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(got, expected)


def test_unfusing_restores_the_model():
    model = make("Qwen2")
    ids = prompt()["input_ids"]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model)
        assert list(model.state_dict()) == list(state)
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        greedy(model, prompt(), 6)
        unfuse_(model)
        assert torch.equal(model(ids).logits, expected)
    plain = model.state_dict()
    assert list(plain) == list(state)
    assert all(value.is_cuda or key.endswith("qcore_config") for key, value in plain.items())
    assert all(torch.equal(value, state[key]) for key, value in plain.items())


def test_copies_and_pickles():
    model = make("Qwen2")
    fuse_(model)
    expected = greedy(model, prompt(), 8).sequences
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert graphs(other).recorded == 0
        assert torch.equal(greedy(other, prompt(), 8).sequences, expected)
        assert graphs(other).recorded == 1
        unfuse_(other)
    assert torch.equal(greedy(model, prompt(), 8).sequences, expected)


def test_a_fused_model_moves_between_devices():
    model = make("Llama", device="cpu", compute="float")
    fuse_(model)
    expected = greedy(model, prompt(2, "cpu"))
    model.cuda()
    assert_same_generation(_on_cpu(greedy(model, prompt(2))), expected, 0.001)
    assert graphs(model).recorded == 1
    model.cpu()
    assert torch.equal(greedy(model, prompt(2, "cpu")).sequences, expected.sequences)


def _on_cpu(output):
    output.sequences = output.sequences.cpu()
    output.logits = tuple(each.cpu() for each in output.logits)
    return output


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.04), (torch.float16, 0.01)], ids=str)
def test_other_host_dtypes(dtype, limit):
    model = make("Llama", dtype, compute="float")
    ids = prompt()["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LayerByLayerWarning)
            got = model(ids).logits
    assert got.dtype == dtype
    assert relative(got, expected) < limit


def test_layer_by_layer_over_the_same_cache():
    model = make("Llama", compute="float")
    ids = prompt()["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        fuse_(model)
        cache, parts = DynamicCache(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LayerByLayerWarning)
            for position in range(LENGTH):
                options = {"output_hidden_states": True} if position % 5 == 4 else {}
                parts.append(model(ids[:, position : position + 1], past_key_values=cache, **options).logits)
    assert graphs(model).replayed > 0
    assert relative(torch.cat(parts, 1), expected) < 0.001


def test_models_on_several_devices_are_refused():
    model = make()
    model.model.layers[1].cpu()
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(QcoreValueError, match="model is on cpu and cuda:0, expected the CPU or one CUDA device"):
        fuse_(model)
    assert [type(module) for module in model.modules()] == kinds


def test_refused_models_are_left_as_they_were():
    model = make()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    layer = model.model.layers[1]
    run = layer.forward
    layer.forward = lambda hidden_states, **kwargs: run(hidden_states, **kwargs) + 0.5 * hidden_states
    with pytest.raises(QcoreValueError, match=r"model\.layers\.1: the fused results differ from the unfused ones by"):
        fuse_(model)
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_device_that_is_not_the_current_one():
    model = make(device="cuda:1")
    expected = greedy(model, prompt(3, "cuda:1"))
    fuse_(model)
    got = greedy(model, prompt(3, "cuda:1"))
    assert graphs(model).replayed > 0 and got.sequences.device.index == 1
    assert_same_generation(got, expected, 0.01)
    assert torch.cuda.current_device() == 0
