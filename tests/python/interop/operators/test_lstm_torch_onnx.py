"""QuantLSTM of torch.nn.LSTM and of ONNX's LSTM nodes; the module and quantize_."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qcore
import qcore.torch as qt
from qcore.lstm import Calibrator, Config, LstmWeights, QuantLSTM, float_cell

T, B, C, H = 9, 3, 5, 7


def module(**options):
    torch.manual_seed(0)
    return torch.nn.LSTM(C, H, **options)


def relative(y, exact):
    return float((y - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize("proj_size", [0, 3])
def test_the_float_cell_is_torchs(proj_size):
    lstm = module(num_layers=2, bidirectional=True, proj_size=proj_size).double()
    x = torch.randn(6, 3, C, dtype=torch.float64)
    inputs, cells = x.numpy(), []
    for layer in LstmWeights.from_torch(lstm).layers:
        found = [float_cell.run(direction, inputs, reverse=side == 1) for side, direction in enumerate(layer)]
        inputs = np.concatenate([y for y, *_ in found], axis=2)
        cells += [c for *_, c in found]
    y, (_, c) = lstm(x)
    np.testing.assert_allclose(inputs, y.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(cells, c.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 3},
        {"bidirectional": True, "num_layers": 2},
        {"batch_first": True},
        {"bias": False},
        {"proj_size": 3},
        {"proj_size": 3, "bidirectional": True, "num_layers": 2, "batch_first": True},
    ],
)
def test_close_to_torch(options):
    lstm = module(**options)
    x = torch.randn((5, 30, C) if options.get("batch_first") else (30, 5, C))
    rows = lstm.num_layers * (2 if lstm.bidirectional else 1)
    h0, c0 = (torch.randn(rows, 5, size).clamp(-0.9, 0.9) for size in (lstm.proj_size or H, H))
    exact, states = lstm(x, (h0, c0))
    for bits, bound in ((8, 0.08), (16, 1e-3)):
        # x itself is observed, with its states, so that nothing is clipped.
        arrays = [value.double().numpy() for value in (x, h0, c0)]
        q = Calibrator(LstmWeights.from_torch(lstm)).observe(*arrays).finish(Config(bits=bits))
        y, *last = q(x, h0, c0)
        assert isinstance(y, torch.Tensor) and y.dtype == torch.float32 and y.shape == exact.shape
        assert relative(y, exact) < bound, (bits, relative(y, exact))
        for got, wanted in zip(last, states, strict=True):
            assert got.shape == wanted.shape and relative(got, wanted) < bound


def test_dtypes_cells_and_other_modules():
    q = QuantLSTM.from_torch(module(), torch.randn(30, 5, C), bits=16)
    x = torch.randn(4, 5, C)
    for dtype in (torch.float16, torch.bfloat16):
        y, h, c = q(x.to(dtype))
        assert y.dtype == h.dtype == c.dtype == dtype
        assert relative(y.float(), q(x.to(dtype).float())[0]) < 1e-2
    cell = torch.nn.LSTMCell(C, H)
    y, (h, c) = QuantLSTM.from_torch(cell, torch.randn(30, 5, C), bits=16).step(x[0])
    assert relative(y, cell(x[0])[0]) < 5e-3
    assert h.shape == c.shape == (1, 5, H)
    for other in (torch.nn.GRU(3, 4), torch.nn.Linear(3, 4)):
        with pytest.raises(TypeError, match=r"lstm weights: .*torch\.nn\.LSTM"):
            LstmWeights.from_torch(other)


@pytest.mark.parametrize("proj_size", [0, 3])
def test_the_module(proj_size):
    lstm = module(num_layers=2, batch_first=True, proj_size=proj_size).eval()
    size = proj_size or H
    x = torch.randn(4, 20, C)
    made = qt.LSTM.from_float(lstm, samples=x, bits=16)
    states = tuple(torch.randn(2, 4, channels).clamp(-0.1, 0.1) for channels in (size, H))
    (y, (h, c)), (exact, (exact_h, exact_c)) = made(x, states), lstm(x, states)
    for got, wanted in ((y, exact), (h, exact_h), (c, exact_c)):
        assert got.shape == wanted.shape and relative(got, wanted) < 1e-2
    single, (h, c) = made(x[0])
    torch.testing.assert_close(single, made(x[:1])[0][0], rtol=0, atol=0)
    assert (single.shape, h.shape, c.shape) == ((20, size), (2, size), (2, H))
    again = qt.LSTM.from_state_dict(made.state_dict())
    torch.testing.assert_close(again(x)[0], made(x)[0], rtol=0, atol=0)
    exported = torch.export.export(made, (x,)).module()
    torch.testing.assert_close(exported(x)[0], made(x)[0], rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"qcore\.torch\.LSTM: states is a Tensor, expected \(h0, c0\) or None"):
        made(x, states[0])
    with pytest.raises(TypeError, match=r"qcore\.torch\.LSTM: x is a PackedSequence"):
        made(torch.nn.utils.rnn.pack_sequence([x[0]]))


class Tagger(torch.nn.Module):
    def __init__(self, proj_size):
        super().__init__()
        self.lstm = torch.nn.LSTM(C, 16, bidirectional=True, proj_size=proj_size)
        self.head = torch.nn.Linear(2 * (proj_size or 16), 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


@pytest.mark.parametrize("proj_size", [0, 12])
def test_quantize_puts_it_into_models(proj_size):
    torch.manual_seed(0)
    model, x = Tagger(proj_size).eval(), torch.randn(12, 3, C)
    exact = model(x)
    report = qt.quantize_(model, bits=8, calibration=[x])
    assert isinstance(model.lstm, qt.LSTM)
    assert {row.name: row.bits for row in report.layers}["lstm"] == 8
    assert relative(model(x), exact) < 0.05
    restored = Tagger(proj_size)
    qt.restore_(restored, model.state_dict())
    torch.testing.assert_close(restored(x), model(x), rtol=0, atol=0)


def onnx_model(directions=1, *, peepholes=False, **attributes):
    rng = np.random.default_rng(0)
    arrays = {
        "W": rng.normal(0, 0.4, (directions, 4 * H, C)),
        "R": rng.normal(0, 0.3, (directions, 4 * H, H)),
        "B": rng.normal(0, 0.2, (directions, 8 * H)),
    }
    inputs = ["X", *arrays]
    if peepholes:
        arrays["P"] = rng.normal(0, 0.2, (directions, 3 * H))
        inputs += ["", "", "", "P"]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    if directions == 2:
        attributes["direction"] = "bidirectional"
    node = helper.make_node("LSTM", inputs, ["Y", "Yh", "Yc"], name="lstm", hidden_size=H, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y", "Yh", "Yc")],
        initializer=constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
def test_close_to_onnx(directions, peepholes, tmp_path):
    model = onnx_model(directions, peepholes=peepholes)
    x = np.random.default_rng(1).normal(0, 1, (T, B, C)).astype(np.float32)
    onnx.save(model, tmp_path / "lstm.onnx")
    q = Calibrator(LstmWeights.from_onnx(tmp_path / "lstm.onnx")).observe(x).finish(Config(bits=16))
    got, h, c = q(x)
    if directions == 1:
        y, last, cell = ReferenceEvaluator(model).run(None, {"X": x})  # [T, directions, B, H], [directions, B, H]
        assert np.abs(h - last).max() < 2e-3 and np.abs(c - cell).max() < 2e-3
        assert np.abs(got - y.transpose(0, 2, 1, 3).reshape(T, B, H)).max() < 2e-3
    else:  # ONNX's reference has no backward LSTM: each direction by itself
        for side in range(2):
            arrays = [numpy_helper.to_array(each)[side : side + 1] for each in model.graph.initializer]
            single = onnx_model(peepholes=peepholes)
            for old, array in zip(single.graph.initializer, arrays, strict=True):
                old.CopyFrom(numpy_helper.from_array(array, old.name))
            turned = x[::-1] if side else x
            y = ReferenceEvaluator(single).run(None, {"X": np.ascontiguousarray(turned)})[0][:, 0]
            expected = y[::-1] if side else y
            assert np.abs(got[:, :, side * H : (side + 1) * H] - expected).max() < 2e-3


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (onnx_model(input_forget=1), "node 'lstm' has input_forget = 1, expected 0"),
        (onnx_model(direction="back"), "direction 'back', expected forward or reverse or bidirectional"),
        (onnx_model(activations=["Sigmoid", "Tanh", "Relu"]), "expected sigmoid, tanh and tanh"),
        (onnx_model(clip=1.0), "clips at 1.0, expected no clip"),
    ],
)
def test_other_nodes_are_refused(model, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        LstmWeights.from_onnx(model)
    assert str(caught.value).startswith("lstm weights: ") and words in str(caught.value)
