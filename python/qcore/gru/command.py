"""`qcore gru` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from qcore import _checks
from qcore._display.terminal import make_console, write_json
from qcore._options import RangeMethod
from qcore._recurrent.arrays import check_output, write_arrays
from qcore._recurrent.chunks import run_in_chunks
from qcore._recurrent.command_line import (
    Json,
    Tables,
    calibrate_on,
    check_folders,
    config_of,
    described,
    export,
    formats_of,
    inputs_of,
    print_formats,
    progress_bar,
    show_golden,
    show_report,
    whole_sequences,
)
from qcore._recurrent.weights_files import load_weights
from qcore.gru import TENSORS, Calibrator, Config, GruWeights, QuantGRU, verify_golden

gru = typer.Typer(
    name="gru",
    help="""Fixed-point GRUs: calibrate, run and examine them.

    \b
    Examples:
      qcore gru calibrate weights.safetensors samples.npz --pipeline fused -o gru.safetensors
      qcore gru run gru.safetensors inputs.npz -o outputs.npz
      qcore gru report gru.safetensors weights.safetensors test.npz --plot gru.png
      qcore gru export gru.safetensors -o gru.h
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
        Path | None, typer.Option(metavar="FILE.json", help="Widths and rules; options here win.")
    ] = None,
    method: Annotated[str, typer.Option(help="mse, minmax, ema or percentile.")] = "mse",
    pipeline: Annotated[str | None, typer.Option(help="fused or staged; fused by default.")] = None,
    tables: Annotated[
        str | None, typer.Option(help="exact or interp (513 knots, as 'export' has them); exact by default.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Which GRU: an ONNX node's name, or what stands before weight_ih_l0.")
    ] = None,
    batch_first: Annotated[bool, typer.Option("--batch-first", help="x is [B, T, C], as torch's option.")] = False,
    json: Json = None,
) -> None:
    """Quantize a GRU: run the float one on samples, choose a format for each tensor, write codes and tables.

    The weights' names are those of a torch.nn.GRU's state_dict: weight_ih_l0, weight_hh_l0, bias_ih_l0, ... --config is
    an object with some of the keys of qcore.gru.Config, for instance {"bits": 8, "widths": {"h": 16}, "granularity":
    "gate"}; its default is what Config().to_json() returns.

    \b
    Examples:
      qcore gru calibrate weights.safetensors samples.npz -o gru.safetensors
      qcore gru calibrate model.onnx day1.npy day2.npy --bits 16 --pipeline fused -o gru.safetensors
      qcore gru calibrate model.safetensors x.npz --name encoder.rnn --config widths.json -o gru.safetensors
      qcore gru calibrate weights.safetensors samples.npz -o gru.safetensors --json formats.json
    """
    chosen = _config(config, bits=bits, pipeline=pipeline, tables=tables)
    _checks.suffix(output, (".safetensors",), "gru calibrate: --output")
    check_folders("gru", output, json)
    calibrator = Calibrator(
        load_weights(GruWeights, weights, name=name, batch_first=batch_first), cast(RangeMethod, method)
    )
    calibrate_on(calibrator, samples, ("h0",))
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
    check_folders("gru", json)
    loaded = QuantGRU.load(model)
    x, h0, lengths = inputs_of("gru", inputs, ("h0",))
    with progress_bar("running") as update:
        y, last = run_in_chunks(loaded, x, [h0], lengths, steps=steps, progress=update)
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
    check_folders("gru", json, plot)
    loaded = QuantGRU.load(model)
    floats = load_weights(GruWeights, weights, name=name, batch_first=loaded.batch_first)
    x, h0 = whole_sequences("gru", inputs, ("h0",))
    found = loaded.report(x, h0, floats)
    show_report(loaded, found, json, plot)


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
    _checks.suffix(output, (".safetensors",), "gru golden: --output")
    check_folders("gru", output, json)
    x, h0 = whole_sequences("gru", inputs, ("h0",))
    QuantGRU.load(model).golden(output, x, h0)
    show_golden(output, verify_golden(output), json)


def export_c(
    model: _Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.h", help="The C99 header.")],
    name: Annotated[str, typer.Option(help="What all names in it begin with.")] = "gru",
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="x of the self-test; random codes by default.")
    ] = None,
    tables: Tables = "interp",
    json: Json = None,
) -> None:
    """Write a C99 header that runs the GRU step by step in integers, and beside it FILE_selftest.c, which tests it.

    Prints the bytes of flash and RAM that it takes, and the multiply-adds of a step.

    \b
    Examples:
      qcore gru export gru.safetensors -o gru.h
      qcore gru export gru.safetensors -o gru.h --tables exact --json sizes.json
      qcore gru export gru.safetensors -o wake_word.h --name wake_word --inputs test.npz
      gcc -std=c99 -Wall -o selftest gru_selftest.c && ./selftest
    """
    x = None if inputs is None else whole_sequences("gru", inputs, ("h0",))[0]
    export(QuantGRU.load(model), output, name, x, tables, json)


gru.command("calibrate")(calibrate)
gru.command("run")(run)
gru.command("report")(report)
gru.command("golden")(golden)
gru.command("export")(export_c)
gru.command("export-c", hidden=True)(export_c)  # its former name


def _config(path: Path | None, **given: Any) -> Config:
    made: Config = config_of(Config, path, given)
    return made
