"""Rules of qcore.torch.quantize_: what is replaced, what is left with which reason, and options of single layers."""

import copy

import pytest
import torch
from torch import nn

import qcore.torch as qt
from qcore.torch.attention import MultiheadAttention
from qcore.torch.conversion.rules import as_linear


def float_layer(weight, bias):
    """Make a float layer where a rule makes a quantized one: results are then those of the float module."""
    return as_linear(weight, bias)


def rows_of(report):
    return {layer.name: layer for layer in report.layers}


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Reader(nn.Module):
    """Reads something of its layers, in the way that its name says."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.proj, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.wants_weight = way == "a branch that runs"

    def forward(self, x):
        return getattr(self, "_" + self.way.replace(" ", "_"))(x)


class Product(Reader):
    def forward(self, x):
        return self.other(x @ self.proj.weight.t())


class Variable(Reader):
    def forward(self, x):
        layer = self.proj
        return self.other(nn.functional.linear(x, layer.weight, layer.bias))


class Loop(Reader):
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = x @ layer.weight + number
        return self.proj(self.other(x))


class Argument(Reader):
    def forward(self, x):
        return self.other(product(x, self.proj))


class Method(Reader):
    def forward(self, x):
        return self.other(self.inner(x, layer=self.proj))

    def inner(self, x, layer):
        return x @ layer.weight


class Branch(Reader):
    def forward(self, x):
        if self.wants_weight and self.way:
            return x @ self.proj.weight
        return self.other(self.proj(x))


class Guarded(Reader):
    def forward(self, x):
        if isinstance(self.proj.weight, torch.Tensor) and x.dtype != self.proj.weight.dtype:
            x = x.to(self.proj.weight.dtype)
        return self.other(self.proj(x))


class Moves(Reader):
    def forward(self, x):
        return self.other(x @ self.proj.weight.to(x.dtype))


class Calls(Reader):
    def forward(self, x):
        present = self.proj.bias is not None and hasattr(self.proj, "weight")
        return self.other(self.proj(x)) * present


def product(x, layer):
    return x @ layer.weight


@pytest.mark.parametrize("kind", (Product, Variable, Argument, Method, Moves))
@torch.no_grad()
def test_a_layer_whose_weight_is_read_is_left(kind):
    model, x = nn.Sequential(kind("")), torch.randn(3, 8)
    exact = model(x)
    report = rows_of(qt.quantize_(model, bits=8))
    assert report["0.proj"].note == f"{kind.__name__} reads its weight" + {Product: ".t", Moves: ".to"}.get(kind, "")
    assert all(row.quantized for name, row in report.items() if name != "0.proj")
    assert relative(model(x), exact) < 0.03


@torch.no_grad()
def test_layers_that_a_loop_reads_are_left():
    report = rows_of(qt.quantize_(nn.Sequential(Loop("")), bits=8))
    assert {name for name, row in report.items() if not row.quantized} == {"0.layers.0", "0.layers.1"}


@pytest.mark.parametrize(
    "kind, way, left",
    [(Branch, "a branch that runs", True), (Branch, "", False), (Guarded, "", False), (Calls, "", False)],
)
@torch.no_grad()
def test_only_reads_that_run_count(kind, way, left):
    model, x = nn.Sequential(kind(way)), torch.randn(3, 8)
    exact = model(x)
    assert rows_of(qt.quantize_(model, bits=8))["0.proj"].quantized != left
    assert relative(model(x), exact) < 0.03


def test_a_parent_far_above_reads():
    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x):
            return self.body(x) @ self.body[1].weight

    report = rows_of(qt.quantize_(Top(), bits=8))
    # Which element an index means is not followed: all of the container are left.
    assert [row.note for row in report.values()] == ["Top reads its weight"] * 2


def modules_left():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x
    hooked = nn.Linear(4, 4)
    hooked.register_full_backward_hook(lambda *_: None)
    return {
        "scripted": (scripted, "scripted module"),
        "weight_norm": (
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            "weight is computed by a parametrization",
        ),
        "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 2, 3)), "parametrization"),
        "old_weight_norm": (nn.utils.spectral_norm(nn.Linear(4, 4)), "forward pre hooks (SpectralNorm)"),
        "replaced": (replaced, "forward was replaced"),
        "hooked": (hooked, "backward hooks"),
        "lazy": (nn.LazyLinear(4), "not initialized"),
        "meta": (nn.Linear(4, 4, device="meta"), "on the meta device"),
        "max_norm": (nn.Embedding(4, 4, max_norm=1.0), "max_norm"),
        "lstm": (nn.LSTM(4, 4), "an LSTM needs a calibration that reaches it"),
        "projected": (nn.LSTM(4, 4, proj_size=2), "an LSTM needs a calibration that reaches it"),
        "rnn": (nn.RNN(4, 4), "there is no rule for RNN"),
        "conv1d": (nn.ConvTranspose1d(4, 4, 3), "there is no rule for ConvTranspose1d"),
        "conv3d": (nn.Conv3d(4, 4, 3), "there is no rule for Conv3d"),
        "transposed": (nn.ConvTranspose2d(4, 4, 3), "there is no rule for ConvTranspose2d"),
        "bag": (nn.EmbeddingBag(4, 4), "there is no rule for EmbeddingBag"),
        "bilinear": (nn.Bilinear(4, 4, 4), "there is no rule for Bilinear"),
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_left_is_named():
    given = modules_left()
    model = nn.ModuleDict({name: module for name, (module, _) in given.items()} | {"norm": nn.LayerNorm(4)})
    before = dict(model.items())
    text = r"quantize_: 0 of [\d,]+ parameters \(0%\) were quantized. Left: .*no rule"
    with pytest.warns(UserWarning, match=text) as caught:
        report = qt.quantize_(model, bits=8)
    assert [warning.filename for warning in caught] == [__file__]  # the caller's line
    rows = rows_of(report)
    assert set(rows) == set(given)
    for name, (module, reason) in given.items():
        assert reason in rows[name].note
        assert model[name] is before[name] is module
    assert report.other_parameters == {"LayerNorm": 8}
    assert "Warning: 0 of" in str(report)
    assert "there is no rule for RNN" in str(report)


def test_the_report_counts_the_whole_model():
    model = nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.ConvTranspose1d(64, 64, 1), nn.Linear(64, 64, bias=False)
    )
    model[3].weight = model[0].weight
    parameters = 64 * 64 + 64 + 128 + 64 * 64 + 64
    with pytest.warns(UserWarning):
        report = qt.quantize_(model, bits=8, block_size=64, scale_dtype="float16")
    assert report.parameters == parameters
    assert report.quantized_parameters == 64 * 64 + 64
    assert report.bytes_before == 4 * parameters
    assert report.bytes_after == model[0].packed.nbytes + 4 * (parameters - 64 * 64)
    assert model[0].weight.scale_dtype == "float16"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"exclude": ("*.up_prj",)}, r"exclude has '\*.up_prj', which matches no module of the model, .* '0.up_proj'"),
        ({"layers": {"dwn_proj": None}}, r"layers has 'dwn_proj', .*'0.down_proj'"),
        ({"layers": {"*": {"bits": 7}}}, r"layers\['\*'\]: bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
        ({"layers": {"*": {"bit": 4}}}, r"layers\['\*'\]: an option is 'bit'"),
        ({"layers": {"*": {"method": "awq"}}}, r"layers\['\*'\]: calibration is None"),
        ({"scale_dtype": "float64"}, "scale_dtype is 'float64'"),
    ],
)
def test_errors(options, message):
    model = nn.Sequential(nn.ModuleDict({"up_proj": nn.Linear(4, 4), "down_proj": nn.Linear(4, 4)}))
    with pytest.raises(ValueError, match=message):
        qt.quantize_(model, **options)
    assert type(model[0]["up_proj"]) is nn.Linear


@pytest.mark.parametrize("layers", (4, {"*": 4}, {4: None}))
def test_type_errors(layers):
    with pytest.raises(TypeError, match="quantize_: layers"):
        qt.quantize_(nn.Sequential(nn.Linear(4, 4)), bits=8, layers=layers)


def test_options_of_single_layers():
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), nn.Linear(64, 64), nn.Linear(64, 64))
    options = {"bits": 8, "block_size": 16, "scheme": "asymmetric", "scale_dtype": "float16", "compute": "float"}
    report = rows_of(qt.quantize_(model, bits=4, layers={"0": options, "*": {"compute": "int16"}, "1": None}))
    made = model[0][1].weight
    assert (made.bits, made.block_size, made.scheme, made.scale_dtype) == (8, 16, "asymmetric", "float16")
    assert model[0][1].compute == "float"
    assert (model[1].weight.bits, model[1].compute) == (4, "int16")  # the first pattern counts
    assert report["0.0"].bits == 8
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    report = rows_of(qt.quantize_(model, bits=8, layers={"1": None}))
    assert report["1"].note == "layers has '1': None"


@torch.no_grad()
def test_embeddings():
    class Net(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.embed, self.positions = nn.Embedding(50, 64), nn.Embedding(10, 64)
            self.head = nn.Linear(64, 50, bias=False)
            if tied:
                self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens) + self.positions(torch.arange(tokens.shape[-1])))

    tokens = torch.randint(0, 50, (2, 10))
    for tied in (False, True):
        model = Net(tied)
        exact = model(tokens)
        report = rows_of(qt.quantize_(model, bits=4))
        assert [report[name].bits for name in ("embed", "positions", "head")] == [4 if tied else 8, 8, 4]
        assert (model.embed.packed is model.head.packed) == tied
        assert relative(model(tokens), exact) < 0.2
        again = Net(tied)
        qt.restore_(again, model.state_dict())
        assert torch.equal(again(tokens), model(tokens))
    model = Net(True)
    assert rows_of(qt.quantize_(model, bits=4, layers={"embed": {"bits": 8}}))["head"].bits == 8


ATTENTION = [
    {"batch_first": True},
    {},
    {"bias": False},
    {"kdim": 6, "vdim": 10},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("options", ATTENTION)
@pytest.mark.parametrize("need_weights", (False, True))
@pytest.mark.parametrize("masks", ("none", "padding", "causal", "both", "per head", "numbers"))
@torch.no_grad()
def test_attention_is_that_of_torch(options, need_weights, masks):
    module = nn.MultiheadAttention(8, 2, **options).eval()
    if module.bias_k is not None:
        nn.init.normal_(module.bias_k)
    mine = MultiheadAttention.from_float(module, float_layer)
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, 5, module.kdim), torch.randn(2, 5, module.vdim)
    if not module.batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    arguments = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
        "per head": {"attn_mask": torch.rand(4, 5, 5) > 0.9},
        "numbers": {"attn_mask": torch.randn(5, 5), "key_padding_mask": torch.randn(2, 5)},
    }[masks]
    arguments["need_weights"] = need_weights
    for average in (True, False):
        expected = module(q, k, v, average_attn_weights=average, **arguments)
        got = mine(q, k, v, average_attn_weights=average, **arguments)
        torch.testing.assert_close(got[0], expected[0])
        assert (got[1] is None) == (expected[1] is None)
        if got[1] is not None:
            torch.testing.assert_close(got[1], expected[1])
    if masks == "none":
        batch = 0 if module.batch_first else 1
        single = [x.select(batch, 0) for x in (q, k, v)]
        torch.testing.assert_close(mine(*single)[0], module(*single)[0])


@pytest.mark.parametrize("nested", (True, False))
@torch.no_grad()
def test_encoder_with_a_padding_mask(nested):
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=nested
    )
    model.eval()
    x, mask = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    exact = model(x, src_key_padding_mask=mask)
    holder = nn.ModuleDict({"encoder": model})
    again = copy.deepcopy(holder)
    assert qt.quantize_(holder, bits=8).share > 0.9
    got = holder["encoder"](x, src_key_padding_mask=mask)
    assert relative(got[~mask], exact[~mask]) < 0.03
    qt.restore_(again, holder.state_dict())
    assert torch.equal(again["encoder"](x, src_key_padding_mask=mask), got)


@torch.no_grad()
def test_a_decoder_of_torch():
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True, dropout=0.0).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    exact = model(x, y, tgt_mask=mask, tgt_is_causal=True)
    assert qt.quantize_(model, bits=8).share > 0.9
    assert relative(model(x, y, tgt_mask=mask, tgt_is_causal=True), exact) < 0.05


class Conv1D(nn.Module):
    """Computes a linear layer whose weight is [K, N], as GPT-2 of transformers has."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


@torch.no_grad()
def test_transposed_linear():
    model, x = nn.Sequential(Conv1D(12, 8)), torch.randn(5, 8)
    exact = model(x)
    report = qt.quantize_(model, bits=8, calibration=x)
    assert type(model[0]) is qt.Linear
    assert model[0].weight.shape == (12, 8)
    assert 0 < report.layers[0].error < 0.02
    assert relative(model(x), exact) < 0.02


@torch.no_grad()
def test_scaled_embedding():
    class Scaled(nn.Embedding):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.register_buffer("embed_scale", torch.tensor(8.0), persistent=False)

        def forward(self, tokens):
            return super().forward(tokens) * self.embed_scale

    model, tokens = nn.Sequential(Scaled(10, 16)), torch.arange(10)
    exact, again = model(tokens), copy.deepcopy(model)
    assert qt.quantize_(model, bits=8).share == 1
    assert relative(model(tokens), exact) < 0.01
    qt.restore_(again, model.state_dict())
    assert torch.equal(again(tokens), model(tokens))


@torch.no_grad()
def test_a_state_on_the_meta_device():
    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ConvTranspose1d(8, 8, 1), nn.BatchNorm1d(8))

    model = make().eval()
    nn.init.normal_(model[1].weight)
    with pytest.warns(UserWarning):
        qt.quantize_(model, bits=8)
    with torch.device("meta"):
        other = make().eval()
    qt.restore_(other, model.state_dict())
    assert not any(tensor.is_meta for tensor in (*other.parameters(), *other.buffers()))
    x = torch.randn(2, 8)
    assert torch.equal(other[1](other[0](x)), model[1](model[0](x)))
    assert torch.equal(other[2].weight, model[2].weight)

    with torch.device("meta"):
        other = make()
        other[1].register_buffer("table", torch.zeros(3), persistent=False)
    with pytest.raises(ValueError, match=r"restore_: 1\.table of the model: on the meta device and not in the state"):
        qt.restore_(other, model.state_dict())
    assert type(other[0]) is nn.Linear


def test_a_convolution_has_the_sizes_of_torch():
    module = nn.Conv2d(4, 6, (3, 5), stride=2, groups=2)
    made = qt.Conv2d.from_float(module, bits=8)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups"):
        assert getattr(made, name) == getattr(module, name)
