"""quantize_(smooth=...): which scales are folded where, that the float model stays the same, and what is refused."""

import copy
import gc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402
from qcore.torch.conversion import quantize as conversion  # noqa: E402
from qcore.torch.conversion.layers import explain, layers_of  # noqa: E402
from qcore.torch.conversion.rules import Settings  # noqa: E402
from qcore.torch.conversion.smooth import Smoothing  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:quantize_")

F = torch.nn.functional
SETTINGS = Settings(8, 32, "int8", "rtn", "symmetric", "float32")


class RmsNorm(torch.nn.Module):
    """The norm of transformers' models."""

    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class OffsetNorm(RmsNorm):
    """The norm of Gemma, which adds one to its weight."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Block(torch.nn.Module):
    """A layer of a transformer that normalizes first, without attention."""

    def __init__(self, features=64, hidden=96):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(features), RmsNorm(features)
        self.q, self.k = (torch.nn.Linear(features, features) for _ in range(2))
        self.gate, self.up = (torch.nn.Linear(features, hidden, bias=i == 1) for i in range(2))
        self.down = torch.nn.Linear(hidden, features)

    def forward(self, x):
        h = self.norm1(x)
        x = x + torch.tanh(self.q(h)) * torch.tanh(self.k(h))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def with_outliers(model, dtype=torch.float32):
    """Make two channels of each norm, and of up, larger than the others."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if "norm" in name:
                module.weight[[3, 40]] *= 30
                if getattr(module, "bias", None) is not None:
                    module.bias.copy_(torch.randn(len(module.bias)))
            elif name.endswith("up"):
                module.weight[[5, 50]] *= 30
                module.bias[[5, 50]] *= 30
    return model.to(dtype).eval()


def block(dtype=torch.float32):
    torch.manual_seed(0)
    return with_outliers(Block(), dtype), [torch.randn(4, 30, 64, dtype=dtype) for _ in range(2)]


def folded(model, batches, alpha=None):
    """Return what became of each layer, after the scales have been folded into the float model."""
    layers = layers_of(model, False)
    explain(model, layers, (), True)
    for layer in layers:
        layer.settings = SETTINGS
    smoothing = Smoothing()
    smoothing.fold(model, layers, batches, alpha)
    return smoothing, {layer.name: smoothing.notes.get(id(layer), "") for layer in layers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_float_model_keeps_its_bits(dtype):
    model, batches = block(dtype)
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        expected = [model(x) for x in batches]
    smoothing, notes = folded(model, batches, 0.5)
    assert notes["q"] == notes["k"] == "smooth 0.5, in norm1"
    assert notes["gate"] == notes["up"] == "smooth 0.5, in norm2"
    too_small = "not smoothed: up: divided weights of up are too small for torch.float16"
    assert notes["down"] == (too_small if dtype == torch.float16 else "smooth 0.5, in up")
    with torch.no_grad():
        for x, y in zip(batches, expected, strict=True):
            # Small values of float16 are subnormal, and divided ones lose bits.
            torch.testing.assert_close(model(x), y, rtol=0, atol=0 if dtype != torch.float16 else 4e-3)
    assert not torch.equal(model.norm1.weight, state["norm1.weight"])
    smoothing.undo()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_scales_are_those_of_the_definition():
    model, batches = block()
    before = copy.deepcopy(model)
    folded(model, batches, 0.5)
    x = before.norm1(torch.cat(batches)).detach().double().numpy().reshape(-1, 64)
    a = np.abs(x).max(axis=0)
    b = np.maximum(*(np.abs(each.weight.detach().double().numpy()).max(axis=0) for each in (before.q, before.k)))
    scales = 2 ** np.rint(np.log2(np.sqrt(a / b)))
    scales /= scales.min()
    np.testing.assert_array_equal((before.norm1.weight / model.norm1.weight).detach().numpy(), scales)
    np.testing.assert_array_equal((before.norm1.bias / model.norm1.bias).detach().numpy(), scales)
    for name in ("q", "k"):
        old, new = (getattr(each, name).weight.detach().numpy() for each in (before, model))
        np.testing.assert_array_equal(new, old * scales)
    rows = (before.up.bias / model.up.bias).detach().numpy()
    np.testing.assert_array_equal(model.down.weight.detach().numpy(), before.down.weight.detach().numpy() * rows)


@pytest.mark.parametrize("smooth", [True, 0.5])
@pytest.mark.parametrize("options", [{}, {"method": "awq"}, {"method": "gptq"}])
def test_it_lowers_the_error_and_a_state_restores_it(smooth, options):
    model, batches = block()
    plain, restored = copy.deepcopy(model), copy.deepcopy(model)
    options = {"bits": 8, "block_size": 32, "calibration": batches, "progress": False, **options}
    without = qt.quantize_(plain, **options)
    report = qt.quantize_(model, smooth=smooth, **options)
    assert report.model_error < 0.7 * without.model_error
    notes = {layer.name: layer.note for layer in report.layers}
    assert all(notes[name].startswith("smooth 0.") for name in ("q", "k", "gate", "up", "down")), notes
    assert not any("smooth" in layer.note for layer in without.layers)
    qt.restore_(restored, model.state_dict())
    with torch.no_grad():
        assert torch.equal(restored(batches[0]), model(batches[0]))


def test_layers_that_were_freed_are_not_kept():
    model, batches = block()
    kept = [weakref.ref(module) for module in model.modules() if isinstance(module, torch.nn.Linear)]
    report = qt.quantize_(model, bits=8, calibration=batches, smooth=True, progress=False)
    gc.collect()
    assert report.layers and len(kept) == 5 and all(each() is None for each in kept)


def test_target_error_gives_folded_float_layers_back():
    model, batches = block()
    exact = [model(x).detach() for x in batches]
    report = qt.quantize_(model, bits=8, calibration=batches, smooth=True, target_error=1e-7, progress=False)
    assert report.model_error <= 1e-7 and not any(layer.quantized for layer in report.layers)
    torch.testing.assert_close(model(batches[0]), exact[0], rtol=1e-4, atol=1e-5)


class Reads(torch.nn.Module):
    """A norm before two layers whose output other code reads in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.norm = OffsetNorm(64) if how == "offset" else torch.nn.LayerNorm(64)
        self.q, self.k = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.other = torch.nn.Embedding(64, 64)
        self.how, self.kept = how, None
        if how == "tied":
            self.other.weight = self.q.weight
        if how == "hook":
            self.norm.register_forward_hook(lambda module, arguments, result: None)

    def forward(self, x):
        how = self.how
        h = self.norm(x)
        y = self.q(h) + self.k(h[:1].expand_as(h) if how == "expanded" else h)
        if how == "tied":
            y = y + self.other(torch.zeros(1, dtype=torch.int64))
        if how == "residual":
            y = y + h
        if how == "view":
            y = y + h.transpose(0, 1)[0, :, :1].sigmoid().mean()
        if how == "in_place":
            h.add_(1)
        if how == "square":
            y = y + self.q(h * h)
        if how == "other_input":
            y = y + self.k(x)
        if how == "keyword":
            y = y + self.k(input=h)
        if how == "half_channels":
            y = y + self.q(h.reshape(-1)[32:-32].view(-1, 64)).mean()
        if how == "attribute":
            self.kept = h
        if how == "functional":
            y = y + F.linear(h, torch.eye(64))
        if how == "numpy":
            y = y + torch.from_numpy(np.tanh(h.numpy()))
        return (y, h) if how == "returned" else y


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("residual", "norm: the model itself reads its output, too (add)"),
        ("view", "norm: the model itself reads its output, too (sigmoid)"),
        ("in_place", "norm: the model itself reads its output, too (add_)"),
        ("square", "norm: the model itself reads its output, too (mul)"),
        ("other_input", "norm: k has other inputs, too"),
        ("keyword", "norm: k reads its output, too"),
        ("half_channels", "norm: q reads its output, too"),
        ("attribute", "norm: its output is kept after the model's call"),
        ("returned", "norm: its output is kept after the model's call"),
        ("functional", "norm: the model itself reads its output, too (mm)"),
        ("numpy", "norm: the model's outputs on the calibration change"),
        ("offset", "norm: its output is not proportional to its weight and bias"),
        ("tied", "norm: a parameter of q is shared"),
        ("hook", "no norm or linear layer alone makes its input"),
        ("nothing", ""),
        ("expanded", ""),
    ],
)
def test_reads_of_others_refuse_a_fold(how, reason):
    torch.manual_seed(0)
    model = with_outliers(Reads(how))
    state, x = copy.deepcopy(model.state_dict()), torch.randn(3, 5, 64)
    _, notes = folded(model, [x])
    if not reason:
        assert notes["q"].startswith("smooth 0.") and notes["k"] == notes["q"]
        return
    assert notes["q"].startswith(f"not smoothed: {reason}"), notes
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_one_bad_fold_among_good_ones_is_found():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(with_outliers(Reads(how)) for how in ("nothing", "nothing", "numpy", "nothing")))
    _, notes = folded(model, [torch.randn(3, 5, 64)])
    assert [notes[f"{i}.q"].startswith("smooth") for i in range(4)] == [True, True, False, True]
    assert notes["2.k"] == "not smoothed: 2.norm: the model's outputs on the calibration change"


def test_memory_that_a_buffer_has_too_is_shared():
    """Sparse buffers have no memory of their own and hinder nothing."""
    model, batches = block()
    model.register_buffer("mask", torch.eye(3).to_sparse())
    model.register_buffer("kept", model.q.weight.data)
    _, notes = folded(model, batches)
    assert notes["q"] == "not smoothed: norm1: a parameter of q is shared"
    assert notes["up"].startswith("smooth")


def test_a_layer_that_stays_in_floating_point_is_another_reader():
    model, batches = block()
    report = qt.quantize_(model, bits=8, calibration=batches, smooth=True, exclude=("k",), progress=False)
    notes = {layer.name: layer.note for layer in report.layers}
    assert notes["q"] == "not smoothed: norm1: k reads its output, too (addmm)" and notes["k"] == "exclude has 'k'"
    assert notes["up"].startswith("smooth")


def test_no_fold_without_a_gain():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 32))
    with torch.no_grad():
        model[1].weight.zero_()
    _, notes = folded(model, [torch.randn(8, 64)])
    assert notes["1"] == "not smoothed: 0: no scales make the error smaller"


def test_failures_before_the_first_layer_leave_the_model_as_it_was():
    model, batches = block()
    with torch.no_grad():
        model.register_module("late", torch.nn.Linear(64, 64))
        model.late.weight[0, 0] = float("nan")
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(qcore.QcoreValueError, match="quantize_: late"):
        qt.quantize_(model, bits=8, calibration=batches, smooth=True, progress=False)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), state[name].numpy(), name)


def test_an_interrupt_within_a_fold_leaves_the_model_as_it_was(monkeypatch):
    model, batches = block()
    state, multiply, calls = copy.deepcopy(model.state_dict()), torch.Tensor.mul_, []

    def interrupted(tensor, other):
        calls.append(tensor)
        if len(calls) == 2:  # q has been scaled, k is next
            raise KeyboardInterrupt
        return multiply(tensor, other)

    monkeypatch.setattr(torch.Tensor, "mul_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        qt.quantize_(model, bits=8, calibration=batches, smooth=0.5, progress=False)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("target_error", [None, 0.5])
def test_a_later_failure_leaves_the_same_outputs(monkeypatch, target_error):
    model, batches = block()
    state = copy.deepcopy(model.state_dict())
    made, make = [], conversion._make

    def failing(plan, *others):
        if len(made) == 2:  # q and k are quantized, gate is next
            raise MemoryError
        made.append(plan.layer.name)
        make(plan, *others)

    monkeypatch.setattr(conversion, "_make", failing)
    with pytest.raises(MemoryError):
        qt.quantize_(model, bits=8, calibration=batches, smooth=0.5, target_error=target_error, progress=False)
    restored = ("norm2", "gate", "up", "down") if target_error is None else ("norm1", "q", "k", "norm2", "up", "down")
    for name, tensor in model.state_dict().items():
        if name.split(".")[0] in restored:
            assert torch.equal(tensor, state[name]), name
    if target_error is None:
        assert isinstance(model.q, qt.Linear) and not torch.equal(model.norm1.weight, state["norm1.weight"])


@pytest.mark.parametrize(
    ("smooth", "calibration", "kind", "words"),
    [
        (True, None, qcore.QcoreValueError, "quantize_: calibration is None, expected inputs of the model with smooth"),
        (0.5, None, qcore.QcoreValueError, "quantize_: calibration is None, expected inputs of the model with smooth"),
        (1.5, 1, qcore.QcoreValueError, "quantize_: smooth is 1.5, expected a number from 0 to 1"),
        ("yes", 1, qcore.QcoreTypeError, "quantize_: smooth is 'yes', expected a number"),
        (None, 1, qcore.QcoreTypeError, "quantize_: smooth is None, expected a number"),
    ],
)
def test_errors(smooth, calibration, kind, words):
    model, batches = block()
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(kind) as caught:
        qt.quantize_(model, bits=8, smooth=smooth, calibration=batches if calibration else None, progress=False)
    assert words in str(caught.value)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = transformers.LlamaConfig(**sizes, intermediate_size=96, num_key_value_heads=2)
    gpt2 = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4)
    bert = transformers.BertConfig(**sizes, intermediate_size=96)
    ids = torch.randint(0, 128, (2, 12))
    expected = {
        "LlamaForCausalLM": {
            "q_proj": "input_layernorm",
            "gate_proj": "post_attention_layernorm",
            "down_proj": "up_proj",
        },
        "GPT2LMHeadModel": {"c_attn": "ln_1", "c_fc": "ln_2"},
        "BertModel": {},
    }
    for config, kind in ((llama, "LlamaForCausalLM"), (gpt2, "GPT2LMHeadModel"), (bert, "BertModel")):
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval()
        exact = model(ids)[0].detach()
        _, notes = folded(model, [ids], 0.5)
        torch.testing.assert_close(model(ids)[0], exact, rtol=1e-4, atol=1e-5)
        for name, note in notes.items():
            parts = name.split(".")
            source = next((norm for layer, norm in expected[kind].items() if layer == parts[-1]), None)
            if source is not None:
                assert note.startswith("smooth 0.5, in ") and note.endswith(f".{source}"), (name, note)
            elif parts[-1] in ("o_proj", "c_proj", "query", "dense"):
                assert note.startswith("not smoothed: "), (name, note)


@pytest.mark.parametrize(("how", "is_folded"), [("nothing", True), ("residual", False)])
def test_reads_of_compiled_code_are_seen(how, is_folded):
    torch.manual_seed(0)
    inner = with_outliers(Reads(how))
    model = torch.nn.Sequential(torch.compile(inner, backend="eager"))
    _, notes = folded(model, [torch.randn(3, 5, 64)])
    assert notes["0._orig_mod.q"].startswith("smooth 0.") is is_folded, notes
