"""ONNX's own node tests of GRU, with 16 bits.

All of them have linear_before_reset = 0, where the reset gate multiplies h before its product with R; qcore and torch
compute the other form, so that each must be refused with the reason. Two ways lead past that:

- While h is 0 and the recurrent bias of the third gate is 0, the reset gate multiplies 0 in either form. Cases of one
  step without an initial state have the same results in both, and must give ONNX's own numbers.
- The others are rebuilt with linear_before_reset = 1, and ONNX's reference evaluator says what is right.
"""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qcore
from qcore.gru import Calibrator, Config, GruWeights

with warnings.catch_warnings(action="ignore"):  # of other operators' cases, which are made along with these
    from onnx.backend.test.case.node import collect_testcases

    # Cases are made once per process: collecting one operator's only would leave other modules without theirs.
    ALL = [case for case in collect_testcases(None) if case.name.startswith("test_gru_")]

CASES = {case.name.removeprefix("test_gru_"): case for case in ALL}

BOUND = 1e-3  # what the node tests allow, relative


def arrays_of(case):
    """Return (inputs by name, outputs by name)."""
    (inputs, outputs), *_ = case.data_sets
    node = case.model.graph.node[0]
    names = [name for name in node.output if name]
    return dict(zip(node.input, inputs, strict=True)), dict(zip(names, outputs, strict=True))


def model_of(case, arrays, **attributes):
    """Return the case's node with constant weights; attributes replace the node's."""
    node = case.model.graph.node[0]
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute} | attributes
    made = helper.make_node("GRU", list(node.input), ["Y", "Y_h"], name=case.name, **given)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("Y", "Y_h")],
        initializer=[numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "X"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def quantized(model, x, pipeline):
    """Return Y and Y_h in ONNX's layout."""
    weights = GruWeights.from_onnx(model)
    q = Calibrator(weights).observe(x).finish(Config(bits=16, pipeline=pipeline))
    y, last = q(x)
    first, second, _ = y.shape
    y = y.reshape(first, second, q.directions, q.hidden_size)
    if weights.batch_first:  # [B, T, directions, H] and [B, directions, H]
        return y, last.transpose(1, 0, 2)
    return y.transpose(0, 2, 1, 3), last


def assert_close(got, expected):
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= BOUND * max(1, np.abs(expected).max())


def test_there_are_cases():
    assert {"defaults", "with_initial_bias", "seq_length", "batchwise"} <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_other_form_is_refused_with_the_reason(name):
    case = CASES[name]
    arrays, _ = arrays_of(case)
    with pytest.raises(qcore.QcoreValueError) as caught:
        GruWeights.from_onnx(model_of(case, arrays))
    assert f"gru weights: node '{case.name}' has linear_before_reset = 0, expected 1" in str(caught.value)
    assert "the reset gate multiplies h before its product" in str(caught.value)


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
@pytest.mark.parametrize("name", ["defaults", "with_initial_bias", "batchwise"])
def test_onnx_own_results_where_both_forms_agree(name, pipeline):
    case = CASES[name]
    arrays, outputs = arrays_of(case)
    size = arrays["R"].shape[2]
    assert "initial_h" not in arrays and not arrays.get("B", np.zeros((1, 6 * size)))[:, -size:].any()
    model = model_of(case, arrays, linear_before_reset=1)
    assert arrays["X"].shape[1 if GruWeights.from_onnx(model).batch_first else 0] == 1
    for got, output in zip(quantized(model, arrays["X"], pipeline), ("Y", "Y_h"), strict=True):
        if output in outputs:
            assert_close(got, outputs[output])


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "reverse"])
def test_rebuilt_with_linear_before_reset(name, pipeline):
    case = CASES[name]
    arrays, _ = arrays_of(case)
    model = model_of(case, arrays, linear_before_reset=1)
    expected = ReferenceEvaluator(model).run(None, {"X": arrays["X"]})
    for got, wanted in zip(quantized(model, arrays["X"], pipeline), expected, strict=True):
        assert_close(got, wanted)


@pytest.mark.skipif("reverse" not in CASES, reason="this onnx has no case of that direction")
def test_reverse_is_forward_of_the_reversed_sequence():
    """from_onnx refuses a lone backward direction; the same weights run on the sequence turned around."""
    case = CASES["reverse"]
    arrays, _ = arrays_of(case)
    with pytest.raises(qcore.QcoreValueError, match="direction 'reverse', expected 'forward' or 'bidirectional'"):
        GruWeights.from_onnx(model_of(case, arrays, linear_before_reset=1))
    forward = model_of(case, arrays, linear_before_reset=1, direction="forward")
    y, last = ReferenceEvaluator(forward).run(None, {"X": arrays["X"][::-1]})
    got, state = quantized(forward, np.ascontiguousarray(arrays["X"][::-1]), "fused")
    assert_close(got[::-1], y[::-1])
    assert_close(state, last)
