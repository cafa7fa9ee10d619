"""Convolutions of sequences: those of images of one row, made by quantize_, saved and loaded."""

import pytest
import torch

import qcore
import qcore.torch as qt

SHAPES = [
    {"kernel_size": 3},
    {"kernel_size": 5, "stride": 2, "padding": 2},
    {"kernel_size": 4, "padding": "same", "dilation": 2},
    {"kernel_size": 3, "padding": "valid", "groups": 4, "bias": False},
]


def float_module(**options):
    torch.manual_seed(0)
    return torch.nn.Conv1d(8, 12, **options).eval()


@pytest.mark.parametrize("compute", ["float", "int8"])
@pytest.mark.parametrize("options", SHAPES, ids=lambda options: "-".join(map(str, options.values())))
def test_it_is_the_float_convolution_of_the_dequantized_weight(options, compute):
    module = float_module(**options)
    made = qt.Conv1d.from_float(module, bits=8, block_size=2 if "groups" in options else 8, compute=compute)
    x = torch.randn(3, 8, 20)
    module.weight.data = torch.from_numpy(made.weight.dequantize()).squeeze(2)
    expected = module(x)
    tolerance = 1e-5 if compute == "float" else 0.03
    assert made(x).shape == expected.shape
    assert torch.allclose(made(x), expected, atol=tolerance)
    assert torch.equal(made(x[0]), made(x[:1])[0])


def test_models_with_them(tmp_path):
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv1d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(16, 8, 3))

    x, changed = torch.randn(2, 8, 30), model()
    expected = changed(x)
    report = qt.quantize_(changed, bits=8, calibration=[x], method="awq")
    assert [layer.bits for layer in report.layers] == [8, 8]
    assert report.model_error < 0.03
    assert torch.allclose(changed(x), expected, atol=0.05)
    assert qt.quantize_(model(), bits=8).layers[0].error < 0.01  # of the weight, without a calibration
    other = model()
    qt.restore_(other, changed.state_dict())
    assert torch.equal(other(x), changed(x))
    program = torch.export.export(changed, (x,))
    assert torch.equal(program.module()(x), changed(x))


def test_what_is_refused():
    with pytest.raises(
        qcore.QcoreTypeError, match=r"Conv1d.from_float: module is a Linear, expected a torch.nn.Conv1d"
    ):
        qt.Conv1d.from_float(torch.nn.Linear(3, 4), bits=8)
    with pytest.raises(qcore.QcoreValueError, match=r"padding_mode is 'circular', expected 'zeros'"):
        qt.Conv1d.from_float(torch.nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular"), bits=8)
    made = qt.Conv1d.from_float(float_module(kernel_size=3), bits=8)
    with pytest.raises(qcore.QcoreValueError, match=r"x has shape \[1, 1, 8, 20\], expected \[N, 8, L\] or \[8, L\]"):
        made(torch.ones(1, 1, 8, 20))
