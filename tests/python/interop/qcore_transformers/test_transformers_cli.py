"""`qcore quantize IN OUT` for folders of transformers: what OUT holds, and who opens it."""

import json
import os
import warnings

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

from model_folders import float_folder, kl, llama, logits, replaced  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import qcore  # noqa: E402
import qcore.torch  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.cli import app  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

HALF = ["--block-size", 32, "--scale-dtype", "float16"]
PROJECTIONS = 14


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = float_folder(tmp_path_factory.mktemp("float") / "model")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("free")
    (folder / "notes.bin").write_bytes(b"123")
    (folder / ".hidden.json").write_text("{}")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def quantize(*arguments):
    done = run("quantize", *arguments)
    assert done.exit_code == 0, done.output
    return done


def opened(folder, config=None):
    options = {} if config is None else {"quantization_config": config}  # None would hide what config.json says
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("flags", [["--encoding", "q4_k"], ["--encoding", "mxfp4"], ["--bits", 3, *HALF]])
def test_encoded_weights_are_opened_as_they_are(source, tmp_path, flags):
    quantize(source, tmp_path / "out", *flags)
    model = opened(tmp_path / "out")
    weights = load_file(source / "model.safetensors")
    for name, module in packed_modules(model):
        matrix = weights[f"{name}.weight"]
        if flags[0] == "--encoding":
            assert module.weight == qcore.quantize_encoded(matrix, flags[1])
        else:
            assert module.weight == qcore.quantize(matrix, bits=3, block_size=32, scale_dtype="float16")
    assert not {"bits", "block_size"} & set(config_of(tmp_path / "out")["quantization_config"])
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(opened(tmp_path / "again")), logits(model))


def test_defaults_are_the_same_everywhere(source, tmp_path):
    """Those of quantize, quantize_, QcoreConfig and the command line, but for the bits of quantize_."""
    quantize(source, tmp_path / "out")
    written, loaded = (
        dict(packed_modules(opened(*given))) for given in ((tmp_path / "out",), (source, qt.QcoreConfig()))
    )
    narrow, wide = opened(source), opened(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        qcore.torch.quantize_(narrow, bits=4)
        qcore.torch.quantize_(wide, bits=8)
    weights = load_file(source / "model.safetensors")
    assert len(written) >= PROJECTIONS and written.keys() == loaded.keys()
    for name, module in written.items():
        matrix = weights[f"{name}.weight"]
        made = qcore.quantize(matrix)
        assert (made.bits, made.block_size, made.scheme, made.scale_dtype) == (4, 32, "symmetric", "float16")
        assert made == qcore.quantize(matrix, method="mse")
        assert made == module.weight == loaded[name].weight
        if "proj" in name:  # embeddings have 8 bits in quantize_
            assert made == narrow.get_submodule(name).weight
            assert qcore.quantize(matrix, bits=8) == wide.get_submodule(name).weight
            layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0])
            layer.weight.data = torch.as_tensor(matrix)
            assert qcore.quantize(matrix, bits=8) == qcore.torch.Linear.from_float(layer, bits=8).weight


def test_from_pretrained_opens_what_was_written(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, "--scheme", "asymmetric", *HALF)
    model = opened(out)
    same = opened(source, qt.QcoreConfig(block_size=32, scheme="asymmetric"))
    found, expected = dict(packed_modules(model)), dict(packed_modules(same))
    assert list(found) == list(expected)
    assert all(found[name].weight == expected[name].weight for name in found)
    assert torch.equal(logits(model), logits(same))
    values = config_of(out)
    given = values.pop("quantization_config")
    assert values == config_of(source)
    assert (given["quant_method"], given["bits"], given["block_size"]) == ("qcore", 4, 32)
    with open_checkpoint(out) as checkpoint:
        assert checkpoint["lm_head.weight"] == model.lm_head.weight


def test_other_files_are_copied(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out)
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {
        "1_Pooling/config.json",
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_what_is_left_is_written(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, "--no-lm-head", "--exclude", "*.0.mlp.*")
    left = config_of(out)["quantization_config"]["modules_to_not_convert"]
    assert left == ["lm_head", *(f"model.layers.0.mlp.{name}_proj" for name in ("down", "gate", "up"))]
    model = opened(out)
    assert type(model.lm_head) is type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert len([name for name, _ in packed_modules(model) if "proj" in name]) == PROJECTIONS - 3


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_folders(source, tmp_path, bits):
    out = tmp_path / "out"
    quantize(source, out, "--format", "gptq", "--bits", bits, *HALF)
    values = config_of(out)["quantization_config"]
    parsed = transformers.GPTQConfig.from_dict(dict(values))
    assert (parsed.bits, parsed.group_size, parsed.format, parsed.desc_act, parsed.sym) == (
        bits,
        32,
        "gptq",
        False,
        True,
    )
    assert values["lm_head"] is False
    per_word = 32 // bits
    check_parts(
        out,
        {
            "qweight": (torch.int32, lambda n, k: (k // per_word, n)),
            "qzeros": (torch.int32, lambda n, k: (k // 32, n // per_word)),
            "scales": (torch.float16, lambda n, k: (k // 32, n)),
            "g_idx": (torch.int32, lambda n, k: (k,)),
        },
    )
    check_opened(source, out, bits)


def test_awq_folders(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, "--format", "awq", "--exclude", "*.1.self_attn.q_proj.weight", *HALF)
    values = config_of(out)["quantization_config"]
    parsed = transformers.AwqConfig.from_dict(dict(values))
    assert (parsed.bits, parsed.group_size, parsed.zero_point, parsed.format) == (4, 32, True, "gemm")
    assert parsed.modules_to_not_convert == ["lm_head", "model.layers.1.self_attn.q_proj"]
    check_parts(
        out,
        {
            "qweight": (torch.int32, lambda n, k: (k, n // 8)),
            "qzeros": (torch.int32, lambda n, k: (k // 32, n // 8)),
            "scales": (torch.float16, lambda n, k: (k // 32, n)),
        },
        PROJECTIONS - 1,
    )
    check_opened(source, out, 4, ["*.1.self_attn.q_proj", "lm_head"])


def check_parts(folder, parts, count=PROJECTIONS):
    """Check that names, dtypes and shapes are those that the format's loaders create."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        names = set(file.keys())
        layers = {name.removesuffix(".qweight") for name in names if name.endswith(".qweight")}
        assert len(layers) == count
        sizes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
        sizes |= {"gate": (128, 64), "up": (128, 64), "down": (64, 128)}
        for layer in layers:
            assert f"{layer}.weight" not in names
            n, k = sizes[layer.rpartition(".")[2].removesuffix("_proj")]
            for part, (dtype, shape) in parts.items():
                tensor = file.get_tensor(f"{layer}.{part}")
                assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape(n, k))
        assert {name for name in names if "lm_head" in name} == {"lm_head.weight"}


def check_opened(source, out, bits, left=("lm_head",)):
    model = opened(out, qt.QcoreConfig(compute="float"))
    options = {"bits": bits, "block_size": 32}
    weights = dict(packed_modules(opened(source, qt.QcoreConfig(**options, modules_to_not_convert=list(left)))))
    found = dict(packed_modules(model))
    assert {name for name in found if "proj" in name} == {name for name in weights if "proj" in name}
    values = {f"{name}.weight": weights[name].weight.dequantize() for name in found}
    assert all(np.array_equal(found[name].weight.dequantize(), values[f"{name}.weight"]) for name in found)
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6


def test_tied_heads_are_quantized(tmp_path):
    source = float_folder(tmp_path / "tied", llama(tie=True))
    quantize(source, tmp_path / "out")
    assert type(opened(tmp_path / "out").lm_head).__module__.startswith("qcore")
    quantize(source, tmp_path / "float", "--no-lm-head")
    assert type(opened(tmp_path / "float").lm_head) is torch.nn.Linear


def test_samples_by_names_of_the_files(source, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    np.savez(tmp_path / "x.npz", **{name: x})
    quantize(source, tmp_path / "out", "--method", "awq", "--samples", tmp_path / "x.npz")
    model = opened(tmp_path / "out")
    with open_checkpoint(source) as checkpoint:
        expected = qcore.quantize(checkpoint[name], bits=4, method="awq", samples=x)
    assert model.model.layers[0].mlp.up_proj.weight == expected
    with pytest.raises(qcore.QcoreValueError, match="method is 'awq', expected 'rtn' or 'mse' while a model is loaded"):
        opened(source, qt.QcoreConfig(method="awq"))


def test_a_file_as_output_is_as_before(source, tmp_path):
    quantize(source, tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").is_file()
    with pytest.raises(qcore.QcoreValueError, match=r"--lm-head or --embeddings is given and .* is no folder"):
        run("quantize", source, tmp_path / "out.safetensors", "--no-lm-head")


def test_dry_run_writes_nothing(source, tmp_path):
    done = quantize(source, tmp_path / "out", "--dry-run")
    assert f"{PROJECTIONS + 2} of 29 tensors quantized" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "awq", *HALF, "--lm-head"], "--lm-head with --format awq, expected --format qcore"),
        (["--format", "gptq", *HALF, "--embeddings"], "--embeddings with --format gptq, expected --format qcore"),
        (
            ["--format", "gptq", "--scale-dtype", "float32"],
            "scale dtype float32, expected --scheme symmetric --scale-dtype float16",
        ),
        (["--exclude", "nothing"], "--exclude 'nothing' matches none"),
    ],
)
def test_what_is_refused(source, tmp_path, arguments, message):
    with pytest.raises(qcore.QcoreValueError, match=message):
        run("quantize", source, tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_refused(source, tmp_path):
    quantize(source, tmp_path / "out")
    with pytest.raises(qcore.QcoreValueError, match="is quantized already, expected a float model"):
        run("quantize", tmp_path / "out", tmp_path / "again")
    with pytest.raises(qcore.QcoreValueError, match="is the input, expected another folder"):
        run("quantize", source, source)
    (tmp_path / "file").write_text("")
    with pytest.raises(qcore.QcoreValueError, match="is a file, expected a folder"):
        run("quantize", source, tmp_path / "file")
