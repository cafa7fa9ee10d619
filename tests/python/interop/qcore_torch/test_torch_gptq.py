"""quantize_(method="gptq"): Hessians over the whole calibration, in bounded memory, after the layers before."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402
from qcore.torch.conversion import hessians  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:quantize_")


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 80), nn.ReLU(), nn.Linear(80, 10))


def batches(count=3, rows=300):
    generator = torch.Generator().manual_seed(3)
    mix = torch.randn(16, 64, generator=generator)
    return [
        torch.randn(rows, 16, generator=generator) @ mix + 0.2 * torch.randn(rows, 64, generator=generator)
        for _ in range(count)
    ]


@torch.no_grad()
def test_layers_are_those_of_quantize_with_their_inputs():
    model, exact = network(), network()
    report = qt.quantize_(model, bits=4, block_size=32, compute="float", method="gptq", calibration=batches())
    assert [layer.note for layer in report.layers] == [""] * 3
    inputs = batches()  # 900 rows: more than one batch's share of what other methods keep
    for index in (0, 2, 4):
        hessian = qcore.Hessian(exact[index].in_features)
        for x in inputs:
            hessian.add(x)
        expected = qcore.quantize(exact[index].weight, bits=4, block_size=32, method="gptq", hessian=hessian)
        np.testing.assert_array_equal(model[index].weight.codes(), expected.codes())
        # One run of the calibration serves all three layers, so that none of them is quantized in it.
        inputs = [exact[index : index + 2](x) for x in inputs]


@torch.no_grad()
def test_memory_is_bounded_and_later_layers_see_quantized_ones(monkeypatch):
    monkeypatch.setattr(hessians, "_BYTES", 4 * 64 * 64)  # one layer at a time
    runs = []
    outputs_of = hessians.outputs_of
    monkeypatch.setattr(hessians, "outputs_of", lambda *arguments: runs.append(1) or outputs_of(*arguments))
    model, exact = network(), network()
    qt.quantize_(model, bits=4, block_size=32, compute="float", method="gptq", calibration=batches())
    assert len(runs) == 3
    hessian = qcore.Hessian(96)
    for x in batches():
        hessian.add(model[:2](x))
    expected = qcore.quantize(exact[2].weight, bits=4, block_size=32, method="gptq", hessian=hessian)
    np.testing.assert_array_equal(model[2].weight.codes(), expected.codes())


@torch.no_grad()
def test_the_models_error_is_below_other_methods():
    errors = {}
    for method in ("rtn", "mse", "awq", "gptq"):
        report = qt.quantize_(network(), bits=4, block_size=32, compute="float", method=method, calibration=batches())
        errors[method] = report.model_error
    assert errors["gptq"] < 0.7 * min(errors[method] for method in ("rtn", "mse", "awq"))


@torch.no_grad()
def test_target_error_promotes_layers():
    model = network()
    report = qt.quantize_(model, bits=4, compute="float", method="gptq", calibration=batches(), target_error=0.01)
    assert report.model_error <= 0.01
    assert {layer.bits for layer in report.layers} & {8, None}


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.used = nn.Linear(16, 8)
        self.unused = nn.Linear(16, 8)

    def forward(self, x):
        return self.used(self.conv(x).mean((2, 3)))


@torch.no_grad()
def test_layers_that_gptq_does_not_take_are_quantized_by_mse():
    model, exact = Branches(), Branches()
    exact.load_state_dict(model.state_dict())
    report = qt.quantize_(model, bits=4, method="gptq", calibration=[torch.randn(8, 3, 8, 8)])
    assert {layer.name: layer.note for layer in report.layers} == {
        "conv": "method 'mse'",
        "used": "",
        "unused": "method 'mse'",
    }
    assert model.unused.weight == qcore.quantize(exact.unused.weight, bits=4, method="mse")


def test_transposed_weights_of_gpt2():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model, x = nn.Sequential(Conv1D(24, 16)), torch.randn(50, 16)
    exact = model[0].weight.detach().t().contiguous()
    report = qt.quantize_(model, bits=4, block_size=16, method="gptq", calibration=[x])
    assert report.layers[0].note == ""
    expected = qcore.quantize(exact, bits=4, block_size=16, method="gptq", samples=x)
    np.testing.assert_array_equal(model[0].weight.codes(), expected.codes())


@torch.no_grad()
def test_damping_and_activation_order():
    model, exact = network(), network()
    calibration = [x * torch.linspace(0.1, 5, 64) for x in batches()]
    layers = {"4": {"method": "mse"}, "2": {"act_order": False, "damping": 0.5}}
    options = {"bits": 4, "block_size": 32, "compute": "float", "method": "gptq", "calibration": calibration}
    qt.quantize_(model, act_order=True, damping=0.1, layers=layers, **options)
    for index, given in ((0, {"act_order": True, "damping": 0.1}), (2, {"damping": 0.5})):
        hessian = qcore.Hessian(exact[index].in_features)
        for x in calibration:
            hessian.add(exact[:index](x))
        weight = qcore.quantize(exact[index].weight, bits=4, block_size=32, method="gptq", hessian=hessian, **given)
        np.testing.assert_array_equal(model[index].weight.codes(), weight.codes())
    assert model[4].weight == qcore.quantize(exact[4].weight, bits=4, block_size=32, method="mse")


def test_errors():
    model = network()
    with pytest.raises(ValueError, match="calibration is None, expected inputs of the model with method='gptq'"):
        qt.quantize_(model, bits=8, method="gptq")
    with pytest.raises(ValueError, match=r"quantize_: 0: inputs on the calibration: .* NaN"):
        qt.quantize_(model, bits=8, method="gptq", calibration=[torch.full((2, 64), torch.nan)])
    with pytest.raises(ValueError, match="quantize_: damping is -1, expected a finite number of 0 or more"):
        qt.quantize_(model, bits=8, method="gptq", calibration=batches(), damping=-1)
    with pytest.raises(TypeError, match=r"quantize_: layers\['0'\]: act_order is 3, expected True or False"):
        qt.quantize_(model, bits=8, layers={"0": {"act_order": 3}})
    with pytest.raises(ValueError, match=r"damping is 0\.5 and act_order False, expected 0\.01 and False without"):
        qt.quantize_(model, bits=8, damping=0.5)
    assert isinstance(model[0], nn.Linear)
