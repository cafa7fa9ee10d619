"""What users of torch try and what they are told: errors, pickles, notebooks, logging, transforms and exporters."""

import io
import logging
import warnings

import numpy as np
import pytest
import torch

import qcore
import qcore.torch


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())


def refused(call, *words, kind=qcore.QcoreError):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert all(word in text for word in words), text


def quantized():
    return qcore.torch.Linear.from_float(torch.nn.Linear(16, 8))


def test_names_that_do_not_exist_name_those_that_do():
    refused(lambda: qcore.torch.quantize, "'quantize'", "quantize_(model)", kind=AttributeError)
    refused(lambda: qcore.torch.nothing, "'nothing'", kind=AttributeError)
    assert dir(qcore.torch) == sorted(qcore.torch.__all__)


def test_modules_and_states_are_no_weights():
    layer = torch.nn.Linear(16, 8)
    refused(lambda: qcore.quantize(layer), "quantize: weight is a Linear", "expected", ".weight", "quantize_")
    refused(lambda: qcore.quantize(torch.nn.Linear), "quantize: weight is the class Linear, expected an array")
    refused(lambda: qcore.quantize(layer.state_dict()), "quantize: weight is a OrderedDict", "one of its values")
    refused(lambda: qcore.save("x.safetensors", layer), "save: tensors is a Linear", "dictionary")


def test_batches_that_forward_does_not_take():
    data = torch.utils.data.TensorDataset(torch.ones(8, 16), torch.zeros(8))
    loader = torch.utils.data.DataLoader(data, batch_size=4)

    def run(calibration):
        return lambda: qcore.torch.quantize_(model(), calibration=calibration)

    refused(run(loader), "quantize_: calibration[0] is a list of 2", "Sequential.forward(input)", "[x for x, y in")
    refused(run([torch.ones(2, 16), {"z": torch.ones(2, 16)}]), "calibration[1] is a dictionary with z", "expected")
    refused(run(np.ones((2, 16), np.float32)), "calibration is a ndarray", "expected a tensor")
    refused(run([np.ones((2, 16), np.float32)]), "calibration[0] is a ndarray", "torch.from_numpy")
    assert qcore.torch.quantize_(model(), calibration=[x for x, _ in loader]).model_error is not None


def test_meta_tensors_have_no_values():
    x, weight = torch.empty(8, 16, device="meta"), qcore.quantize(np.ones((8, 16), np.float32))
    refused(lambda: qcore.quantize(x), "quantize: weight is on the meta device", "expected the CPU")
    refused(lambda: qcore.linear(x, weight), "linear: x is on the meta device", "expected the CPU")
    refused(lambda: qcore.torch.Linear.from_float(torch.nn.Linear(16, 8, device="meta")), "meta device", "expected")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = qcore.torch.quantize_(model().to("meta"))
    assert report.layers[0].note == "its weights are on the meta device, without values: load them first"


def test_float64_and_torchscript():
    for change in (lambda module: module.double(), lambda module: module.to(torch.float64)):
        refused(lambda change=change: change(torch.nn.Sequential(quantized())), "float64", "expected float32")
    refused(lambda: torch.jit.script(torch.nn.Sequential(quantized())), "torch.jit.script: Linear", "expected")


@pytest.mark.filterwarnings("ignore")
def test_the_tracing_exporter_of_onnx():
    arguments = (torch.ones(2, 16),)
    refused(
        lambda: torch.onnx.export(quantized(), arguments, io.BytesIO(), dynamo=False),
        "torch.onnx.export",
        "qcore::linear",
        "expected",
        "to_onnx",
    )


@pytest.mark.parametrize("options", [{}, {"bits": 3}, {"scheme": "asymmetric"}, {"bits": 8, "scale_dtype": "float16"}])
def test_weights_are_loaded_without_trust(options):
    weight = qcore.quantize(np.random.default_rng(0).standard_normal((8, 40), np.float32), **options)
    order = np.random.default_rng(1).permutation(40)
    for each in (weight, qcore.RotatedTensor(weight, 8), qcore.ReorderedTensor(weight, order)):
        file = io.BytesIO()
        torch.save({"w": each}, file)
        file.seek(0)
        assert torch.load(file, weights_only=True)["w"] == each


def test_vmap():
    layer, x = quantized(), torch.randn(5, 3, 16)
    expected = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it takes the batch apart
        assert torch.equal(torch.vmap(layer)(x), expected)
        assert torch.equal(torch.vmap(layer, in_dims=1, out_dims=1)(x), expected)
        images = torch.randn(3, 2, 4, 6, 6)
        convolution = qcore.torch.Conv2d.from_float(torch.nn.Conv2d(4, 8, 3))
        assert torch.equal(torch.vmap(convolution)(images), torch.stack([convolution(each) for each in images]))
    refused(lambda: torch.vmap(lambda each: qcore.linear(each, layer.weight))(x), "linear: x is a tensor inside")


def test_notebooks_show_tables():
    layer = torch.nn.Sequential(torch.nn.Linear(16, 8))
    layer.add_module("a<b", torch.nn.Linear(8, 8))
    shown = qcore.torch.quantize_(layer)._repr_html_()
    assert shown.startswith("<table>")
    assert "a&lt;b" in shown
    assert "<td>8 x 16</td>" in layer[0].weight._repr_html_()
    rotated = qcore.RotatedTensor(layer[0].weight, 8)
    assert rotated._repr_html_().startswith("<table><caption>RotatedTensor</caption>")
    assert np.asarray(rotated).shape == (8, 16)
    np.testing.assert_array_equal(np.asarray(rotated, np.float64), rotated.dequantize())


def test_decisions_are_logged_and_silent_by_default(caplog, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.EmbeddingBag(8, 4))
        with caplog.at_level(logging.DEBUG, logger="qcore"):
            qcore.torch.quantize_(changed)
            changed[0](torch.ones(2, 16))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "quantize_: 0 (Linear): 4 bits, compute int8" in text
    assert "quantize_: 1 (EmbeddingBag) is left: there is no rule for EmbeddingBag" in text
    assert f"linear: kernel {qcore.last_kernel('linear')} for x [2, 16] and weight [8, 16]" in text
    caplog.clear()
    changed[0](torch.ones(2, 16))
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_old_names_still_work():
    layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 8))
    with pytest.warns(DeprecationWarning, match=r"quantize_: skip= is called exclude= now"):
        report = qcore.torch.quantize_(layers, skip=("1",))
    assert report.layers[1].note == "exclude has '1'"
    with pytest.warns(
        DeprecationWarning, match=r"quantize_: bits, block_size by position, expected bits=, block_size="
    ):
        qcore.torch.quantize_(layers, 4, 8)
    assert (layers[1].bits, layers[1].block_size) == (4, 8)
    gru, x = torch.nn.GRU(4, 4), torch.ones(3, 2, 4)
    with pytest.warns(DeprecationWarning, match=r"from_torch: data= is called samples= now"):
        qcore.gru.QuantGRU.from_torch(gru, data=x)


def test_words_of_other_libraries():
    weight = np.ones((8, 16), np.float32)
    refused(lambda: qcore.quantize(weight, group_size=8), "quantize: group_size is 8, expected block_size")
    refused(lambda: qcore.quantize(weight, sym=True), "quantize: sym is True, expected scheme")
    refused(lambda: qcore.torch.quantize_(model(), group_size=8), "quantize_: group_size is 8, expected block_size")
    refused(lambda: qcore.torch.quantize_(model(), ignore=["0"]), "quantize_: ignore is ['0'], expected exclude")
    refused(lambda: qcore.quantize(weight, nonsense=8), "nonsense", kind=TypeError)
    refused(lambda: qcore.quantize(weight, calibration=weight), "calibration is a ndarray, expected samples")
    refused(lambda: qcore.quantize(weight, data=[1]), "quantize: data is [1], expected samples, which is its name here")
    refused(lambda: qcore.torch.quantize_(model(), samples=weight), "samples is a ndarray, expected calibration")
    refused(lambda: qcore.torch.quantize_(model(), dataset=[]), "quantize_: dataset is [], expected calibration")
    refused(lambda: qcore.torch.quantize_(model(), mode="int8"), "quantize_: mode is 'int8', expected compute")
