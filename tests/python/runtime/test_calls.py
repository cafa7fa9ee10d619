"""Calls with a missing, surplus, misspelled or misplaced argument: the message names it and shows the call."""

import numpy as np
import pytest

import qcore
from qcore import lstm
from qcore._options import named_arguments

FLOATS = np.ones((4, 8), np.float32)
WEIGHT = qcore.quantize(FLOATS)

MISSING = {
    "save([w])": (
        lambda: qcore.save([WEIGHT]),
        "save: tensors is missing",
        'save("model.safetensors", {"name": weight})',
    ),
    "save(dict)": (lambda: qcore.save({"w": WEIGHT}), "save: tensors is missing", "given is path = "),
    "save()": (lambda: qcore.save(), "save: path and tensors is missing", "model.safetensors"),
    "load()": (lambda: qcore.load(), "load: path is missing", 'load("model.safetensors")'),
    "open_checkpoint()": (lambda: qcore.formats.open_checkpoint(), "open_checkpoint: path is missing"),
    "quantize()": (lambda: qcore.quantize(bits=4), "quantize: weight is missing", "quantize(weight)", "bits="),
    "quantize_encoded(w)": (lambda: qcore.quantize_encoded(FLOATS), "encoding is missing", '"q4_k"'),
    "quantize_rotated()": (lambda: qcore.quantize_rotated(), "quantize_rotated: weight is missing"),
    "quantize_activations()": (lambda: qcore.quantize_activations(), "quantize_activations: x is missing"),
    "concatenate()": (lambda: qcore.concatenate(), "concatenate: weights is missing", "[weight, weight]"),
    "awq_scales(w)": (lambda: qcore.awq_scales(FLOATS), "samples is missing", "awq_scales(weights, samples)"),
    "smooth_scales(w)": (lambda: qcore.smooth_scales(FLOATS), "samples is missing", "smooth_scales(weights, samples)"),
    "fold_scales()": (
        lambda: qcore.fold_scales(),
        "fold_scales: scales is missing",
        "fold_scales(scales, weight, bias)",
    ),
    "QuantLSTM.from_torch()": (
        lambda: lstm.QuantLSTM.from_torch(),
        "QuantLSTM.from_torch: lstm and samples is missing",
    ),
}
SWAPPED = "expected linear(x, weight): the arguments seem to be swapped"
OTHERS = {
    "save(w, path)": (lambda: qcore.save({"w": WEIGHT}, "x.safetensors"), "save: path is a dict", "the path first"),
    "save(path, list)": (lambda: qcore.save("x.safetensors", [WEIGHT]), "save: tensors is a list", '{"name": weight}'),
    "load(w)": (lambda: qcore.load(WEIGHT), "load: path is a QuantizedTensor", "expected a path"),
    "load(a, b)": (
        lambda: qcore.load("a", "b"),
        "load: 2 arguments are given by position",
        'load("model.safetensors")',
    ),
    "quantize(w, 4)": (
        lambda: qcore.quantize(FLOATS, 4),
        "quantize: 2 arguments",
        "quantize(weight)",
        "bits=, block_size=",
    ),
    "quantize(bit=)": (lambda: qcore.quantize(FLOATS, bit=4), "quantize: bit is 4", "but bits="),
    "quantize(foo=)": (lambda: qcore.quantize(FLOATS, foo=FLOATS), "foo is a ndarray", "one of weight, bits"),
    "quantize(weight twice)": (lambda: qcore.quantize(FLOATS, weight=FLOATS), "quantize: weight is given twice"),
    "quantize_encoded(name, w)": (lambda: qcore.quantize_encoded("q4_k", FLOATS), "encoding is a ndarray", "'q4_k'"),
    "quantize_rotated(w, 4)": (lambda: qcore.quantize_rotated(FLOATS, 4), "2 arguments", "rotation_block="),
    "quantize_rotated(foo=)": (lambda: qcore.quantize_rotated(FLOATS, foo=1), "foo is 1", "bits"),
    "quantize_rotated(str)": (lambda: qcore.quantize_rotated("w"), "weight is a str", "array [N, K]"),
    "concatenate(w)": (lambda: qcore.concatenate(WEIGHT), "weights is a QuantizedTensor", "expected QuantizedTensors"),
    "concatenate(3)": (lambda: qcore.concatenate(3), "weights is a int"),
    "QuantizedTensor(x)": (lambda: qcore.QuantizedTensor(FLOATS), "use qcore.quantize(weight, ...)"),
    "linear(w, x)": (
        lambda: qcore.linear(WEIGHT, FLOATS),
        "linear: x is a QuantizedTensor and weight is a ndarray",
        SWAPPED,
    ),
    "conv2d(w, x)": (
        lambda: qcore.conv2d(WEIGHT, FLOATS),
        "conv2d: x is a QuantizedTensor",
        "conv2d(x, weight): the arg",
    ),
    "embedding(w, i)": (
        lambda: qcore.embedding(WEIGHT, [1]),
        "indices is a QuantizedTensor",
        "embedding(indices, weight)",
    ),
    "grouped_linear(w, x)": (lambda: qcore.grouped_linear(WEIGHT, FLOATS, [4]), "x is a Q", "(x, weight, row_counts)"),
    "linear(x, x)": (lambda: qcore.linear(FLOATS, FLOATS), "weight is a ndarray", "qcore.quantize(weight) makes one"),
}


@pytest.mark.parametrize("case", [*MISSING.values(), *OTHERS.values()], ids=[*MISSING, *OTHERS])
def test_message(case):
    call, *words = case
    with pytest.raises((qcore.QcoreTypeError, qcore.QcoreValueError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_errors_of_the_function_itself_pass():
    @named_arguments("scale")
    def scale(x, *, by=2):
        return x + by

    assert scale(3) == 5
    with pytest.raises(TypeError, match="unsupported operand"):
        scale(None)
    with pytest.raises(
        qcore.QcoreTypeError, match=r"scale: 2 arguments are given by position, expected scale\(x\), and by name by="
    ):
        scale(1, 2)


def test_no_file_is_left(tmp_path):
    with pytest.raises(qcore.QcoreTypeError):
        qcore.save({"w": WEIGHT}, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
