"""Splits the weights of linear layers over the processes of a torch.distributed group (tensor parallelism).

:class:`ColumnParallelLinear` has some of the outputs N on each rank, :class:`RowParallelLinear` some of the blocks of
K. Both are made from a whole quantized layer, which is split without being quantized again. Import it by name:
``import qcore.torch.parallel``.
"""

from qcore.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from qcore.torch.parallel.shards import shard_sizes

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "shard_sizes"]
