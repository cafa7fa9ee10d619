"""The commands `python -m benchmarks gpu OPERATOR`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from qcore.weight_encoding import ENCODINGS

from ..options import check_known
from ..results import Case, Document
from ..tables import make_console, print_summary
from . import activations as activation_cases
from . import awq as awq_cases
from . import conv as conv_cases
from . import decoder as decoder_cases
from . import device
from . import grouped as grouped_cases
from . import linear as linear_cases
from . import lut as lut_cases
from . import recurrent as recurrent_cases
from .summary import OPERATORS, case_table

MISMATCH_STATUS = 1

gpu = typer.Typer(
    name="gpu",
    help="""Measure qcore's operators on one CUDA device beside torch's, from CUDA graphs, all in turn.

    The status is 1 if a result has other bits than it must have.

    \b
    Examples:
      python -m benchmarks gpu linear --quick
      python -m benchmarks gpu linear --shape 4096x4096 --m 1 --g 128 --bits 4 --kernels 'gemv|fused'
      python -m benchmarks gpu decoder --products --parts --json decoder.json
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results, after each case.")]
Rounds = Annotated[int, typer.Option(min=2, help="Samples of each implementation; the first warms up.")]
Numbers = list[int] | None
Texts = list[str] | None


Steps = Annotated[Numbers, typer.Option(min=1, help="T; repeatable.")]
Batches = Annotated[Numbers, typer.Option(min=1, help="B; repeatable.")]
Hidden = Annotated[Numbers, typer.Option(min=1, help="H; repeatable.")]
CellBits = Annotated[Numbers, typer.Option(help="8 or 16; repeatable.")]


def _measure(
    operator: str, json: Path | None, make: Callable[..., Iterator[Case]], quick: dict[str, Any], **options: Any
) -> None:
    """Print and write the cases of an operator. What was not given keeps the default of ``make``, or of ``quick``."""
    torch = device.require()
    given = quick | {name: value for name, value in options.items() if value not in (None, [])}
    document = Document(operator, given, device.describe(torch), device="cuda")
    console = make_console()
    for case in make(torch, **given):
        document.cases.append(case)
        console.print(case_table(case))
        if json is not None:
            document.save(json)
    print_summary(document, OPERATORS[operator], console)
    if document.mismatches():
        raise typer.Exit(MISMATCH_STATUS)


def _shapes(texts: Texts, extents: int, form: str) -> list[tuple[int, ...]]:
    found = []
    for text in texts or []:
        if not re.fullmatch("x".join([r"[1-9]\d*"] * extents), text):
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint="--shape")
        found.append(tuple(int(number) for number in text.split("x")))
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint="--kernels") from None
    return text


@gpu.command()
def linear(
    shape: Annotated[Texts, typer.Option(metavar="NxK", help="Layers; repeatable.")] = None,
    m: Annotated[Numbers, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
    bits: Annotated[Numbers, typer.Option(help="4 or 8; repeatable.")] = None,
    g: Annotated[Numbers, typer.Option("--g", min=0, help="Block sizes, 0 for one block per row; repeatable.")] = None,
    scheme: Annotated[str, typer.Option(help="symmetric or asymmetric.")] = "symmetric",
    compute: Annotated[Texts, typer.Option(help="int8, int8_asym, int16 or float; repeatable.")] = None,
    encoding: Annotated[
        Texts,
        typer.Option(metavar="NAME", help="Weights in their own bytes, such as q6_k, in place of others; repeatable."),
    ] = None,
    kernels: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's.")] = "",
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Measure qcore's choice of kernel beside humming and gemlite where installed."),
    ] = False,
    cutlass: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, help="With --peers: the library of benchmarks/gpu/cutlass_int8.cu, as it says."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One layer, g = 128, few numbers of rows.")] = False,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Linear layers beside torch's in bf16, int8, fp8 and 4 bits.

    \b
    Examples:
      python -m benchmarks gpu linear --quick
      python -m benchmarks gpu linear --shape 4096x4096 --bits 4 --g 128 --peers
      python -m benchmarks gpu linear --shape 4096x4096 --encoding q6_k --m 16 --m 512 --compute int8
    """
    check_known(bits, (4, 8), "--bits")
    check_known([scheme], ("symmetric", "asymmetric"), "--scheme")
    check_known(compute, ("int8", "int8_asym", "int16", "float"), "--compute")
    check_known(encoding, tuple(ENCODINGS), "--encoding")
    small = {"shapes": linear_cases.SHAPES[:1], "block_sizes": (128,), "rows": linear_cases.QUICK_ROWS}
    _measure(
        "linear",
        json,
        linear_cases.cases,
        small if quick else {},
        shapes=_shapes(shape, 2, "NxK, e.g. 4096x4096"),
        rows=m,
        bits=bits,
        block_sizes=g,
        scheme=scheme,
        compute=compute,
        encodings=encoding,
        kernels=_pattern(kernels),
        peers=peers,
        cutlass=str(cutlass) if cutlass else None,
        rounds=rounds,
    )


@gpu.command()
def grouped(
    shape: Annotated[
        Texts, typer.Option(metavar="ExTxNxK", help="Experts, those of a token, N, K; repeatable.")
    ] = None,
    tokens: Annotated[Numbers, typer.Option(min=1, help="Tokens; repeatable.")] = None,
    bits: Annotated[Numbers, typer.Option(help="4 or 8; repeatable.")] = None,
    g: Annotated[int, typer.Option("--g", min=1, help="Block size.")] = 128,
    compute: Annotated[Texts, typer.Option(help="int8, int8_asym, int16 or float; repeatable.")] = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Products of mixtures of experts, beside torch's grouped product in bf16 and calls of linear one by one.

    \b
    Examples:
      python -m benchmarks gpu grouped --shape 128x8x1536x2048 --tokens 16
    """
    check_known(bits, (4, 8), "--bits")
    check_known(compute, ("int8", "int8_asym", "int16", "float"), "--compute")
    shapes = _shapes(shape, 4, "ExTxNxK, e.g. 128x8x1536x2048")
    options = {"shapes": shapes, "tokens": tokens, "bits": bits, "block_size": g, "compute": compute, "rounds": rounds}
    _measure("grouped", json, grouped_cases.cases, {}, **options)


@gpu.command()
def activations(
    operator: Annotated[Texts, typer.Option(help="quantize, norm, gate or linear; repeatable.")] = None,
    m: Annotated[Numbers, typer.Option("--m", min=1, help="Rows; repeatable.")] = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Activations as codes: quantization, norms and gates that end with codes, products that take them.

    \b
    Examples:
      python -m benchmarks gpu activations --operator norm --m 16
    """
    check_known(operator, activation_cases.OPERATORS, "--operator")
    _measure("activations", json, activation_cases.cases, {}, operators=operator, rows=m, rounds=rounds)


@gpu.command()
def conv(
    case: Annotated[str, typer.Option(metavar="TEXT", help="Part of a case's name, e.g. 8x128x28x28.")] = "",
    bits: Annotated[Numbers, typer.Option(help="4 or 8; repeatable.")] = None,
    g: Annotated[Numbers, typer.Option("--g", min=1, help="Block sizes; repeatable.")] = None,
    kernels: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's.")] = "",
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Convolutions, per block and in static int8, beside torch's of floats.

    \b
    Examples:
      python -m benchmarks gpu conv --case 8x128x28x28 --kernels implicit_gemm
    """
    check_known(bits, (4, 8), "--bits")
    layers = [layer for layer in conv_cases.LAYERS if case in conv_cases.name_of(*layer[:2])]
    if not layers:
        raise typer.BadParameter(f"{case!r} is in no case's name", param_hint="--case")
    options = {"layers": layers, "bits": bits, "block_sizes": g, "kernels": _pattern(kernels), "rounds": rounds}
    _measure("conv", json, conv_cases.cases, {}, **options)


@gpu.command()
def lut(
    function: Annotated[Texts, typer.Option(help="silu, softmax and so on; repeatable.")] = None,
    dtype: Annotated[Texts, typer.Option(help="float32, float16 or bfloat16; repeatable.")] = None,
    size: Annotated[Numbers, typer.Option(min=1, help="Elements; repeatable.")] = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Tables, softmax and rms_norm beside torch's functions and a copy.

    \b
    Examples:
      python -m benchmarks gpu lut --size 16777216 --dtype float16 --function silu
    """
    check_known(function, lut_cases.FUNCTIONS, "--function")
    check_known(dtype, lut_cases.DTYPES, "--dtype")
    _measure("lut", json, lut_cases.cases, {}, functions=function, dtypes=dtype, sizes=size, rounds=rounds)


@gpu.command()
def gru(
    steps: Steps = None,
    batch: Batches = None,
    hidden: Hidden = None,
    bits: CellBits = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Measure a GRU layer beside cuDNN's, floats in and out.

    \b
    Examples:
      python -m benchmarks gpu gru --steps 50 --batch 8 --hidden 256 --bits 8
    """
    _recurrent("gru", json, bits, steps=steps, batches=batch, hidden=hidden, rounds=rounds)


@gpu.command()
def lstm(
    steps: Steps = None,
    batch: Batches = None,
    hidden: Hidden = None,
    bits: CellBits = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Measure an LSTM layer beside cuDNN's, floats in and out.

    \b
    Examples:
      python -m benchmarks gpu lstm --steps 50 --batch 8 --hidden 256 --bits 8
    """
    _recurrent("lstm", json, bits, steps=steps, batches=batch, hidden=hidden, rounds=rounds)


def _recurrent(operator: str, json: Path | None, bits: Any, **options: Any) -> None:
    check_known(bits, recurrent_cases.BITS, "--bits")
    _measure(operator, json, functools.partial(recurrent_cases.cases, operator=operator), {}, bits=bits, **options)


@gpu.command()
def awq(
    shape: Annotated[Texts, typer.Option(metavar="KxNxg", help="Weights; repeatable.")] = None,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """AWQ weights dequantized beside a copy, and multiplied beside torch's matmul.

    \b
    Examples:
      python -m benchmarks gpu awq --shape 4096x11008x128
    """
    _measure("awq", json, awq_cases.cases, {}, shapes=_shapes(shape, 3, "KxNxg, e.g. 4096x4096x128"), rounds=rounds)


@gpu.command()
def decoder(
    block: Annotated[int, typer.Option(min=1, help="Block size of the weights.")] = 128,
    past: Annotated[int, typer.Option(min=1, help="Tokens in the caches.")] = 512,
    batch: Annotated[Numbers, typer.Option(min=1, help="Sequences; repeatable.")] = None,
    products: Annotated[bool, typer.Option("--products", help="Also time the linear layers alone.")] = False,
    parts: Annotated[bool, typer.Option("--parts", help="Also time what each kind of operator adds.")] = False,
    humming: Annotated[
        bool, typer.Option("--humming", help="Also time the operators with humming's products.")
    ] = False,
    rounds: Rounds = 15,
    json: Json = None,
) -> None:
    """Measure a decoding step in the shape of Llama-3.1-8B beside torch in bfloat16.

    \b
    Examples:
      python -m benchmarks gpu decoder --products --parts --json decoder.json
    """
    options = {
        "block_size": block,
        "past": past,
        "batches": batch,
        "products": products,
        "parts": parts,
        "humming": humming,
        "rounds": rounds,
    }
    _measure("decoder", json, decoder_cases.cases, {}, **options)
