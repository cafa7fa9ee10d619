"""Parts of an operator's benchmark: workloads, their implementations, and calls bound to inputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qcore.bench.limits import Limits

Array = npt.NDArray[Any]
Arithmetic = Literal["int8", "int16", "fp32", "bf16"]

OURS = "qcore"

# Weights of small layers are rotated through at most this many copies.
_MOST_COPIES = 256


class Unavailable(Exception):  # noqa: N818 - a state of the machine, not an error of the run
    """A library or one of its operators can't be measured here, and why."""


@dataclass(frozen=True)
class Scheme:
    """How numbers are represented."""

    weight_bits: int
    activations: str  # what they are multiplied as: "fp32", "bf16", "int8 per block", ...
    arithmetic: Arithmetic  # whose peak is the limit
    block_size: int | None = None  # weights that share a scale; None: a row, or no scale at all
    offsets: bool = False


@dataclass(frozen=True)
class Bound:
    """A implementation ready to run on one set of inputs."""

    run: Callable[[int], object]  # on one copy of the weights
    result: Callable[[], Array]  # of copy 0
    # Whether sampled results have the bits of qcore's reference kernel; None: not a kernel of qcore.
    same_as_reference: Callable[[], bool] | None = None
    kernel: str = ""  # the one that ran, where its library tells


@dataclass(frozen=True)
class Built:
    """A implementation with its weights made."""

    weight_bytes: int  # of one copy, scales included; without weights, what a call reads and writes
    copies: int
    bind: Callable[[Any], Bound]
    calls_per_run: int = 1
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Implementation:
    """One library's way to compute an operator."""

    name: str
    library: str
    scheme: Scheme
    build: Callable[[], Built]
    # Why it sits out a case although it could run it.
    why_not: Callable[[Inputs], str | None] = lambda inputs: None


@dataclass(frozen=True)
class Inputs:
    """One case: what a bound implementation is given, and how far its result is from the truth."""

    name: str
    parameters: dict[str, int]
    operations: int
    data: Any
    error: Callable[[Array], float | None]  # None: there is nothing to compare


@dataclass
class Workload(ABC):
    """Implementations that are built once, and the cases that they then run."""

    name: str
    weights: int  # elements, for bits per weight
    case_names: Sequence[str]
    unavailable: dict[str, str] = field(default_factory=dict)
    has_limits: bool = False

    @abstractmethod
    def implementations(self) -> list[Implementation]: ...

    @abstractmethod
    def inputs(self, case_name: str) -> Inputs: ...

    def outliers(self) -> Inputs | None:
        """Make inputs with a few channels much larger than the others, where that matters."""
        return None

    def limits(self, case_name: str) -> Limits:
        """Return the limits of this case, instead of those of the run; called where `has_limits`."""
        raise AssertionError(f"{type(self).__name__} has no limits of its own")


def copies_for(weight_bytes: int, rotated_bytes: int) -> int:
    """Copy that together are larger than the caches, so that a call finds its weights in memory."""
    return max(2, min(_MOST_COPIES, math.ceil(rotated_bytes / weight_bytes)))


def relative_error(result: Array, truth: Array) -> float:
    """In the L2 norm."""
    difference = np.asarray(result, np.float64).reshape(truth.shape) - truth
    return float(np.linalg.norm(difference) / np.linalg.norm(truth))
