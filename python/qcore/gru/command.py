"""`qcore gru` on the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from qcore._display.terminal import make_console, write_json
from qcore._files import write_whole
from qcore._options import RangeMethod
from qcore._recurrent.arrays import check_folder, check_output, write_arrays
from qcore._recurrent.command_line import (
    Json,
    config_of,
    described,
    formats_of,
    inputs_of,
    print_formats,
    progress_bar,
)
from qcore._recurrent.weights_files import load_weights
from qcore.gru import TENSORS, Calibrator, Config, GruWeights, QuantGRU, verify_golden
from qcore.gru.chunks import run_in_chunks

if TYPE_CHECKING:
    import numpy as np


gru = typer.Typer(
    name="gru",
    help="""Fixed-point GRUs: calibrate, run and examine them.

    \b
    Examples:
      qcore gru calibrate weights.safetensors samples.npz --pipeline fused -o gru.safetensors
      qcore gru run gru.safetensors inputs.npz -o outputs.npz
      qcore gru report gru.safetensors weights.safetensors test.npz --plot gru.png
      qcore gru export-c gru.safetensors -o gru.h
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)

_Model = Annotated[Path, typer.Argument(metavar="GRU", help="What 'qcore gru calibrate' wrote.")]
_Inputs = Annotated[
    Path, typer.Argument(metavar="INPUTS", help=".safetensors, .npz or .npy: x, and h0 and lengths if wanted.")
]


def calibrate(
    weights: Annotated[
        Path, typer.Argument(metavar="WEIGHTS", help="An .onnx model, or .safetensors or .npz with torch's names.")
    ],
    samples: Annotated[
        list[Path], typer.Argument(metavar="SAMPLES...", help="A batch each: .safetensors, .npz or .npy with x, h0.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="The quantized GRU.")],
    bits: Annotated[int | None, typer.Option(help="8 or 16: the preset of all widths; 8 by default.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Widths and rules; --bits and --pipeline win.")
    ] = None,
    method: Annotated[str, typer.Option(help="mse, minmax, ema or percentile.")] = "mse",
    pipeline: Annotated[str | None, typer.Option(help="fused or staged; fused by default.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Which GRU: an ONNX node's name, or what stands before weight_ih_l0.")
    ] = None,
    batch_first: Annotated[bool, typer.Option("--batch-first", help="x is [B, T, C], as torch's option.")] = False,
    json: Json = None,
) -> None:
    """Quantize a GRU: run the float one on samples, choose a format for each tensor, write codes and tables.

    The weights' names are those of a torch.nn.GRU's state_dict: weight_ih_l0, weight_hh_l0, bias_ih_l0, ...

    \b
    Examples:
      qcore gru calibrate weights.safetensors samples.npz -o gru.safetensors
      qcore gru calibrate model.onnx day1.npy day2.npy --bits 16 --pipeline fused -o gru.safetensors
      qcore gru calibrate model.safetensors x.npz --name encoder.rnn --config widths.json -o gru.safetensors
      qcore gru calibrate weights.safetensors samples.npz -o gru.safetensors --json formats.json
    """
    chosen = _config(config, bits, pipeline)
    _check_folders(output, json)
    calibrator = Calibrator(
        load_weights(GruWeights, weights, name=name, batch_first=batch_first), cast(RangeMethod, method)
    )
    with progress_bar(f"calibrating on {len(samples)} batch{'es' * (len(samples) > 1)}") as update:
        for number, path in enumerate(samples):

            def observed(part: float, number: int = number) -> None:
                update((number + part) / len(samples))

            x, h0 = _whole_sequences(path)
            calibrator.observe(x, h0, progress=observed)
    made = calibrator.finish(chosen)
    made.save(output)
    if json is not None:
        write_json(json, formats_of(made, TENSORS))
    print_formats(made, TENSORS)


def run(
    model: _Model,
    inputs: _Inputs,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help=".safetensors or .npz: y and last, the states.")
    ],
    steps: Annotated[int, typer.Option(min=1, help="Of a call: long sequences are run in parts.")] = 256,
    json: Json = None,
) -> None:
    """Run a quantized GRU on sequences: x [T, B, C], h0 [layers * directions, B, H], lengths [B].

    Floats give float32, codes (int8 or int16) give codes. Without a batch_first of the weights, time comes first.

    \b
    Examples:
      qcore gru run gru.safetensors inputs.npz -o outputs.npz
      qcore gru run gru.safetensors speech.npy -o states.safetensors
    """
    check_output(output)
    _check_folders(json)
    loaded = QuantGRU.load(model)
    x, h0, lengths = inputs_of("gru", inputs, ("h0",))
    with progress_bar("running") as update:
        y, last = run_in_chunks(loaded, x, h0, lengths, steps=steps, progress=update)
    made = {"y": y, "last": last}
    write_arrays(output, made)
    if json is not None:
        write_json(json, described(output, made))
    make_console().print(f"y {list(y.shape)} and last {list(last.shape)}, {y.dtype}: {output}", soft_wrap=True)


def report(
    model: _Model,
    weights: Annotated[
        Path, typer.Argument(metavar="WEIGHTS", help="The float weights, as for 'qcore gru calibrate'.")
    ],
    inputs: _Inputs,
    name: Annotated[str | None, typer.Option(help="Which GRU of WEIGHTS, as for calibrate.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all rows and steps here.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw states and SQNR: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare every tensor with the float GRU's: clipping, bits in use, SQNR by tensor and by step.

    SQNR is the signal to quantization noise ratio in dB, with the noise of everything before a tensor in it.

    \b
    Examples:
      qcore gru report gru.safetensors weights.safetensors test.npz
      qcore gru report gru.safetensors model.onnx test.npz --plot gru.png --json gru.json
    """
    _check_folders(json, plot)
    loaded = QuantGRU.load(model)
    floats = load_weights(GruWeights, weights, name=name, batch_first=loaded.batch_first)
    x, h0 = _whole_sequences(inputs)
    found = loaded.report(x, h0, floats)
    if plot is not None:
        found.plot(plot)
    if json is not None:
        write_whole(json, found.to_json().encode())
    out = make_console()
    out.print(repr(loaded), soft_wrap=True)
    out.print(found.table())


def golden(
    model: _Model,
    inputs: _Inputs,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="The golden file.")],
    json: Json = None,
) -> None:
    """Write inputs, parameters, every intermediate of every step and outputs, for tests of other implementations.

    The file is then computed anew from its inputs in NumPy integers, without qcore's kernels, and compared.

    \b
    Examples:
      qcore gru golden gru.safetensors test.npz -o golden.safetensors
    """
    _check_folders(output, json)
    x, h0 = _whole_sequences(inputs)
    QuantGRU.load(model).golden(output, x, h0)
    check = verify_golden(output)
    if json is not None:
        write_json(json, {"output": str(output)} | asdict(check))
    make_console().print(f"{output}: {check}", soft_wrap=True)


def export_c(
    model: _Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.h", help="The C99 header.")],
    name: Annotated[str, typer.Option(help="What all names in it begin with.")] = "gru",
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="x of the self-test; random codes by default.")
    ] = None,
) -> None:
    """Write a C99 header that runs the GRU step by step in integers, and beside it FILE_selftest.c, which tests it.

    \b
    Examples:
      qcore gru export-c gru.safetensors -o gru.h
      qcore gru export-c gru.safetensors -o wake_word.h --name wake_word --inputs test.npz
      gcc -std=c99 -Wall -o selftest gru_selftest.c && ./selftest
    """
    check_folder(output)
    x = None if inputs is None else _whole_sequences(inputs)[0]
    QuantGRU.load(model).export_c(output, name, x)
    selftest = output.with_name(f"{output.stem}_selftest.c")
    make_console().print(f"{output} and {selftest}", soft_wrap=True)


gru.command("calibrate")(calibrate)
gru.command("run")(run)
gru.command("report")(report)
gru.command("golden")(golden)
gru.command("export-c")(export_c)


def _check_folders(*paths: Path | None) -> None:
    """Raise an error before anything is computed if the folder of a file to write is missing."""
    for path in paths:
        if path is not None:
            check_folder(path)


def _config(path: Path | None, bits: int | None, pipeline: str | None) -> Config:
    made: Config = config_of(Config, path, {"bits": bits, "pipeline": pipeline})
    return made


def _whole_sequences(path: Path) -> tuple[np.ndarray[Any, Any], Any]:
    """Return x and h0 of a file without lengths."""
    x, h0, lengths = inputs_of("gru", path, ("h0",))
    if lengths is not None:
        raise typer.BadParameter(
            f"'{path}' has lengths, expected whole sequences: leave the padding out", param_hint="FILE"
        )
    return x, h0
