"""Wraps a process group, whose collectives are operations that autograd differentiates.

The gradients are those of one model that all ranks compute together: a tensor that is the same on every rank has the
same gradient there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from qcore import _core
from qcore.torch.parallel.shards import Shard


class Group:
    """Represents a group that this process belongs to; the default group if ``group`` is None.

    Raises:
        QcoreValueError: torch.distributed is not initialized, or the process is no member.
        QcoreTypeError: group is no process group.
    """

    def __init__(self, group: Any, where: str) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise _core.QcoreValueError(
                f"{where}: torch.distributed has no process group, expected a call of "
                "torch.distributed.init_process_group before"
            )
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise _core.QcoreValueError(f"{where}: group has this process not among its members, expected one that has")
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise _core.QcoreTypeError(
                f"{where}: group is a {type(group).__name__}, expected a torch.distributed.ProcessGroup or None"
            )
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def __reduce__(self) -> Any:
        if self._group is not None:
            raise _core.QcoreTypeError(
                "pickle: the layer's group is a process group of this process, expected the default group: save the "
                "state_dict, or make the layer with group=None"
            )
        return Group, (None, "unpickle")

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """Replace ``values`` by their sum over all ranks and return them."""
        if self.size > 1 and values.numel():
            dist.all_reduce(values, group=self._group)
        return values

    def join(self, values: torch.Tensor, shard: Shard) -> torch.Tensor:
        """Return the shards of the last axis of all ranks, concatenated in the order of the ranks."""
        most = max(shard.sizes)
        if self.size == 1:
            return values
        # Backends require equal shapes on all ranks.
        sent = torch.nn.functional.pad(values, (0, most - values.shape[-1])).contiguous()
        received = [torch.empty_like(sent) for _ in shard.sizes]
        if sent.numel():
            dist.all_gather(received, sent, group=self._group)
        return torch.cat([piece[..., :size] for piece, size in zip(received, shard.sizes, strict=True)], dim=-1)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, which is the same on every rank; its gradient is the sum of all ranks' gradients."""
        if self.size == 1 or not _follows(x):
            return x
        copied: torch.Tensor = _Copy.apply(x, self)
        return copied

    def reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' float32 tensors, on every rank; ``partial`` may be overwritten."""
        if not _follows(partial):
            return self.sum_(partial)
        total: torch.Tensor = _Reduce.apply(partial, self)
        return total

    def gather(self, values: torch.Tensor, shard: Shard) -> torch.Tensor:
        """Return what :meth:`join` does; the gradient of a shard is its part of the whole tensor's gradient."""
        gathered: torch.Tensor = _Gather.apply(values, self, shard)
        return gathered

    def scatter(self, x: torch.Tensor, shard: Shard) -> torch.Tensor:
        """Return this rank's part of x, which is the same on every rank; its gradient joins those of all ranks."""
        part: torch.Tensor = _Scatter.apply(x, self, shard)
        return part


def _follows(x: torch.Tensor) -> bool:
    """Return whether autograd records operations on x."""
    return torch.is_grad_enabled() and bool(x.requires_grad)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        total = torch.empty(grad.shape, dtype=torch.float32, device=grad.device).copy_(grad)
        return ctx.group.sum_(total).to(grad.dtype), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.mark_dirty(partial)
        return group.sum_(partial)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Group, shard: Shard) -> torch.Tensor:
        ctx.shard = shard
        joined = group.join(values, shard)
        return joined.view_as(joined) if joined is values else joined

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return grad[..., ctx.shard.start : ctx.shard.stop], None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, shard: Shard) -> torch.Tensor:
        ctx.group, ctx.shard = group, shard
        return x[..., shard.start : shard.stop]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return ctx.group.join(grad, ctx.shard), None, None
