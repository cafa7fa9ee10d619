"""Folders of bitsandbytes, as transformers saves them, opened in transformers with qcore's kernels."""

import json
import os

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

from model_folders import float_folder, float_twin, kl, logits, mixtral, replaced, rewritten  # noqa: E402
from packed_layers import bitsandbytes as bnb  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import qcore  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402

FLOAT = qt.QcoreConfig(compute="float")
ERRORS = {"nf4": 0.0039, "fp4": 0.0032}


def config(bits, **more):
    """Return what BitsAndBytesConfig writes."""
    return {
        "_load_in_4bit": bits == 4,
        "_load_in_8bit": bits == 8,
        "bnb_4bit_compute_dtype": "float32",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": False,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": bits == 4,
        "load_in_8bit": bits == 8,
        "quant_method": "bitsandbytes",
    } | more


def four_bit_folder(source, target, kind="nf4", **options):
    def encode(layer, matrix):
        parts = bnb.four_bits(matrix, kind, **options)
        ours, theirs, absmax = bnb.decoded(parts)
        assert np.abs(ours - theirs).max() <= ERRORS[kind] * absmax.max()
        return parts, ours

    return rewritten(source, target, config(4, bnb_4bit_quant_type=kind), encode)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return float_folder(tmp_path_factory.mktemp("float") / "model")


@pytest.fixture(autouse=True)
def disabled():
    yield
    qt.disable()


def loaded(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=FLOAT, **options)


def check_same(folder, values, source):
    """Check that the folder has these weights, and the logits of a float model that has them."""
    model = loaded(folder, dtype=torch.float32)
    found = dict(packed_modules(model))
    assert len(found) == len(values)
    for name, value in values.items():
        assert np.array_equal(found[name.removesuffix(".weight")].weight.dequantize(), value), name
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    return model


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("nested", [False, True])
def test_four_bits(source, tmp_path, kind, nested):
    folder, values = four_bit_folder(source, tmp_path / "bnb", kind, nested=nested)
    model = check_same(folder, values, source)
    layer = model.model.layers[0].self_attn.q_proj
    assert (layer.weight.bits, layer.weight.block_size, layer.compute) == (4, 32, "float")
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(model), logits(again))


def test_bytes_stored_as_other_dtypes(source, tmp_path):
    folder, values = four_bit_folder(source, tmp_path / "bnb", storage=np.float16)
    check_same(folder, values, source)


def test_int8(source, tmp_path):
    folder, values = rewritten(source, tmp_path / "bnb", config(8), lambda layer, matrix: bnb.int8(matrix))
    model = check_same(folder, values, source)
    assert model.model.layers[0].self_attn.q_proj.weight.bits == 8


@pytest.mark.parametrize("nested", [False, True])
def test_folders_with_state_dicts_of_torch(source, tmp_path, nested):
    folder, values = four_bit_folder(source, tmp_path / "bnb", nested=nested)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    check_same(folder, values, source)


def test_experts(tmp_path):
    source = float_folder(tmp_path / "float", mixtral())
    folder, values = four_bit_folder(source, tmp_path / "bnb", nested=True)
    assert sum("experts" in name for name in values) == 24
    twin = float_twin(source, tmp_path / "twin", values)
    expected = transformers.AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32)
    assert kl(logits(expected), logits(loaded(folder, dtype=torch.float32))) < 1e-6


def test_enable(source, tmp_path):
    from transformers.quantizers import auto

    before = dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING), dict(auto.AUTO_QUANTIZER_MAPPING)
    folder, values = four_bit_folder(source, tmp_path / "bnb")
    qt.enable("bitsandbytes", config=FLOAT)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert kl(logits(replaced(source, values)), logits(model)) < 1e-6
    qt.disable()
    assert before == (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING)


def test_hostile_folders_name_file_and_tensor(source, tmp_path):
    folder, _ = four_bit_folder(source, tmp_path / "bnb")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    layer = "model.layers.1.mlp.up_proj"
    lacking = {name: each for name, each in tensors.items() if name != f"{layer}.weight.absmax"}
    save_file(lacking, file, {"format": "pt"})
    with pytest.raises(qcore.QcoreValueError, match=rf"model\.safetensors: layer '{layer}' .* has no tensor {layer}"):
        loaded(folder)
    state = {"quant_type": "nf4", "blocksize": 96, "dtype": "float32", "shape": [128, 64]}
    name = f"{layer}.{bnb.STATE}nf4"
    wrong = {name: torch.from_numpy(bnb.described(state)), f"{layer}.weight.absmax": torch.ones(86)}
    save_file(tensors | wrong, file, {"format": "pt"})
    with pytest.raises(
        qcore.QcoreValueError, match=rf"model\.safetensors: tensor '{layer}\.weight': .*block_size is 96"
    ):
        loaded(folder)
    wrong = {name: torch.from_numpy(bnb.described(state | {"blocksize": 32, "shape": [64, 128]}))}
    save_file(tensors | wrong, file, {"format": "pt"})
    with pytest.raises(
        qcore.QcoreValueError, match=rf"{layer}\.weight of the files .* \[64, 128\], expected \[128, 64\]"
    ):
        loaded(folder)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("nested", [False, True])
def test_the_packages_own_layers(tmp_path, kind, nested):
    nn = pytest.importorskip("bitsandbytes.nn", reason="bitsandbytes is not installed")
    functional = pytest.importorskip("bitsandbytes.functional")
    matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32))
    layer = nn.Linear4bit(128, 64, bias=False, quant_type=kind, compress_statistics=nested)
    layer.weight = nn.Params4bit(matrix, requires_grad=False, quant_type=kind, compress_statistics=nested)
    state = {f"fc.{name}": tensor for name, tensor in layer.to("cpu").state_dict().items()}
    ours = bnb.four_bits(matrix.numpy(), kind, 64, nested)
    for part, array in ours.items():
        tensor = state.pop(f"fc.{part}")
        assert str(tensor.dtype).removeprefix("torch.") == str(array.dtype)
        if bnb.STATE in part:
            assert set(json.loads(tensor.numpy().tobytes())) == set(json.loads(array.tobytes()))
        else:
            assert tuple(tensor.shape) == array.shape, part
    assert not state
    save_file(layer.state_dict(prefix="fc."), tmp_path / "model.safetensors")
    expected = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    assert expected.shape == (64, 128)
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["fc.weight"]
        weight = checkpoint["fc.weight"]
    parts = {part.removeprefix("fc."): each.numpy() for part, each in load_file(tmp_path / "model.safetensors").items()}
    exact, theirs, absmax = bnb.decoded(parts)
    assert np.array_equal(weight.dequantize(), exact)
    assert (np.abs(theirs - expected.numpy()) <= 2.0**-22 * absmax).all()
    assert (np.abs(exact - expected.numpy()) <= ERRORS[kind] * absmax).all()


def test_the_packages_own_int8(tmp_path):
    nn = pytest.importorskip("bitsandbytes.nn", reason="bitsandbytes is not installed")
    matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32))
    layer = nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False)
    layer.weight = nn.Int8Params(matrix, requires_grad=False, has_fp16_weights=False)
    save_file(layer.to("cpu").state_dict(prefix="fc."), tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    ours, _ = bnb.int8(matrix.numpy())
    assert {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()} == {
        f"fc.{part}": (torch.from_numpy(each).dtype, each.shape) for part, each in ours.items()
    }
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint) == ["fc.weight"]
        weight = checkpoint["fc.weight"]
    scales = (tensors["fc.SCB"].numpy().astype(np.float64) / 127).astype(np.float32)
    assert np.array_equal(weight.dequantize(), tensors["fc.weight"].numpy() * scales[:, None])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_folder_that_transformers_has_saved(source, tmp_path, bits):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    double = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    options = transformers.BitsAndBytesConfig(
        **({"load_in_4bit": True} | double if bits == 4 else {"load_in_8bit": True})
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(source, quantization_config=options, device_map="cpu")
    model.save_pretrained(tmp_path / "bnb")
    ours = loaded(tmp_path / "bnb", dtype=torch.float32)
    found = dict(packed_modules(ours))
    assert len(found) == 14
    tensors = load_file(tmp_path / "bnb" / "model.safetensors")
    for name, module in found.items():
        parts = {
            part.removeprefix(f"{name}."): each.numpy() for part, each in tensors.items() if part.startswith(f"{name}.")
        }
        if bits == 4:
            expected = bnb.decoded({part: each for part, each in parts.items() if part != "bias"})[0]
        else:
            scales = (parts["SCB"].astype(np.float64) / 127).astype(np.float32)
            expected = parts["weight"] * scales[:, None]
        assert np.array_equal(module.weight.dequantize(), expected), name
