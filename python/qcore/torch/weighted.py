"""Defines linear layers and convolutions over a QuantizedTensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qcore import _checks, _conv_params, _core
from qcore._options import (
    BITS,
    BLOCK_SIZE,
    METHOD,
    SCALE_DTYPE,
    SCHEME,
    Activation,
    Compute,
    Method,
    Scheme,
    option_names,
)
from qcore.conv import conv2d as _conv2d
from qcore.linear import COMPUTE, activation_code
from qcore.quantized_tensor import QuantizedTensor, quantize
from qcore.runtime import DEBUG, log_kernel, logs_kernels
from qcore.torch import operators, parts
from qcore.torch.dispatch import is_plain_call
from qcore.torch.module import CONFIG, QuantizedModule, autocast, read_config
from qcore.weight_encoding import WeightEncoding

_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ACTIVATIONS: dict[Activation | None, Activation | None] = {
    None: None,
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


class ModuleWeight(QuantizedTensor):
    """Holds a module's packed weight and answers code that reads dtype and device of a float weight.

    ``x.to(layer.weight.dtype)`` is common in models, and so is ``torch.arange(n, device=layer.weight.device)``.

    Attributes:
        dtype: torch.float32, torch.float16 or torch.bfloat16, the dtype of the float weight that it replaces.
    """

    __slots__ = ("dtype",)

    dtype: torch.dtype

    @classmethod
    def of(cls, weight: QuantizedTensor, dtype: torch.dtype) -> ModuleWeight:
        """Return a weight in the same memory that reports this dtype of torch."""
        made = object.__new__(cls)
        object.__setattr__(made, "_handle", weight._handle)
        object.__setattr__(made, "dtype", dtype)
        return made

    @property
    def device(self) -> torch.device:
        """Return the device as a ``torch.device``, where QuantizedTensor returns its name."""
        return torch.device(self._handle.device)


@dataclass(frozen=True)
class TracedWeight:
    """Stands for a module's weight in a graph, in which there is no memory to share."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class _View:
    """Holds the arguments of a call to the core, made once for each memory of the weight."""

    __slots__ = ("activation", "address", "handle", "mode", "options", "rows", "storage", "weight")

    def __init__(self, storage: torch.Tensor, weight: ModuleWeight, compute: Compute, activation: Any) -> None:
        self.storage, self.weight, self.address = storage, weight, storage.data_ptr()
        self.handle, self.rows = weight._handle, weight.shape[0]
        self.options = compute, activation
        self.mode, self.activation = COMPUTE[compute], activation_code(activation, "activation")


class WeightedModule(QuantizedModule):
    """Holds one packed weight and a bias: the base of the modules with a weight.

    Its one copy of the weight is the buffer ``packed``, the bytes that kernels read. The state_dict has the parts of
    :func:`qcore.torch.parts.unpack` instead, made when it is asked for.

    Attributes:
        encoding: the JSON of the weight's :class:`qcore.WeightEncoding`; None for a plain weight.
    """

    _dimensions = 2

    packed: torch.Tensor
    compute: Compute
    activation: Activation | None
    dtype: torch.dtype
    bias: torch.nn.Parameter | None
    shape: tuple[int, ...]
    format: parts.WeightFormat | None
    encoding: str | None

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: Any = None,
        *,
        compute: Compute = "int8",
        activation: Activation | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = f"qcore.torch.{type(self).__name__}"
        if not isinstance(weight, QuantizedTensor):
            raise _core.QcoreTypeError(
                f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor: qcore.quantize(weight) "
                "makes one, from_float(module) does it all"
            )
        if len(weight.shape) != self._dimensions:
            raise _core.QcoreValueError(
                f"{where}: weight has shape {list(weight.shape)}, expected {self._dimensions} dimensions"
            )
        self.shape, self.block_size = tuple(weight.shape), weight.block_size
        self.compute = _named(compute, COMPUTE, f"{where}: compute")
        self.activation = _checks.choice(activation, _ACTIVATIONS, f"{where}: activation")
        self._set_packed(parts.storage_of(weight), parts.WeightFormat.of(weight))
        with torch.inference_mode(False):
            self.bias = self._bias_of(bias, where)
        self.dtype = _dtype_of(dtype, weight, self.bias, where)

    def _set_packed(self, packed: torch.Tensor, form: parts.WeightFormat) -> None:
        # Not in the state_dict by itself: its parts are.
        self.register_buffer("packed", packed, persistent=False)
        self._set_format(form)
        self._view: _View | None = None

    def _set_format(self, form: parts.WeightFormat) -> None:
        self.format, self.bits, self.encoding = form, form.bits, form.encoding

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_view": None}

    def _bias_of(self, bias: Any, where: str) -> torch.nn.Parameter | None:
        if bias is None:
            return None
        if not isinstance(bias, torch.Tensor) or not bias.is_floating_point() or tuple(bias.shape) != self.shape[:1]:
            given = f"{bias.dtype} {list(bias.shape)}" if isinstance(bias, torch.Tensor) else type(bias).__name__
            raise _core.QcoreValueError(f"{where}: bias is {given}, expected a floating-point tensor [{self.shape[0]}]")
        return torch.nn.Parameter(bias.detach().clone(), requires_grad=False)

    @property
    def weight(self) -> ModuleWeight:
        """Return the packed weight, which shares the memory of this module's buffer.

        It has the dtype of the float weight in whose place it is, and torch's device. While torch compiles or exports
        there is no memory to share: what is returned then has only shape, dtype and device.
        """
        if torch.compiler.is_compiling():
            return TracedWeight(torch.Size(self.shape), self.dtype, self.packed.device)  # type: ignore[return-value]
        return self._current_view().weight

    def _current_view(self) -> _View:
        packed: Any = self._buffers["packed"]
        view = self._view
        if (
            view is not None
            and view.storage is packed
            and view.address == packed.data_ptr()
            and view.options == (self.compute, self.activation)
        ):
            return view
        if self.format is None or packed.is_meta:
            raise _core.QcoreValueError(
                f"qcore.torch.{type(self).__name__}: the weight is on the meta device, expected one with values: "
                "load a state_dict first"
            )
        weight = ModuleWeight.of(parts.from_tensor(packed, self.format), self.dtype)
        self._view = _View(packed, weight, self.compute, self.activation)
        return self._view

    def config(self) -> dict[str, Any]:
        """Return shape and options, which ``load_state_dict`` compares with those of the state."""
        known = {
            "kind": self.kind,
            "shape": list(self.shape),
            "bits": self.bits,
            "block_size": self.block_size,
            "compute": self.compute,
            "activation": self.activation,
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        return known if self.encoding is None else known | {"encoding": json.loads(self.encoding)}

    def _configure(self, config: dict[str, Any]) -> None:
        self.shape = tuple(config["shape"])
        self.bits, self.block_size = config["bits"], config["block_size"]
        self.encoding = _encoding_in(config)
        self.compute, self.activation = config["compute"], config["activation"]
        self.dtype = getattr(torch, config.get("dtype", "float32"))  # files of version 0.1 have none

    def _operands(self) -> tuple[Any, ...]:
        """Return the arguments of an operator between x and its options."""
        if self.format is None:
            self._current_view()
        packed, form = self._own()
        return packed, self.bias, *form.arguments()

    def _own(self) -> tuple[torch.Tensor, parts.WeightFormat]:
        """Return the memory and the format of this module's weight alone."""
        assert self.format is not None
        return self.packed, self.format

    @classmethod
    def _empty(cls, config: dict[str, Any], state_dict: Mapping[str, torch.Tensor], prefix: str) -> Any:
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        module._configure(config)
        bias = state_dict.get(prefix + "bias")
        module.register_buffer("packed", torch.empty(0, dtype=torch.uint8, device="meta"), persistent=False)
        module.format, module._view = None, None
        module.bias = None if bias is None else torch.nn.Parameter(torch.empty_like(bias), requires_grad=False)
        return module

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.format is not None:
            tensors = parts.unpack(*self._own())
            for name, tensor in zip(parts.NAMES, tensors, strict=True):
                if tensor is not None:
                    destination[prefix + name] = tensor
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        errors = len(error_msgs)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        given = {name: state_dict.get(prefix + name) for name in parts.NAMES}
        if self.format is not None:
            wanted = parts.names_of(self.format)
        else:
            wanted = tuple(name for name in parts.NAMES if name in ("codes", "scales") or given[name] is not None)
        for name in wanted:
            if prefix + name in unexpected_keys:
                unexpected_keys.remove(prefix + name)
        missing = [prefix + name for name in wanted if given[name] is None]
        missing_keys.extend(missing)
        if missing or len(error_msgs) > errors or any(prefix + name in unexpected_keys for name in parts.NAMES):
            return
        device = self.packed.device if self.format is not None and not self.packed.is_meta else given["codes"].device
        if device.type == "meta":
            return
        try:
            encoding = _encoding_in(read_config(state_dict, prefix)) if prefix + CONFIG in state_dict else self.encoding
            packed, form = parts.pack(tuple(given.values()), self.shape, self.bits, self.block_size, encoding, device)
        except _core.QcoreError as error:
            error_msgs.append(f"{prefix[:-1]}: {error}")
            return
        self._set_packed(packed, form)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        packed = self._buffers.pop("packed")
        try:
            super()._apply(fn, recurse)
            with torch.inference_mode(False):
                self.dtype = fn(torch.empty(0, dtype=self.dtype, device=packed.device)).dtype
                # Finds the device that fn moves tensors to, by a tensor whose dtype it does not change.
                device = fn(torch.empty(0, dtype=torch.uint8, device=packed.device)).device
                if device == packed.device:
                    packed = fn(packed)
                elif self.format is not None:
                    packed, form = parts.moved(packed, self.format, device)
                    self._set_format(form)
        finally:
            self._buffers["packed"] = packed
        self._view = None
        return self

    def _details(self) -> str:
        fused = "" if self.activation is None else f", activation={self.activation!r}"
        return f"bias={self.bias is not None}, {self._weight_details()}, compute={self.compute!r}{fused}"

    def _weight_details(self) -> str:
        scheme = "asymmetric" if self.format is not None and self.format.offset_dtype is not None else "symmetric"
        encoded = "" if self.encoding is None else ", encoded"
        return f"bits={self.bits}, block_size={self.block_size}, {scheme}{encoded}"


def _encoding_in(config: Mapping[str, Any]) -> str | None:
    given = config.get("encoding")
    return None if given is None else parts.text_of_encoding(WeightEncoding.from_dict(given))


def _dtype_of(dtype: Any, weight: QuantizedTensor, bias: torch.Tensor | None, where: str) -> torch.dtype:
    if dtype is None:
        if isinstance(weight, ModuleWeight):
            return weight.dtype
        dtype = torch.get_default_dtype() if bias is None else bias.dtype
        return dtype if dtype in _DTYPES else torch.float32
    if dtype not in _DTYPES:
        raise _core.QcoreTypeError(
            f"{where}: dtype is {dtype}, expected torch.float32, torch.float16 or torch.bfloat16"
        )
    return dtype


def _named(value: Any, choices: Any, where: str) -> Any:
    _checks.choice(value, choices, where)
    return str(value)


def quantize_weight(
    module: Any, bits: int, block_size: int, scheme: Scheme, method: Method, samples: Any, scale_dtype: Any
) -> QuantizedTensor:
    """Quantize the weight of a float module; the result is on its device."""
    weight = module.weight.detach()
    if weight.is_meta:
        raise _core.QcoreValueError(
            f"{type(module).__name__}.from_float: the weight is on the meta device, which has no values, expected the "
            "CPU or a CUDA device: load the values first"
        )
    made = quantize(
        weight.cpu(),
        bits=bits,
        block_size=block_size,
        scheme=scheme,
        method=method,
        samples=samples,
        scale_dtype=scale_dtype,
    )
    return made.to(str(weight.device))


class Linear(WeightedModule):
    """Computes a linear layer with a per-block quantized weight, in the place of ``torch.nn.Linear``.

    Differentiable with respect to x and bias (:mod:`qcore.torch.operators`); the weight is frozen.

    Args:
        weight: a QuantizedTensor [N, K].
        bias: floating-point tensor [N], or None. It becomes a parameter that requires no grad.
        compute: "int8", "int8_asym", "int16" or "float", as for :func:`qcore.linear`.
        activation: None, "relu", "relu6", "silu", "gelu" (with erf), "gelu_tanh", "tanh" or "sigmoid".
        dtype: dtype of the float weight that the packed one replaces, for code that reads ``weight.dtype``; results
            have x's. None: the weight's own if it belongs to another module, else the bias's, else torch's default.
            ``.to(dtype)`` changes it.

    A call takes float32, float16 or bfloat16 [..., K] and returns [..., N] of that dtype, or of autocast's.
    """

    kind = "linear"

    @classmethod
    @option_names("Linear.from_float")
    def from_float(
        cls,
        module: torch.nn.Linear,
        *,
        bits: int = BITS,
        block_size: int = BLOCK_SIZE,
        scheme: Scheme = SCHEME,
        compute: Compute = "int8",
        method: Method = METHOD,
        samples: Any = None,
        scale_dtype: Any = SCALE_DTYPE,
    ) -> Linear:
        """Quantize a ``torch.nn.Linear``.

        Args:
            module: float32, float16 or bfloat16, on any device, where the result will be too.
            bits, block_size, scheme, method, samples, scale_dtype: as for :func:`qcore.quantize`.
            compute: as for the constructor.

        Raises:
            QcoreValueError, QcoreTypeError: module is no linear layer, or an option is impossible.
        """
        if not isinstance(module, torch.nn.Linear):
            raise _core.QcoreTypeError(
                f"Linear.from_float: module is a {type(module).__name__}, expected a torch.nn.Linear"
            )
        weight = quantize_weight(module, bits, block_size, scheme, method, samples, scale_dtype)
        made = cls(weight, module.bias, compute=compute, dtype=module.weight.dtype)
        made.train(module.training)
        return made

    @property
    def in_features(self) -> int:
        """Return K, the number of input features."""
        return self.shape[1]

    @property
    def out_features(self) -> int:
        """Return N, the number of output features."""
        return self.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``activation(x @ weight.T + bias)``.

        Args:
            x: float32, float16 or bfloat16 [..., K].

        Returns:
            [..., N] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        bias = self._parameters.get("bias")
        if is_plain_call(x, bias):
            if _is_any_autocast_enabled():
                x = autocast(x)
            if x.requires_grad or x.is_neg():
                x = x.detach().resolve_neg()
            if bias is not None and bias.requires_grad:
                bias = bias.detach()
            view = self._current_view()
            y: torch.Tensor = x.new_empty((*x.shape[:-1], view.rows))
            stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
            _core.linear(x, view.handle, bias, y, view.mode, 0.0, *view.activation, stream)
            if logs_kernels(DEBUG):
                log_kernel("linear", x, view.weight)
            return y
        result: torch.Tensor = operators.linear(
            autocast(x), *self._operands(), self.compute, self.activation, None, self.encoding
        )
        return result

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self._details()}"


class Conv2d(WeightedModule):
    """Computes a convolution with a per-block quantized weight, in the place of ``torch.nn.Conv2d``; without gradients.

    Args:
        weight: a QuantizedTensor [Co, Ci / groups, Kh, Kw].
        bias: floating-point tensor [Co], or None.
        stride, padding, dilation, groups: as for :func:`qcore.conv2d`.
        compute, activation, dtype: as for :class:`Linear`.

    A call takes float32, float16 or bfloat16 [N, Ci, H, W] or [Ci, H, W] and returns an image of that dtype,
    channels_last if x is.
    """

    kind = "conv2d"
    _dimensions = 4

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        compute: Compute = "int8",
        activation: Activation | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(weight, bias, compute=compute, activation=activation, dtype=dtype)
        params = _conv_params.make(stride, padding, dilation, groups, "qcore.torch.Conv2d", self.shape[2:])
        positive = (*params.stride, *params.dilation, params.groups)
        if min(positive) < 1 or min(params.padding) < 0 or self.shape[0] % params.groups:
            raise _core.QcoreValueError(
                f"qcore.torch.Conv2d: stride is {stride!r}, padding {padding!r}, dilation {dilation!r} and groups "
                f"{groups!r}, expected positive numbers, padding from 0, and groups that divide Co = {self.shape[0]}"
            )
        self.stride, self.dilation = params.stride, params.dilation
        self.padding, self.groups = params.padding, params.groups

    @classmethod
    @option_names("Conv2d.from_float")
    def from_float(
        cls,
        module: torch.nn.Conv2d,
        *,
        bits: int = BITS,
        block_size: int = BLOCK_SIZE,
        scheme: Scheme = SCHEME,
        compute: Compute = "int8",
        method: Method = METHOD,
        samples: Any = None,
        scale_dtype: Any = SCALE_DTYPE,
    ) -> Conv2d:
        """Quantize a ``torch.nn.Conv2d``.

        Args:
            module: float32, float16 or bfloat16, on any device, where the result will be too.
            bits, block_size, scheme, method, samples, scale_dtype: as for :func:`qcore.quantize`.
            compute: as for the constructor.

        Raises:
            QcoreValueError, QcoreTypeError: module is no convolution, it pads with other values than zeros, or an
                option is impossible.
        """
        if not isinstance(module, torch.nn.Conv2d):
            raise _core.QcoreTypeError(
                f"Conv2d.from_float: module is a {type(module).__name__}, expected a torch.nn.Conv2d"
            )
        if module.padding_mode != "zeros":
            raise _core.QcoreValueError(f"Conv2d.from_float: padding_mode is {module.padding_mode!r}, expected 'zeros'")
        weight = quantize_weight(module, bits, block_size, scheme, method, samples, scale_dtype)
        made = cls(
            weight,
            module.bias,
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            compute=compute,
            dtype=module.weight.dtype,
        )
        made.train(module.training)
        return made

    @property
    def in_channels(self) -> int:
        """Return Ci, the number of channels of x."""
        return self.shape[1] * self.groups

    @property
    def out_channels(self) -> int:
        """Return Co, the number of channels of the result."""
        return self.shape[0]

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Return (Kh, Kw)."""
        return self.shape[2:]

    def config(self) -> dict[str, Any]:
        """Return shape, window and options, which ``load_state_dict`` compares with those of the state."""
        window = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return super().config() | {name: list(sizes) for name, sizes in window.items()} | {"groups": self.groups}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        self.stride, self.padding = tuple(config["stride"]), tuple(config["padding"])
        self.dilation, self.groups = tuple(config["dilation"]), config["groups"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the convolution.

        Args:
            x: float32, float16 or bfloat16 [N, Ci, H, W] or [Ci, H, W].

        Returns:
            [N, Co, Ho, Wo] or [Co, Ho, Wo] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        window = (self.stride, self.padding, self.dilation, self.groups)
        single = x.dim() == 3
        images = autocast(x.unsqueeze(0) if single else x)
        if is_plain_call(x, self.bias):
            y = _conv2d(
                images,
                self.weight,
                None if self.bias is None else self.bias.detach(),
                stride=self.stride,
                padding=self.padding,
                dilation=self.dilation,
                groups=self.groups,
                compute=self.compute,
                activation=self.activation,
            )
        else:
            y = operators.conv2d(images, *self._operands(), *window, self.compute, self.activation)
        result: torch.Tensor = y.squeeze(0) if single else y
        return result

    def extra_repr(self) -> str:
        return (
            f"{self.shape[1] * self.groups}, {self.shape[0]}, kernel_size={self.shape[2:]}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, {self._details()}"
        )
