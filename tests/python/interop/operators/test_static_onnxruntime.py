"""static.qconv2d and static.qlinear beside ONNX Runtime's QLinearConv and QLinearMatMul, code by code.

ONNX Runtime multiplies in the same order and rounds halves to even: no code of version 1.31.1 differs.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from static_calls import PEER_LIMIT

from qcore.static import qconv2d, qlinear

ONNX = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


def evaluate(node, x, constants):
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", ONNX[str(x.dtype)], x.shape)],
        [helper.make_tensor_value_info("y", ONNX[str(x.dtype)], None)],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def conv(x, x_scale, x_zero, weight, w_scale, y_scale, y_zero, bias, *, stride, padding, dilation, groups):
    operands = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node(
        "QLinearConv", operands, ["y"], strides=stride, pads=padding, dilations=dilation, group=groups,
        kernel_shape=weight.shape[2:],
    )  # fmt: skip
    zeros = np.zeros(len(w_scale), np.int8)
    constants = {"xs": np.float32(x_scale), "xz": x.dtype.type(x_zero), "w": weight, "ws": w_scale, "wz": zeros}
    return evaluate(node, x, constants | {"ys": np.float32(y_scale), "yz": x.dtype.type(y_zero), "b": bias})


def matmul(x, x_scale, x_zero, weight, w_scale, y_scale, y_zero):
    operands = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    zeros = np.zeros(len(w_scale), np.int8)
    constants = {"xs": np.float32(x_scale), "xz": x.dtype.type(x_zero), "w": np.ascontiguousarray(weight.T)}
    constants |= {"ws": w_scale, "wz": zeros, "ys": np.float32(y_scale), "yz": x.dtype.type(y_zero)}
    return evaluate(helper.make_node("QLinearMatMul", operands, ["y"]), x, constants)


def agree(ours, theirs, case):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    differences = np.abs(ours.astype(int) - theirs.astype(int))
    count = int((differences > 0).sum())
    print(f"{case}: {count} of {ours.size} codes differ, by at most {differences.max(initial=0)}")
    assert count == 0


# x, weight, stride, padding (top, left, bottom, right), dilation, groups
CASES = {
    "3x3": ((1, 64, 14, 14), (64, 64, 3, 3), 1, (1, 1, 1, 1), 1, 1),
    "odd channels": ((2, 37, 9, 7), (45, 37, 3, 3), 1, (1, 1, 1, 1), 1, 1),
    "dilation 3": ((1, 20, 12, 13), (33, 20, 3, 3), 1, (3, 3, 3, 3), 3, 1),
    "stride 4": ((1, 16, 19, 18), (24, 16, 5, 5), 4, (2, 2, 2, 2), 1, 1),
    "padding beyond the kernel": ((1, 16, 3, 4), (8, 16, 2, 2), 1, (5, 4, 3, 6), 1, 1),
    "padding on one side": ((1, 16, 6, 5), (8, 16, 2, 2), 1, (1, 0, 0, 1), 1, 1),
    "1x1": ((1, 64, 7, 7), (130, 64, 1, 1), 1, (0, 0, 0, 0), 1, 1),
    "1xN": ((1, 12, 4, 20), (6, 12, 1, 7), 1, (0, 3, 0, 3), 1, 1),
    "first layer": ((1, 3, 32, 32), (16, 3, 7, 7), 2, (3, 3, 3, 3), 1, 1),
    "groups": ((1, 24, 6, 6), (36, 8, 3, 3), 1, (1, 1, 1, 1), 1, 3),
    "depthwise": ((1, 70, 14, 14), (70, 1, 3, 3), 1, (1, 1, 1, 1), 1, 70),
    "depthwise strided": ((2, 64, 15, 15), (64, 1, 5, 5), 2, (2, 2, 2, 2), 1, 64),
    "depthwise multiplied": ((1, 10, 7, 7), (30, 1, 3, 3), 1, (1, 1, 1, 1), 1, 10),
}


def random_layer(rng, w_shape, dtype):
    low, high = RANGES[dtype]
    weight = rng.integers(-PEER_LIMIT, PEER_LIMIT, w_shape).astype(np.int8)
    w_scale = rng.uniform(0.002, 0.01, w_shape[0]).astype(np.float32)
    y_scale = 0.02 * 0.006 * 74 * 74 * np.prod(w_shape[1:]) ** 0.5 / 60
    bias = rng.integers(-20000, 20000, w_shape[0]).astype(np.int32)
    return 0.02, int(rng.integers(low, high + 1)), weight, w_scale, y_scale, int(rng.integers(low, high + 1)), bias


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("case", CASES)
def test_qlinearconv(case, dtype):
    rng = np.random.default_rng(len(case))
    x_shape, w_shape, stride, padding, dilation, groups = CASES[case]
    for _ in range(5):
        low, high = RANGES[dtype]
        x = rng.integers(low, high + 1, x_shape).astype(dtype)
        arguments = random_layer(rng, w_shape, dtype)
        theirs = conv(x, *arguments, stride=[stride] * 2, padding=list(padding), dilation=[dilation] * 2, groups=groups)
        ours = qconv2d(x, *arguments, stride=stride, padding=padding, dilation=dilation, groups=groups)
        agree(ours, theirs, f"{case} {dtype}")


@pytest.mark.parametrize("dtype", RANGES)
def test_saturation_and_zero_points_at_the_ends(dtype):
    low, high = RANGES[dtype]
    rng = np.random.default_rng(8)
    weight = rng.choice(np.array([-PEER_LIMIT, PEER_LIMIT - 1], np.int8), (20, 16, 3, 3))
    weight[0], weight[1] = PEER_LIMIT - 1, -PEER_LIMIT
    w_scale, bias = np.full(20, 0.01, np.float32), rng.integers(-(10**6), 10**6, 20).astype(np.int32)
    x = rng.choice(np.array([low, high], dtype), (1, 16, 6, 6))
    x[0, :, 2:5, 2:5] = high
    for x_zero in (low, high):
        for y_zero in (low, high):
            for y_scale in (1e-3, 1.0, 50.0):
                arguments = (0.02, x_zero, weight, w_scale, y_scale, y_zero, bias)
                theirs = conv(x, *arguments, stride=[1, 1], padding=[1] * 4, dilation=[1, 1], groups=1)
                agree(qconv2d(x, *arguments, padding=1), theirs, f"{dtype} {x_zero} {y_zero} {y_scale}")


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("m", [1, 2, 7, 16, 65])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 7), (64, 64), (65, 257), (384, 1536)])
def test_qlinearmatmul(m, n, k, dtype):
    rng = np.random.default_rng([m, n, k])
    low, high = RANGES[dtype]
    x = rng.integers(low, high + 1, (m, k)).astype(dtype)
    arguments = random_layer(rng, (n, k), dtype)[:-1]
    agree(qlinear(x, *arguments), matmul(x, *arguments), f"{m}x{n}x{k} {dtype}")


def test_halves():
    """Every sum in reach, halved: ties wherever it is odd."""
    x = np.arange(256, dtype=np.uint8)[:, None]
    weight = np.array([[1], [3], [-1], [127]], np.int8)
    arguments = (1.0, 128, weight, np.ones(4, np.float32), 2.0, 128)
    agree(qlinear(x, *arguments), matmul(x, *arguments), "halves")
