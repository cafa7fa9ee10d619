"""`qcore lstm` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from qcore._display.terminal import make_console, write_json
from qcore._options import RangeMethod
from qcore._recurrent.arrays import check_folder, check_output, write_arrays
from qcore._recurrent.command_line import (
    Json,
    Tables,
    config_of,
    described,
    export,
    formats_of,
    inputs_of,
    print_formats,
    progress_bar,
    whole_sequences,
)
from qcore._recurrent.weights_files import load_weights
from qcore.lstm import TENSORS, Calibrator, Config, LstmWeights, QuantLSTM

lstm = typer.Typer(
    name="lstm",
    help="""Fixed-point LSTMs: calibrate, run and export them.

    \b
    Examples:
      qcore lstm calibrate weights.safetensors samples.npz -o lstm.safetensors
      qcore lstm run lstm.safetensors inputs.npz -o outputs.npz
      qcore lstm export lstm.safetensors -o lstm.h
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)


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
    for path in (output, json):
        if path is not None:
            check_folder(path, "lstm")
    floats = load_weights(LstmWeights, weights, name=name, batch_first=batch_first)
    calibrator = Calibrator(floats, cast(RangeMethod, method))
    with progress_bar(f"calibrating on {len(samples)} batch{'es' * (len(samples) > 1)}") as update:
        for number, path in enumerate(samples):

            def observed(part: float, number: int = number) -> None:
                update((number + part) / len(samples))

            x, h0, c0 = whole_sequences("lstm", path, ("h0", "c0"))
            calibrator.observe(x, h0, c0, progress=observed)
    made = calibrator.finish(chosen)
    made.save(output)
    if json is not None:
        write_json(json, formats_of(made, TENSORS))
    print_formats(made, TENSORS)


def run(
    model: Annotated[Path, typer.Argument(metavar="LSTM", help="What 'qcore lstm calibrate' wrote.")],
    inputs: Annotated[
        Path,
        typer.Argument(metavar="INPUTS", help=".safetensors, .npz or .npy: x, and h0, c0 and lengths if wanted."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help=".safetensors or .npz: y, and the last h and c.")
    ],
    json: Json = None,
) -> None:
    """Run a quantized LSTM on sequences: x [T, B, C], h0 and c0 [layers * directions, B, H], lengths [B].

    Floats give float32, codes (int8 or int16) give codes. Without a batch_first of the weights, time comes first.

    \b
    Examples:
      qcore lstm run lstm.safetensors inputs.npz -o outputs.npz
    """
    check_output(output, "lstm")
    if json is not None:
        check_folder(json, "lstm")
    loaded = QuantLSTM.load(model)
    x, h0, c0, lengths = (
        each.astype("float32") if each is not None and each.dtype.kind == "f" else each
        for each in inputs_of("lstm", inputs, ("h0", "c0"))
    )
    y, h, c = loaded(x, h0, c0, lengths=lengths)
    made = {"y": y, "h": h, "c": c}
    write_arrays(output, made, "lstm")
    if json is not None:
        write_json(json, described(output, made))
    make_console().print(f"y {list(y.shape)}, h and c {list(h.shape)}: {output}", soft_wrap=True)


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
lstm.command("export")(export_c)
