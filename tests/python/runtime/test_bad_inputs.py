"""A table of bad inputs of every part: errors name the operator, the argument, what was given and what was expected.

A row is (operator, argument, what the text shows of the given value, call). The text begins with the operator. Complete
texts of single operators are in test_errors.py and beside the tests of each part.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qcore
from qcore import awq, decoder, formats, gru, lstm, lut, static

F32 = np.float32
X, W = np.ones((2, 8), F32), qcore.quantize(np.ones((3, 8), F32), bits=8, block_size=4)
IMAGE, KERNEL = np.ones((1, 8, 5, 5), F32), qcore.quantize(np.ones((4, 8, 3, 3), F32), bits=8, block_size=8)
DENSE = np.ones((4, 8), F32)
NAN = np.full((4, 8), np.nan, F32)
CODES, SCALES = np.zeros((3, 8), np.int8), np.ones((3, 2), F32)
BYTES = np.ones((1, 8, 5, 5), np.uint8)


def linear(**changed):
    given = {"x": X, "weight": W} | changed
    return qcore.linear(given.pop("x"), given.pop("weight"), given.pop("bias", None), **given)


def conv2d(**changed):
    given = {"x": IMAGE, "weight": KERNEL} | changed
    return qcore.conv2d(given.pop("x"), given.pop("weight"), given.pop("bias", None), **given)


def grouped(**changed):
    given = {"x": X, "weight": W, "row_counts": np.array([2], np.int32)} | changed
    return qcore.grouped_linear(given.pop("x"), given.pop("weight"), given.pop("row_counts"), **given)


def embedding(**changed):
    given = {"indices": np.array([0, 2], np.int32), "weight": W} | changed
    return qcore.embedding(given.pop("indices"), given.pop("weight"), **given)


def quantize(**changed):
    given = {"weight": DENSE} | changed
    return qcore.quantize(given.pop("weight"), **given)


def encoded(**changed):
    given = {"weight": DENSE, "encoding": "q4_k"} | changed
    return qcore.quantize_encoded(given.pop("weight"), given.pop("encoding"), **given)


def rotated(**changed):
    given = {"weight": DENSE} | changed
    return qcore.quantize_rotated(given.pop("weight"), **given)


def activations(**changed):
    return qcore.quantize_activations(**({"x": X, "block_size": 4} | changed))


def from_parts(**changed):
    return qcore.QuantizedTensor.from_parts(
        **({"codes": CODES, "scales": SCALES, "bits": 4, "block_size": 4} | changed)
    )


def static_linear(**changed):
    given = {"x_scale": 0.1, "x_zero_point": 1, "weight": CODES, "w_scale": 0.1, "y_scale": 0.1, "y_zero_point": 1}
    return static.QLinear(**(given | changed))


def static_conv(**changed):
    given = {"x_scale": 0.1, "x_zero_point": 1, "weight": np.zeros((4, 8, 3, 3), np.int8), "w_scale": 0.1}
    return static.QConv2d(**(given | {"y_scale": 0.1, "y_zero_point": 1} | changed))


def fit(**changed):
    given = {"f": np.tanh, "domain": (-1.0, 1.0), "cuts": 3, "segments": 2} | changed
    return lut.fit(given.pop("f"), **given)


def decode_norm(**changed):
    given = {"x": X} | changed
    return decoder.rms_norm(given.pop("x"), given.pop("weight", None), **given)


def rotary(**changed):
    given = {"x": np.ones((1, 2, 2, 8), F32), "positions": np.zeros((1, 2), np.int32)}
    given |= {"cos": np.ones((4, 4), F32), "sin": np.ones((4, 4), F32)} | changed
    return decoder.rotary_embedding(**given)


def dequantize_awq(**changed):
    given = {"qweight": np.zeros((16, 2), np.int32), "scales": np.ones((2, 16), np.float16)}
    return awq.dequantize(**(given | {"qzeros": np.zeros((2, 2), np.int32)} | changed))


def gptq(**changed):
    given = {"qweight": np.zeros((2, 16), np.int32), "scales": np.ones((1, 16), np.float16)}
    return formats.from_gptq(**(given | {"qzeros": np.zeros((1, 2), np.int32), "bits": 4, "version": 1} | changed))


def recurrent(module, weights_type, gates):
    """Return a small GRU or LSTM."""
    weights = weights_type.from_arrays(np.ones((gates * 4, 8), F32), np.ones((gates * 4, 4), F32))
    return module.Calibrator(weights).observe(np.ones((3, 2, 8), F32)).finish(module.Config(bits=8))


GRU, LSTM = recurrent(gru, gru.GruWeights, 3), recurrent(lstm, lstm.LstmWeights, 4)


def rows_of(call, operator, argument, *cases):
    """Return a row for each case (value, what the text shows of it), of an argument with its own name in the text."""
    return [(operator, argument, shown, partial(call, **{argument: value})) for value, shown in cases]


NO_ARRAYS = (([1.0], "list"), (None, "NoneType"), ("x", "str"), (3, "int"), (object(), "object"), ({}, "dict"))
NO_INTEGERS = ((1.5, "1.5"), ("4", "'4'"), (True, "True"), (None, "None"))
NO_FLOATS = (("int8", "'int8'"), (np.float64, "float64"), ("half", "'half'"))

ROWS = [
    *rows_of(linear, "linear", "x", *NO_ARRAYS, (X.astype(float), "float64"), (X.astype(int), "int64")),
    *rows_of(linear, "linear", "x", (np.ones((2, 7), F32), "[2, 7]"), (np.ones((), F32), "[]")),
    *rows_of(linear, "linear", "weight", (DENSE, "ndarray"), (None, "NoneType"), ("w", "str"), (KERNEL, "9 taps")),
    *rows_of(linear, "linear", "bias", ([1.0], "list"), (np.ones(4, F32), "[4]"), (np.ones(3), "float64")),
    *rows_of(linear, "linear", "compute", ("int4", "'int4'"), (8, "8"), ([], "[]")),
    *rows_of(linear, "linear", "activation", ("swish", "'swish'"), ((0,), "(0,)"), ((1, 0), "(1, 0)"), (3, "3")),
    *rows_of(partial(linear, activation="silu_mul"), "linear", "weight", (W, "[3, 8]"), (KERNEL, "[4, 8, 3, 3]")),
    *rows_of(linear, "linear", "out", ([0.0], "list"), (np.ones((2, 4), F32), "[2, 4]"), (np.ones((2, 3)), "float64")),
    *rows_of(linear, "linear", "out_dtype", *NO_FLOATS),
    *rows_of(linear, "linear", "stream", (5, "5"), (-1, "-1"), ("default", "'default'"), (True, "True")),
    *rows_of(linear, "linear", "x_scale", ("1", "'1'"), (-1.0, "-1"), (0.0, "0")),
    *rows_of(
        conv2d, "conv2d", "x", *NO_ARRAYS[:3], (IMAGE[0], "[8, 5, 5]"), (IMAGE[:, :4], "[1, 4, 5, 5]"), (BYTES, "uint8")
    ),
    *rows_of(conv2d, "conv2d", "weight", (DENSE, "ndarray"), (W, "[3, 8]"), (None, "NoneType")),
    *rows_of(conv2d, "conv2d", "stride", (0, "0"), ("2", "'2'"), ((1, 2, 3), "(1, 2, 3)"), (1.5, "1.5")),
    *rows_of(conv2d, "conv2d", "padding", (-1, "-1"), ("full", "'full'"), ((1, 2, 3), "(1, 2, 3)"), (0.5, "0.5")),
    *rows_of(conv2d, "conv2d", "dilation", (0, "0"), ("2", "'2'"), ((1, 2, 3), "(1, 2, 3)")),
    *rows_of(conv2d, "conv2d", "groups", (0, "0"), (1.0, "1.0"), (True, "True")),
    *rows_of(conv2d, "conv2d", "compute", ("int8_token", "'int8_token'"), (None, "None")),
    *rows_of(conv2d, "conv2d", "bias", (np.ones(3, F32), "[3]"), (0.5, "float")),
    *rows_of(conv2d, "conv2d", "stream", (5, "5"), ("s", "'s'")),
    *rows_of(grouped, "grouped_linear", "weight", (DENSE, "ndarray"), (None, "NoneType")),
    *rows_of(grouped, "grouped_linear", "row_counts", ([2], "list"), (np.ones(1, F32), "float32")),
    *rows_of(grouped, "grouped_linear", "x", ([1.0], "list"), (np.ones((2, 7), F32), "[2, 7]")),
    *rows_of(grouped, "grouped_linear", "compute", ("int4", "'int4'"), (3, "3")),
    *rows_of(embedding, "embedding", "indices", ([0], "list"), (np.zeros(2, F32), "float32")),
    *rows_of(embedding, "embedding", "weight", (DENSE, "ndarray"), (KERNEL, "9 taps")),
    *rows_of(embedding, "embedding", "out_dtype", *NO_FLOATS),
    *rows_of(quantize, "quantize", "weight", *NO_ARRAYS, (W, "QuantizedTensor"), (Path("w"), "Path")),
    *rows_of(quantize, "quantize", "weight", (NAN, "NaN"), (DENSE.astype(int), "int64"), (np.ones(8, F32), "[8]")),
    *rows_of(quantize, "quantize", "bits", *NO_INTEGERS, (7, "7"), (0, "0"), (16, "16")),
    *rows_of(quantize, "quantize", "block_size", *NO_INTEGERS, (0, "0"), (-8, "-8"), (2**40, str(2**40))),
    *rows_of(quantize, "quantize", "scheme", ("sym", "'sym'"), (True, "True"), (None, "None")),
    *rows_of(quantize, "quantize", "method", ("best", "'best'"), (1, "1"), (None, "None")),
    *rows_of(quantize, "quantize", "scale_dtype", ("int8", "'int8'"), (None, "is None"), (5, "is 5")),
    *rows_of(partial(quantize, method="rtn"), "quantize", "samples", (X, "given")),
    *rows_of(partial(quantize, method="awq"), "quantize", "samples", (None, "missing"), (X[:, :7], "[2, 7]")),
    *rows_of(quantize, "quantize", "hessian", (np.eye(8), "ndarray")),
    *rows_of(quantize, "quantize", "damping", (0.5, "0.5")),
    *rows_of(encoded, "quantize_encoded", "weight", *NO_ARRAYS[:3], (NAN, "NaN")),
    *rows_of(encoded, "quantize_encoded", "encoding", ("q9", "'q9'"), (4, "4"), (None, "None")),
    *rows_of(encoded, "quantize_encoded", "block_size", (0, "0"), ("32", "'32'")),
    *rows_of(encoded, "quantize_encoded", "method", ("gptq", "'gptq'"), (None, "None")),
    *rows_of(partial(encoded, method="rtn"), "quantize_encoded", "samples", (X, "given")),
    *rows_of(rotated, "quantize_rotated", "rotation_block", (3, "3"), (16, "16"), ("8", "'8'")),
    *rows_of(activations, "quantize_activations", "x", *NO_ARRAYS[:3], (X.astype(float), "float64")),
    *rows_of(activations, "quantize_activations", "block_size", *NO_INTEGERS[:3], (0, "0")),
    *rows_of(activations, "quantize_activations", "compute", ("float", "'float'"), (None, "None")),
    *rows_of(activations, "quantize_activations", "scale", ("1", "'1'"), (-1.0, "-1")),
    *rows_of(from_parts, "from_parts", "codes", ([1], "list"), (CODES.astype(int), "int64"), (CODES[0], "[8]")),
    *rows_of(from_parts, "from_parts", "scales", (None, "NoneType"), (SCALES[:, :1], "[3, 1]"), (CODES, "int8")),
    *rows_of(from_parts, "from_parts", "offsets", (SCALES[:2], "[2, 2]"), ([0.0], "list")),
    *rows_of(from_parts, "from_parts", "bits", (6, "6"), ("4", "'4'")),
    *rows_of(from_parts, "from_parts", "block_size", (0, "0"), (4.0, "4.0")),
    *rows_of(static_linear, "static.qlinear", "x_scale", ("1", "'1'"), (None, "None")),
    *rows_of(static_linear, "static.qlinear", "x_zero_point", (1.5, "1.5"), ("0", "'0'")),
    *rows_of(static_linear, "static.qlinear", "weight", ([1], "list"), (DENSE, "float32")),
    *rows_of(static_linear, "static.qlinear", "w_scale", ("a", "'a'")),
    *rows_of(static_linear, "static.qlinear", "clamp", (3, "3"), ((1, 2, 3), "(1, 2, 3)")),
    *rows_of(static_linear, "static.qlinear", "x_dtype", ("int4", "'int4'"), (None, "None")),
    *rows_of(static_conv, "static.qconv2d", "stride", ("2", "'2'"), ((1, 2, 3), "(1, 2, 3)")),
    *rows_of(static_conv, "static.qconv2d", "padding", ("full", "'full'"), (0.5, "0.5")),
    *rows_of(fit, "lut fit", "domain", ((1.0, -1.0), "1"), (3, "3"), ("a", "'a'")),
    *rows_of(fit, "lut fit", "cuts", (0, "0"), ("3", "'3'"), (1.5, "1.5")),
    *rows_of(fit, "lut fit", "segments", (0, "0"), ("3", "'3'")),
    *rows_of(fit, "lut fit", "metric", ("mean", "'mean'"), (None, "None")),
    *rows_of(fit, "lut fit", "table_dtype", ("int8", "'int8'"), ("bfloat16", "'bfloat16'")),
    *rows_of(decode_norm, "rms_norm", "x", *NO_ARRAYS[:2], (X.astype(float), "float64")),
    *rows_of(decode_norm, "rms_norm", "weight", (np.ones(7, F32), "[7]"), ([1.0], "list")),
    *rows_of(decode_norm, "rms_norm", "eps", ("a", "'a'"), (-1.0, "-1")),
    *rows_of(rotary, "rotary_embedding", "layout", ("pairs", "'pairs'"), (None, "None")),
    *rows_of(dequantize_awq, "awq.dequantize", "qweight", ([1], "list"), (np.zeros((16, 2), F32), "float32")),
    *rows_of(dequantize_awq, "awq.dequantize", "scales", (np.ones((2, 8), np.float16), "[2, 8]")),
    *rows_of(GRU, "gru", "x", *NO_ARRAYS, (X, "[2, 8]"), (np.ones((2, 2, 8), bool), "bool")),
    *rows_of(GRU.step, "gru", "x", *NO_ARRAYS, (X[0], "[8]")),
    *rows_of(partial(GRU.step, X), "gru", "state", ("s", "str"), ([1], "list"), (X, "float32 [2, 8]")),
    *rows_of(LSTM, "lstm", "x", *NO_ARRAYS, (X, "[2, 8]"), (np.ones((2, 2, 8), bool), "bool")),
    *rows_of(LSTM.step, "lstm", "x", *NO_ARRAYS, (X[0], "[8]")),
    *rows_of(partial(LSTM.step, X), "lstm", "state", ("s", "str"), ((1, 2), "int"), ((X, X), "float32 [2, 8]")),
    *rows_of(gptq, "from_gptq", "bits", (5, "5"), ("4", "'4'")),
    *rows_of(gptq, "from_gptq", "version", (3, "3"), (None, "None")),
    ("lut", "x", "list", lambda: lut.silu([1.0])),
    ("lut", "x", "float64", lambda: lut.silu(X.astype(float))),
    ("lut", "out", "[2, 7]", lambda: lut.silu(X, np.ones((2, 7), F32))),
    ("softmax", "axis", "5", lambda: lut.softmax(X, 5)),
    ("softmax", "x", "list", lambda: lut.softmax([1.0])),
    ("hadamard", "x", "list", lambda: qcore.hadamard([1.0])),
    ("hadamard", "block", "3", lambda: qcore.hadamard(X, 3)),
    ("hadamard", "block", "16", lambda: qcore.hadamard(X, 16)),
    ("slice_rows", "start", "1.5", lambda: W.slice_rows(1.5, 2)),
    ("slice_rows", "stop", "'2'", lambda: W.slice_rows(0, "2")),
    ("to", "device", "'tpu'", lambda: W.to("tpu")),
    ("to", "device", "None", lambda: W.to(None)),
    ("dequantize", "dtype", "'int8'", lambda: W.dequantize("int8")),
    ("concatenate", "weights[1]", "ndarray", lambda: qcore.concatenate([W, DENSE])),
    ("QuantizedTensor", "copy", "False", lambda: np.array(W, copy=False)),
    ("set_num_threads", "n", "0", lambda: qcore.set_num_threads(0)),
    ("set_num_threads", "n", "'2'", lambda: qcore.set_num_threads("2")),
    ("force_kernel", "op", "3", lambda: qcore.force_kernel(3, "reference")),
    ("kernels", "op", "3", lambda: qcore.kernels(3)),
    ("last_kernel", "op", "None", lambda: qcore.last_kernel(None)),
    ("save", "tensors", "list", lambda: qcore.save("w.safetensors", [W])),
    ("save", "tensors", "QuantizedTensor", lambda: qcore.save("w.safetensors", W)),
    ("save", "tensors", "3", lambda: qcore.save("w.safetensors", {3: W})),
    ("save", "tensors", "int", lambda: qcore.save("w.safetensors", {"w": 3})),
    ("save", "path", "dict", lambda: qcore.save({"w": W}, "w.safetensors")),
    ("save", "path", "w.gguf", lambda: qcore.save("w.gguf", {"w": W})),
    ("save", "path", "w.pt", lambda: qcore.save("w.pt", {"w": W})),
    ("load", "path", "NoneType", lambda: qcore.load(None)),
    ("load", "path", "int", lambda: qcore.load(3)),
    ("load", "path", "''", lambda: qcore.load("")),
    ("WeightEncoding", "bits", "'4'", lambda: qcore.WeightEncoding("4")),
    ("WeightEncoding", "scales", "'f4'", lambda: qcore.WeightEncoding(4, "f4")),
    ("WeightEncoding.arrays", "block_size", "0", lambda: qcore.WeightEncoding(4).arrays((2, 8), 0)),
    ("gru", "x", "NoneType", lambda: GRU.report(None)),
    ("lut table", "table", "'sili'", lambda: lut.table("sili")),
    ("lut table", "name_or_callable", "None", lambda: lut.table(None)),
    ("lut table", "path", "NoneType", lambda: lut.Table.load(None)),
    ("awq_scales", "samples", "None", lambda: qcore.awq_scales([DENSE], None)),
    ("awq_scales", "samples", "str", lambda: qcore.awq_scales([DENSE], "x")),
    ("fold_scales", "scales", "0.0 at index [1]", lambda: qcore.fold_scales([1, 0, 2], np.ones(3))),
    ("fold_scales", "scales", "nan at index [2]", lambda: qcore.fold_scales([1, 1, np.nan], np.ones(3))),
    ("fold_scales", "scales", "inf at index [0]", lambda: qcore.fold_scales([np.inf, 0, 2], np.ones(3))),
    ("fold_scales", "scales", "[]", lambda: qcore.fold_scales(2.0, np.ones(3))),
    ("Hessian", "features", str(2**40), lambda: qcore.Hessian(2**40)),
    ("gru config", "bits", "4", lambda: gru.Config(bits=4)),
    ("gru config", "pipeline", "'x'", lambda: gru.Config(pipeline="x")),
]


def test_there_are_200_rows():
    assert len(ROWS) >= 200


@pytest.mark.parametrize(
    ("operator", "argument", "given", "call"), ROWS, ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in ROWS]
)
def test_the_text_names_operator_argument_given_and_expected(operator, argument, given, call):
    with pytest.raises((qcore.QcoreValueError, qcore.QcoreTypeError)) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(operator), text
    assert re.search(rf"(?<!\w){re.escape(argument)}(?!\w)", text), text
    assert given in text, text
    assert "expected" in text, text
    assert "\n" not in text
