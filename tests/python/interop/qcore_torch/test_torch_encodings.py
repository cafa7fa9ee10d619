"""quantize_ with named encodings and 2, 3, 5 and 6 bits: the weights are those of the functions, and errors say why."""

import copy
import io
import json

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402
from qcore.weight_encoding import ENCODINGS  # noqa: E402

WIDTHS = (2, 3, 5, 6)


class Conv1D(nn.Module):
    """Computes what transformers' module of this name does."""

    def __init__(self, width, features):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(features, width)), nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x @ self.weight + self.bias


class Tied(nn.Module):
    """Has a head that shares the weight of an embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 64), nn.Linear(64, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 64), nn.Linear(64, 96), nn.ReLU(), Conv1D(64, 96), nn.Linear(64, 40)).eval()


def tokens():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 40, (60,), generator=generator) for _ in range(3)]


def matrix(module):
    return module.weight.detach().t() if isinstance(module, Conv1D) else module.weight.detach()


def inputs_of(model, batches):
    """Return the inputs of each layer on the batches, one after the other."""
    found = {}
    with torch.no_grad():
        for x in batches:
            for name, module in model.named_children():
                found.setdefault(name, []).append(x)
                x = module(x)
    return {name: torch.cat(rows) for name, rows in found.items()}


@torch.no_grad()
@pytest.mark.parametrize("method", [None, "rtn"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_each_weight_is_what_quantize_encoded_makes(name, method):
    exact, model = network(), network()
    report = qt.quantize_(model, encoding=name, method=method)
    for row in report.layers:
        made = model.get_submodule(row.name)
        expected = qcore.quantize_encoded(matrix(exact.get_submodule(row.name)), name, method=method or "mse")
        assert made.weight == expected
        assert (row.encoding, row.bits, row.block_size) == (name, expected.bits, expected.block_size)
        count = matrix(exact.get_submodule(row.name)).numel()
        assert row.bits_per_weight == pytest.approx(8 * made.packed.nbytes / count)
        assert 0 < row.error < 1
    assert [row.name for row in report.layers] == ["0", "1", "3", "4"]
    shown = str(report)
    assert shown.count(name) == 4 and f"{report.layers[1].bits_per_weight:.4g}" in shown
    assert json.loads(report.to_json())["layers"][0]["encoding"] == name


@torch.no_grad()
def test_samples_weigh_the_errors():
    exact, model = network(), network()
    report = qt.quantize_(model, encoding="q4_k", calibration=tokens())
    rows = inputs_of(exact, tokens())
    for name in ("1", "3", "4"):
        weight = matrix(exact.get_submodule(name))
        expected = qcore.quantize_encoded(weight, "q4_k", method="awq", samples=rows[name])
        assert model.get_submodule(name).weight == expected != qcore.quantize_encoded(weight, "q4_k")
    assert model[0].weight == qcore.quantize_encoded(exact[0].weight, "q4_k")
    assert report.layers[0].note == "method 'mse'"
    again = network()
    qt.quantize_(again, encoding="q4_k", calibration=tokens(), method="mse")
    assert again[1].weight == qcore.quantize_encoded(exact[1].weight, "q4_k")


@torch.no_grad()
@pytest.mark.parametrize("bits", WIDTHS)
def test_widths_are_those_of_quantize(bits):
    exact, model = network(), network()
    form = {"block_size": 32, "scheme": "asymmetric", "scale_dtype": "float16", "method": "mse"}
    report = qt.quantize_(model, bits=bits, layers={"0": {"bits": bits}}, **form)
    for row in report.layers:
        weight = matrix(exact.get_submodule(row.name))
        assert model.get_submodule(row.name).weight == qcore.quantize(weight, bits=bits, **form)
        assert (row.bits, row.encoding) == (bits, None)
    assert qt.quantize_(network(), bits=bits).layers[0].bits == 8  # an embedding


@torch.no_grad()
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("bits", WIDTHS)
def test_widths_by_gptq(bits, act_order):
    exact, model = network(), network()
    options = {"bits": bits, "block_size": 32, "method": "gptq", "act_order": act_order, "damping": 0.05}
    report = qt.quantize_(model, calibration=tokens(), layers={"[01]": None}, **options)
    samples = qcore.Hessian(96)
    for x in tokens():
        samples.add(exact[2](exact[1](exact[0](x))))
    assert model[3].weight == qcore.quantize(matrix(exact[3]), hessian=samples, **options)
    plain = network()
    other = qt.quantize_(plain, bits=bits, block_size=32, method="rtn", calibration=tokens(), layers={"[01]": None})
    assert report.layers[2].error < other.layers[2].error


@torch.no_grad()
def test_rotated_layers_of_other_widths():
    model, exact = nn.Sequential(nn.Linear(64, 32)), nn.Linear(64, 32)
    exact.load_state_dict(model[0].state_dict())
    qt.quantize_(model, bits=3, block_size=32, rotation="hadamard")
    assert model[0].weight == qcore.quantize_rotated(exact.weight.detach(), bits=3, block_size=32)


@torch.no_grad()
def test_options_of_single_layers():
    exact, model = network(), network()
    report = qt.quantize_(
        model,
        encoding="q4_k",
        layers={
            "0": {"encoding": "q6_k", "method": "rtn"},
            "1": {"bits": 3, "block_size": 32},
            "3": {"encoding": None},
            "4": {"compute": "float"},
        },
    )
    assert model[0].weight == qcore.quantize_encoded(exact[0].weight, "q6_k", method="rtn")
    assert model[1].weight == qcore.quantize(exact[1].weight, bits=3, block_size=32)
    assert model[3].weight == qcore.quantize(matrix(exact[3]))
    assert model[4].weight == qcore.quantize_encoded(exact[4].weight, "q4_k") and model[4].compute == "float"
    assert [row.encoding for row in report.layers] == ["q6_k", None, None, "q4_k"]
    # Bits of the call do not contradict the encoding of a single layer.
    model = network()
    options = {"bits": 4, "block_size": 32, "method": "gptq", "act_order": True, "rotation": "hadamard"}
    qt.quantize_(model, calibration=tokens(), layers={"4": {"encoding": "q5_k"}, "[03]": None}, **options)
    samples = inputs_of(network(), tokens())["4"]
    assert model[4].weight == qcore.quantize_encoded(exact[4].weight, "q5_k", method="awq", samples=samples)
    assert isinstance(model[1], qt.RotatedLinear)


@torch.no_grad()
def test_shared_weights_attention_and_convolutions():
    model = Tied()
    exact = model.embed.weight.detach().clone()
    qt.quantize_(model, encoding="q4_k")
    assert model.embed.weight == model.head.weight == qcore.quantize_encoded(exact, "q4_k")
    assert model.embed.packed.data_ptr() == model.head.packed.data_ptr()
    attention = nn.ModuleDict({"inner": nn.MultiheadAttention(64, 2)})
    exact = attention["inner"].in_proj_weight.detach().clone()
    row = qt.quantize_(attention, encoding="q4_k").layers[0]
    found = [each.weight for each in attention.modules() if isinstance(each, qt.Linear)]
    assert qcore.quantize_encoded(exact[:64], "q4_k") in found and len(found) == 4
    assert row.encoding == "q4_k" and row.bits_per_weight > 4.5
    for options, bits, block in (
        ({"encoding": "q4_k"}, 4, 32),
        ({"encoding": "q6_k"}, 8, 16),
        ({"bits": 2}, 4, 32),
        ({"bits": 5}, 8, 32),
    ):
        model = nn.Sequential(nn.Conv2d(32, 8, 3))
        weight = model[0].weight.detach()
        report = qt.quantize_(model, method="mse", **options)
        assert model[0].weight == qcore.quantize(weight, bits=bits, block_size=block, method="mse")
        asked = "'" + options["encoding"] + "'" if "encoding" in options else f"{options['bits']} bits"
        assert report.layers[0].note == f"{bits} bits: {asked} is for matrices"
        assert report.layers[0].encoding is None


@torch.no_grad()
def test_target_error_raises_encoded_layers_to_8_bits():
    model = network()
    report = qt.quantize_(model, encoding="q2_k", calibration=tokens(), target_error=0.05)
    assert report.model_error <= 0.05
    raised = [row for row in report.layers if row.bits == 8]
    assert raised and all(row.encoding is None for row in raised)


@torch.no_grad()
@pytest.mark.parametrize("options", [{"encoding": name} for name in ENCODINGS] + [{"bits": bits} for bits in WIDTHS])
def test_states_are_restored_bit_by_bit(options):
    model = network()
    qt.quantize_(model, **options)
    expected = model(tokens()[0])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = network()
    qt.restore_(other, torch.load(file))
    for name in ("0", "1", "3", "4"):
        assert other.get_submodule(name).weight == model.get_submodule(name).weight
    assert torch.equal(other(tokens()[0]), expected)
    assert torch.equal(copy.deepcopy(model)(tokens()[0]), expected)


@torch.no_grad()
def test_files_of_qcore_keep_the_weights(tmp_path):
    model = network()
    qt.quantize_(model, encoding="q4_k", layers={"3": {"encoding": "nvfp4"}, "4": {"bits": 3}})
    weights = {name: model.get_submodule(name).weight for name in ("0", "1", "3", "4")}
    qcore.save(tmp_path / "weights.safetensors", weights)
    assert qcore.load(tmp_path / "weights.safetensors") == weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "q4"}, "encoding is 'q4', expected one of 'q2_k'"),
        ({"encoding": 4}, "encoding is 4, expected a string"),
        ({"encoding": ["q4_k"]}, r"encoding is \['q4_k'\], expected a string"),
        ({"encoding": "q4_k", "bits": 4}, "bits is 4 and encoding 'q4_k', expected one of them: q4_k has codes of 4"),
        ({"encoding": "q4_k", "bits": 8}, "bits is 8 and encoding 'q4_k'"),
        ({"encoding": "q4_k", "block_size": 32}, "block_size is 32 and encoding 'q4_k'"),
        ({"encoding": "q4_k", "scheme": "symmetric"}, "scheme is 'symmetric' and encoding"),
        ({"encoding": "q4_k", "scale_dtype": "float16"}, "scale_dtype is 'float16' and encoding"),
        ({"encoding": "q4_k", "method": "gptq"}, "method is 'gptq', expected 'rtn', 'mse' or 'awq' with encoding"),
        ({"encoding": "q4_k", "method": "awq"}, "calibration is None, expected inputs of the model with method='awq'"),
        ({"encoding": "q4_k", "rotation": "hadamard"}, "rotation is 'hadamard', expected None with encoding='q4_k'"),
        ({"encoding": "q4_k", "act_order": True}, "act_order is True, expected False with encoding='q4_k'"),
        (
            {"layers": {"1": {"encoding": "q4_k", "bits": 4}}},
            r"layers\['1'\]: bits is 4 and encoding 'q4_k', expected one of them",
        ),
        ({"layers": {"1": {"encoding": "q9"}}}, r"layers\['1'\]: encoding is 'q9', expected one of"),
        ({"encoding": "q4_k", "layers": {"1": {"method": "gptq"}}}, r"layers\['1'\]: method is 'gptq', expected 'rtn'"),
        ({"bits": 7}, "bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
    ],
)
def test_errors_leave_the_model_as_it_was(options, message):
    model = network()
    with pytest.raises((ValueError, TypeError), match=f"quantize_: {message}"):
        qt.quantize_(model, **options)
    assert type(model[1]) is nn.Linear
