"""Fused models from folders and back: quantized while loading, tied heads, embeddings in 4 bits."""

import pytest
import torch
import transformers
from fused_models import tiny_models
from fused_models.calls import greedy, prompt
from safetensors.torch import load_file

import qcore.torch
from qcore.transformers import QcoreConfig, fuse_
from qcore.transformers.fuse.model import FusedMixin


@pytest.fixture(scope="module", params=("llama-biases", "gemma3", "phi3"))
def folder(request, tmp_path_factory):
    """Write a float model to disk."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    config = tiny_models.CONFIGS[request.param]()
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    model.save_pretrained(path)
    return path


def opened(path, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval()
    model.generation_config.eos_token_id = None
    return model


def test_a_fused_model_is_saved_and_opened(folder, tmp_path):
    config = QcoreConfig(bits=4, block_size=32, compute="float")
    model = opened(folder, quantization_config=config)
    expected = greedy(model, prompt()).sequences
    fuse_(model)
    assert torch.equal(greedy(model, prompt()).sequences, expected)
    model.save_pretrained(tmp_path / "fused")
    assert isinstance(model, FusedMixin)
    assert torch.equal(greedy(model, prompt()).sequences, expected)
    opened(folder, quantization_config=config).save_pretrained(tmp_path / "plain")
    assert (tmp_path / "fused" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    fused, plain = (load_file(tmp_path / each / "model.safetensors") for each in ("fused", "plain"))
    assert fused.keys() == plain.keys() and all(torch.equal(fused[key], plain[key]) for key in plain)
    again = opened(tmp_path / "fused")
    assert torch.equal(greedy(again, prompt()).sequences, expected)
    fuse_(again)
    assert torch.equal(greedy(again, prompt()).sequences, expected)


def test_tied_head_shares_its_memory_with_the_embedding(folder):
    model = opened(folder, quantization_config=QcoreConfig(bits=4, block_size=32))
    if not model.config.tie_word_embeddings or type(model.get_input_embeddings()) is not qcore.torch.Embedding:
        pytest.skip("the head has a weight of its own, or the embedding is in floating point")
    fuse_(model)
    model(prompt(1)["input_ids"])
    assert model.lm_head.packed.data_ptr() == model.get_input_embeddings().packed.data_ptr()


def test_a_head_in_floating_point(folder):
    options = QcoreConfig(bits=4, block_size=32, compute="float", modules_to_not_convert=["lm_head"], embeddings=False)
    model = opened(folder, quantization_config=options)
    assert type(model.lm_head) is torch.nn.Linear
    expected = greedy(model, prompt()).sequences
    fuse_(model)
    assert torch.equal(greedy(model, prompt()).sequences, expected)
