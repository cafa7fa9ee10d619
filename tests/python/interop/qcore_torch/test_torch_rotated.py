"""RotatedLinear and quantize_(rotation="hadamard"): results, gradients, graphs, states, what is refused."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qcore  # noqa: E402
import qcore.torch as qt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:quantize_")


def layer(n=24, k=96, dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    module = torch.nn.Linear(k, n, bias=bias, dtype=dtype)
    x = torch.randn(5, 7, k)
    x[..., 3] *= 40
    return module, x.to(dtype)


def walsh(k, block):
    """Return the rotation [K, K] of blocks, by Sylvester's construction."""
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(k // block), matrix / np.sqrt(block))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("compute", ["float", "int8"])
def test_results_are_those_of_the_operator(dtype, compute):
    module, x = layer(dtype=dtype)
    made = qt.RotatedLinear.from_float(module, bits=4, block_size=32, compute=compute)
    weight = qcore.quantize_rotated(module.weight.detach(), bits=4, block_size=32)
    expected = qcore.linear(x, weight, module.bias.detach(), compute=compute)
    with torch.no_grad():
        assert torch.equal(made(x), expected) and made(x).dtype == dtype
    assert made.weight == weight and made.weight.dtype == dtype and made.weight.device == torch.device("cpu")
    assert torch.equal(made.bias, module.bias) and (made.in_features, made.out_features) == (96, 24)
    rotation = walsh(96, 32)
    dense = made.linear.weight.dequantize() @ rotation
    np.testing.assert_allclose(made.weight.dequantize(), dense, atol=1e-5)
    if (dtype, compute) == (torch.float32, "float"):
        exact = x.double().numpy() @ dense.T + module.bias.detach().double().numpy()
        np.testing.assert_allclose(made(x).detach(), exact, atol=1e-3)


def test_gradients_are_those_of_the_dequantized_weight():
    module, x = layer()
    made = qt.RotatedLinear.from_float(module, bits=8, block_size=32)
    made.linear.bias.requires_grad_()
    x.requires_grad_()
    grad = torch.randn(5, 7, 24)
    made(x).backward(grad)
    dense = torch.from_numpy(made.weight.dequantize())
    torch.testing.assert_close(x.grad, grad @ dense, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made.bias.grad, grad.sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_the_operator_and_graphs():
    module, x = layer()
    made = qt.RotatedLinear.from_float(module, bits=8)
    torch.library.opcheck(torch.ops.qcore.hadamard, (torch.randn(3, 96, requires_grad=True), 32))
    with torch.no_grad():
        compiled = torch.compile(made, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), made(x))
        program = torch.export.export(made, (x,))
        assert torch.equal(program.module()(x), made(x))


def test_states_copies_and_repr():
    module, x = layer()
    made = qt.RotatedLinear.from_float(module, bits=4, block_size=32)
    assert "rotation_block=32" in repr(made) and "bits=4" in repr(made)
    with torch.no_grad():
        y = made(x)
        for other in (
            copy.deepcopy(made),
            pickle.loads(pickle.dumps(made)),
            qt.RotatedLinear.from_state_dict(made.state_dict()),
        ):
            assert torch.equal(other(x), y)
    half = copy.deepcopy(made).half()
    assert half.weight.dtype == torch.float16 and half(x.half()).dtype == torch.float16
    other = qt.RotatedLinear(qcore.quantize_rotated(module.weight.detach(), bits=4, block_size=32, rotation_block=8))
    with pytest.raises(RuntimeError, match="rotation_block = 32, expected 8"):
        other.load_state_dict(made.state_dict(), strict=False)


def network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 64), torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 50, bias=False)
    )
    with torch.no_grad():
        model[0].weight[:, 5] *= 40
    return model, torch.randint(0, 50, (8, 20))


@pytest.mark.parametrize("method", ["rtn", "mse", "awq", "gptq"])
def test_quantize_rotates_linear_layers(method):
    model, x = network()
    plain, restored = copy.deepcopy(model), copy.deepcopy(model)
    options = {"bits": 8, "block_size": 64, "method": method, "calibration": x, "progress": False}
    without = qt.quantize_(plain, **options)
    report = qt.quantize_(model, rotation="hadamard", **options)
    assert [type(model[i]) for i in (0, 1, 3)] == [qt.Embedding, qt.RotatedLinear, qt.RotatedLinear]
    assert (model[1].rotation_block, model[3].rotation_block) == (64, 32)
    assert "rotated" in report.layers[1].note and report.layers[1].error < 0.6 * without.layers[1].error
    assert report.layers[1].bits == 8 and report.layers[1].bytes_after == without.layers[1].bytes_after
    qt.restore_(restored, model.state_dict())
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))


def test_layers_choose_the_rotation_and_smooth_leaves_rotated_ones():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    model.append(torch.nn.Linear(64, 64))
    with torch.no_grad():
        for i in (0, 2):
            model[i].weight[3] = 40
    report = qt.quantize_(
        model,
        bits=8,
        calibration=torch.randn(40, 64),
        smooth=True,
        layers={"1": {"rotation": "hadamard"}},
        progress=False,
    )
    assert isinstance(model[1], qt.RotatedLinear) and report.layers[0].note == "rotated"
    assert type(model[3]) is qt.Linear and report.layers[1].note.startswith("smooth 0.")


def test_without_a_calibration_the_error_is_that_of_the_weight():
    model, _ = network()
    dense = model[1].weight.detach().numpy().copy()
    report = qt.quantize_(model, bits=4, block_size=32, rotation="hadamard", target_error=0.02, progress=False)
    got = model[1].weight.dequantize()
    np.testing.assert_allclose(report.layers[1].error, np.linalg.norm(got - dense) / np.linalg.norm(dense), rtol=1e-3)
    assert report.layers[1].bits == 8 and report.layers[1].error < 0.02


def test_a_target_error_raises_rotated_layers_to_int16():
    model, x = network()
    options = {"calibration": x, "embeddings": False, "target_error": 8e-3, "progress": False}
    form = {"bits": 8, "block_size": 64, "method": "rtn", "scale_dtype": "float32"}
    report = qt.quantize_(model, rotation="hadamard", **form, **options)
    assert report.model_error <= 8e-3 and report.layers[2].compute == model[3].compute == "int16"
    assert report.rotation.startswith("online in 1 layer, not folded: ")


def test_shared_weights_and_other_modules_are_not_rotated():
    model, x = network()
    model[3] = torch.nn.Linear(64, 50, bias=False)
    model[3].weight = model[0].weight
    model[1] = torch.nn.TransformerEncoderLayer(64, 2, 32, batch_first=True)
    report = qt.quantize_(model.eval(), bits=8, rotation="hadamard", progress=False)
    assert type(model[3]) is qt.Linear and type(model[1].linear1) is qt.RotatedLinear
    assert type(model[1].self_attn) is qt.MultiheadAttention
    assert [row.note for row in report.layers if row.name in ("0", "3")] == ["", ""]
    assert torch.isfinite(model(x)).all()


def test_errors():
    module, x = layer()
    made = qt.RotatedLinear.from_float(module, bits=8)
    model, _ = network()
    on_meta = torch.nn.Linear(96, 24, device="meta")
    for call, kind, words in [
        (
            lambda: qt.RotatedLinear(qcore.quantize(module.weight.detach())),
            qcore.QcoreTypeError,
            "qcore.torch.RotatedLinear: weight is a QuantizedTensor, expected a RotatedTensor",
        ),
        (
            lambda: qt.RotatedLinear.from_float(torch.nn.ReLU(), bits=8),
            qcore.QcoreTypeError,
            "RotatedLinear.from_float: module is a ReLU, expected a torch.nn.Linear",
        ),
        (
            lambda: qt.RotatedLinear.from_float(on_meta, bits=8),
            qcore.QcoreValueError,
            "RotatedLinear.from_float: module is on meta, expected the CPU",
        ),
        (lambda: made(x[..., :9]), qcore.QcoreValueError, "linear: x has shape [5, 7, 9], expected its last dimension"),
        (
            lambda: qt.operators.hadamard.body(x.to("meta"), 32),
            qcore.QcoreValueError,
            "hadamard: x is on meta, expected the CPU: the rotation has CPU kernels only",
        ),
        (
            lambda: qt.quantize_(model, bits=8, rotation="fourier"),
            qcore.QcoreValueError,
            "quantize_: rotation is 'fourier', expected one of None, 'hadamard', 'hadamard_online'",
        ),
    ]:
        with pytest.raises(kind) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


def test_models_on_other_devices_are_refused_before_a_change(monkeypatch):
    from qcore.torch.conversion import layers

    model, _ = network()
    found = layers.layers_of(model, False)
    for each in found:
        each.settings = layers.Settings(8, 64, "int8", "rtn", "symmetric", "float32", rotation="hadamard")
    found[1].module.to("meta")
    with pytest.raises(qcore.QcoreValueError) as caught:
        layers.limit_rotation(found)
    assert str(caught.value).startswith("quantize_: 1 is on meta, expected the CPU with rotation='hadamard'")
