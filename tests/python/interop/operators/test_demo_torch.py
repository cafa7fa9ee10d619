"""The demo's NumPy layers against the torch modules that the model was trained with."""

import numpy as np
import torch

from qcore.demo.data import load
from qcore.demo.model import Model
from qcore.demo.operators import FloatOperators, QcoreOperators, StaticOperators


def array(tensor):
    return tensor.detach().numpy()


def test_convolution():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(5, 7, (3, 2), padding=1)
    x = torch.randn(3, 5, 9, 8)
    layer = FloatOperators().conv2d(array(conv.weight), array(conv.bias), padding=1, with_relu=True)
    np.testing.assert_allclose(layer(array(x)), array(torch.relu(conv(x))), atol=1e-5)


def test_quantized_convolutions():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(32, 7, (3, 2), padding=1)
    x = torch.randn(3, 32, 9, 8)
    expected = array(torch.relu(conv(x)))
    for operators, bound in ((QcoreOperators(8, 32), 0.02), (StaticOperators(), 0.02), (QcoreOperators(4, 32), 0.2)):
        layer = operators.conv2d(array(conv.weight), array(conv.bias), padding=1, with_relu=True)
        if isinstance(operators, StaticOperators):
            layer.calibrate(array(x))
        assert np.linalg.norm(layer(array(x)) - expected) < bound * np.linalg.norm(expected)


def test_linear():
    torch.manual_seed(0)
    linear = torch.nn.Linear(33, 10)
    x = torch.randn(3, 4, 33)
    layer = FloatOperators().linear(array(linear.weight), array(linear.bias))
    np.testing.assert_allclose(layer(array(x)), array(linear(x)), atol=1e-5)


def test_gru():
    torch.manual_seed(0)
    gru = torch.nn.GRU(5, 12, batch_first=True)
    x = 3 * torch.randn(4, 20, 5)
    layer = FloatOperators().gru(*(array(parameter) for parameter in gru.parameters()))
    np.testing.assert_allclose(layer(array(x)), array(gru(x)[0][:, -1]), atol=1e-5)


def test_whole_model():
    digits = load()
    weights = {name: torch.from_numpy(value) for name, value in digits.weights.items()}
    gru = torch.nn.GRU(64, 96, batch_first=True)
    gru.load_state_dict({name.removeprefix("gru."): w for name, w in weights.items() if name.startswith("gru.")})
    functional = torch.nn.functional

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = torch.from_numpy(digits.images)
    for name in ("conv1", "conv2"):
        x = torch.relu(functional.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1))
    x = torch.relu(linear(x.permute(0, 2, 3, 1).flatten(2), "row"))
    x = torch.relu(linear(gru(x)[0][:, -1], "hidden"))
    expected = array(linear(x, "logits"))
    np.testing.assert_allclose(Model(digits.weights, FloatOperators())(digits.images), expected, atol=1e-3)
