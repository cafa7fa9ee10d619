"""ONNX models of one quantized layer, for the tests of from_onnx."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16}


@dataclass
class Layer:
    """x (codes) -> DequantizeLinear -> operator -> ``between`` -> QuantizeLinear -> y (codes)."""

    operator: str = "Conv"
    x: tuple = ("uint8", 0.02, 117)  # dtype, scale, zero point or None
    y: tuple = ("uint8", 0.0511, 131)
    codes: np.ndarray = None
    w_scale: np.ndarray = field(default_factory=lambda: np.float32(0.01))
    w_zero: np.ndarray = None
    w_axis: int = None
    w_real: bool = False  # codes are float numbers, which a QuantizeLinear quantizes
    bias: tuple = None  # (array,) of floats, or (codes, scale, zero point or None)
    between: tuple = ()  # (op_type, constant inputs, attributes)
    attributes: dict = field(default_factory=dict)
    shape: tuple = (1, 4, 9, 8)
    opset: int = 21

    def model(self):
        nodes, constants = [], {}

        def dequantize(name, data, scale, zero, **attributes):
            constants[f"{name}_scale"] = np.asarray(scale, np.float32)
            inputs = [data, f"{name}_scale"]
            if zero is not None:
                constants[f"{name}_zero"] = zero
                inputs.append(f"{name}_zero")
            nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_real"], **attributes))
            return f"{name}_real"

        operands = [dequantize("x", "x", self.x[1], self.zero(self.x))]
        constants["w"] = self.codes
        axis = {} if self.w_axis is None else {"axis": self.w_axis}
        if self.w_real:
            inputs = ["w", "w_scale"] if self.w_zero is None else ["w", "w_scale", "w_zero"]
            nodes.append(helper.make_node("QuantizeLinear", inputs, ["w_codes"], **axis))
        operands.append(dequantize("w", "w_codes" if self.w_real else "w", self.w_scale, self.w_zero, **axis))
        if self.bias is not None:
            constants["bias"] = self.bias[0]
            scaled = len(self.bias) > 1
            axis = {"axis": 0} if scaled and np.ndim(self.bias[1]) else {}
            operands.append(dequantize("bias", "bias", *self.bias[1:], **axis) if scaled else "bias")
        nodes.append(helper.make_node(self.operator, operands, ["r0"], name="layer", **self.attributes))
        for i, (op_type, inputs, attributes) in enumerate(self.between):
            names = [f"between{i}_{j}" if each is not None else "" for j, each in enumerate(inputs)]
            constants |= {n: np.float32(each) for n, each in zip(names, inputs, strict=True) if n}
            nodes.append(helper.make_node(op_type, [f"r{i}", *names], [f"r{i + 1}"], **attributes))
        ends = [f"r{len(self.between)}", "y_scale"]
        constants["y_scale"] = np.float32(self.y[1])
        if self.zero(self.y) is not None:
            constants["y_zero"] = self.zero(self.y)
            ends.append("y_zero")
        nodes.append(helper.make_node("QuantizeLinear", ends, ["y"]))
        return model_of(
            nodes, constants, ("x", self.x[0], self.shape), ("y", self.y[0], [None] * len(self.shape)), self.opset
        )

    @staticmethod
    def zero(described):
        return None if described[2] is None else np.asarray(described[2], described[0])


def model_of(nodes, constants, x, y, opset=21):
    """Return a model with one input and one output, (name, dtype, shape) each."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(x[0], KINDS[x[1]], x[2])],
        [helper.make_tensor_value_info(y[0], KINDS[y[1]], y[2])],
        initializer=[numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def add_output(model, name):
    model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model


def check(model):
    onnx.checker.check_model(model, full_check=True)
    return model
