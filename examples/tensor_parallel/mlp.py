"""A quantized gated MLP of a language model, split over the processes of a torch.distributed group.

    pip install torch libqcore
    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel/mlp.py

Each rank has a part of the hidden features: some rows of `gate` and `up`, and the blocks of `down` that multiply them.
One all-reduce per MLP joins the ranks' sums. The result is compared with that of the whole MLP in one process.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import qcore
import qcore.torch
from qcore.torch.parallel import ColumnParallelLinear, RowParallelLinear

FEATURES, HIDDEN = 2048, 5632  # of TinyLlama-1.1B
BLOCK_SIZE, BITS = 64, 4
TOKENS = (1, 16, 128)
REPETITIONS = 15


class GatedMlp(torch.nn.Module):
    """x -> down(silu(gate(x)) * up(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(FEATURES, HIDDEN, bias=False)
        self.up = torch.nn.Linear(FEATURES, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return y


def split(mlp: GatedMlp) -> GatedMlp:
    """Return this rank's part of a quantized MLP."""
    mine = GatedMlp.__new__(GatedMlp)
    torch.nn.Module.__init__(mine)
    # Hidden features are cut where blocks of `down` begin, so that no block of K is divided.
    rows = {"gather_output": False, "multiple_of": BLOCK_SIZE}
    mine.gate = ColumnParallelLinear.from_linear(mlp.gate, **rows)
    mine.up = ColumnParallelLinear.from_linear(mlp.up, **rows)
    mine.down = RowParallelLinear.from_linear(mlp.down, input_is_parallel=True)
    return mine


def bytes_of(module: torch.nn.Module) -> int:
    return sum(buffer.nbytes for buffer in module.buffers())


def milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def hidden_codes(mlp: GatedMlp, x: torch.Tensor) -> torch.Tensor:
    """Return the operand of `down`: int8 codes of its input, block by block."""
    hidden = torch.nn.functional.silu(mlp.gate(x)) * mlp.up(x)
    codes: torch.Tensor = qcore.quantize_activations(hidden, BLOCK_SIZE, "int8").codes
    return codes


def main() -> int:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    qcore.set_num_threads(1)  # a core for each process

    torch.manual_seed(0)  # the same model on every rank, as if all had read one checkpoint
    whole = GatedMlp()
    qcore.torch.quantize_(whole, bits=BITS, block_size=BLOCK_SIZE, progress=False)
    mine = split(whole)

    descriptions: list[str | None] = [None] * ranks
    dist.all_gather_object(
        descriptions,
        f"rank {rank}: hidden features {mine.down.shard.start} to {mine.down.shard.stop}, "
        f"{bytes_of(mine):,} bytes of weights",
    )
    if rank == 0:
        print(f"one process: {bytes_of(whole):,} bytes of weights", *descriptions, sep="\n")
        print("\ntokens  one process, ms  ranks, ms  largest difference of outputs  different codes before down")

    right = True
    with torch.inference_mode():
        for tokens in TOKENS:
            x = torch.randn(tokens, FEATURES)
            expected, y = whole(x), mine(x)
            difference = ((y - expected).abs().max() / expected.abs().max()).item()
            codes = hidden_codes(whole, x)[:, mine.down.shard.start : mine.down.shard.stop]
            different = (hidden_codes(mine, x) != codes).sum()
            dist.all_reduce(different)
            right = right and difference < 1e-5 and different.item() == 0

            alone = milliseconds(lambda x=x: whole(x)) if rank == 0 else 0.0  # the others wait here:
            dist.barrier()
            together = milliseconds(lambda x=x: mine(x))
            if rank == 0:
                print(f"{tokens:>6}{alone:>17.2f}{together:>11.2f}{difference:>31.1e}{different.item():>30}")
    if rank == 0:
        print("\nThe difference is that of float32 sums in another order, relative to the largest output.")
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
