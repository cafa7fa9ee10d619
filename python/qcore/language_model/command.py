"""`qcore generate` and `qcore evaluate` on the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from qcore.language_model.evaluation import Evaluation
    from qcore.language_model.generation import Generation
    from qcore.language_model.loading import LoadedModel

_INTERRUPTED_STATUS = 130

_Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A model: float, written by qcore quantize, AWQ, GPTQ, compressed-tensors, bitsandbytes, HQQ, or a .gguf.",
    ),
]
_Bits = Annotated[int | None, typer.Option(metavar="4|8", help="Quantize a float model while loading it.")]
_Compute = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="Of quantized layers: int8, int8_asym, int16 or float. The default is int8, and float for weight-only "
        "files of other programs, such as GGUF.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help="Between the layers: float32 (default of quantized models on a CPU), bfloat16, float16 or auto: what "
        "config.json says.",
    ),
]
_Device = Annotated[str, typer.Option(help="cpu or cuda.")]
_Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the CPU; by default all that may be used.")]
_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the measurements here.")]


def generate(
    folder: _Folder,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most probable token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling, with a temperature above 0.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    bits: _Bits = None,
    compute: _Compute = None,
    dtype: _Dtype = None,
    device: _Device = "cpu",
    threads: _Threads = None,
    no_fuse: Annotated[bool, typer.Option("--no-fuse", help="Run the model as transformers defines it.")] = False,
    json: _Json = None,
) -> None:
    """Continue a text with a language model. The text goes to stdout as it is made, speed and memory to stderr.

    It needs torch and transformers: pip install 'libqcore[transformers]'. Nothing is downloaded.

    \b
    Examples:
      qcore generate model-4bit/ "Once upon a time"
      qcore generate SmolLM2-135M-Instruct.Q4_1.gguf "What is a zero point?" --chat
      qcore generate llama/ "The sky is" --bits 4 --temperature 0.8 --seed 1 --json measured.json
    """
    from qcore.language_model.loading import load_model, load_tokenizer, quiet_transformers, require_transformers
    from qcore.language_model.memory import measure_memory

    require_transformers("generate")
    from qcore.language_model.generation import generate as continue_text
    from qcore.language_model.generation import prompt_tokens

    _check_json(json)
    _set_threads(threads)
    with quiet_transformers():
        tokenizer = load_tokenizer(folder)
        prompt_tokens(tokenizer, prompt, chat=chat)  # an error of it comes before the model is loaded
        imported = measure_memory()
        loaded = load_model(folder, bits=bits, compute=compute, dtype=dtype, device=device, fuse=not no_fuse)
        found = continue_text(
            loaded.model,
            tokenizer,
            prompt,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            chat=chat,
            show=_show,
        )
    typer.echo()
    memory = measure_memory()
    if json is not None:
        _write(
            json,
            "generate",
            model=_about(loaded),
            prompt=prompt,
            generation=asdict(found) | {"prefill_rate": found.prefill_rate, "decode_rate": found.decode_rate},
            memory={"imported": imported.resident, "resident": memory.resident, "peak": memory.peak},
        )
    typer.echo(_summary(loaded, found, memory.resident, memory.peak), err=True)
    if found.end == "interrupted":
        typer.echo("qcore: interrupted", err=True)
        raise typer.Exit(_INTERRUPTED_STATUS)


def evaluate(
    folder: _Folder,
    text: Annotated[Path, typer.Option(metavar="FILE", help="The text: UTF-8.")],
    against: Annotated[
        Path | None,
        typer.Option(metavar="FLOAT", help="The model to measure the distance from: the float one, as FOLDER."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a window; 512 by default, or the model's positions.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between the starts of windows; half the context by default.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=2, help="Read so many tokens of the text at most.")] = None,
    bits: _Bits = None,
    compute: _Compute = None,
    dtype: _Dtype = None,
    device: _Device = "cpu",
    threads: _Threads = None,
    json: _Json = None,
) -> None:
    """Measure a language model on a text: perplexity, and with --against the distance from the float model.

    The text is cut into windows of --context tokens that begin --stride tokens apart; each token but the first is
    predicted once. The distance is the mean KL divergence of the next token's distribution, and the share of tokens at
    which both models have the same first choice. Both models are in memory then, and nothing of a window is kept.
    On a CPU they run in float32 between their layers, so that rounding to bfloat16 is not measured; --dtype changes
    that for FOLDER.

    \b
    Examples:
      qcore evaluate model-4bit/ --text wiki.txt
      qcore evaluate model-4bit/ --text wiki.txt --against model/ --tokens 20000 --json quality.json
      qcore evaluate model/ --bits 4 --text wiki.txt --against model/
      qcore evaluate model.gguf --compute int8 --text wiki.txt --against model.gguf
    """
    from qcore.language_model.loading import (
        find_source,
        load_model,
        load_tokenizer,
        quiet_transformers,
        require_transformers,
    )
    from qcore.language_model.memory import measure_memory

    require_transformers("evaluate")
    from qcore._display.terminal import progress
    from qcore.language_model.evaluation import evaluate as measure

    # Errors of arguments come before a model is loaded.
    content = _read_text(text)
    _check_json(json)
    if against is not None:
        find_source(against)
    exact = "float32" if device == "cpu" else None
    _set_threads(threads)
    with quiet_transformers():
        tokenizer = load_tokenizer(folder)
        numbers = list(tokenizer(content)["input_ids"])[:tokens]
        if len(numbers) < 2:
            raise typer.BadParameter(f"{text} has {len(numbers)} tokens, expected 2 or more", param_hint="--text")
        imported = measure_memory()
        loaded = load_model(folder, bits=bits, compute=compute, dtype=dtype or exact, device=device)
        reference = None if against is None else load_model(against, dtype=exact, device=device)
        with progress("evaluating", len(numbers) - 1) as advance:
            found = measure(
                loaded.model,
                numbers,
                against=None if reference is None else reference.model,
                context=context,
                stride=stride,
                progress=advance,
            )
    memory = measure_memory()
    _print_evaluation(found, text, loaded, reference)
    if json is not None:
        _write(
            json,
            "evaluate",
            model=_about(loaded),
            against=None if reference is None else _about(reference),
            text={"name": text.name, "bytes": len(content.encode()), "tokens": len(numbers)},
            evaluation=asdict(found),
            memory={"imported": imported.resident, "resident": memory.resident, "peak": memory.peak},
        )


def _show(piece: str) -> None:
    typer.echo(piece, nl=False)


def _summary(loaded: LoadedModel, found: Generation, resident: int, peak: int) -> str:
    fused = "fused" if not loaded.unfused else f"not fused ({loaded.unfused})"
    return (
        f"{_name(loaded)}, {fused}; loaded in {loaded.seconds:.2f} s; "
        f"prompt: {found.prompt_tokens} tokens, {found.prefill_rate:.1f} tokens/s; "
        f"text: {len(found.tokens)} tokens, {found.decode_rate:.1f} tokens/s; "
        f"memory: {resident / 1e6:.0f} MB resident, {peak / 1e6:.0f} MB at its peak"
    )


def _name(loaded: LoadedModel) -> str:
    return loaded.source.method if loaded.bits is None else f"{loaded.bits} bits"


def _about(loaded: LoadedModel) -> dict[str, Any]:
    """Return what JSON files say of a model. No names of folders but the last one."""
    source = loaded.source
    return {
        "name": source.gguf or source.folder.resolve().name,
        "method": source.method,
        "bits": loaded.bits,
        "compute": _computes(loaded),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "weight_bytes": loaded.model.get_memory_footprint(),
        "load_seconds": loaded.seconds,
        "unfused": loaded.unfused,
    }


def _computes(loaded: LoadedModel) -> list[str]:
    """Return the compute modes of the quantized linear layers."""
    import qcore.torch

    layers = (module for module in loaded.model.modules() if isinstance(module, qcore.torch.Linear))
    return sorted({layer.compute for layer in layers})


def _described(loaded: LoadedModel) -> str:
    """Return the name of a model, how its layers compute, and what its weights take."""
    about = _about(loaded)
    compute = "".join(f", compute {mode}" for mode in about["compute"])
    size = f"{about['weight_bytes'] / 1e6:,.1f} MB"
    return f"{about['name']}: {_name(loaded)}{compute}, {about['dtype']} between the layers, {size}"


def _print_evaluation(found: Evaluation, text: Path, loaded: LoadedModel, reference: LoadedModel | None) -> None:
    rate = found.tokens / found.seconds if found.seconds > 0 else 0.0
    windows = "1 window" if found.windows == 1 else f"{found.windows:,} windows"
    rows = [("model", _described(loaded))]
    if reference is not None:
        rows.append(("--against", _described(reference)))
    rows += [
        ("text", text.name),
        ("tokens", f"{found.tokens:,} in {windows}, {rate:.0f} tokens/s"),
        ("perplexity", f"{found.perplexity:.4f}"),
    ]
    other = found.comparison
    if other is not None:
        rows += [
            ("perplexity of --against", f"{other.perplexity:.4f}"),
            ("KL divergence", f"{other.kl_divergence:.6f} +- {other.kl_standard_error:.6f} nats"),
            ("99% of the tokens below", f"{other.kl_99:.6f} nats"),
            ("same first choice", f"{other.same_first_choice:.2%}"),
        ]
    for name, value in rows:
        typer.echo(f"{name:<25}{value}")


def _check_json(path: Path | None) -> None:
    """Raise an error before anything is measured if no file can be written at a path."""
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder, expected one for {path.name}", param_hint="--json")


def _read_text(file: Path) -> str:
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"{file} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}", param_hint="--text"
        ) from None
    if not text.strip():
        raise typer.BadParameter(f"{file} has no text", param_hint="--text")
    return text


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    import torch

    import qcore

    torch.set_num_threads(threads)
    qcore.set_num_threads(threads)


def _write(path: Path, command: str, **content: Any) -> None:
    from qcore._display.terminal import write_json
    from qcore.language_model.versions import versions

    write_json(path, {"schema": f"qcore.{command}/1", "versions": versions(), **content})
