"""ONNX's own node tests of GRU and LSTM, with 16 bits.

All of GRU's have linear_before_reset = 0, where the reset gate multiplies h before its product with R; rebuilt with 1,
torch's cell, ONNX's reference evaluator says what is right.
"""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qcore import gru, lstm

with warnings.catch_warnings(action="ignore"):  # of other operators' cases, which are made along with these
    from onnx.backend.test.case.node import collect_testcases

    # Cases are made once per process: collecting one operator's only would leave other modules without theirs.
    CASES = {
        case.name.removeprefix("test_"): case
        for case in collect_testcases(None)
        if case.name.startswith(("test_gru_", "test_lstm_"))
    }

GRU = [name for name in CASES if name.startswith("gru_")]
LSTM = [name for name in CASES if name.startswith("lstm_")]

BOUND = 1e-3  # what the node tests allow, relative


def arrays_of(case):
    """Return (inputs by name, outputs by name)."""
    (inputs, outputs), *_ = case.data_sets
    node = case.model.graph.node[0]
    given = [name for name in node.input if name]
    names = [name for name in node.output if name]
    return dict(zip(given, inputs, strict=True)), dict(zip(names, outputs, strict=True))


def model_of(case, arrays, **attributes):
    """Return the case's node with constant weights; attributes replace the node's."""
    node = case.model.graph.node[0]
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute} | attributes
    outputs = ["Y", "Y_h", "Y_c"][: 2 if node.op_type == "GRU" else 3]
    made = helper.make_node(node.op_type, list(node.input), outputs, name=case.name, **given)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        initializer=[numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "X"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def run(weights, x, lengths=None, states=(), **options):
    """Return Y, Y_h and, of an LSTM, Y_c in ONNX's layout; states are in it, too."""
    module = gru if isinstance(weights, gru.GruWeights) else lstm
    axes = (1, 0, 2) if weights.batch_first else (0, 1, 2)  # of states: [B, directions, H] or [directions, B, H]
    given = [np.ascontiguousarray(state.transpose(axes)) for state in states]
    q = module.Calibrator(weights).observe(x, *given).finish(module.Config(bits=16, **options))
    y, *last = q(x, *given, lengths=lengths)
    y = y.reshape(*y.shape[:2], q.directions, q.hidden_size)
    return [y if weights.batch_first else y.transpose(0, 2, 1, 3), *(each.transpose(axes) for each in last)]


def assert_close(got, expected):
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= BOUND * max(1, np.abs(expected).max())


def test_there_are_cases():
    names = {"defaults", "with_initial_bias", "batchwise"}
    assert {f"{op}_{name}" for op in ("gru", "lstm") for name in names} | {
        "gru_seq_length",
        "lstm_with_peepholes",
    } <= set(CASES)


@pytest.mark.parametrize("name", LSTM)
def test_lstm(name):
    case = CASES[name]
    arrays, outputs = arrays_of(case)
    got = run(lstm.LstmWeights.from_onnx(model_of(case, arrays)), arrays["X"])
    for output, each in zip(("Y", "Y_h", "Y_c"), got, strict=True):
        if output in outputs:
            assert_close(each, outputs[output])


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
@pytest.mark.parametrize("name", GRU)
def test_gru(name, pipeline):
    case = CASES[name]
    arrays, outputs = arrays_of(case)
    weights = gru.GruWeights.from_onnx(model_of(case, arrays))
    assert weights.layers[0][0].linear_before_reset == 0
    for output, each in zip(("Y", "Y_h"), run(weights, arrays["X"], pipeline=pipeline), strict=True):
        if output in outputs:
            assert_close(each, outputs[output])


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
@pytest.mark.parametrize("name", [name for name in GRU if name != "gru_reverse"])
def test_rebuilt_with_linear_before_reset(name, pipeline):
    case = CASES[name]
    arrays, _ = arrays_of(case)
    model = model_of(case, arrays, linear_before_reset=1)
    expected = ReferenceEvaluator(model).run(None, {"X": arrays["X"]})
    got = run(gru.GruWeights.from_onnx(model), arrays["X"], pipeline=pipeline)
    for each, wanted in zip(got, expected, strict=True):
        assert_close(each, wanted)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    ("op", "options"), [("GRU", {"linear_before_reset": 0}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {})]
)
def test_lengths_and_initial_states_are_those_of_the_call(op, options, layout):
    """Inputs sequence_lens, initial_h and initial_c: each row's steps by themselves give what ONNX defines."""
    rng = np.random.default_rng(0)
    rows, gates, states = (5, 3, 1) if op == "GRU" else (5, 4, 2)
    shapes = {"W": (1, gates * 6, 4), "R": (1, gates * 6, 6), "B": (1, 2 * gates * 6)}
    weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.normal(0, 1, (7, rows, 4)).astype(np.float32)
    initial = [rng.uniform(-0.5, 0.5, (1, rows, 6)).astype(np.float32) for _ in range(states)]
    lengths = np.array([7, 1, 3, 0, 5], np.int32)
    names = ["X", *weights, "", *("initial_h", "initial_c")[:states]]
    outputs = ["Y", "Y_h", "Y_c"][: 1 + states]

    def model(**more):
        node = helper.make_node(op, names, outputs, hidden_size=6, **options, **more)
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (*names, *outputs)]
        constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        inputs = [each for each in values if each.name == "X" or each.name.startswith("initial")]
        graph = helper.make_graph([node], "g", inputs, values[-len(outputs) :], initializer=constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])

    made = (gru.GruWeights if op == "GRU" else lstm.LstmWeights).from_onnx(model(layout=layout))
    turned = [np.ascontiguousarray(each.swapaxes(0, 1)) if layout else each for each in (x, *initial)]
    y, *last = (each.swapaxes(0, 1) if layout else each for each in run(made, turned[0], lengths, turned[1:]))
    y = y.swapaxes(1, 2) if layout else y  # [T, directions, B, H]
    exact = ReferenceEvaluator(model())
    for row, length in enumerate(lengths):
        given = [each[:, row : row + 1] for each in initial]
        assert not y[length:, 0, row].any()
        if length == 0:
            expected = [np.zeros((0, 1, 1, 6)), *given]
        else:
            feeds = dict(zip(names[-states:], given, strict=True))
            expected = exact.run(None, {"X": x[:length, row : row + 1]} | feeds)
        for got, wanted in zip((y[:length, :, row], *(each[:, row] for each in last)), expected, strict=True):
            assert np.abs(got - wanted.reshape(got.shape)).max(initial=0) <= BOUND
