"""One set of defaults: quantize, the modules and models of torch, QcoreConfig and the command line."""

import inspect

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

import qcore
import qcore.torch as qt
from qcore.cli import app
from qcore.formats.checkpoint.options import Options
from qcore.torch.conversion.options import default_settings

EXPECTED = {"bits": 4, "block_size": 32, "scheme": "symmetric", "method": "mse", "scale_dtype": "float16"}
GPTQ = {"damping": inspect.signature(qcore.quantize).parameters["damping"].default, "act_order": False}


def defaults(function):
    given = inspect.signature(function).parameters
    return {name: option.default for name, option in given.items() if name in EXPECTED | GPTQ}


def weight():
    return np.random.default_rng(0).standard_normal((16, 64), dtype=np.float32)


def module():
    linear = torch.nn.Linear(64, 16)
    linear.weight.data = torch.from_numpy(weight())
    return linear


def test_quantize():
    assert defaults(qcore.quantize) == EXPECTED | GPTQ


@pytest.mark.parametrize("kind", [qt.Linear, qt.Conv2d])
def test_from_float(kind):
    assert defaults(kind.from_float) == EXPECTED
    assert inspect.signature(kind.from_float).parameters["compute"].default == "int8"


def test_from_float_of_an_embedding():
    assert defaults(qt.Embedding.from_float) == EXPECTED


def test_those_that_take_options_as_they_are():
    """They name none of the options, so that the defaults are those of what they call."""
    module_1d, rotated = torch.nn.Conv1d(64, 16, 1), qcore.quantize_rotated(weight())
    module_1d.weight.data = torch.from_numpy(weight()).unsqueeze(2)
    assert qt.Conv1d.from_float(module_1d).bits == 4
    assert rotated.weight == qt.RotatedLinear.from_float(module()).linear.weight
    assert rotated.weight.bits_per_weight == qcore.quantize(weight()).bits_per_weight == 4.5


def test_models():
    settings = default_settings({}, None)
    assert {name: getattr(settings, name) for name in EXPECTED | GPTQ} == EXPECTED | GPTQ
    assert settings.compute == "int8"
    assert all(value is None for name, value in defaults(qt.quantize_).items() if name in EXPECTED)
    model = torch.nn.Sequential(module())
    qt.quantize_(model)
    assert model[0].weight == qcore.quantize(weight())


def test_what_keeps_8_bits():
    report = qt.quantize_(torch.nn.Sequential(torch.nn.Embedding(8, 64), module()))
    assert [layer.bits for layer in report.layers] == [8, 4]
    x = torch.randn(5, 2, 4)
    for options, bits in (({}, 8), ({"bits": 4}, 8)):
        report = qt.quantize_(torch.nn.Sequential(torch.nn.GRU(4, 8)), calibration=x, **options)
        assert [layer.bits for layer in report.layers] == [bits]
    for options, bits in (({}, 8), ({"bits": 4}, 4)):
        report = qt.quantize_(torch.nn.Sequential(torch.nn.GRU(4, 8)), calibration=x, trainable=True, **options)
        assert [layer.bits for layer in report.layers] == [bits]


def test_command_line(tmp_path):
    made = Options()
    assert {name: getattr(made, name) for name in EXPECTED | GPTQ} == EXPECTED | GPTQ
    given = dict.fromkeys(("bits", "block_size", "scheme", "scale_dtype", "method", "encoding"))
    assert Options.given(**given) == made
    source, output = str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors")
    save_file({"w.weight": weight()}, source)
    assert CliRunner().invoke(app, ["quantize", source, output]).exit_code == 0
    assert qcore.load(output)["w.weight"] == qcore.quantize(weight())


def test_configuration_of_transformers():
    transformers = pytest.importorskip("qcore.transformers")
    config = transformers.QcoreConfig()
    assert {name: getattr(config, name) for name in EXPECTED} == EXPECTED
    assert config.compute == "int8"
