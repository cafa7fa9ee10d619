"""`qcore lstm` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

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
from qcore.lstm import Calibrator, Config, LstmWeights, QuantLSTM, verify_golden

lstm = typer.Typer(
    name="lstm",
    help="""Fixed-point LSTMs: calibrate, run, examine and export them.

    \b
    Examples:
      qcore lstm calibrate weights.safetensors samples.npz -o lstm.safetensors
      qcore lstm run lstm.safetensors inputs.npz -o outputs.npz
      qcore lstm report lstm.safetensors weights.safetensors test.npz --plot lstm.png
      qcore lstm export lstm.safetensors -o lstm.h
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)


_Model = Annotated[Path, typer.Argument(metavar="LSTM", help="What 'qcore lstm calibrate' wrote.")]
_Inputs = Annotated[
    Path, typer.Argument(metavar="INPUTS", help=".safetensors, .npz or .npy: x, and h0, c0 and lengths if wanted.")
]


def calibrate(
    weights: Annotated[
        Path, typer.Argument(metavar="WEIGHTS", help="An .onnx model, or .safetensors or .npz with torch's names.")
    ],
    samples: Annotated[
        list[Path],
        typer.Argument(metavar="SAMPLES...", help="A batch each: .safetensors, .npz or .npy with x, h0, c0."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="The quantized LSTM.")],
    bits: Annotated[int | None, typer.Option(help="8 or 16: the preset of all widths; 8 by default.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Widths and rules; options here win.")
    ] = None,
    tables: Annotated[
        str | None, typer.Option(help="exact or interp (513 knots, as 'export' has them); exact by default.")
    ] = None,
    method: Annotated[str, typer.Option(help="mse, minmax, ema or percentile.")] = "mse",
    name: Annotated[
        str | None, typer.Option(help="Which LSTM: an ONNX node's name, or what stands before weight_ih_l0.")
    ] = None,
    batch_first: Annotated[bool, typer.Option("--batch-first", help="x is [B, T, C], as torch's option.")] = False,
    json: Json = None,
) -> None:
    """Quantize an LSTM: run the float one on samples, choose a format for each tensor, write codes and tables.

    The weights' names are those of a torch.nn.LSTM's state_dict: weight_ih_l0, weight_hh_l0, bias_ih_l0, ...

    --config is an object with some of the keys of qcore.lstm.Config, for instance {"bits": 8, "widths": {"h": 16}}.

    \b
    Examples:
      qcore lstm calibrate weights.safetensors samples.npz -o lstm.safetensors
      qcore lstm calibrate model.onnx day1.npy day2.npy --bits 16 -o lstm.safetensors --json formats.json
    """
    chosen = config_of(Config, config, {"bits": bits, "tables": tables})
    _checks.suffix(output, (".safetensors",), "lstm calibrate: --output")
    check_folders("lstm", output, json)
    floats = load_weights(LstmWeights, weights, name=name, batch_first=batch_first)
    calibrator = Calibrator(floats, cast(RangeMethod, method))
    calibrate_on(calibrator, samples, ("h0", "c0"))
    made = calibrator.finish(chosen)
    made.save(output)
    if json is not None:
        write_json(json, formats_of(made, made.tensors))
    print_formats(made, made.tensors)


def run(
    model: _Model,
    inputs: _Inputs,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help=".safetensors or .npz: y, and the last h and c.")
    ],
    steps: Annotated[int, typer.Option(min=1, help="Of a call: long sequences are run in parts.")] = 256,
    json: Json = None,
) -> None:
    """Run a quantized LSTM on sequences: x [T, B, C], h0 and c0 [layers * directions, B, H], lengths [B].

    Floats give float32, codes (int8 or int16) give codes. Without a batch_first of the weights, time comes first.

    \b
    Examples:
      qcore lstm run lstm.safetensors inputs.npz -o outputs.npz
    """
    check_output(output, "lstm")
    check_folders("lstm", json)
    loaded = QuantLSTM.load(model)
    x, h0, c0, lengths = inputs_of("lstm", inputs, ("h0", "c0"))
    with progress_bar("running") as update:
        y, h, c = run_in_chunks(loaded, x, [h0, c0], lengths, steps=steps, progress=update)
    made = {"y": y, "h": h, "c": c}
    write_arrays(output, made, "lstm")
    if json is not None:
        write_json(json, described(output, made))
    make_console().print(f"y {list(y.shape)}, h {list(h.shape)}, c {list(c.shape)}: {output}", soft_wrap=True)


def report(
    model: _Model,
    weights: Annotated[
        Path, typer.Argument(metavar="WEIGHTS", help="The float weights, as for 'qcore lstm calibrate'.")
    ],
    inputs: _Inputs,
    name: Annotated[str | None, typer.Option(help="Which LSTM of WEIGHTS, as for calibrate.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write all rows and steps here.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw states and SQNR: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare every tensor with the float LSTM's: clipping, bits in use, SQNR by tensor and by step.

    SQNR is the signal to quantization noise ratio in dB, with the noise of everything before a tensor in it.

    \b
    Examples:
      qcore lstm report lstm.safetensors weights.safetensors test.npz
      qcore lstm report lstm.safetensors model.onnx test.npz --plot lstm.png --json lstm.json
    """
    check_folders("lstm", json, plot)
    loaded = QuantLSTM.load(model)
    floats = load_weights(LstmWeights, weights, name=name, batch_first=loaded.batch_first)
    x, h0, c0 = whole_sequences("lstm", inputs, ("h0", "c0"))
    show_report(loaded, loaded.report(x, h0, c0, floats), json, plot)


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
      qcore lstm golden lstm.safetensors test.npz -o golden.safetensors
    """
    _checks.suffix(output, (".safetensors",), "lstm golden: --output")
    check_folders("lstm", output, json)
    x, h0, c0 = whole_sequences("lstm", inputs, ("h0", "c0"))
    QuantLSTM.load(model).golden(output, x, h0, c0)
    show_golden(output, verify_golden(output), json)


def export_c(
    model: Annotated[Path, typer.Argument(metavar="LSTM", help="What 'qcore lstm calibrate' wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.h", help="The C99 header.")],
    name: Annotated[str, typer.Option(help="What all names in it begin with.")] = "lstm",
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="x of the self-test; random codes by default.")
    ] = None,
    tables: Tables = "interp",
    json: Json = None,
) -> None:
    """Write a C99 header that runs the LSTM step by step in integers, and beside it FILE_selftest.c, which tests it.

    Prints the bytes of flash and RAM that it takes, and the multiply-adds of a step.

    \b
    Examples:
      qcore lstm export lstm.safetensors -o lstm.h
      qcore lstm export lstm.safetensors -o wake_word.h --name wake_word --tables exact
    """
    x = None if inputs is None else whole_sequences("lstm", inputs, ("h0", "c0"))[0]
    export(QuantLSTM.load(model), output, name, x, tables, json)


lstm.command("calibrate")(calibrate)
lstm.command("run")(run)
lstm.command("report")(report)
lstm.command("golden")(golden)
lstm.command("export")(export_c)
