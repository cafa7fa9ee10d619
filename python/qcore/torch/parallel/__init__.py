"""Linear layers whose weight is split over the processes of a torch.distributed group (tensor parallelism).

:class:`ColumnParallelLinear` has some of the outputs N on each rank, :class:`RowParallelLinear` some of the blocks of
K. Both are made from a whole quantised layer, which is split without quantising anew. The package is imported by name:
``import qcore.torch.parallel``.
"""

from qcore.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from qcore.torch.parallel.shards import shard_sizes

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "shard_sizes"]
