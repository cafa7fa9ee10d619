"""MatMulNBits models, against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qcore
from qcore import formats

N, K, G = 6, 80, 32
P = 3


def model_of(bits, zeros="packed", *, dtype=np.float16, name="w", constant=True, seed=0):
    """Return a model whose scales are float32 numbers with the digits of ``dtype``."""
    rng = np.random.default_rng(seed)
    scales = (rng.standard_normal((N, P)) * 0.02).astype(dtype).astype(np.float32)
    arrays = {"B": rng.integers(0, 256, (N, P, G * bits // 8)).astype(np.uint8), "scales": scales}
    if zeros == "packed":
        arrays["zero_points"] = rng.integers(0, 256, (N, -(-P * bits // 8))).astype(np.uint8)
    elif zeros == "float":
        arrays["zero_points"] = (rng.integers(0, 2 ** (bits + 1), (N, P)) / 2).astype(np.float32)
    attributes = {"N": N, "K": K, "bits": bits, "block_size": G}
    node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], name=name, domain="com.microsoft", **attributes)
    constants = [numpy_helper.from_array(array, each) for each, array in arrays.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", K])]
    if not constant:
        inputs.append(helper.make_tensor_value_info("B", TensorProto.UINT8, list(arrays["B"].shape)))
        constants = constants[1:]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", N])]
    graph = helper.make_graph([node], "g", inputs, outputs, initializer=constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def dequantized(model, x="x", y="y"):
    """Return values [N, K]: each sum of a product with an identity has one term, so that nothing is rounded."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([y], {x: np.eye(session.get_inputs()[0].shape[1], dtype=np.float32)})[0].T


# ONNX Runtime 1.31 doesn't run 8 bits with float zero points: those are in formats/test_format_onnx_arrays.py only.
CASES = [(4, "absent"), (4, "packed"), (4, "float"), (8, "absent"), (8, "packed")]


@pytest.mark.parametrize(("bits", "zeros"), CASES)
def test_every_value_is_onnxruntimes_own(bits, zeros, tmp_path):
    model = model_of(bits, zeros)
    onnx.save(model, tmp_path / "m.onnx")
    for source in (model, tmp_path / "m.onnx"):
        (weight,) = formats.from_onnx(source).values()
        assert (weight.shape, weight.bits, weight.block_size) == ((N, K), bits, G)
        assert np.array_equal(weight.dequantize(), dequantized(model))


@pytest.mark.parametrize("zeros", ["absent", "packed"])
def test_four_bits_with_all_digits_of_float32(zeros):
    model = model_of(4, zeros, dtype=np.float32)
    weight = formats.from_onnx(model)["w"]
    assert (weight.bits, weight.encoding is None) == (4, zeros == "absent")
    assert np.array_equal(weight.dequantize(), dequantized(model))


def test_eight_bits_with_all_digits_of_float32():
    model = model_of(8, dtype=np.float32)
    expected = dequantized(model)
    assert np.array_equal(formats.from_onnx(model)["w"].dequantize(), expected)
    got = formats.from_onnx(model, exact=False)["w"]
    assert got.encoding is None
    assert np.abs(got.dequantize() - expected).max() <= 2.0**-23 * np.abs(expected).max()


def test_linear_is_the_models_product():
    model = model_of(4)
    x = np.random.default_rng(2).standard_normal((5, K), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(["y"], {"x": x})[0]
    got = qcore.linear(x, formats.from_onnx(model)["w"], compute="float")
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [128, 100])
def test_onnxruntime_runs_ours(bits, k):
    w = np.random.default_rng(3).standard_normal((8, k), dtype=np.float32)
    weights = {"a": qcore.quantize(w, bits=bits, block_size=32), "b": qcore.quantize(w[:3], bits=bits, block_size=16)}
    model = formats.to_onnx(weights)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    eye = np.eye(k, dtype=np.float32)
    for got, weight in zip(session.run(["a.y", "b.y"], {"a.x": eye, "b.x": eye}), weights.values(), strict=True):
        assert np.array_equal(got.T, weight.dequantize())
    back = formats.from_onnx(model)
    assert back == weights


def test_zero_points_survive():
    weight = formats.from_onnx(model_of(4))["w"]
    model = formats.to_onnx({"w": weight})
    assert np.array_equal(dequantized(model, "w.x", "w.y"), weight.dequantize())
    assert formats.from_onnx(model) == {"w": weight}


def changed(attribute, value):
    model = model_of(4)
    next(each for each in model.graph.node[0].attribute if each.name == attribute).i = value
    return model


def test_models_that_are_refused(tmp_path):
    for model, message in [
        (model_of(4, constant=False), "from_onnx: node 'w': B is 'B', which is no initializer, expected a constant"),
        (changed("bits", 2), "from_onnx: node 'w': bits is 2, expected one of 4, 8"),
        (changed("K", 97), r"from_onnx: node 'w': B has shape \[6, 3, 16\], expected \[6, 4, 16\]"),
    ]:
        with pytest.raises(qcore.QcoreValueError, match=message):
            formats.from_onnx(model)
    grouped = model_of(4)
    grouped.graph.node[0].input.append("g_idx")
    with pytest.raises(qcore.QcoreValueError, match="from_onnx: node 'w' has g_idx, expected blocks in the order of K"):
        formats.from_onnx(grouped)
    twice = model_of(4)
    twice.graph.node.append(twice.graph.node[0])
    with pytest.raises(qcore.QcoreValueError, match="from_onnx: node 'w' is there twice"):
        formats.from_onnx(twice)
    short = model_of(4)
    short.graph.initializer[0].raw_data = b"12"
    with pytest.raises(qcore.QcoreValueError, match="from_onnx: node 'w': B is 'B', which can't be read"):
        formats.from_onnx(short)
    assert list(formats.from_onnx(model_of(4, name=""))) == ["y"]
    (tmp_path / "m.onnx").write_bytes(b"\xff\x01 no model")
    with pytest.raises(qcore.QcoreValueError, match=r"from_onnx: .*m\.onnx is not an ONNX model"):
        formats.from_onnx(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        formats.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(qcore.QcoreTypeError, match="from_onnx: model is a int, expected a path or a ModelProto"):
        formats.from_onnx(3)
