"""Measures prefill, decode, load time and memory of language models with random weights, beside other libraries.

    python benchmarks/models/decode.py --shape qwen2.5-0.5b --threads 2 --json decode.json

Every implementation that is installed has a process of its own, which lives through the run; rounds go over all of
them, so that a change of the machine's speed meets all alike. Threads wait as each library has it by default. Weights
are random: speeds mean something, texts do not. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def memory() -> dict[str, int]:
    """Returns the resident and the peak bytes of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {"resident": int(fields["VmRSS"].split()[0]) * 1024, "peak": int(fields["VmHWM"].split()[0]) * 1024}


def work(name: str, source: Path, folder: Path, threads: int) -> None:
    """Answers commands, a JSON line each: what the process of one implementation does."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    from implementations import ALL

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

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.error = name, ""
        self.samples: list[dict[str, float]] = []
        self.loaded: dict[str, Any] = {}
        self.after: dict[str, int] = {}
        threads = str(options.threads)
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        command = [sys.executable, str(HERE / "decode.py"), "--worker", name, "--shape", options.shape]
        command += ["--threads", threads, "--folder", str(options.folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, stderr=options.log
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the answer; an error ends the process."""
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
        """Ends the process."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()

    def sample(self, ids: list[int], count: int) -> None:
        """Measures one prompt and the tokens behind it."""
        answer = self.ask(do="generate", ids=ids, count=count)
        if self.error:
            return
        times = answer["times"]
        steps = [later - earlier for earlier, later in itertools.pairwise(times)]
        self.samples.append({"prefill": len(ids) / times[0], "decode": 1 / statistics.median(steps)})
        self.after = answer["after"]

    def result(self) -> dict[str, Any]:
        """Returns the medians and what they are of."""
        from implementations import ALL

        known: dict[str, Any] = {"name": self.name, "note": ALL[self.name].note}
        if self.error:
            return known | {"error": self.error}
        medians = {key: statistics.median(each[key] for each in self.samples) for key in ("prefill", "decode")}
        return known | medians | {"samples": self.samples, "load": self.loaded, "memory": self.after}


def table(results: list[dict[str, Any]]) -> str:
    """Returns the results as lines of text."""
    mb = 1 / 1e6
    head = ("implementation", "prefill/s", "decode/s", "load s", "files MB", "imports MB", "resident MB", "peak MB")
    rows = [head]
    for each in sorted(results, key=lambda each: -each.get("decode", 0)):
        if "error" in each:
            rows.append((each["name"], each["error"], *[""] * 6))
            continue
        numbers = (
            f"{each['prefill']:.0f}",
            f"{each['decode']:.1f}",
            f"{each['load']['seconds']:.2f}",
            *(
                f"{count * mb:.0f}"
                for count in (
                    each["load"]["stored"],
                    each["load"]["before"]["resident"],
                    each["memory"]["resident"],
                    each["memory"]["peak"],
                )
            ),
        )
        rows.append((each["name"], *numbers))
    return "\n".join(f"{row[0]:<26}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prepares, loads and measures all implementations, and returns a result for each."""
    from implementations import ALL
    from shapes import SHAPES, write

    source = options.folder / options.shape / "source"
    if not (source / "config.json").exists():
        source.mkdir(parents=True, exist_ok=True)
        write(options.shape, source)
    results, workers = [], []
    for name in options.implementations or list(ALL):
        if missing := ALL[name].missing():
            results.append({"name": name, "error": f"not installed: {missing}"})
            continue
        worker = Worker(name, options)
        worker.ask(do="prepare")
        worker.close()  # what a conversion leaves in memory is not to be counted
        if worker.error:
            results.append(worker.result())
            continue
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
        results.append(worker.result())
    return results


def main() -> None:
    """Reads the command line and runs."""
    from shapes import SHAPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--implementations", nargs="*", help="names; all by default")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each sample")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "qcore-models", help="for files")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--log", type=argparse.FileType("w"), default=subprocess.DEVNULL, help="for what others print")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.folder / options.shape / "source", options.folder / options.shape, options.threads)
        return
    results = run(options)
    print(
        f"{options.shape}, random weights, prompt {options.prompt}, {options.tokens} tokens, {options.threads} threads"
    )
    print(table(results))
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if key not in ("worker", "log")}
        options.json.write_text(json.dumps({"settings": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
