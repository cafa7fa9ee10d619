"""ONNX models: layers out of them, and weights into them.

| file | nodes |
|---|---|
| matmul_nbits.py | MatMulNBits, both ways |
| qlinear_nodes.py | QLinearConv, QLinearMatMul and QGemm |
| qdq.py | Conv, MatMul and Gemm between DequantizeLinear and QuantizeLinear |

reader.py goes through a model; graph.py knows what is connected with what and which values are constants; codes.py
reads scales, zero points and weights, windows.py a convolution's attributes, and layers.py makes operators of them.
"""

from qcore.formats.onnx.matmul_nbits import to_onnx
from qcore.formats.onnx.reader import from_onnx

__all__ = ["from_onnx", "to_onnx"]
