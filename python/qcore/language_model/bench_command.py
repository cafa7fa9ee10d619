"""`qcore bench model` on the command line."""

from __future__ import annotations

import json as json_module
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from qcore.language_model.measuring import Job

SCHEMA = "qcore.bench.model/1"


@dataclass
class Row:
    """Holds the runs of one implementation, or why there are none."""

    name: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    unavailable: str = ""

    def median(self) -> dict[str, float]:
        """Return the median of each measurement."""
        return {key: statistics.median(run[key] for run in self.runs) for key in self.runs[0]} if self.runs else {}


def model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model as for qcore generate.")],
    float_folder: Annotated[
        Path | None,
        typer.Option("--float", metavar="FOLDER", help="The float model for torch's rows, if FOLDER is quantized."),
    ] = None,
    bits: Annotated[int, typer.Option(metavar="4|8", help="Of qcore's rows, if FOLDER is a float model.")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens that follow.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Processes per implementation.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the CPU.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this implementation; may be given again.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random prompt.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all runs here.")] = None,
) -> None:
    """Measure a language model: load time, tokens per second of prompt and text, and memory, beside torch.

    Each run is a process of its own, so that memory is that of one implementation; the implementations take turns, and
    the table has the medians. Memory includes torch and transformers, whose share is shown.

    \b
    Names for --only: qcore, qcore_unfused, torch_bfloat16, torch_float32, torch_dynamic_int8

    \b
    Examples:
      qcore bench model llama/
      qcore bench model llama-4bit/ --float llama/ --json llama.json
      qcore bench model llama/ --only qcore --only torch_bfloat16 --prompt-tokens 128
    """
    from qcore._display.terminal import progress, write_json
    from qcore.bench import machine
    from qcore.language_model.loading import find_source, require_transformers
    from qcore.language_model.measuring import IMPLEMENTATIONS, Job
    from qcore.language_model.versions import versions

    require_transformers("bench model")
    for name in only or []:
        if name not in IMPLEMENTATIONS:
            known = ", ".join(IMPLEMENTATIONS)
            raise typer.BadParameter(f"'{name}' is not one of {known}", param_hint="--only")
    source = find_source(folder)
    quantized = source.method != "float"
    if float_folder is not None and find_source(float_folder).method != "float":
        raise typer.BadParameter(f"{float_folder} is quantized, expected a float model", param_hint="--float")
    rows = [Row(name) for name in only or IMPLEMENTATIONS]
    job = Job(str(folder), "", None if quantized else bits, prompt_tokens, new_tokens, threads, device, seed)
    for row in rows:
        if not row.name.startswith("qcore") and quantized and float_folder is None:
            row.unavailable = f"the model is quantized ({source.method}), and --float names no float model"
    with progress("measuring", repeats * len(rows)) as advance:
        for repeat in range(repeats):
            for row in rows[repeat % len(rows) :] + rows[: repeat % len(rows)]:
                if not row.unavailable:
                    _run(row, job, folder if row.name.startswith("qcore") else float_folder or folder)
                advance(1)
    if json is not None:
        settings = asdict(job) | {"folder": source.gguf or folder.resolve().name, "repeats": repeats}
        del settings["implementation"]
        results = [asdict(row) | {"median": row.median()} for row in rows]
        about = machine.describe(threads, versions())
        write_json(json, {"schema": SCHEMA, "machine": about, "settings": settings, "implementations": results})
    _print(rows, job)
    if not any(row.runs for row in rows):
        raise typer.Exit(2)


def _run(row: Row, job: Job, folder: Path) -> None:
    """Add a run of a process, or the reason why it failed."""
    given = json_module.dumps(asdict(replace(job, folder=str(folder), implementation=row.name)))
    command = [sys.executable, "-m", "qcore.language_model.measuring", given]
    threads = {name: str(job.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | threads)
    if done.returncode == 0:
        row.runs.append(json_module.loads(done.stdout.strip().splitlines()[-1]))
    else:
        lines = done.stderr.strip().splitlines() or [f"the process ended with status {done.returncode}"]
        row.unavailable, row.runs = lines[-1][:300], []


def _print(rows: list[Row], job: Job) -> None:
    from qcore._display.terminal import make_console, make_table
    from qcore.language_model.measuring import IMPLEMENTATIONS

    headings = ("", ">load s", ">prompt tok/s", ">new tok/s", ">MB", ">peak MB", ">imports MB")
    table = make_table(headings)
    for row in rows:
        median = row.median()
        if median:
            sizes = (f"{median[key] / 1e6:.0f}" for key in ("loaded_bytes", "peak_bytes", "imported_bytes"))
            rates = (f"{median[key]:.1f}" for key in ("prefill_rate", "decode_rate"))
            table.add_row(IMPLEMENTATIONS[row.name], f"{median['load_seconds']:.2f}", *rates, *sizes)
    console = make_console()
    console.print(table)
    bits = "as stored" if job.bits is None else f"{job.bits} bits"
    console.print(
        f"qcore's weights: {bits}; {job.prompt_tokens} tokens of a random prompt, {job.new_tokens} new ones, greedy; "
        f"{job.threads} threads, {job.device}; MB: resident memory after loading, imports included",
        soft_wrap=True,
    )
    for row in rows:
        if row.unavailable:
            console.print(f"{IMPLEMENTATIONS[row.name]}: not measured: {row.unavailable}", soft_wrap=True)
