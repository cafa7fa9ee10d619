"""ONNX's own node tests of QLinearConv and QLinearMatMul, with their weights as constants."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qcore
from qcore import formats

with warnings.catch_warnings(action="ignore"):  # of other operators' cases, which are made along with these
    from onnx.backend.test.case.node import collect_testcases

    CASES = {case.name: case for case in collect_testcases(None) if case.name.startswith("test_qlinear")}

# A product of two stacks of matrices, of which neither is a layer's weight.
BATCHED = [name for name in CASES if "matmul_3D" in name]


def model_and_data(case):
    """Return the case's node, with all inputs but the first constant, that input and the output."""
    ((inputs, (output,)), *_) = case.data_sets
    node = case.model.graph.node[0]
    kinds = {each.name: each.type.tensor_type.elem_type for each in (*case.model.graph.input, *case.model.graph.output)}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(node.input[0], kinds[node.input[0]], inputs[0].shape)],
        [helper.make_tensor_value_info(node.output[0], kinds[node.output[0]], output.shape)],
        initializer=[
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in zip(node.input[1:], inputs[1:], strict=True)
        ],
    )
    return helper.make_model(graph, opset_imports=case.model.opset_import), inputs[0], output


def test_there_are_cases():
    assert {"test_qlinearconv", "test_qlinearmatmul_2D_uint8_float32", "test_qlinearmatmul_2D_int8_float32"} <= set(
        CASES
    )
    assert len(BATCHED) < len(CASES)


@pytest.mark.parametrize("name", [name for name in CASES if name not in BATCHED])
def test_onnx_own_results(name):
    model, x, expected = model_and_data(CASES[name])
    onnx.checker.check_model(model)
    (layer,) = formats.from_onnx(model).values()
    got = layer(x)
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("name", BATCHED)
def test_a_stack_of_matrices_is_no_weight(name):
    model, _, _ = model_and_data(CASES[name])
    with pytest.raises(qcore.QcoreValueError, match=r"from_onnx: node 'y': b has shape \[2, 4, 3\], expected \[K, N\]"):
        formats.from_onnx(model)
