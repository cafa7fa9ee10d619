"""`qcore inspect`, `qcore compare` and `qcore quantize` on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from qcore import _core, _files
from qcore._display.terminal import make_console, make_table, write_json
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint.dask_workers import connected
from qcore.formats.checkpoint.diff import compare as compare_checkpoints
from qcore.formats.checkpoint.folder_options import of_folder
from qcore.formats.checkpoint.options import NAMES, format_of
from qcore.formats.checkpoint.quantizing import Job, Options, Result, plan, quantize_checkpoint
from qcore.formats.checkpoint.targets.model_folder import becomes_folder
from qcore.formats.checkpoint.workers import Workers
from qcore.methods.gptq import DAMPING

_KINDS = "A .safetensors or .gguf file, an index of shards, or a folder with one of them."
_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows here.")]


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=_KINDS)],
    json: _Json = None,
) -> None:
    """List a checkpoint's tensors: format, shape, bits, block size and bytes on disk. Only headers are read.

    \b
    Examples:
      qcore inspect model.safetensors
      qcore inspect llama-awq/ --json tensors.json
      qcore inspect model.gguf
    """
    with open_checkpoint(file) as checkpoint:
        rows = [checkpoint.info(name) for name in checkpoint]
    if json is not None:
        write_json(json, {"tensors": [asdict(row) for row in rows]})
    table = make_table(("name", "format", "shape", ">bits", ">block", ">bytes"))
    for row in rows:
        block = "" if row.block_size is None else str(row.block_size)
        table.add_row(_shown(row.name), row.format, _sizes(row.shape), str(row.bits), block, f"{row.nbytes:,}")
    console = make_console()
    console.print(table)
    quantized = [row for row in rows if row.quantized]
    console.print(
        f"{_count(len(rows), 'tensor')}, {len(quantized)} quantized; {sum(row.nbytes for row in rows):,} bytes, "
        f"{sum(row.nbytes for row in quantized):,} of them quantized",
        soft_wrap=True,
    )


def compare(
    first: Annotated[Path, typer.Argument(metavar="FLOAT", help=f"The reference. {_KINDS}")],
    second: Annotated[Path, typer.Argument(metavar="QUANTIZED", help="What is compared with it, likewise.")],
    json: _Json = None,
) -> None:
    """Compare two checkpoints tensor by tensor: ||a - b|| / ||a|| and max |a - b|, in float64.

    \b
    Examples:
      qcore compare model.safetensors model-4bit.safetensors
      qcore compare model/ model-awq/ --json errors.json
    """
    _check_json(json)
    with open_checkpoint(first) as a, open_checkpoint(second) as b, _progress("comparing", len(a)) as update:
        found = compare_checkpoints(a, b, update)
    if json is not None:
        write_json(
            json,
            {
                "tensors": [asdict(row) for row in found.differences],
                "only_first": found.only_first,
                "only_second": found.only_second,
            },
        )
    table = make_table(("name", "format", ">relative L2", ">max error"))
    for row in found.differences:
        table.add_row(_shown(row.name), row.format, f"{row.relative_l2:.3g}", f"{row.max_error:.3g}")
    console = make_console()
    console.print(table)
    for path, names in ((first, found.only_first), (second, found.only_second)):
        if names:
            console.print(f"only in {path}: {', '.join(map(_shown, names))}", soft_wrap=True)
    console.print(
        f"{_count(len(found.differences), 'tensor')}; largest relative L2 {found.relative_l2():.3g}", soft_wrap=True
    )


def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN", help=_KINDS)],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; a folder for a model's folder.")],
    bits: Annotated[int | None, typer.Option(help="2, 3, 4, 5, 6 or 8; 4 by default.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Neighbors along K that share a scale; 32 by default.")] = None,
    scheme: Annotated[str | None, typer.Option(help="symmetric (the default) or asymmetric.")] = None,
    encoding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="In the place of these and of --scale-dtype: " + ", ".join(NAMES) + "."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="mse (the default), rtn, awq or gptq (not for encodings).")] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For awq and gptq: inputs [M, K] by the weights' names, .npz or .safetensors."
        ),
    ] = None,
    damping: Annotated[float, typer.Option(help="For gptq: added to x^T x, relative to its mean diagonal.")] = DAMPING,
    act_order: Annotated[bool, typer.Option("--act-order", help="For gptq: begin with the largest inputs.")] = False,
    scale_dtype: Annotated[str | None, typer.Option(help="float16 (the default) or float32.")] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Quantize these and no others; may be given again.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave these as they are; may be given again.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="qcore, awq, gptq, gguf or onnx; by default OUT's suffix tells, else qcore.")
    ] = None,
    lm_head: Annotated[
        bool | None,
        typer.Option("--lm-head/--no-lm-head", help="Of a model's folder: quantize its head. Not for awq and gptq."),
    ] = None,
    embeddings: Annotated[
        bool | None,
        typer.Option("--embeddings/--no-embeddings", help="Of a model's folder: quantize its embeddings, likewise."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Let a Dask cluster work: its scheduler's address, its file, or local."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would become of each tensor.")] = False,
    json: _Json = None,
) -> None:
    """Quantize a checkpoint, tensor by tensor, in little memory. OUT appears when it is whole.

    From a folder of transformers to a folder, the weights of the model's layers are quantized, and OUT has its config
    and tokenizer too: from_pretrained opens it. Else float tensors of two or four axes are quantized, but for
    embeddings, norms and biases (told by their names); everything else is copied. PATTERN is a shell pattern for names:
    'model.layers.*.mlp.*'. The same command resumes an interrupted run. A tensor
    without samples is quantized by mse, a convolution with samples by awq if the method is gptq.

    \b
    Examples:
      qcore quantize model.safetensors model-4bit.safetensors
      qcore quantize model/ model-4bit/ --block-size 32 --scheme asymmetric --scale-dtype float16
      qcore quantize model/ model-gptq/ --format gptq --block-size 128 --scale-dtype float16
      qcore quantize model/ out.safetensors --bits 8 --block-size 32 --exclude '*lm_head*'
      qcore quantize model/ model-q4_k/ --encoding q4_k
      qcore quantize model/ out.safetensors --method mse --dry-run
      qcore quantize model/ out.safetensors --method awq --samples inputs.npz
      qcore quantize model/ out.safetensors --method gptq --samples inputs.npz
      qcore quantize model/ weights.onnx --block-size 32
      qcore quantize model/ model-q4_0.gguf
      qcore quantize model/ model-awq/ --format awq --block-size 128
      qcore quantize /shared/model/ out.safetensors --method mse --dask tcp://10.0.0.1:8786
    """
    format = format_of(output, format, source)
    _check_json(json)
    options = Options.given(
        bits=bits,
        block_size=block_size,
        scheme=scheme,
        encoding=encoding,
        method=method,
        damping=damping,
        act_order=act_order,
        scale_dtype=scale_dtype,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        format=format,
        samples="" if samples is None else str(samples),
    )
    with open_checkpoint(source) as checkpoint:
        if becomes_folder(source, output, format):
            options = of_folder(options, source, checkpoint, lm_head, embeddings)
        elif lm_head is not None or embeddings is not None:
            raise _core.QcoreValueError(
                f"quantize: --lm-head or --embeddings is given and {output} is no folder of transformers, expected "
                "--include and --exclude, or a folder with config.json as IN and a folder as OUT"
            )
        jobs = plan(checkpoint, options)
        if dry_run:
            _print_plan(jobs, options)
            if json is not None:
                write_json(json, {"tensors": [_planned(job, options) for job in jobs]})
            return
        total = sum(job.section.nbytes for job in jobs)
        with _workers(dask) as workers, _progress("quantizing", total) as update:
            result = quantize_checkpoint(checkpoint, output, options, update, workers)
    _print_result(output, options, result)
    if json is not None:
        write_json(json, {"output": str(output), "format": format, "form": options.form} | asdict(result))


def _check_json(json: Path | None) -> None:
    """Refuse a file that can't be written before the work, which may take hours."""
    if json is not None:
        _files.check_place(json)


def _workers(dask: str | None) -> AbstractContextManager[Workers | None]:
    if dask is None:
        return nullcontext()
    return connected(dask)


def _becomes(job: Job, options: Options) -> str:
    about = job.description
    if about is None:
        return f"as it is: {job.choice.reason}"
    reasons = {"mse": ", mse: no samples", "awq": ", awq: a convolution"}
    return f"{options.form}, blocks of {about.block_size}" + (
        "" if job.method == options.method else reasons[job.method]
    )


def _planned(job: Job, options: Options) -> dict[str, Any]:
    before = {"name": job.name, "shape": list(job.section.shape), "dtype": job.section.dtype}
    return before | {"becomes": _becomes(job, options), "bytes_before": job.section.nbytes, "bytes_after": job.nbytes}


def _print_plan(jobs: list[Job], options: Options) -> None:
    table = make_table(("name", "shape", "dtype", "becomes", ">bytes", ">then"))
    for job in jobs:
        cells = (_shown(job.name), _sizes(job.section.shape), job.section.dtype, _becomes(job, options))
        table.add_row(*cells, f"{job.section.nbytes:,}", f"{job.nbytes:,}")
    console = make_console()
    console.print(table)
    chosen = sum(job.description is not None for job in jobs)
    before, after = sum(job.section.nbytes for job in jobs), sum(job.nbytes for job in jobs)
    console.print(f"{chosen} of {_count(len(jobs), 'tensor')} quantized; {before:,} bytes, then {after:,}")


def _print_result(output: Path, options: Options, result: Result) -> None:
    console = make_console()
    if result.discarded:
        console.print("started anew: an unfinished run had another input or other options", soft_wrap=True)
    if result.resumed:
        console.print(f"{_count(result.resumed, 'tensor')} taken over from an unfinished run", soft_wrap=True)
    console.print(
        f"{output}: {_count(result.quantized, 'tensor')} in {options.form}, {result.kept} as they were; "
        f"{result.bytes_before:,} bytes, now {result.bytes_after:,}",
        soft_wrap=True,
    )
    if result.without_samples:
        console.print(
            f"{_count(result.without_samples, 'tensor')} without samples: mse instead of {options.method}",
            soft_wrap=True,
        )


def _shown(name: str) -> str:
    """Return a name without control characters, which would reach the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Show a bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda name, done: progress.update(task, advance=done, description=f"{what} {_shown(name)}")
