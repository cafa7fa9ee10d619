"""Measures one implementation of a model in a process of its own, for `qcore bench model`.

    python -m qcore.language_model.measuring '{"folder": ..., "implementation": ..., ...}'

The last line of stdout is a JSON object with the measurements.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qcore import _core
from qcore.language_model.memory import measure_memory


@dataclass(frozen=True)
class Job:
    """Says what a process measures.

    Attributes:
        folder: the model.
        implementation: a name of :data:`IMPLEMENTATIONS`.
        bits: of qcore's implementations; None for a model that is quantized already.
        prompt_tokens, new_tokens: lengths of the prompt and of the text.
        threads: of the CPU.
        device: of torch.
        seed: of the prompt.
    """

    folder: str
    implementation: str
    bits: int | None
    prompt_tokens: int
    new_tokens: int
    threads: int
    device: str
    seed: int


@dataclass(frozen=True)
class Measurement:
    """Holds what a process measured: seconds, tokens per second and bytes.

    Attributes:
        load_seconds: from the folder to a model that is ready to run.
        prefill_rate: prompt tokens per second until the first new token.
        decode_rate: new tokens per second after the first one.
        imported_bytes: resident memory after importing torch and transformers.
        loaded_bytes: resident memory after loading.
        load_peak_bytes: the peak while loading.
        peak_bytes: the peak of the whole process.
    """

    load_seconds: float
    prefill_rate: float
    decode_rate: float
    imported_bytes: int
    loaded_bytes: int
    load_peak_bytes: int
    peak_bytes: int


IMPLEMENTATIONS = {
    "qcore": "qcore, fused",
    "qcore_unfused": "qcore",
    "torch_bfloat16": "torch bfloat16",
    "torch_float32": "torch float32",
    "torch_dynamic_int8": "torch dynamic int8",
}
"""Names of implementations, and how tables show them."""


def measure(job: Job) -> Measurement:
    """Load a model and let it continue a random prompt.

    Args:
        job: what to measure.

    Raises:
        QcoreError: the model can't be loaded or run so.
    """
    import torch

    import qcore
    from qcore.language_model import loading

    torch.set_num_threads(job.threads)
    qcore.set_num_threads(job.threads)
    with loading.quiet_transformers():
        _import_classes(job)
        imported = measure_memory()
        started = time.perf_counter()
        model = _load(job)
        seconds = time.perf_counter() - started
        loaded = measure_memory()
        vocabulary = model.config.get_text_config().vocab_size
        chosen = random.Random(job.seed)
        prompt = [chosen.randrange(vocabulary) for _ in range(job.prompt_tokens)]
        _rates(model, prompt[: max(1, len(prompt) // 4)], 2)
        prefill, decode = _rates(model, prompt, job.new_tokens)
    return Measurement(seconds, prefill, decode, imported.resident, loaded.resident, loaded.peak, measure_memory().peak)


def _import_classes(job: Job) -> None:
    """Import what every model of this kind needs, so that its memory is not counted as the model's."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from qcore.language_model.loading import find_source

    if job.implementation.startswith("qcore"):
        importlib.import_module("qcore.transformers")
    source = find_source(job.folder)
    if not source.gguf:
        config = AutoConfig.from_pretrained(source.folder, local_files_only=True)
        AutoModelForCausalLM._model_mapping[type(config)]


def _load(job: Job) -> Any:
    from qcore.language_model.loading import load_model

    name = job.implementation
    if name.startswith("qcore"):
        found = load_model(job.folder, bits=job.bits, device=job.device, fuse=name == "qcore")
        if name == "qcore" and found.unfused:
            raise _core.QcoreError(f"not fused: {found.unfused}")
        return found.model
    dtype = "bfloat16" if name == "torch_bfloat16" else "float32"
    model = load_model(job.folder, dtype=dtype, device=job.device).model
    if name == "torch_dynamic_int8":
        import torch

        if job.device != "cpu":
            raise _core.QcoreError("torch's dynamic int8 runs on the CPU only")
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)
    return model


def _rates(model: Any, prompt: list[int], new_tokens: int) -> tuple[float, float]:
    """Return tokens per second of the prompt and of the new tokens."""
    from qcore.language_model.generation import TokenClock, run

    clock = TokenClock()
    started = time.perf_counter()
    run(model, prompt, clock, new_tokens, min_new_tokens=new_tokens, do_sample=False)
    decode = (len(clock.times) - 1) / (clock.times[-1] - clock.times[0]) if len(clock.times) > 1 else 0.0
    return len(prompt) / (clock.times[0] - started), decode


def main(arguments: list[str]) -> int:
    """Run the job that the only argument describes. An error is one line on stderr and status 2."""
    job = Job(**json.loads(arguments[0]))
    try:
        if not Path(job.folder).exists():
            raise FileNotFoundError(2, "No such file or directory", job.folder)
        found = measure(job)
    except (_core.QcoreError, OSError, RuntimeError, ImportError, AttributeError) as error:
        print(" ".join(f"{error}".split()) or type(error).__name__, file=sys.stderr)
        return 2
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
