"""Registers ``linear``, ``hadamard``, ``conv2d``, ``embedding`` and others with ``torch.ops.qcore``.

They take plain tensors (qcore/torch/packing.py says why), have fake kernels, and stay single nodes in graphs of
``torch.compile`` and ``torch.export``. The modules call them; a program that reads an exported model needs
``import qcore.torch`` first.

``linear`` is differentiable with respect to x and bias: as if the weight were its dequantized value and x not rounded
(a straight-through estimate), so that adapters can be trained on a frozen quantized base. Codes, scales and offsets get
no gradient. ``hadamard`` is differentiable. The other operators have no gradient: a backward pass through them is an
error of torch that names the operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import qcore
from qcore import _core
from qcore._options import Activation, Compute
from qcore.linear import activation_code
from qcore.torch import parts
from qcore.torch.dispatch import operator

_WEIGHT = (
    "Tensor packed, Tensor? bias, int[] shape, int bits, int block_size, ScalarType scale_dtype, "
    "ScalarType? offset_dtype"
)


@operator(
    f"(Tensor x, {_WEIGHT}, str compute='int8', str? activation=None, ScalarType? out_dtype=None, "
    "str? encoding=None) -> Tensor"
)
def linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    bits: int,
    block_size: int,
    scale_dtype: torch.dtype,
    offset_dtype: torch.dtype | None,
    compute: Compute = "int8",
    activation: Activation | None = None,
    out_dtype: torch.dtype | None = None,
    encoding: str | None = None,
) -> torch.Tensor:
    """Compute :func:`qcore.linear` with a weight that is a plain tensor.

    Args:
        x: float32, float16 or bfloat16 [..., K].
        packed: uint8 [bytes], the memory of the weight as ``QuantizedTensor.storage`` has it.
        bias: floating-point [N], or None.
        shape: [N, K].
        bits: 4 or 8; of an encoded weight 2, 3, 4, 5, 6 or 8.
        block_size: g.
        scale_dtype: float32 or float16; float32 on a CUDA device.
        offset_dtype: likewise, or None for a symmetric weight.
        compute, activation: names, as for :func:`qcore.linear`, without "silu_mul".
        out_dtype: of the result; x's if None.
        encoding: of an encoded weight, the JSON of ``WeightEncoding.to_dict()``; it replaces bits and both dtypes.

    Returns:
        [..., N].

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    if activation is not None:
        activation_code(activation, "linear: activation")  # no "silu_mul", whose result is [..., N / 2]
    weight = _weight(packed, shape, bits, block_size, scale_dtype, offset_dtype, encoding)
    result: torch.Tensor = qcore.linear(
        x.detach(), weight, _plain(bias), compute=compute, activation=activation, out_dtype=out_dtype
    )
    return result


@linear.definition.register_fake
def _(
    x: Any,
    packed: Any,
    bias: Any,
    shape: Any,
    bits: int,
    block_size: int,
    scale_dtype: Any,
    offset_dtype: Any,
    compute: Compute = "int8",
    activation: Activation | None = None,
    out_dtype: Any = None,
    encoding: str | None = None,
) -> Any:
    if x.dim() == 0 or x.shape[-1] != shape[1]:
        raise _core.QcoreValueError(
            f"linear: x has shape {list(x.shape)}, expected its last dimension to be K = {shape[1]} of the weight "
            f"{list(shape)}"
        )
    return x.new_empty((*x.shape[:-1], shape[0]), dtype=out_dtype or x.dtype)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, packed, bias, *options = inputs
    ctx.weight_options, (ctx.compute, ctx.activation, _, ctx.encoding) = options[:5], options[5:]
    ctx.save_for_backward(x if ctx.activation is not None else None, packed, bias)
    ctx.x_dtype = x.dtype


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, packed, bias = ctx.saved_tensors
    shape, *options = ctx.weight_options
    grad = grad.float()
    if ctx.activation is not None:
        before = torch.ops.qcore.linear(x, packed, bias, shape, *options, ctx.compute, None, None, ctx.encoding)
        grad = grad * _slope(before.float(), ctx.activation)
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        if ctx.encoding is None:
            weight = parts.dequantized(packed, parts.WeightFormat(tuple(shape), *options))
        else:
            weight = torch.ops.qcore.dequantize(packed, shape, *options, ctx.encoding)
        grad_x = (grad @ weight).to(ctx.x_dtype)
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = grad.flatten(0, -2).sum(0).to(bias.dtype) if grad.dim() > 1 else grad.to(bias.dtype)
    return grad_x, None, grad_bias, *(None,) * 9


@operator(
    "(Tensor x, Tensor packed, Tensor? bias, Tensor row_counts, int[] shape, int bits, int block_size, "
    "ScalarType scale_dtype, ScalarType? offset_dtype, str compute='int8') -> Tensor"
)
def grouped_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    row_counts: torch.Tensor,
    shape: Sequence[int],
    bits: int,
    block_size: int,
    scale_dtype: torch.dtype,
    offset_dtype: torch.dtype | None,
    compute: Compute = "int8",
) -> torch.Tensor:
    """Compute :func:`qcore.grouped_linear` with a weight that is a plain tensor; differentiable with respect to x.

    Args:
        x: float32, float16 or bfloat16 [M, K].
        packed, bits, block_size, scale_dtype, offset_dtype, compute: as for :func:`linear`.
        bias: floating-point [E, N], or None.
        row_counts: int32 or int64 [E] on x's device: how many rows each expert has. Their sum may be less than M.
        shape: [E * N, K].

    Returns:
        [M, N] of x's dtype. Rows behind the last expert's are zeros on the CPU, and NaN on a CUDA device.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    weight, x = _weight(packed, shape, bits, block_size, scale_dtype, offset_dtype), x.detach()
    if x.is_cuda:
        made: torch.Tensor = qcore.grouped_linear(x, weight, row_counts, _plain(bias), compute=compute)
        return made
    rows = int(row_counts.sum())
    result = x.new_zeros((len(x), shape[0] // len(row_counts)))
    qcore.grouped_linear(x[:rows], weight, row_counts, _plain(bias), compute=compute, out=result[:rows])
    return result


@grouped_linear.definition.register_fake
def _(x: Any, packed: Any, bias: Any, row_counts: Any, shape: Any, *rest: Any) -> Any:
    if x.dim() != 2 or x.shape[1] != shape[1]:
        raise _core.QcoreValueError(
            f"grouped_linear: x has shape {list(x.shape)}, expected [M, {shape[1]}] for a weight {list(shape)}"
        )
    return x.new_empty((x.shape[0], shape[0] // row_counts.shape[0]))


@operator(
    "(Tensor grad, Tensor packed, Tensor row_counts, int[] shape, int bits, int block_size, ScalarType scale_dtype, "
    "ScalarType? offset_dtype) -> Tensor"
)
def grouped_linear_backward(
    grad: torch.Tensor, packed: torch.Tensor, row_counts: torch.Tensor, shape: Sequence[int], *form: Any
) -> torch.Tensor:
    """Multiply the gradients of rows by the dequantized weights of their experts.

    Args:
        grad: float32 [M, N].
        packed, row_counts, shape, form: as for :func:`grouped_linear`.

    Returns:
        float32 [M, K]; zeros behind the last expert's rows.

    Raises:
        RuntimeError: torch's own, where ``grad`` or ``packed`` does not have the size that shape and form say.
    """
    whole, counts = parts.WeightFormat(tuple(shape), *form), row_counts.tolist()
    result, begin = grad.new_zeros((len(grad), shape[1])), 0
    for expert, count in enumerate(counts):
        if count:
            weight = parts.dequantized(*parts.member(packed, whole, len(counts), expert))
            torch.mm(grad[begin : begin + count], weight, out=result[begin : begin + count])
            begin += count
    return result


@grouped_linear_backward.definition.register_fake
def _(grad: Any, packed: Any, row_counts: Any, shape: Any, *rest: Any) -> Any:
    return grad.new_empty((grad.shape[0], shape[1]))


def _grouped_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, packed, bias, row_counts, *options = inputs
    ctx.weight_options, ctx.x_dtype, ctx.bias_dtype = options[:5], x.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(packed, row_counts)


def _grouped_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    packed, row_counts = ctx.saved_tensors
    grad = grad.float()
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        options = ctx.weight_options
        grad_x = torch.ops.qcore.grouped_linear_backward(grad, packed, row_counts, *options).to(ctx.x_dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        ends = row_counts.cumsum(0)
        experts = torch.searchsorted(ends, torch.arange(len(grad), device=grad.device), right=True)
        sums = grad.new_zeros((len(row_counts) + 1, grad.shape[1])).index_add(0, experts, grad)
        grad_bias = sums[:-1].to(ctx.bias_dtype)
    return grad_x, None, grad_bias, *(None,) * 7


grouped_linear.definition.register_autograd(_grouped_backward, setup_context=_grouped_setup)


@operator("(Tensor x, int block) -> Tensor")
def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Compute :func:`qcore.hadamard`; differentiable, because the rotation is its own transpose.

    Args:
        x: float32, float16 or bfloat16 [..., K] on the CPU.
        block: elements that are rotated together, a power of two that divides K.

    Returns:
        A tensor with x's shape and dtype.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    if x.device.type != "cpu":
        raise _core.QcoreValueError(
            f"hadamard: x is on {x.device}, expected the CPU: the rotation has CPU kernels only"
        )
    result: torch.Tensor = qcore.hadamard(x.detach(), block)
    return result


@hadamard.definition.register_fake
def _(x: Any, block: int) -> Any:
    return x.new_empty(x.shape)


def _hadamard_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.block = inputs[1]


def _hadamard_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.qcore.hadamard(grad, ctx.block), None


hadamard.definition.register_autograd(_hadamard_backward, setup_context=_hadamard_setup)
hadamard.batch_over(0)


@operator(
    "(Tensor packed, int[] shape, int bits, int block_size, ScalarType scale_dtype, ScalarType? offset_dtype, "
    "str? encoding=None) -> Tensor"
)
def dequantize(
    packed: torch.Tensor,
    shape: Sequence[int],
    bits: int,
    block_size: int,
    scale_dtype: torch.dtype,
    offset_dtype: torch.dtype | None,
    encoding: str | None = None,
) -> torch.Tensor:
    """Compute :meth:`qcore.QuantizedTensor.dequantize` for a weight that is a plain tensor.

    Args:
        packed, shape, bits, block_size, scale_dtype, offset_dtype, encoding: as for :func:`linear`.

    Returns:
        float32 of the weight's shape, on its device.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    weight = _weight(packed, shape, bits, block_size, scale_dtype, offset_dtype, encoding)
    return torch.from_numpy(weight.dequantize()).to(packed.device)


@dequantize.definition.register_fake
def _(packed: Any, shape: Any, *rest: Any) -> Any:
    return packed.new_empty(shape, dtype=torch.float32)


def _slope(z: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return the derivative of a fused activation at z."""
    if activation == "relu":
        return (z > 0).float()
    if activation == "relu6":
        return ((z > 0) & (z < 6)).float()
    if activation == "silu":
        gate = torch.sigmoid(z)
        return gate * (1 + z * (1 - gate))
    if activation == "tanh":
        return 1 - torch.tanh(z) ** 2
    if activation == "sigmoid":
        return torch.sigmoid(z) * torch.sigmoid(-z)
    if activation == "gelu_tanh":  # z * sigmoid(u); beyond 32 the product of both tails is 0
        z = z.clamp(-32, 32)
        scale, square = math.sqrt(8 / math.pi), 0.044715 * z * z
        gate = torch.sigmoid(scale * z * (1 + square))
        return gate * (1 + z * (1 - gate) * scale * (1 + 3 * square))
    gate = 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))
    return gate + z * torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


linear.definition.register_autograd(_linear_backward, setup_context=_linear_setup)
linear.batch_over(0)


@operator(
    f"(Tensor x, {_WEIGHT}, int[] stride, int[] padding, int[] dilation, int groups, str compute='int8', "
    "str? activation=None) -> Tensor"
)
def conv2d(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    bits: int,
    block_size: int,
    scale_dtype: torch.dtype,
    offset_dtype: torch.dtype | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    compute: Compute = "int8",
    activation: Activation | None = None,
) -> torch.Tensor:
    """Compute :func:`qcore.conv2d` with a weight that is a plain tensor.

    Args:
        x: float32, float16 or bfloat16 [N, Ci, H, W].
        packed, bias, bits, block_size, scale_dtype, offset_dtype, compute, activation: as for :func:`linear`.
        shape: [Co, Ci / groups, Kh, Kw].
        stride, dilation: (H, W).
        padding: (top, left, bottom, right).
        groups: of channels.

    Returns:
        [N, Co, Ho, Wo] of x's dtype, channels_last if x is.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    weight = _weight(packed, shape, bits, block_size, scale_dtype, offset_dtype)
    result: torch.Tensor = qcore.conv2d(
        x.detach(),
        weight,
        _plain(bias),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        compute=compute,
        activation=activation,
    )
    return result


@conv2d.definition.register_fake
def _(
    x: Any,
    packed: Any,
    bias: Any,
    shape: Any,
    bits: int,
    block_size: int,
    scale_dtype: Any,
    offset_dtype: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    *rest: Any,
) -> Any:
    if x.dim() != 4 or x.shape[1] != shape[1] * groups:
        raise _core.QcoreValueError(
            f"conv2d: x has shape {list(x.shape)}, expected [N, {shape[1] * groups}, H, W] for a weight of shape "
            f"{list(shape)} in {groups} groups"
        )
    high = (x.shape[2] + padding[0] + padding[2] - dilation[0] * (shape[2] - 1) - 1) // stride[0] + 1
    wide = (x.shape[3] + padding[1] + padding[3] - dilation[1] * (shape[3] - 1) - 1) // stride[1] + 1
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty((x.shape[0], shape[0], high, wide), dtype=x.dtype, device=x.device, memory_format=layout)


conv2d.batch_over(4)


@operator(
    "(Tensor indices, Tensor packed, int[] shape, int bits, int block_size, ScalarType scale_dtype, "
    "ScalarType? offset_dtype, ScalarType out_dtype, str? encoding=None) -> Tensor"
)
def embedding(
    indices: torch.Tensor,
    packed: torch.Tensor,
    shape: Sequence[int],
    bits: int,
    block_size: int,
    scale_dtype: torch.dtype,
    offset_dtype: torch.dtype | None,
    out_dtype: torch.dtype,
    encoding: str | None = None,
) -> torch.Tensor:
    """Compute :func:`qcore.embedding` with a weight that is a plain tensor.

    Args:
        indices: int32 or int64 [...].
        packed, shape, bits, block_size, scale_dtype, offset_dtype, encoding: as for :func:`linear`.
        out_dtype: of the result.

    Returns:
        [..., K].

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    weight = _weight(packed, shape, bits, block_size, scale_dtype, offset_dtype, encoding)
    result: torch.Tensor = qcore.embedding(indices, weight, out_dtype=out_dtype)
    return result


@embedding.definition.register_fake
def _(
    indices: Any,
    packed: Any,
    shape: Any,
    bits: int,
    block_size: int,
    scale_dtype: Any,
    offset_dtype: Any,
    out_dtype: Any,
    encoding: str | None = None,
) -> Any:
    return indices.new_empty((*indices.shape, shape[1]), dtype=out_dtype)


embedding.batch_over(0)


@operator("(Tensor x, Tensor cuts, Tensor values, str range_reduction='none') -> Tensor")
def lut(x: torch.Tensor, cuts: torch.Tensor, values: torch.Tensor, range_reduction: str = "none") -> torch.Tensor:
    """Apply a look-up table, see :class:`qcore.lut.Table`.

    Args:
        x: float32, float16 or bfloat16, any shape.
        cuts: float32 [n + 1].
        values: float16 or float32.
        range_reduction: as for :meth:`qcore.lut.Table.from_parts`.

    Returns:
        A tensor with x's shape and dtype.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    result: torch.Tensor = parts.table_of(cuts, values, range_reduction)(x.detach())
    return result


@lut.definition.register_fake
def _(x: Any, *rest: Any) -> Any:
    return torch.empty_like(x)


lut.batch_over(0)


@operator(
    "(Tensor x, Tensor? h0, Tensor state, int hidden_size, int layers, int directions, bool batch_first) "
    "-> (Tensor, Tensor)"
)
def gru(
    x: torch.Tensor,
    h0: torch.Tensor | None,
    state: torch.Tensor,
    hidden_size: int,
    layers: int,
    directions: int,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run all steps of a :class:`qcore.gru.QuantGRU` whose state is a plain tensor.

    Args:
        x: float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first).
        h0: [layers * directions, B, H], or None.
        state: uint8, the bytes of the file that ``QuantGRU.save`` writes.
        hidden_size, layers, directions, batch_first: those of the GRU.

    Returns:
        y [T, B, directions * H] ([B, T, directions * H]) and the last states [layers * directions, B, H].

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    y, last = parts.gru_of(state)(x.detach(), _plain(h0))
    return y, last


@gru.definition.register_fake
def _(x: Any, h0: Any, state: Any, hidden_size: int, layers: int, directions: int, batch_first: bool) -> Any:
    if x.dim() != 3:
        raise _core.QcoreValueError(f"gru: x has shape {list(x.shape)}, expected three dimensions")
    batch = x.shape[0] if batch_first else x.shape[1]
    y = x.new_empty((x.shape[0], x.shape[1], directions * hidden_size))
    return y, x.new_empty((layers * directions, batch, hidden_size))


@operator(
    "(Tensor x, Tensor? h0, Tensor? c0, Tensor state, int output_size, int hidden_size, int layers, int directions, "
    "bool batch_first) "
    "-> (Tensor, Tensor, Tensor)"
)
def lstm(
    x: torch.Tensor,
    h0: torch.Tensor | None,
    c0: torch.Tensor | None,
    state: torch.Tensor,
    output_size: int,
    hidden_size: int,
    layers: int,
    directions: int,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run all steps of a :class:`qcore.lstm.QuantLSTM` whose state is a plain tensor.

    Args:
        x: float32, float16 or bfloat16 [T, B, C] ([B, T, C] if batch_first).
        h0, c0: [layers * directions, B, S] and [layers * directions, B, H], or None.
        state: uint8, the bytes of the file that ``QuantLSTM.save`` writes.
        output_size: S, the size of h.
        hidden_size, layers, directions, batch_first: those of the LSTM.

    Returns:
        y [T, B, directions * S] ([B, T, directions * S]) and the last h and c, shaped as h0 and c0.

    Raises:
        QcoreValueError, QcoreTypeError: naming the argument, what was given and what was expected.
    """
    y, h, c = parts.lstm_of(state)(x.detach(), _plain(h0), _plain(c0))
    return y, h, c


@lstm.definition.register_fake
def _(
    x: Any,
    h0: Any,
    c0: Any,
    state: Any,
    output_size: int,
    hidden_size: int,
    layers: int,
    directions: int,
    batch_first: bool,
) -> Any:
    if x.dim() != 3:
        raise _core.QcoreValueError(f"lstm: x has shape {list(x.shape)}, expected three dimensions")
    batch = x.shape[0] if batch_first else x.shape[1]
    y = x.new_empty((x.shape[0], x.shape[1], directions * output_size))
    h, c = (x.new_empty((layers * directions, batch, size)) for size in (output_size, hidden_size))
    return y, h, c


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


def _weight(packed: torch.Tensor, shape: Sequence[int], *form: Any) -> qcore.QuantizedTensor:
    """Return the weight of an operator's arguments."""
    return parts.viewed(packed, parts.WeightFormat(tuple(shape), *form))
