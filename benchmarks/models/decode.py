"""The command `python -m benchmarks models`: language models with random weights, beside other libraries.

Every implementation that is installed has a process of its own, which lives through the run; rounds go over all of
them, so that a change of the machine's speed meets all alike. Threads wait as each library has it by default. Weights
are random: speeds mean something, texts do not. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

import qcore

from .. import libraries
from ..options import check_known
from ..results import Case, Document, Row
from ..tables import Operator, no_summary

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = Path(tempfile.gettempdir()) / "qcore-models"


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    shape: str
    implementations: list[str]
    prompt: int
    tokens: int
    rounds: int
    threads: int
    pause: float
    folder: Path
    log: IO[str] | int


def memory() -> dict[str, int]:
    """Return the resident and the peak bytes of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {"resident": int(fields["VmRSS"].split()[0]) * 1024, "peak": int(fields["VmHWM"].split()[0]) * 1024}


def work(name: str, source: Path, folder: Path, threads: int) -> None:
    """Answer commands, a JSON line each: what the process of one implementation does."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    from .implementations import ALL

    made = ALL[name](source, folder, threads)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if command["do"] == "prepare":
                if not made.folder.exists():
                    made.prepare()
            elif command["do"] == "load":
                made.start()
                answer["before"] = memory()
                started = time.perf_counter()
                made.load()
                answer |= {"seconds": time.perf_counter() - started, "after": memory(), "stored": made.stored_bytes()}
            else:
                answer |= {"times": made.generate(command["ids"], command["count"]), "after": memory()}
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        answers.write(json.dumps(answer) + "\n")


class Worker:
    """The process of one implementation.

    Args:
        name: of the implementation.
        options: the run's.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name, self.error = name, ""
        self.samples: list[dict[str, float]] = []
        self.loaded: dict[str, Any] = {}
        self.after: dict[str, int] = {}
        threads = str(options.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        folder = options.folder / options.shape
        command = [sys.executable, "-m", "benchmarks.models.decode", name, str(folder), threads]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            stderr=options.log,
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer; an error ends the process."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            self.error = answer["error"]
            self.close()
        return answer

    def close(self) -> None:
        """End the process."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()

    def sample(self, ids: list[int], count: int) -> None:
        """Measure one prompt and the tokens behind it."""
        answer = self.ask(do="generate", ids=ids, count=count)
        if self.error:
            return
        times = answer["times"]
        steps = [later - earlier for earlier, later in itertools.pairwise(times)]
        self.samples.append({"prefill": len(ids) / times[0], "decode": 1 / statistics.median(steps)})
        self.after = answer["after"]

    def row(self) -> Row:
        """Return the medians and what they are of; a token's time is the row's."""
        from .implementations import ALL

        medians = {key: statistics.median(each[key] for each in self.samples) for key in ("prefill", "decode")}
        details = {"note": ALL[self.name].note} | medians
        details |= {"samples": self.samples, "load": self.loaded, "memory": self.after}
        return Row(self.name, self.name.partition("-")[0], 1e3 / medians["decode"], details=details)


def table(case: Case, most: int | None = None) -> str:
    """Return the results as lines of text."""
    head = ("implementation", "prefill/s", "decode/s", "load s", "files MB", "imports MB", "resident MB", "peak MB")
    rows = [head]
    for row in case.rows:
        of = row.details
        sizes = (of["load"]["stored"], of["load"]["before"]["resident"], of["memory"]["resident"], of["memory"]["peak"])
        rates = (f"{of['prefill']:.0f}", f"{of['decode']:.1f}", f"{of['load']['seconds']:.2f}")
        rows.append((row.name, *rates, *(f"{size / 1e6:.0f}" for size in sizes)))
    lines = [f"{cells[0]:<26}" + "".join(f"{cell:>13}" for cell in cells[1:]) for cells in rows]
    return "\n".join(lines + [f"{name:<26} {why}" for name, why in case.skipped.items()])


OPERATOR = Operator("models", (), no_summary, table, "", None)


def run(options: Options) -> Case:
    """Prepare, load and measure all implementations."""
    from .implementations import ALL
    from .shapes import SHAPES, write

    source = options.folder / options.shape / "source"
    if not (source / "config.json").exists():
        source.mkdir(parents=True, exist_ok=True)
        write(options.shape, source)
    workers: list[Worker] = []
    skipped: dict[str, str] = {}
    for name in options.implementations or list(ALL):
        if missing := ALL[name].missing():
            skipped[name] = f"not installed: {missing}"
            continue
        worker = Worker(name, options)
        worker.ask(do="prepare")
        worker.close()  # what a conversion leaves in memory is not to be counted
        if not worker.error:
            worker = Worker(name, options)
            worker.loaded = worker.ask(do="load")
        workers.append(worker)
    vocabulary = SHAPES[options.shape]["vocab_size"]
    for number in range(options.rounds + 1):
        ids = [(3 + 7919 * (i + number)) % vocabulary for i in range(options.prompt)]
        turn = number % max(1, len(workers))
        for worker in workers[turn:] + workers[:turn]:
            if not worker.error:
                time.sleep(options.pause)
                worker.sample(ids, options.tokens + 1)
                if number == 0 and worker.samples:
                    worker.samples.clear()  # the first round warms up
                    print(f"{worker.name}: warm", file=sys.stderr)
    for worker in workers:
        worker.close()
    skipped |= {worker.name: worker.error for worker in workers if worker.error}
    rows = sorted((worker.row() for worker in workers if not worker.error), key=lambda row: row.milliseconds)
    parameters = {"prompt": options.prompt, "tokens": options.tokens}
    return Case(options.shape, options.shape, parameters, 0, {}, rows, skipped)


def models(
    shape: Annotated[str, typer.Option(help="qwen2.5-0.5b or tinyllama-1.1b.")] = "qwen2.5-0.5b",
    implementation: Annotated[list[str] | None, typer.Option(help="Only these; repeatable.")] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each implementation.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="For every library.")] = 2,
    pause: Annotated[float, typer.Option(min=0, help="Seconds before each sample.")] = 0.5,
    folder: Annotated[Path, typer.Option(help="For the model and its conversions.")] = _FOLDER,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="For what other libraries print.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results.")] = None,
) -> None:
    """Language models with random weights: prefill, decode, load time and memory beside llama.cpp, openvino and others.

    \b
    Examples:
      python -m benchmarks models --shape qwen2.5-0.5b --threads 2 --json decode.json --log decode.log
    """
    for needed in ("torch", "transformers", "safetensors", "tokenizers"):
        if importlib.util.find_spec(needed) is None:
            raise qcore.QcoreValueError(f"benchmarks models: {needed} is not installed")
    from .implementations import ALL
    from .shapes import SHAPES

    check_known([shape], SHAPES, "--shape")
    check_known(implementation, ALL, "--implementation")
    with ExitStack() as files:
        output = files.enter_context(log.open("w")) if log is not None else subprocess.DEVNULL
        options = Options(shape, implementation or [], prompt, tokens, rounds, threads, pause, folder, output)
        case = run(options)
    print(f"{shape}, random weights, prompt {prompt}, {tokens} tokens, {threads} threads")
    print(table(case))
    if json is not None:
        settings = {"implementations": implementation or [], "rounds": rounds, "pause": pause, "weights": "random"}
        Document("models", settings, libraries.describe(threads), cases=[case]).save(json)


if __name__ == "__main__":
    worker_name, worker_folder, worker_threads = sys.argv[1:]
    work(worker_name, Path(worker_folder) / "source", Path(worker_folder), int(worker_threads))
