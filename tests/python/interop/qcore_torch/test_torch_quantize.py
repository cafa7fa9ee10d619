"""Whole models by qcore.torch.quantize_: graphs, copies, reports, target errors, what is left and why."""

import copy
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import qcore.torch as qt

torch.compiler.config.force_disable_caches = True


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Block(nn.Module):
    """Computes a transformer block with its embedding and head."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(50, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.lm_head = nn.Linear(width, 50, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        x = x + self.down(self.act(self.up(self.norm2(x))))
        return self.lm_head(x)


class Net(nn.Module):
    """Computes a GRU between two layers."""

    def __init__(self):
        super().__init__()
        self.into, self.gru, self.head = nn.Linear(6, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.gru(self.into(x))[0])


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        nn.Conv2d(8, 16, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).eval()


MODELS = {
    "transformer block": (Block, lambda: torch.randint(0, 50, (2, 9))),
    "cnn": (cnn, lambda: torch.randn(2, 3, 12, 12)),
    "gru net": (Net, lambda: torch.randn(4, 7, 6)),
}
models = pytest.mark.parametrize("make, sample", MODELS.values(), ids=MODELS.keys())


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


@models
@torch.no_grad()
def test_in_one_line(make, sample):
    model, x = make(), sample()
    exact, before = model(x), copy.deepcopy(model)
    report = qt.quantize_(model, bits=8, calibration=sample(), activations=True)
    layers = [layer for layer in report.layers if layer.quantized]
    assert layers == report.layers
    # A weight takes whole panels of 16 rows and 4 input channels, more than the tiny float convolutions have.
    assert report.bytes_after < report.bytes_before or make is cnn
    assert all(0 <= layer.error < 0.05 for layer in layers)
    assert 0 < report.model_error < 0.05
    assert relative(model(x), exact) < 0.05
    assert all(layer.name in str(report) for layer in layers)
    assert json.loads(report.to_json())["layers"][0]["name"] == layers[0].name
    y = model(x)
    assert torch.equal(copy.deepcopy(model)(x), y)
    qt.restore_(before, model.state_dict())
    assert torch.equal(before(x), y)
    assert repr(before) == repr(model)


@models
@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
@torch.no_grad()
def test_compiled_without_breaks(make, sample, backend):
    model, x = make(), sample()
    qt.quantize_(model, bits=8, calibration=sample(), activations=True)
    assert torch.equal(torch.compile(model, fullgraph=True, backend=backend)(x), model(x))


@models
@torch.no_grad()
def test_compiled_by_inductor(make, sample):
    model, x = make(), sample()
    qt.quantize_(model, bits=8, calibration=sample())
    got = torch.compile(model, fullgraph=True)(x)
    # qcore's operators have the same bits; the compiler's own norms and sums round otherwise, which may move a code.
    torch.testing.assert_close(got, model(x), atol=2e-2, rtol=2e-2)


@models
@torch.no_grad()
def test_saved_and_loaded_in_a_new_process(make, sample, tmp_path):
    model, x = make(), sample()
    qt.quantize_(model, bits=4, calibration=sample(), activations=True)
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, model(x)), tmp_path / "values.pt")
    if make is cnn:  # the others' classes are in this file
        torch.save(model, tmp_path / "model.pt")
    code = """
        import os, torch, qcore.torch
        x, y = torch.load("values.pt")
        assert torch.equal(torch.export.load("program.pt2").module()(x), y)
        if os.path.exists("model.pt"):
            with torch.no_grad():
                assert torch.equal(torch.load("model.pt", weights_only=False)(x), y)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fresh_model = make()
    qt.quantize_(fresh_model, bits=4, calibration=sample(), activations=True)
    fresh_model.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(fresh_model(x), model(x))


def test_adapters_on_a_quantized_block_lower_the_loss():
    model, tokens = Block(), torch.randint(0, 50, (4, 9))
    qt.quantize_(model, bits=4, block_size=16)
    for parameter in model.parameters():
        parameter.requires_grad_(False)

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    for name in ("qkv", "out", "up", "down"):
        setattr(model, name, Adapted(getattr(model, name)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 8
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam(trained, 1e-2)
    losses = []
    for _ in range(30):
        logits = step(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_shared_modules_and_tied_weights():
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.ReLU()), "c": nn.Linear(8, 8)})
    model["c"].weight = shared.weight
    report = qt.quantize_(model, bits=8)
    assert [layer.name for layer in report.layers] == ["a", "c"]
    assert model["a"] is model["b"][0]
    assert model["a"].packed is model["c"].packed
    block = Block()
    report = {layer.name: layer for layer in qt.quantize_(block, bits=8).layers}
    assert all(report[name].quantized for name in ("embed", "lm_head"))
    assert block.embed.packed is block.lm_head.packed
    block = Block()
    report = {layer.name: layer for layer in qt.quantize_(block, bits=8, embeddings=False).layers}
    assert "that of embed" in report["lm_head"].note
    assert report["embed"].note == "embeddings is False"
    assert isinstance(block.embed.weight, nn.Parameter)


def test_what_is_left_and_why():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    model = nn.ModuleDict(
        {
            "own": Own(4, 4),
            "attention": nn.MultiheadAttention(4, 2),
            "reflect": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
            "gru": nn.GRU(4, 4),
            "wide": nn.Linear(4, 4).double(),
            "hooked": nn.Linear(4, 4),
            "lm_head": nn.Linear(4, 4),
            "done": nn.Linear(4, 4),
        }
    )
    model["hooked"].register_forward_hook(lambda *_: None)
    report = {layer.name: layer for layer in qt.quantize_(model, bits=8, exclude=("lm_*",)).layers}
    expected = {
        "own": "subclass of Linear that has or computes more",
        "reflect": "padding_mode is 'reflect'",
        "gru": "calibration",
        "wide": "float64",
        "hooked": "hooks",
        "lm_head": "exclude has 'lm_*'",
    }
    assert set(report) == {*expected, "attention", "done"}
    for name, reason in expected.items():
        assert not report[name].quantized
        assert reason in report[name].note
    assert report["done"].quantized
    assert report["attention"].quantized
    assert type(model["done"]) is qt.Linear
    assert qt.quantize_(model, bits=8, exclude=("lm_*",)).layers[-1].name == "lm_head"  # the second time: nothing new


@torch.no_grad()
def test_encoder_layers_of_torch_call_their_layers():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(2, 5, 16)
    exact = model(x)
    report = qt.quantize_(model, bits=8, calibration=x)
    assert [layer.kind for layer in report.layers if layer.quantized] == ["MultiheadAttention", "Linear", "Linear"] * 2
    assert report.layers[0].quantized
    assert 0 < relative(model(x), exact) < 0.03


@pytest.mark.parametrize("target", (0.05, 0.005, 1e-9))
@torch.no_grad()
def test_target_of_the_models_error(target):
    model, tokens = Block(), torch.randint(0, 50, (2, 9))
    exact = model(tokens)
    report = qt.quantize_(model, bits=4, block_size=16, calibration=tokens, target_error=target)
    assert report.model_error <= target
    assert relative(model(tokens), exact) == pytest.approx(report.model_error, abs=1e-6)
    chosen = {(layer.bits, layer.compute) for layer in report.layers}
    if target < 1e-6:
        assert chosen == {(None, None)}
    else:
        assert chosen != {(4, "int8")}


def test_target_of_the_weights_error():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[1].weight.copy_(torch.randint(-7, 8, (64, 64)) / 8.0)  # exact in 4 bits
        model[1].weight[:, 0] = 7 / 8
    report = qt.quantize_(model, bits=4, target_error=0.02)
    assert [layer.bits for layer in report.layers] == [8, 4]
    assert all(layer.error <= 0.02 for layer in report.layers)


@torch.no_grad()
def test_awq_weighs_errors_by_the_samples():
    scale = torch.ones(64)
    scale[:4] = 30
    x = torch.randn(256, 64) * scale
    errors = {}
    for method in ("rtn", "awq"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        report = qt.quantize_(model, bits=4, block_size=32, compute="float", method=method, calibration=[x])
        errors[method] = report.layers[0].error
    assert errors["awq"] < errors["rtn"]


def test_training_mode_and_statistics_stay():
    model = cnn().train()
    model[0].eval()
    before = model[1].running_mean.clone()
    qt.quantize_(model, bits=8, calibration=[(torch.randn(2, 3, 8, 8),)])
    assert [module.training for module in model] == [False] + [True] * 8
    assert torch.equal(model[1].running_mean, before)


def test_a_weight_with_a_nan_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"quantize_: 1: quantize: .*\[1, 2\]"):
        qt.quantize_(model, bits=8)
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"bits": 7}, ValueError, "bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
        ({"block_size": 0}, ValueError, "block_size"),
        ({"block_size": 1.5}, TypeError, "block_size is 1.5"),
        ({"compute": "int4"}, ValueError, "compute is 'int4'"),
        ({"method": "best"}, ValueError, "method is 'best'"),
        ({"scheme": "odd"}, ValueError, "scheme is 'odd'"),
        ({"method": "awq"}, ValueError, "calibration is None"),
        ({"exclude": "lm_head"}, TypeError, "exclude is 'lm_head', expected a sequence"),
        ({"calibration": []}, ValueError, "calibration has no batches"),
        ({"calibration": 3}, TypeError, "calibration is a int"),
        ({"target_error": 0}, ValueError, "target_error is 0"),
        ({"target_error": "low"}, TypeError, "target_error is 'low'"),
    ],
)
def test_errors(options, error, message):
    model = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(error, match=message):
        qt.quantize_(model, **options)
    assert type(model[0]) is nn.Linear


def test_errors_of_the_model():
    with pytest.raises(TypeError, match="model is a int"):
        qt.quantize_(3, bits=8)
    with pytest.raises(ValueError, match=r"qcore\.torch\.Linear\.from_float"):
        qt.quantize_(nn.Linear(2, 2), bits=8)
    model = nn.Sequential(nn.Linear(8, 8))
    qt.quantize_(model, bits=8)
    with pytest.raises(ValueError, match=r"0\.qcore_config, expected a module 0 in the model"):
        qt.restore_(nn.Module(), model.state_dict())
