"""Records decoding steps as CUDA graphs: one token for each sequence, over caches whose memory does not move."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from qcore import _core

_MAX_STEPS = 8
_recording = threading.Lock()
"""Held while a graph is recorded: torch records one at a time in a process."""


class StepCall(NamedTuple):
    """Describes the native call of one step.

    Attributes:
        decoder: the native decoder.
        caches: the caches of all layers as the decoder takes them.
        memory: a text that tells the addresses, shapes, strides and dtypes of the caches' arrays.
        hidden: [B, 1, H].
        positions: int [B, 1] or [1, 1].
        past: number of tokens in the caches.
        first: int32 [B] on the CPU, or None. The same tensor is copied to the device once.
        logits: whether the result is [B, 1, V], not [B, 1, H].
    """

    decoder: Any
    caches: Any
    memory: str
    hidden: torch.Tensor
    positions: torch.Tensor
    past: int
    first: torch.Tensor | None
    logits: bool


class _Step:
    """Holds a recorded step and the arrays that it reads and writes.

    The arrays are allocated while the caller's stream is the current one, and the step is only replayed on that stream,
    so that torch may give their memory to others as soon as the step is dropped. The caches are not kept alive: a step
    is replayed for caches that have the same memory as those it was recorded with.
    """

    def __init__(self, call: StepCall) -> None:
        self.decoder = call.decoder
        batch, device = call.hidden.shape[0], call.hidden.device
        columns = call.decoder.vocabulary if call.logits else call.decoder.hidden_size
        # Allocated outside of inference mode, because a later call without it could not write to its tensors.
        with torch.inference_mode(False):
            self.hidden = torch.empty(call.hidden.shape, dtype=call.hidden.dtype, device=device)
            self.positions = torch.empty((batch, 1), dtype=torch.int32, device=device)
            self.past = torch.empty((batch,), dtype=torch.int32, device=device)
            self.first = None if call.first is None else torch.empty((batch,), dtype=torch.int32, device=device)
            self.out = torch.empty((batch, 1, columns), dtype=call.hidden.dtype, device=device)
        self._last_first: torch.Tensor | None = None
        self._replay: Callable[[], None] | None = None

    def _load(self, call: StepCall) -> None:
        self.hidden.copy_(call.hidden)
        self.positions.copy_(call.positions)
        self.past.fill_(call.past)
        if self.first is not None and call.first is not None and call.first is not self._last_first:
            self.first.copy_(call.first)
            self._last_first = call.first

    def record(self, call: StepCall) -> None:
        """Record the step; the keys and values that this writes are those that the replay will write."""
        self._load(call)

        def run() -> None:
            self.decoder.forward(
                self.hidden,
                self.positions,
                self.past,
                call.caches,
                first=self.first,
                last=1,
                result="logits" if call.logits else "hidden",
                out=self.out,
            )

        self._replay = record(run, call.hidden.device)

    def run(self, call: StepCall) -> torch.Tensor:
        """Run the step and return a copy of its result."""
        assert self._replay is not None
        self._load(call)
        self._replay()
        return self.out.clone()


class StepGraphs:
    """Keeps the recorded steps of a stack, at most eight.

    A step is recorded when it comes for the second time with the same decoder, batch size, memory of the caches and
    stream. So a cache that moves at every token, as other code may make one, is never recorded.

    Attributes:
        enabled: whether steps are recorded and replayed.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.replayed = 0
        """Number of steps that were replayed, for tests."""
        self.recorded = 0
        """Number of steps that were recorded, for tests."""
        self._steps: OrderedDict[Any, _Step | None] = OrderedDict()
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop all recorded steps, and the decoders that they keep alive."""
        with self._lock:
            self._steps.clear()

    def run(self, call: StepCall) -> torch.Tensor | None:
        """Return the result of a step that is recorded, or None if the caller must run the step."""
        if not self.enabled or not can_record(call.hidden):
            return None
        device = call.hidden.device
        key = (
            id(call.decoder),
            call.hidden.shape[0],
            call.hidden.dtype,
            call.first is None,
            call.logits,
            current_stream(device),
            call.memory,
        )
        with self._lock:
            known = key in self._steps
            step = self._steps.get(key)
            if known:
                self._steps.move_to_end(key)
            else:
                self._keep(key, None)
        if not known:
            return None
        if step is None:
            step = self._record(key, call)
        if step is None:
            return None
        self.replayed += 1
        return step.run(call)

    def _keep(self, key: Any, step: _Step | None) -> None:
        self._steps[key] = step
        self._steps.move_to_end(key)
        while len(self._steps) > _MAX_STEPS:
            self._steps.popitem(last=False)

    def _record(self, key: Any, call: StepCall) -> _Step | None:
        if not _recording.acquire(blocking=False):
            return None  # another thread records: this step runs without a graph, and the next one tries again
        try:
            step = _Step(call)
            step.record(call)
        except (RuntimeError, _core.QcoreError) as error:
            self.enabled = False
            self.clear()
            warnings.warn(
                f"a fused model runs its steps without CUDA graphs, since recording one failed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        finally:
            _recording.release()
        self.recorded += 1
        with self._lock:
            self._keep(key, step)
        return step


def can_record(hidden: torch.Tensor) -> bool:
    """Return whether a graph may be recorded or replayed now: on CUDA, where the caller records none itself."""
    if not hidden.is_cuda:
        return False
    with torch.cuda.device(hidden.device):
        return not torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    """Return the address of the device's current stream."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def record(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Record the CUDA work that ``run`` enqueues on the current stream.

    ``run`` allocates nothing with torch. It is called twice: first on the side stream without recording, since CUDA
    loads kernels and qcore makes its pool of memory at their first use, which must not happen while recording.

    Returns:
        A function that replays the work on the stream that is current then.
    """
    with torch.cuda.device(device):
        current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        graph = torch.cuda.CUDAGraph()
        side.wait_stream(current)
        # The context torch.cuda.graph is not used: it returns torch's unused memory to the device, so that caches
        # would rarely get the same memory again.
        try:
            with torch.cuda.stream(side):
                run()
                # The mode is relaxed because other threads may allocate, and Python may free, memory of this device
                # during the recording.
                graph.capture_begin(capture_error_mode="relaxed")
                try:
                    run()
                finally:
                    graph.capture_end()
        finally:
            current.wait_stream(side)  # before the memory of the step's arrays may be used otherwise
    replay: Callable[[], None] = graph.replay
    return replay
