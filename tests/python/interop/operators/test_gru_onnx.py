"""GRU nodes of ONNX models, against ONNX's own reference implementation."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qcore
from qcore.gru import Calibrator, Config, GruWeights

T, B, C, H = 9, 3, 5, 7


def model_of(directions=1, *, bias=True, layout=0, constant=True, names=("gru",), **attributes):
    rng = np.random.default_rng(0)
    arrays = {
        "W": rng.normal(0, 0.4, (directions, 3 * H, C)),
        "R": rng.normal(0, 0.3, (directions, 3 * H, H)),
        "B": rng.normal(0, 0.2, (directions, 6 * H)),
    }
    if not bias:
        del arrays["B"]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    attributes = {"hidden_size": H, "layout": layout, "linear_before_reset": 1} | attributes
    if directions == 2:
        attributes["direction"] = "bidirectional"
    nodes = [
        helper.make_node("GRU", ["X", *arrays], [f"Y{i}", f"Yh{i}"], name=name, **attributes)
        for i, name in enumerate(names)
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, None)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, None))
        constants = constants[1:]
    outputs = [
        helper.make_tensor_value_info(f"{y}{i}", TensorProto.FLOAT, None)
        for i in range(len(names))
        for y in ("Y", "Yh")
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("bias", "form"), [(True, 1), (False, 1), (True, 0)])
def test_close_to_onnx(directions, bias, form, tmp_path):
    model = model_of(directions, bias=bias, linear_before_reset=form)
    x = np.random.default_rng(1).normal(0, 1, (T, B, C)).astype(np.float32)
    y, last = ReferenceEvaluator(model).run(None, {"X": x})  # [T, directions, B, H], [directions, B, H]
    onnx.save(model, tmp_path / "gru.onnx")
    for source in (model, tmp_path / "gru.onnx"):
        weights = GruWeights.from_onnx(source)
        q = Calibrator(weights).observe(x).finish(Config(bits=16, pipeline="fused"))
        got, state = q(x)
        expected = y.transpose(0, 2, 1, 3).reshape(T, B, directions * H)
        assert np.abs(got - expected).max() < 2e-3
        assert np.abs(state - last).max() < 2e-3


def test_layout_and_names():
    assert GruWeights.from_onnx(model_of(layout=1)).batch_first
    model = model_of(names=("first", "second"))
    with pytest.raises(
        qcore.QcoreValueError, match="the model has 2 GRU nodes, expected node= one of: 'first', 'second'"
    ):
        GruWeights.from_onnx(model)
    assert GruWeights.from_onnx(model, "second").hidden_size == H
    with pytest.raises(qcore.QcoreValueError, match="node is 'third', expected one GRU node out of"):
        GruWeights.from_onnx(model, "third")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"linear_before_reset": 2}, "linear_before_reset is 2, expected 0 or 1"),
        ({"direction": "back"}, "has direction 'back', expected forward or reverse or bidirectional"),
        ({"activations": ["Sigmoid", "Relu"]}, "expected sigmoid and tanh"),
        ({"clip": 3.0}, "clips at 3.0, expected no clip"),
        ({"constant": False}, "computes its W ('W'), expected an initializer"),
    ],
)
def test_other_cells_are_refused(options, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        GruWeights.from_onnx(model_of(**options))
    assert words in str(caught.value) and str(caught.value).startswith("gru weights: node 'gru'")


def test_what_is_no_model(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xfe nothing of use")
    with pytest.raises(qcore.QcoreValueError, match=r"bad.onnx is not an ONNX model"):
        GruWeights.from_onnx(tmp_path / "bad.onnx")
    with pytest.raises(FileNotFoundError):
        GruWeights.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(qcore.QcoreTypeError, match="model is a int, expected a path or a ModelProto"):
        GruWeights.from_onnx(3)


def test_the_command_calibrates_an_onnx_model(tmp_path):
    from safetensors.numpy import load_file

    from qcore.cli import main

    onnx.save(model_of(), tmp_path / "model.onnx")
    samples = np.random.default_rng(1).normal(0, 1, (20, B, C)).astype(np.float32)
    np.save(tmp_path / "samples.npy", samples)
    arguments = [str(tmp_path / name) for name in ("model.onnx", "samples.npy")]
    assert main(["gru", "calibrate", *arguments, "-o", str(tmp_path / "gru.safetensors")]) == 0
    expected = Calibrator(GruWeights.from_onnx(model_of())).observe(samples).finish()
    expected.save(tmp_path / "expected.safetensors")
    found, wanted = load_file(tmp_path / "gru.safetensors"), load_file(tmp_path / "expected.safetensors")
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
