"""Flash, RAM and multiply-adds that an exported layer needs of a microcontroller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

# Saved registers and variables of @_step and of the functions that it calls, without its arrays: arm-none-eabi-gcc 12.2
# takes 60 to 410 bytes with -Os, for Cortex-M0, M4 and M33.
_FRAMES = 440
_POINTER, _INT = 4, 4


@dataclasses.dataclass(frozen=True)
class ExportSizes:
    """Bytes and work of an exported layer where pointers have 32 bits. Code is not part of it: a compiler decides.

    Args:
        weights: bytes of W and R, of a projection and of peepholes.
        offsets: bytes of what is added to sums, of shifts and of biases.
        tables: bytes of tables.
        layers: bytes of the layers' descriptions, which may become part of the code if there is one layer.
        state: bytes of a stream's state.
        stack: bytes of stack that a step takes at most if it is built for size; a compiler that inlines and unrolls
            takes more.
        multiply_adds: products of weights and codes in a step.
    """

    weights: int
    offsets: int
    tables: int
    layers: int
    state: int
    stack: int
    multiply_adds: int

    @property
    def flash(self) -> int:
        """Bytes of all constants."""
        return self.weights + self.offsets + self.tables + self.layers

    @property
    def ram(self) -> int:
        """Bytes of a stream's state and a step's stack."""
        return self.state + self.stack

    def to_dict(self) -> dict[str, int]:
        """Return all numbers by name."""
        return {"flash": self.flash, "ram": self.ram} | dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """Return sentences for people."""
        return [
            f"flash: {self.flash:,} bytes of constants ({self.weights:,} weights, {self.offsets:,} offsets, shifts and "
            f"biases, {self.tables:,} tables, {self.layers:,} layers), and the code",
            f"RAM: {self.state:,} bytes of state, {self.stack:,} of a step's stack",
            f"multiply-adds per step: {self.multiply_adds:,}",
        ]


def description_bytes(pointers: int, ranges: int, numbers: int, shifts: int) -> int:
    """Return the bytes of a layer's description: ranges are two integers, shifts are bytes."""
    unpadded = _POINTER * pointers + _INT * (2 * ranges + numbers) + shifts
    return -(-unpadded // _INT) * _INT


def state_bytes(arrays: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of a struct of arrays: (elements, bytes of an element) each, aligned as C aligns them."""
    size, alignment = 0, 1
    for count, item in arrays:
        size = -(-size // item) * item + count * item
        alignment = max(alignment, item)
    return -(-size // alignment) * alignment


def stack_bytes(hidden_size: int, code_bytes: int, gates: int, sum_bytes: int) -> int:
    """Return the bytes of a step's stack."""
    return -(-hidden_size * code_bytes // _INT) * _INT + 2 * (_INT + sum_bytes) * gates + _FRAMES
