"""`qcore quantize --method awq --samples FILE`: the bits of qcore.quantize, and every wrong file refused."""

import io
import sys
import zipfile

import numpy as np
import pytest
from checkpoint_files import model
from safetensors.numpy import save_file
from typer.testing import CliRunner

import qcore
from qcore.cli import app, main
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint import chunks
from qcore.formats.checkpoint.partial_file import PartialFile
from qcore.formats.checkpoint.quantizing import Options, quantize_checkpoint


def inputs(seed=0):
    """Write samples of two layers and the convolution, with channels of very different sizes; layers.1 has none."""
    rng = np.random.default_rng(seed)
    spread = lambda m, k: (rng.standard_normal((m, k)) * np.exp(rng.standard_normal(k) * 2)).astype(np.float32)  # noqa: E731
    return {"layers.0.weight": spread(40, 64), "conv.weight": spread(7, 5)}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    save_file(model(), tmp_path / "m.safetensors")
    np.savez(tmp_path / "s.npz", **inputs())
    save_file(inputs(), tmp_path / "s.safetensors")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("piece", [None, 130])
def test_the_bits_of_whole_tensors(files, monkeypatch, kind, piece):
    if piece is not None:  # a few rows at a time
        monkeypatch.setattr(chunks, "_PIECE_ITEMS", piece)
    flags = ["--method", "awq", "--samples", files / f"s.{kind}", "--block-size", 16]
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags)
    assert done.exit_code == 0
    assert "1 tensor without samples: mse instead of awq" in done.stdout
    loaded = qcore.load(files / "o.safetensors")
    for name, samples in inputs().items():
        expected = qcore.quantize(model()[name], block_size=16, method="awq", samples=samples)
        assert loaded[name] == expected
        assert expected != qcore.quantize(model()[name], block_size=16, method="mse")
    assert loaded["layers.1.weight"] == qcore.quantize(model()["layers.1.weight"], block_size=16, method="mse")


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("piece", [None, 130])
def test_gptq_gives_the_weights_of_quantize(files, monkeypatch, kind, piece):
    if piece is not None:
        monkeypatch.setattr(chunks, "_PIECE_ITEMS", piece)
    flags = ["--method", "gptq", "--samples", files / f"s.{kind}", "--block-size", 16]
    plan = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags, "--dry-run").stdout
    assert ", awq: a convolution" in plan
    assert ", mse: no samples" in plan
    done = run("quantize", files / "m.safetensors", files / "o.safetensors", *flags)
    assert done.exit_code == 0
    assert "1 tensor without samples: mse instead of gptq" in done.stdout
    loaded, samples = qcore.load(files / "o.safetensors"), inputs()
    name = "layers.0.weight"
    expected = qcore.quantize(model()[name], block_size=16, method="gptq", samples=samples[name])
    # Sums over other numbers of rows may differ in their last bits.
    assert (loaded[name].codes() == expected.codes()).mean() > 0.99
    convolution = qcore.quantize(model()["conv.weight"], block_size=16, method="awq", samples=samples["conv.weight"])
    assert loaded["conv.weight"] == convolution
    assert loaded["layers.1.weight"] == qcore.quantize(model()["layers.1.weight"], block_size=16, method="mse")


def test_gptq_takes_damping_and_activation_order(files):
    flags = ["--method", "gptq", "--samples", files / "s.npz", "--act-order", "--damping", "0.2"]
    assert run("quantize", files / "m.safetensors", files / "o.safetensors", *flags).exit_code == 0
    name = "layers.0.weight"
    options = {"method": "gptq", "samples": inputs()[name], "damping": 0.2}
    expected = qcore.quantize(model()[name], act_order=True, **options)
    assert qcore.load(files / "o.safetensors")[name] == expected
    assert expected != qcore.quantize(model()[name], **options)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_mse_is_awq_with_equal_inputs(scheme):
    weight = model()["layers.0.weight"]
    awq = qcore.quantize(weight, scheme=scheme, method="awq", samples=np.ones((3, 64), np.float32))
    assert awq == qcore.quantize(weight, scheme=scheme, method="mse")


def test_a_dry_run_says_which_layers_have_no_samples(files):
    done = run(
        "quantize", files / "m.safetensors", files / "o", "--method", "awq", "--samples", files / "s.npz", "--dry-run"
    )
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if "blocks of" in line}
    assert {name for name, line in lines.items() if "mse: no samples" in line} == {"layers.1.weight"}
    assert set(lines) == {"layers.0.weight", "layers.1.weight", "conv.weight"}
    assert not (files / "o").exists()


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_bfloat16_weights_and_samples_need_no_ml_dtypes(tmp_path, monkeypatch, method):
    import ml_dtypes

    weight, samples = model()["layers.0.weight"], inputs()["layers.0.weight"]
    narrow = [array.astype(ml_dtypes.bfloat16) for array in (weight, samples)]
    qcore.save(tmp_path / "m.safetensors", {"w": narrow[0]})
    qcore.save(tmp_path / "s.safetensors", {"w": narrow[1]})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    flags = ["--method", method, "--samples", str(tmp_path / "s.safetensors")]
    assert main(["quantize", str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors"), *flags]) == 0
    expected = qcore.quantize(narrow[0].astype(np.float32), method=method, samples=narrow[1].astype(np.float32))
    assert qcore.load(tmp_path / "o.safetensors")["w"] == expected


@pytest.mark.parametrize("change", [False, True], ids=["the same samples", "other samples"])
def test_an_interrupted_run_goes_on_with_the_same_samples_only(files, monkeypatch, change):
    class Killed(BaseException):
        pass

    finish = PartialFile.finish_tensor

    def stop(self, tensor, writer):
        if tensor == "layers.1.weight":
            raise Killed
        finish(self, tensor, writer)

    options = Options(method="awq", samples=str(files / "s.npz"))
    with monkeypatch.context() as patch, open_checkpoint(files / "m.safetensors") as checkpoint:
        patch.setattr(PartialFile, "finish_tensor", stop)
        with pytest.raises(Killed):
            quantize_checkpoint(checkpoint, files / "o.safetensors", options)
    if change:
        np.savez(files / "s.npz", **inputs(seed=1))
    with open_checkpoint(files / "m.safetensors") as checkpoint:
        result = quantize_checkpoint(checkpoint, files / "o.safetensors", options)
    assert (result.resumed == 0) is change
    assert result.discarded is change
    expected = qcore.quantize(
        model()["layers.0.weight"], method="awq", samples=inputs(seed=int(change))["layers.0.weight"]
    )
    assert qcore.load(files / "o.safetensors")["layers.0.weight"] == expected


def archive(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return content.getvalue()


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def compressed(array):
    content = io.BytesIO()
    np.savez_compressed(content, **{"layers.0.weight": array})
    return content.getvalue()


def huge():
    """Write an array of 2^50 rows whose header is all there is."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (2**50, 64)})
    return archive({"layers.0.weight.npy": content.getvalue()})


X = inputs()["layers.0.weight"]
PACKED = compressed(X)
NAN = np.where(np.arange(64) == 3, np.nan, X)
NPY = archive({"layers.0.weight.npy": b"no array"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npz(**{"layers.0": X}), ["'layers.0'", "expected names of the input's tensors"]),
        (npz(**{"embed.weight": X}), ["1 arrays", "expected one or more of tensors that are quantized"]),
        (npz(), ["0 arrays", "expected one or more"]),
        (npz(**{"layers.0.weight": X[:, :3]}), ["shape [40, 3]", "[M, K] with K = 64"]),
        (npz(**{"layers.0.weight": X[0]}), ["shape [64]", "[M, K] with K = 64"]),
        (npz(**{"layers.0.weight": X[:0]}), ["shape [0, 64]", "[M, K] with K = 64"]),
        (npz(**{"layers.0.weight": NAN}), ["layers.0.weight", "NaN or an infinity", "expected finite values"]),
        (npz(**{"layers.0.weight": X.astype(complex)}), ["dtype complex128", "expected floats or integers"]),
        (npz(**{"layers.0.weight": np.array([None])}), ["dtype object", "expected floats or integers"]),
        (NPY, ["it can't be read", "expected arrays of numpy.savez"]),
        (npz(**{"layers.0.weight": X})[:-40], ["it can't be read", "expected arrays of numpy.savez"]),
        (npz(**{"layers.0.weight": X}).replace(X.tobytes()[:64], bytes(64)), ["array 'layers.0.weight' can't be read"]),
        (
            PACKED[:300] + bytes(100) + PACKED[400:],
            ["'layers.0.weight' can't be read", "expected arrays of numpy.savez"],
        ),
        (huge(), ["'layers.0.weight' has 128 bytes", "for shape [1125899906842624, 64]"]),
        (b"hello, no samples", ["s.bin", "safetensors"]),
        (None, ["s.bin", "No such file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_samples_that_are_refused(files, capsys, content, words):
    path = files / "s.bin"
    if content is not None:
        path.write_bytes(content)
    before = sorted(files.iterdir())
    arguments = ["quantize", str(files / "m.safetensors"), str(files / "o"), "--method", "awq", "--samples", str(path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("qcore: error: ") and error.count("\n") == 1
    for word in [str(path), *words]:
        assert word in error
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--method", "awq"], "--samples is missing and method is 'awq', expected a file"),
        (["--method", "gptq"], "--samples is missing and method is 'gptq', expected a file"),
        (["--method", "mse", "--damping", "0.2"], "damping is 0.2, expected 0.01 with method='mse'"),
        (["--method", "gptq", "--damping", "-1", "--samples", "s.npz"], "damping is -1.0, expected a finite number"),
        (["--method", "mse", "--samples", "s.npz"], "--samples is given and method is 'mse', expected a file"),
        (["--method", "awq", "--samples", "o"], "o is the input, expected another file"),
    ],
)
def test_options_that_do_not_fit_together(files, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(files)
    (files / "o").write_bytes((files / "s.npz").read_bytes())
    assert main(["quantize", "m.safetensors", "o", *flags]) == 2
    assert words in capsys.readouterr().err
    assert (files / "o").read_bytes() == (files / "s.npz").read_bytes()
