"""Folders and GGUF files that transformers opens onto a CUDA device: the weights and logits of the CPU."""

import os

import numpy as np
import pytest

import qcore

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
transformers = pytest.importorskip("transformers", minversion="5.20")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)
pytest.importorskip("accelerate", reason="device_map needs accelerate")

from model_folders import awq_folder, float_folder, gptq_folder, kl, llama, logits, mixtral, replaced  # noqa: E402

import qcore.torch  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import packed_modules  # noqa: E402
from qcore.transformers.quantizer import QcoreQuantizer  # noqa: E402

pytestmark = pytest.mark.gpu

FLOAT = qt.QcoreConfig(compute="float")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return float_folder(tmp_path_factory.mktemp("float") / "model")


def opened(folder, config=FLOAT, device_map="cuda:0", **options):
    options |= {} if config is None else {"quantization_config": config}
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, device_map=device_map, dtype=torch.float32, **options)


def test_folded_rotations_need_no_kernel():
    model = llama().eval()
    exact = logits(model)
    layers = {"*.down_proj": {"rotation": None}}
    model.to("cuda")
    with pytest.raises(
        qcore.QcoreValueError, match=r"down_proj is on cuda:0, expected the CPU with rotation='hadamard'"
    ):
        qcore.torch.quantize_(model, bits=8, rotation="hadamard", progress=False)
    report = qcore.torch.quantize_(
        model, bits=8, block_size=32, compute="float", rotation="hadamard", layers=layers, progress=False
    )
    assert "online in 0" in report.rotation
    assert kl(exact, logits(model).cpu()) < 1e-3


def check_device(model, count):
    """Check that all of the model is on the device, each packed weight in one copy."""
    assert all(tensor.is_cuda for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
    found = dict(packed_modules(model))
    assert len(found) == count
    assert all(module.weight.device in (torch.device("cuda", 0), "cuda:0") for module in found.values())
    return found


FOLDERS = {
    "awq gemm": awq_folder,
    "awq gemv": lambda source, target: awq_folder(source, target, "gemv"),
    "gptq": gptq_folder,
    "gptq 8 bits, version 2": lambda source, target: gptq_folder(source, target, 8, 2),
    "gptq act-order": lambda source, target: gptq_folder(source, target, act_order=True),
}


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS.keys())
def test_folders_of_other_programs(source, tmp_path, make):
    folder, values = make(source, tmp_path / "packed")
    model = opened(folder)
    found = check_device(model, len(values))
    for name, value in values.items():
        assert np.array_equal(found[name.removesuffix(".weight")].weight.to("cpu").dequantize(), value), name
    assert kl(logits(replaced(source, values)), logits(model).cpu()) < 1e-6


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q8_0"])
def test_gguf_files(tmp_path, kind):
    pytest.importorskip("gguf")
    from gguf_models import sizes, write

    values = write(tmp_path / "m.gguf", {"all": kind})
    model = opened(tmp_path, gguf_file="m.gguf")
    check_device(model, 9)
    exact = llama(**sizes())
    with torch.no_grad():
        for name, value in values.items():
            exact.get_parameter(name).copy_(torch.from_numpy(np.array(value)))
    assert kl(logits(exact), logits(model).cpu()) < 1e-6


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("compute", ["int8", "float"])
def test_quantized_while_loading_and_saved(tmp_path, tie, compute):
    folder = float_folder(tmp_path / "float", llama(tie))
    config = qt.QcoreConfig(bits=4, compute=compute)
    here = opened(folder, config, "cpu")
    there = opened(folder, config)
    weights, expected = check_device(there, 16), dict(packed_modules(here))
    for name, module in weights.items():
        assert module.weight.to("cpu") == expected[name].weight.to("cuda").to("cpu"), name
    # Codes of activations that lie between two integers go either way.
    assert kl(logits(here), logits(there).cpu()) < (1e-3 if compute == "int8" else 1e-6)
    there.save_pretrained(tmp_path / "there")
    here.save_pretrained(tmp_path / "here")
    with open_checkpoint(tmp_path / "here") as mine, open_checkpoint(tmp_path / "there") as theirs:
        assert list(mine) == list(theirs)
        for name in mine:
            same = mine[name] == theirs[name]
            assert same if isinstance(same, bool) else np.all(same), name
    again = opened(tmp_path / "there", None)
    check_device(again, len(weights))
    assert torch.equal(logits(again), logits(there))
    del again
    torch.cuda.synchronize()


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes change the device's free memory")
def test_memory_on_the_device_is_that_of_the_weights(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 8192, "num_hidden_layers": 4}
    folder = float_folder(tmp_path / "float", llama(**sizes))
    opened(folder, qt.QcoreConfig(bits=4)).save_pretrained(tmp_path / "saved")
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    model = opened(tmp_path / "saved", None)
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    held = sum(tensor.nbytes for tensors in (model.parameters(), model.buffers()) for tensor in tensors)
    assert held < 0.2 * sum(parameter.nbytes for parameter in llama(**sizes).parameters())
    # Allocators take memory in pieces of 2 MB and more.
    assert taken < 2 * held + 64 * 2**20


@pytest.mark.parametrize("make", [llama, mixtral])
def test_a_model_that_is_offloaded_in_part_is_refused(tmp_path, monkeypatch, make):
    # device_map="auto" makes such a map after the options were checked.
    monkeypatch.setattr(QcoreQuantizer, "validate_environment", lambda *_, **__: None)
    places = {"model.embed_tokens": 0, "model.layers.0": "cpu", "model.layers.1": 0, "model.norm": 0}
    places |= {"lm_head": 0, "model.rotary_emb": 0}
    if make is mixtral:  # attention stays, so that the experts are the first that is missing
        places |= {"model.layers.0.self_attn": 0, "model.layers.0.mlp": "cpu"}
        places |= {f"model.layers.0.{each}_layernorm": 0 for each in ("input", "post_attention")}
        del places["model.layers.0"]
    message = "device_map has left .*(weight|proj) off its devices, expected CUDA devices that hold all"
    with pytest.raises(qcore.QcoreValueError, match=message):
        opened(float_folder(tmp_path / "float", make()), FLOAT, places)


def test_models_that_read_dtype_and_device(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)).eval()
    folder = float_folder(tmp_path / "float", model)
    config = qt.QcoreConfig(bits=8, compute="float")
    made = type(model).from_pretrained(folder, quantization_config=config, device_map="cuda:0", dtype=torch.bfloat16)
    patches = made.vit.embeddings.patch_embeddings.projection
    assert isinstance(patches, qcore.torch.Conv2d)
    assert (patches.weight.dtype, patches.weight.device) == (torch.bfloat16, torch.device("cuda", 0))
    pixels = {"pixel_values": torch.randn(1, 3, 32, 32)}
    assert kl(logits(model, **pixels), logits(made, **pixels).cpu().float()) < 1e-3
