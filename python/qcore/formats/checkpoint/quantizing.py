"""Quantizes a checkpoint tensor by tensor, in pieces of rows: memory does not grow with the file or with a tensor."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qcore import _core
from qcore.encode import nv_tensor_scale
from qcore.formats.checkpoint.byte_ranges import FLOATING, Section
from qcore.formats.checkpoint.chunks import Converted, Piece, byte_pieces, largest_magnitude, row_pieces
from qcore.formats.checkpoint.layout import Description, Parts
from qcore.formats.checkpoint.options import SAMPLED, Options
from qcore.formats.checkpoint.partial_file import PartialFile
from qcore.formats.checkpoint.reader import Checkpoint
from qcore.formats.checkpoint.records import PlainEntry
from qcore.formats.checkpoint.samples import Samples
from qcore.formats.checkpoint.saving import add_parts
from qcore.formats.checkpoint.selection import Choice, check_patterns, choose
from qcore.formats.checkpoint.targets.target import Target
from qcore.formats.checkpoint.workers import Pending, Threads, Workers
from qcore.methods.gptq import Factor

__all__ = ["Job", "Options", "Result", "plan", "quantize_checkpoint"]


@dataclass(frozen=True)
class Job:
    """A tensor of the input and what becomes of it."""

    name: str
    section: Section
    choice: Choice
    description: Description | None
    parts: Parts
    """By name in the output."""
    method: str = ""
    """The one of the options; "mse" for a layer without samples, "awq" for a convolution that gptq doesn't take."""

    @property
    def nbytes(self) -> int:
        """In the output."""
        return sum(Section(self.section.path, *part, 0).nbytes for part in self.parts.values())


@dataclass
class Result:
    """Holds the result of :func:`quantize_checkpoint`."""

    quantized: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    resumed: int = 0
    """Tensors that an earlier, unfinished run had written."""
    discarded: bool = False
    """An unfinished run of another input or with other options was thrown away."""
    without_samples: int = 0
    """Number of tensors quantized with mse because they had no samples."""
    names: list[str] = field(default_factory=list)
    """Quantized tensors."""


def plan(checkpoint: Checkpoint, options: Options) -> list[Job]:
    """Plan what becomes of every tensor.

    Raises:
        QcoreValueError: a tensor is quantized already, an option is impossible, a pattern matches no name, or samples
            have another name or shape.
    """
    options.check()
    check_patterns(checkpoint, options.include, options.exclude)
    layout = options.target()
    samples = options.open_samples()
    jobs = []
    for name in checkpoint:
        entry = checkpoint.entry(name)
        if not isinstance(entry, PlainEntry):
            raise _core.QcoreValueError(
                f"quantize: {checkpoint.files[0]}: tensor {name!r} is {entry.info(name).format}, expected floats: "
                "qcore.save(OUT, qcore.formats.open_checkpoint(IN)) converts what is quantized already"
            )
        for part, section in _parts(name, entry.section, dict(options.experts)):
            choice = choose(section, name, options.include, options.exclude, options.layers)
            jobs.append(_job(part, section, choice, options, layout, samples))
    if samples is not None:
        _check_names(samples, jobs)
    return jobs


def _parts(name: str, section: Section, experts: dict[str, str]) -> list[tuple[str, Section]]:
    """Return the tensors that one of the input becomes, by their names: that itself, or one per expert."""
    if name not in experts or section.dtype not in FLOATING or 0 in section.shape:
        return [(name, section)]
    count, *shape = section.shape
    return [
        (experts[name].format(expert), replace(section.rows(expert, expert + 1), shape=tuple(shape)))
        for expert in range(count)
    ]


def _check_names(samples: Samples, jobs: list[Job]) -> None:
    """Raise QcoreValueError if samples have an unknown name, or if no tensor uses them."""
    unknown = sorted(set(samples.shapes) - {job.name for job in jobs})
    if unknown:
        raise _core.QcoreValueError(
            f"quantize: --samples {samples.path} has {unknown[0]!r}, expected names of the input's tensors only"
        )
    if not any(job.method in SAMPLED for job in jobs):
        raise _core.QcoreValueError(
            f"quantize: --samples {samples.path} has {len(samples.shapes)} arrays, expected one or more of tensors "
            "that are quantized"
        )


def _job(name: str, section: Section, choice: Choice, options: Options, layout: Target, samples: Samples | None) -> Job:
    if choice.quantize:
        encoding = options.weight_encoding()
        about = Description(section.shape, options.bits, options.block_size, options.scheme, encoding=encoding)
        misfit = layout.misfit(name, about)
        if encoding is not None and len(section.shape) != 2:
            misfit = f"{options.form}: a convolution"
        if not misfit:
            method = options.method
            if samples is not None and name not in samples.shapes:
                method = "mse"
            elif samples is not None:
                samples.check(name, section.shape[1])
                method = "awq" if len(section.shape) != 2 else method
            return Job(name, section, choice, about, layout.parts(name, about), method)
        choice = Choice(False, misfit)
    return Job(name, section, choice, None, {name: (section.dtype, section.shape)})


def quantize_checkpoint(
    checkpoint: Checkpoint,
    output: Path,
    options: Options,
    progress: Callable[[str, int], None] = lambda name, nbytes: None,
    workers: Workers | None = None,
) -> Result:
    """Write ``output``, whole or not at all; resumes an interrupted run.

    Args:
        checkpoint: what :func:`qcore.formats.open_checkpoint` returned, of float tensors.
        output: the file to write; a folder for format "awq".
        options: what becomes of its tensors.
        progress: called with (name, bytes) for each piece of the input that is dealt with, or was by an earlier run.
        workers: who quantizes the pieces, as ``DaskWorkers(client)``; threads of this process if None. The file is the
            same, and a run may go on with others.

    Raises:
        QcoreValueError: as ``plan``; a weight with a NaN or an Inf; an output that is an input. Nothing is left
            behind then.
        OSError: a file can't be read or written; what has been written is kept for the next run.
    """
    jobs = [_scaled(job, options) for job in plan(checkpoint, options)]
    layout, samples = options.target(), options.open_samples()
    shapes: Parts = {}
    for job in jobs:
        add_parts(shapes, job.parts, "quantize")
    weights = {job.name: job.description for job in jobs if job.description is not None}
    header, places = layout.container(shapes, weights)
    size = max((offset + nbytes for offset, nbytes in places.values()), default=len(header))
    by_job = {job.name: {part: places[part] for part in job.parts} for job in jobs}
    result = Result(
        quantized=len(weights),
        kept=len(jobs) - len(weights),
        bytes_before=sum(job.section.nbytes for job in jobs),
        bytes_after=size,
        names=list(weights),
        without_samples=sum(job.description is not None and job.method == "mse" for job in jobs) if samples else 0,
    )
    file_name = layout.prepare(output)
    inputs = (*checkpoint.files, *([samples.path] if samples else []))
    for made in {file_name, output}:
        if made.exists() and any(made.samefile(file) for file in inputs):
            raise _core.QcoreValueError(f"quantize: {made} is the input, expected another file")
    with (
        PartialFile(file_name, header, size, _fingerprint(checkpoint, options, header), by_job) as file,
        nullcontext(workers) if workers is not None else Threads() as made_by,
    ):
        result.resumed, result.discarded = len(file.finished), file.discarded
        for job in jobs:
            if job.name in file.finished:
                progress(job.name, job.section.nbytes)
        rest = [job for job in jobs if job.name not in file.finished]
        try:
            _write(file, _converted(rest, options, layout, samples, made_by), progress)
        except KeyboardInterrupt as error:
            error.args = (
                f"{len(file.finished)} of {len(jobs)} tensors are kept in {file.partial}: run the same command to "
                "resume after them, or remove that file to start anew",
            )
            raise
        if output != file_name and output.is_file():
            output.resolve().unlink()  # it describes the data of an earlier run
        file.finish()
    layout.complete(output, shapes, weights, places)
    return result


def _scaled(job: Job, options: Options) -> Job:
    """Return the job with the tensor scale that its weight needs in "nvfp4", which the header has."""
    if job.description is None or job.description.encoding is None or options.encoding != "nvfp4":
        return job
    scale = nv_tensor_scale(largest_magnitude(job.section))
    encoding = replace(job.description.encoding, tensor_scale=scale)
    return replace(job, description=replace(job.description, encoding=encoding))


def _write(file: PartialFile, converted: Iterator[Converted], progress: Callable[[str, int], None]) -> None:
    """Write all tensors, piece by piece, and enter each in the journal when it is whole."""
    for name, pieces in groupby(converted, lambda piece: piece.name):
        writer = file.tensor(name)
        for piece in pieces:
            for part, values in piece.parts.items():
                writer.write(part, values)
            progress(name, piece.nbytes)
        file.finish_tensor(name, writer)


def _fingerprint(checkpoint: Checkpoint, options: Options, header: bytes) -> str:
    """Change with the input's files and that of the samples, with the options and with qcore."""
    files = []
    for file in (*checkpoint.files, *([Path(options.samples)] if options.samples else [])):
        status = file.stat()
        files.append([os.fspath(file.resolve()), status.st_size, status.st_mtime_ns])
    facts = [_core.__version__, files, asdict(options), hashlib.sha256(header).hexdigest()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _converted(
    jobs: list[Job], options: Options, layout: Target, samples: Samples | None, workers: Workers
) -> Iterator[Converted]:
    """Yield all pieces in order; each tensor has one or more. As many are under way as the workers take at a time."""
    waiting: deque[Pending] = deque()
    try:
        for job in jobs:
            for piece in _pieces(job, options, layout, samples):
                waiting.append(workers.submit(piece, options, layout))
                if len(waiting) >= workers.most(layout):
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for pending in waiting:
            pending.cancel()


def _pieces(job: Job, options: Options, layout: Target, samples: Samples | None) -> Iterator[Piece]:
    if job.description is None:
        return byte_pieces(job.name, job.section)
    encoding = job.description.encoding if options.encoding else None
    inputs = _inputs(job, options, samples)
    return row_pieces(job.name, job.section, job.method, inputs, layout.by_rows, encoding)


def _inputs(job: Job, options: Options, samples: Samples | None) -> NDArray[Any] | Factor | None:
    """Return what the method needs of the inputs of a weight, which all of its pieces share."""
    if job.method not in SAMPLED:
        return None
    assert samples is not None
    features = job.section.shape[1]
    if job.method == "awq":
        return samples.importance(job.name, features)
    return samples.factor(job.name, features, options.damping, options.act_order)
