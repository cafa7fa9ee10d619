"""Defines linear layers that several processes compute together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qcore import _checks, _core
from qcore._options import Activation, Compute
from qcore.quantized_tensor import QuantizedTensor
from qcore.torch import operators
from qcore.torch.module import autocast
from qcore.torch.parallel.group import Group
from qcore.torch.parallel.shards import Shard, columns_of, rows_of, shard_sizes
from qcore.torch.weighted import Linear

_FUNCTIONS = {
    None: lambda y: y,
    "relu": torch.nn.functional.relu,
    "relu6": torch.nn.functional.relu6,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


class _ParallelLinear(Linear):
    """Holds a shard of a linear layer; ``shape`` is the shard's."""

    whole: tuple[int, int]
    _shard: Shard
    _group: Group

    @classmethod
    def from_linear(cls, layer: Linear, group: Any = None, **options: Any) -> Any:
        """Return this rank's shard of a quantized layer, which stays as it is.

        Args:
            layer: a :class:`qcore.torch.Linear`, the same on every rank.
            group, options: as for the constructor; compute and activation are the layer's.

        Raises:
            QcoreValueError, QcoreTypeError: layer is no :class:`qcore.torch.Linear`, or as for the constructor.
        """
        if type(layer) is not Linear:
            raise _core.QcoreTypeError(
                f"{cls.__name__}.from_linear: layer is a {type(layer).__name__}, expected a qcore.torch.Linear: "
                "Linear.from_float(layer) makes one of a torch.nn.Linear"
            )
        options |= {"group": group, "compute": layer.compute, "activation": layer.activation}
        made = cls(layer.weight, layer.bias, **options)
        made.train(layer.training)
        return made

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, torch.Tensor], prefix: str = "", *, group: Any = None) -> Any:
        """Return the shard whose state is in a state_dict, on the same rank of a group of the same size.

        Args:
            state_dict: tensors by name.
            prefix: what the names of this module begin with.
            group: a torch.distributed process group; the default group if None.

        Raises:
            QcoreValueError: there is no such state, or it is of another kind, rank or number of ranks.
        """
        module = super().from_state_dict(state_dict, prefix)
        module._join(Group(group, f"{cls.__name__}.from_state_dict"))
        return module

    def _join(self, group: Group) -> None:
        if (group.rank, group.size) != (self._shard.rank, len(self._shard.sizes)):
            raise _core.QcoreValueError(
                f"{type(self).__name__}.from_state_dict: this is rank {group.rank} of {group.size}, expected rank "
                f"{self._shard.rank} of {len(self._shard.sizes)}, whose state it is"
            )
        self._group = group

    def config(self) -> dict[str, Any]:
        """Return shape, options and shard, which ``load_state_dict`` compares with those of the state."""
        shard = {"rank": self._shard.rank, "sizes": list(self._shard.sizes)}
        return super().config() | {"whole": list(self.whole)} | shard

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        n, k = config["whole"]
        self.whole = (n, k)
        self._shard = Shard(tuple(config["sizes"]), config["rank"])

    @property
    def in_features(self) -> int:
        """Return K of the whole layer."""
        return self.whole[1]

    @property
    def out_features(self) -> int:
        """Return N of the whole layer."""
        return self.whole[0]

    @property
    def shard(self) -> range:
        """Return the range of outputs (column-parallel) or inputs (row-parallel) that this rank has."""
        return range(self._shard.start, self._shard.stop)

    def _place(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, rank {self._shard.rank} of "
            f"{len(self._shard.sizes)}"
        )


def _weight(weight: Any, where: str) -> QuantizedTensor:
    if not isinstance(weight, QuantizedTensor):
        raise _core.QcoreTypeError(
            f"{where}: weight is a {type(weight).__name__}, expected a QuantizedTensor: qcore.quantize(weight) makes "
            "one, from_linear(layer) takes a quantized layer"
        )
    if len(weight.shape) != 2:
        raise _core.QcoreValueError(f"{where}: weight has shape {list(weight.shape)}, expected [N, K]")
    return weight


class ColumnParallelLinear(_ParallelLinear):
    """Computes a linear layer [N, K] whose outputs are split over the ranks: each has [N_r, K].

    Every rank is given the same x [..., K]. The results have the same bits as those of the whole layer. It is
    differentiable like :class:`qcore.torch.Linear`; the gradient of x is the whole one, on every rank.

    Args:
        weight: the whole QuantizedTensor [N, K], the same on every rank; only its shard is kept.
        bias: floating-point tensor [N], or None; only its shard is kept.
        group: a torch.distributed process group; the default group if None.
        gather_output: True returns [..., N] on every rank; False this rank's [..., N_r], for a RowParallelLinear with
            ``input_is_parallel=True``.
        multiple_of: N is split at multiples of this number: ``block_size`` of the row-parallel layer that follows.
        compute, activation: as for :class:`qcore.torch.Linear`.

    With fewer multiples than ranks the last ranks have nothing (N_r = 0) and take part all the same.

    Raises:
        QcoreValueError, QcoreTypeError: torch.distributed is not initialized, or an argument is impossible.
    """

    kind = "column_parallel_linear"

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: Any = None,
        *,
        group: Any = None,
        gather_output: bool = True,
        multiple_of: int = 1,
        compute: Compute = "int8",
        activation: Activation | None = None,
    ) -> None:
        where = "ColumnParallelLinear"
        joined = Group(group, where)
        n, k = _weight(weight, where).shape
        if _checks.integer(multiple_of, f"{where}: multiple_of") < 1:
            raise _core.QcoreValueError(f"{where}: multiple_of is {multiple_of}, expected 1 or more")
        shard = Shard(tuple(shard_sizes(n, joined.size, multiple_of)), joined.rank)
        _check_bias(bias, n, where)
        mine = None if bias is None else bias[shard.start : shard.stop]
        super().__init__(rows_of(weight, shard), mine, compute=compute, activation=activation)
        self.whole, self._shard, self._group = (n, k), shard, joined
        self.gather_output = bool(gather_output)

    def config(self) -> dict[str, Any]:
        """Return shape, options and shard, which ``load_state_dict`` compares with those of the state."""
        return super().config() | {"gather_output": self.gather_output}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        self.gather_output = config["gather_output"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the whole layer, or this rank's.

        Args:
            x: float32, float16 or bfloat16 [..., K], the same on every rank.

        Returns:
            [..., N] of x's dtype, or of autocast's; [..., N_r] unless ``gather_output``.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        y = super().forward(self._group.copy(x))
        return self._group.gather(y, self._shard) if self.gather_output else y

    def extra_repr(self) -> str:
        return (
            f"{self._place()}: outputs {self._shard.start} to {self._shard.stop}, gather_output={self.gather_output}, "
            f"{self._details()}"
        )


class RowParallelLinear(_ParallelLinear):
    """Computes a linear layer [N, K] whose inputs are split over the ranks, between blocks: each has [N, K_r].

    Activations are quantized per block, so that codes and the sums of their products are those of the whole layer. The
    ranks' sums are added in float32 (all-reduce), then the bias, once, and the activation: the result differs from the
    whole layer's by the rounding of float32 sums in another order. It is the same on every rank as far as the
    backend's all-reduce is. Differentiable as :class:`qcore.torch.Linear` is.

    Args:
        weight: the whole QuantizedTensor [N, K], the same on every rank; only its shard is kept.
        bias: floating-point tensor [N], or None; every rank keeps all of it.
        group: a torch.distributed process group; the default group if None.
        input_is_parallel: True takes this rank's part x [..., K_r] (``shard`` tells which); False the whole x
            [..., K], the same on every rank.
        compute, activation: as for :class:`qcore.torch.Linear`.

    A call returns [..., N] of x's dtype, or of autocast's, on every rank. With fewer blocks than ranks the last ranks
    have nothing (K_r = 0) and take part all the same.

    Raises:
        QcoreValueError, QcoreTypeError: torch.distributed is not initialized, or an argument is impossible.
    """

    kind = "row_parallel_linear"

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: Any = None,
        *,
        group: Any = None,
        input_is_parallel: bool = False,
        compute: Compute = "int8",
        activation: Activation | None = None,
    ) -> None:
        where = "RowParallelLinear"
        joined = Group(group, where)
        n, k = _weight(weight, where).shape
        shard = Shard(tuple(shard_sizes(k, joined.size, weight.block_size)), joined.rank)
        _check_bias(bias, n, where)
        super().__init__(columns_of(weight, shard), bias, compute=compute, activation=activation)
        self.whole, self._shard, self._group = (n, k), shard, joined
        self.input_is_parallel = bool(input_is_parallel)

    def config(self) -> dict[str, Any]:
        """Return shape, options and shard, which ``load_state_dict`` compares with those of the state."""
        return super().config() | {"input_is_parallel": self.input_is_parallel}

    def _configure(self, config: dict[str, Any]) -> None:
        super()._configure(config)
        self.input_is_parallel = config["input_is_parallel"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the whole layer, on every rank.

        Args:
            x: float32, float16 or bfloat16 [..., K], the same on every rank; this rank's [..., K_r] if
                ``input_is_parallel``.

        Returns:
            [..., N] of x's dtype, or of autocast's.

        Raises:
            QcoreValueError, QcoreTypeError: x has another shape, dtype or device.
        """
        x = autocast(x)
        self._check(x)
        if self._group.size == 1:
            return super().forward(x)
        if not self.input_is_parallel:
            x = self._group.scatter(x, self._shard)
        packed, _, *form = self._operands()
        partial = operators.linear(x, packed, None, *form, self.compute, None, torch.float32, self.encoding)
        total = self._group.reduce(partial)
        if self.bias is not None:
            total = total + self.bias.float()
        return _FUNCTIONS[self.activation](total).to(x.dtype)

    def _check(self, x: torch.Tensor) -> None:
        """Check x before this rank waits for the others, which would otherwise wait forever."""
        expected = self.shape[1] if self.input_is_parallel else self.in_features
        if x.dim() > 0 and x.shape[-1] == expected:
            return
        mine = ""
        if self.input_is_parallel:
            mine = (
                f", the shard {self._shard.start} to {self._shard.stop} of rank {self._shard.rank}: a "
                f"ColumnParallelLinear before it needs gather_output=False and multiple_of={self.block_size}"
            )
        raise _core.QcoreValueError(
            f"RowParallelLinear: x has shape {list(x.shape)}, expected its last dimension to be {expected} of "
            f"K = {self.in_features}{mine}"
        )

    def extra_repr(self) -> str:
        return (
            f"{self._place()}: inputs {self._shard.start} to {self._shard.stop}, "
            f"input_is_parallel={self.input_is_parallel}, {self._details()}"
        )


def _check_bias(bias: Any, n: int, where: str) -> None:
    """Raise QcoreValueError unless the bias of the whole layer is None or a floating-point tensor [n]."""
    if bias is None or (isinstance(bias, torch.Tensor) and bias.is_floating_point() and tuple(bias.shape) == (n,)):
        return
    given = f"{bias.dtype} {list(bias.shape)}" if isinstance(bias, torch.Tensor) else type(bias).__name__
    raise _core.QcoreValueError(f"{where}: bias is {given}, expected a floating-point tensor [{n}]")
