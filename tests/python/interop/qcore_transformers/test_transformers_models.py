"""Models quantized while transformers loads them: saved and loaded, compared with float, in bounded memory."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", minversion="5.0")

import model_folders  # noqa: E402
from model_folders import float_folder, kl, llama, logits  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import qcore  # noqa: E402
import qcore.transformers as qt  # noqa: E402
from qcore.formats import open_checkpoint  # noqa: E402
from qcore.transformers.modules import is_conv1d, packed_modules  # noqa: E402
from qcore.weight_encoding import ENCODINGS  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2():
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=96, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, vocab_size=96))


def t5():
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=96)
    return transformers.T5ForConditionalGeneration(config)


def qwen():
    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=2, vocab_size=96, tie_word_embeddings=True)
    return transformers.Qwen2ForCausalLM(config)


def inputs_of(model):
    tokens = torch.arange(1, 17)[None] * 5
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})


MODELS = {"llama": llama, "tied": lambda: llama(tie=True), "gpt2": gpt2, "bert": bert, "t5": t5, "qwen": qwen}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def quantized(folder, kind=transformers.AutoModelForCausalLM, config=None, **options):
    return kind.from_pretrained(folder, quantization_config=config or qt.QcoreConfig(compute="float"), **options)


def weights_of(model):
    return {name: module.weight for name, module in packed_modules(model)}


def dequantized(model, packed):
    """Return the float model with the values of the packed weights."""
    with torch.no_grad():
        for name, weight in weights_of(packed).items():
            parameter = model.get_parameter(f"{name}.weight")
            value = torch.from_numpy(weight.dequantize())
            parameter.copy_(value.T if is_conv1d(model.get_submodule(name)) else value)
    return model


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load_give_the_same_bits(model, tmp_path, bits, dtype):
    float_folder(tmp_path / "float", model.to(dtype))
    config = qt.QcoreConfig(bits=bits, compute="float")
    made = quantized(tmp_path / "float", type(model), config)
    assert len(weights_of(made)) >= 8
    made.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    first, second = weights_of(made), weights_of(again)
    assert list(first) == list(second)
    assert all(first[name] == second[name] for name in first)
    for (name, a), (other, b) in zip(made.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    assert torch.equal(logits(made, **inputs_of(model)), logits(again, **inputs_of(model)))
    again.save_pretrained(tmp_path / "twice")
    once, twice = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "twice"))
    assert list(once) == list(twice)
    assert all(torch.equal(once[name], twice[name]) and once[name].dtype == twice[name].dtype for name in once)


def test_logits_are_those_of_the_dequantized_weights(model, tmp_path):
    float_folder(tmp_path / "float", model)
    made = quantized(tmp_path / "float", type(model))
    expected = logits(dequantized(model, made), **inputs_of(model))
    assert kl(expected, logits(made, **inputs_of(model))) < 1e-6


def test_weights_are_those_of_quantize(tmp_path):
    model = llama()
    float_folder(tmp_path / "float", model)
    config = qt.QcoreConfig(bits=8, block_size=16, scheme="symmetric", method="mse", scale_dtype="float32")
    for name, weight in weights_of(quantized(tmp_path / "float", config=config)).items():
        exact = model.get_parameter(f"{name}.weight").detach()
        expected = qcore.quantize(exact, bits=8, block_size=16, method="mse", scale_dtype="float32")
        assert weight == expected


@pytest.mark.parametrize(
    "options",
    [*({"bits": bits, "block_size": 16} for bits in (2, 3, 5, 6)), {"encoding": "q4_k"}, {"encoding": "nvfp4"}],
    ids=str,
)
def test_other_widths_and_encodings(tmp_path, options):
    model = llama()
    float_folder(tmp_path / "float", model)
    layers = {"0.mlp": {"bits": 3, "block_size": 32}, "1.mlp.up_proj": {"encoding": "q6_k"}}
    made = quantized(tmp_path / "float", config=qt.QcoreConfig(compute="float", layers=layers, **options))
    for name, weight in weights_of(made).items():
        own = next((each for pattern, each in layers.items() if pattern in name), options)
        exact = model.get_parameter(f"{name}.weight").detach()
        if "encoding" in own:
            assert weight == qcore.quantize_encoded(exact, **own), name
        else:
            scales = {"method": "mse", "scale_dtype": "float16"}
            assert weight == qcore.quantize(exact, **own, **scales), name
    made.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert saved["layers"] == layers and ("encoding" in saved) == ("encoding" in options) != ("bits" in saved)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert weights_of(again) == weights_of(made) and torch.equal(logits(again), logits(made))


def test_the_files_own_numbers_are_quantized(tmp_path):
    model = llama()
    float_folder(tmp_path / "float", model)
    options = {"bits": 4, "block_size": 32, "scheme": "asymmetric", "method": "rtn", "scale_dtype": "float16"}
    config = qt.QcoreConfig(**options)
    made = quantized(tmp_path / "float", config=config, dtype=torch.bfloat16)
    weight = made.model.layers[0].mlp.up_proj.weight
    assert weight == qcore.quantize(model.model.layers[0].mlp.up_proj.weight.detach(), **options)
    assert made.dtype == torch.bfloat16


def test_options_by_layer_and_what_is_left(tmp_path):
    float_folder(tmp_path / "float")
    config = qt.QcoreConfig(
        modules_to_not_convert=["lm_head", "model.layers.0.self_attn", "*.1.mlp.up_proj"],
        layers={"down_proj": {"bits": 8, "block_size": 64, "compute": "int16"}, "mlp": {"scheme": "asymmetric"}},
    )
    made = quantized(tmp_path / "float", config=config)
    made.save_pretrained(tmp_path / "saved")
    for model in (made, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")):
        found = dict(packed_modules(model))
        assert not any(word in name for name in found for word in ("lm_head", "0.self_attn", "1.mlp.up_proj"))
        down, gate = found["model.layers.0.mlp.down_proj"], found["model.layers.0.mlp.gate_proj"]
        assert (down.bits, down.block_size, down.compute, down.weight.scheme) == (8, 64, "int16", "symmetric")
        assert (gate.bits, gate.block_size, gate.compute, gate.weight.scheme) == (4, 32, "int8", "asymmetric")


def test_shards(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "float", max_shard_size="100KB")
    assert (tmp_path / "float" / "model.safetensors.index.json").is_file()
    made = quantized(tmp_path / "float")
    made.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert (tmp_path / "saved" / "model.safetensors.index.json").is_file()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(made), logits(again))
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        assert checkpoint["model.layers.1.mlp.up_proj.weight"] == made.model.layers[1].mlp.up_proj.weight


def test_the_library_reads_the_folder(tmp_path):
    float_folder(tmp_path / "float", llama(dtype=torch.bfloat16))
    made = quantized(tmp_path / "float")
    made.save_pretrained(tmp_path / "saved")
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        for name, weight in weights_of(made).items():
            assert checkpoint[f"{name}.weight"] == weight
            assert checkpoint.info(f"{name}.weight").format == "qcore"
        norm = checkpoint.tensor("model.norm.weight", framework="torch")
        assert norm.dtype == torch.bfloat16
        assert torch.equal(norm, made.model.norm.weight)
        with pytest.raises(qcore.QcoreValueError, match="framework is 'jax', expected one of 'numpy', 'torch'"):
            checkpoint.tensor("model.norm.weight", framework="jax")


def test_tied_heads_share_one_copy(tmp_path):
    float_folder(tmp_path / "float", llama(tie=True))
    made = quantized(tmp_path / "float")
    made.save_pretrained(tmp_path / "saved")
    for model in (made, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")):
        head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
        assert head == embedding
        assert np.shares_memory(head.storage(), embedding.storage())
    with open_checkpoint(tmp_path / "saved") as checkpoint:
        assert "lm_head.weight" not in checkpoint


def test_tied_weights_in_float_stay_tied(tmp_path):
    float_folder(tmp_path / "float", llama(tie=True))
    made = quantized(tmp_path / "float", config=qt.QcoreConfig(embeddings=False))
    assert made.lm_head.weight is made.model.embed_tokens.weight
    made.tie_weights()
    made.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_tie_weights_after_loading(tmp_path):
    float_folder(tmp_path / "float", llama(tie=True))
    made = quantized(tmp_path / "float")
    before = logits(made)
    made.tie_weights()
    assert torch.equal(before, logits(made))


def test_generate_and_state_dict(tmp_path):
    float_folder(tmp_path / "float")
    made = quantized(tmp_path / "float")
    tokens = made.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False)
    assert tokens.shape == (1, 8)
    assert "model.layers.0.mlp.up_proj.codes" in made.state_dict()


def test_dequantize(tmp_path):
    model = llama()
    float_folder(tmp_path / "float", model)
    made = quantized(tmp_path / "float", config=qt.QcoreConfig(compute="float", embeddings=False))
    expected = logits(made)
    made.dequantize()
    assert type(made.lm_head) is torch.nn.Linear
    assert kl(expected, logits(made)) < 1e-6


def test_none_does_not_hide_what_the_folder_says(tmp_path):
    float_folder(tmp_path / "float")
    made = quantized(tmp_path / "float")
    made.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", quantization_config=None)
    assert torch.equal(logits(made), logits(again))


def test_compute_counts_for_a_folder_of_qcore(tmp_path):
    """All else is as the folder says, also of layers for which a compute mode is given."""
    float_folder(tmp_path / "float")
    layers = {"mlp.down_proj": {"bits": 8}, "o_proj": {"compute": "int16"}}
    made = quantized(tmp_path / "float", config=qt.QcoreConfig(layers=layers))
    made.save_pretrained(tmp_path / "saved")
    for given, expected in (
        (qt.QcoreConfig(), {"mlp": "int8", "q_proj": "int8", "o_proj": "int16"}),
        (qt.QcoreConfig(compute="float"), {"mlp": "float", "q_proj": "float", "o_proj": "float"}),
        (
            qt.QcoreConfig(compute="int8_asym", layers={"mlp": {"compute": "float", "bits": 4}}),
            {"mlp": "float", "q_proj": "int8_asym", "o_proj": "int8_asym"},
        ),
    ):
        again = quantized(tmp_path / "saved", config=given)
        assert weights_of(again) == weights_of(made)
        for name, module in packed_modules(again):
            wanted = [compute for part, compute in expected.items() if part in name]
            assert not wanted or module.compute == wanted[0], name


def test_a_part_of_a_model(tmp_path):
    float_folder(tmp_path / "float")
    quantized(tmp_path / "float").save_pretrained(tmp_path / "saved")
    base = transformers.AutoModel.from_pretrained(tmp_path / "saved")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of_base(base), logits_of_base(whole.model))


def logits_of_base(model):
    with torch.no_grad():
        return model(torch.arange(1, 9)[None]).last_hidden_state


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bits": 7}, qcore.QcoreValueError, "bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
        ({"encoding": "q9"}, qcore.QcoreValueError, "encoding is 'q9', expected one of 'q2_k'"),
        ({"encoding": "q4_k", "bits": 4}, qcore.QcoreValueError, "bits is 4 and encoding 'q4_k', expected one of them"),
        (
            {"layers": {"x": {"encoding": "q4_k", "scheme": "symmetric"}}},
            qcore.QcoreValueError,
            r"layers\['x'\]: scheme is 'symmetric' and encoding 'q4_k'",
        ),
        ({"block_size": 0}, qcore.QcoreValueError, "block_size is 0, expected a positive integer"),
        ({"block_size": "32"}, qcore.QcoreTypeError, "block_size is '32', expected an integer"),
        ({"scheme": "odd"}, qcore.QcoreValueError, "scheme is 'odd', expected one of"),
        ({"method": "odd"}, qcore.QcoreValueError, "method is 'odd', expected one of"),
        ({"scale_dtype": "bfloat16"}, qcore.QcoreValueError, "scale_dtype is 'bfloat16', expected one of"),
        ({"compute": "fast"}, qcore.QcoreValueError, "compute is 'fast', expected one of"),
        ({"group_size": 32}, qcore.QcoreValueError, "'group_size' is no option, expected bits, block_size"),
        ({"modules_to_not_convert": "lm_head"}, qcore.QcoreTypeError, "is 'lm_head', expected a list of names"),
        ({"layers": {"x": {"bit": 4}}}, qcore.QcoreValueError, r"layers\['x'\]: bit is no option of a layer"),
        ({"layers": {"x": None}}, qcore.QcoreTypeError, r"layers\['x'\] is None, expected a dictionary of options"),
        ({"layers": ["x"]}, qcore.QcoreTypeError, "expected a dictionary of patterns"),
        ({"embeddings": 4}, qcore.QcoreTypeError, "embeddings is 4, expected True or False"),
        ({"quant_method": "awq"}, qcore.QcoreValueError, "quant_method is 'awq', expected 'qcore'"),
        ({"format": "qcore.weights.9"}, qcore.QcoreValueError, "format is 'qcore.weights.9', expected"),
    ],
)
def test_options_that_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        qt.QcoreConfig(**options)


@pytest.mark.parametrize("option", [{"modules_to_not_convert": ["head"]}, {"layers": {"*.up": {"bits": 8}}}])
def test_patterns_that_match_nothing(tmp_path, option):
    float_folder(tmp_path / "float")
    with pytest.raises(qcore.QcoreValueError, match="which matches none of the model's"):
        quantized(tmp_path / "float", config=qt.QcoreConfig(**option))


def test_a_nan_is_an_error_with_the_weights_name(tmp_path):
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
    float_folder(tmp_path / "float", model)
    with pytest.raises(qcore.QcoreValueError, match=r"model.layers.1.mlp.up_proj.weight: .*\[3, 5\]"):
        quantized(tmp_path / "float")


def test_lost_metadata_is_an_error(tmp_path):
    float_folder(tmp_path / "float")
    quantized(tmp_path / "float").save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt"})
    with pytest.raises(qcore.QcoreValueError, match="no description of it in the files' metadata"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")


MEASURE = """
    import sys
    import torch
    from model_folders import llama
    import transformers
    import qcore.transformers as qt
    from qcore.transformers.modules import packed_modules

    def status(key):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))

    def load(folder, config):
        options = {} if config is None else {"quantization_config": config}
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)

    small, large, packed = sys.argv[1:]
    torch.set_num_threads(1)
    for _ in range(2):
        load(small, qt.QcoreConfig()).save_pretrained(small + "-packed")
        load(small + "-packed", None)
    folder, config = (packed, None) if sys.argv[0] == "packed" else (large, qt.QcoreConfig())
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    model = load(folder, config)
    peak = status("VmHWM") - before
    weights = sum(module.weight.nbytes for _, module in packed_modules(model))
    floats = sum(p.nbytes for p in model.parameters())
    print(peak, weights + floats)
    if sys.argv[0] != "packed":
        model.save_pretrained(packed)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_peak_memory_is_the_final_size_and_a_tensor(tmp_path):
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "vocab_size": 1000}
    large = llama(**sizes)
    float_folder(tmp_path / "small")
    float_folder(tmp_path / "large", large)
    float_bytes = sum(parameter.nbytes for parameter in large.parameters())
    largest = max(parameter.nbytes for parameter in large.parameters())
    paths = [str(tmp_path / name) for name in ("small", "large", "packed")]
    for kind in ("float", "packed"):
        code = f"import sys; sys.argv[0] = {kind!r}\n" + textwrap.dedent(MEASURE)
        environment = os.environ | {"PYTHONPATH": os.path.dirname(model_folders.__file__), "QCORE_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False, env=environment
        )
        assert run.returncode == 0, run.stderr
        peak, final = map(int, run.stdout.split())
        assert final < 0.2 * float_bytes
        assert peak < final + 4 * largest + (16 << 20), (kind, peak, final, largest)


def test_models_that_were_quantized_in_place_are_saved(tmp_path):
    import qcore.torch

    model = llama(tie=True)
    qcore.torch.quantize_(model, bits=4, compute="float")
    model.float()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert weights_of(again) == weights_of(model)
    assert torch.equal(logits(model), logits(again))
    del model.hf_quantizer, model.config.quantization_config
    qt.adopt_(model).save_pretrained(tmp_path / "adopted")
    assert (tmp_path / "adopted" / "config.json").read_text() == (tmp_path / "saved" / "config.json").read_text()
    with pytest.raises(qcore.QcoreValueError, match="has no packed weights"):
        qt.adopt_(llama())


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"encoding": name} for name in ENCODINGS]
    + [{"bits": bits, "block_size": 32, "scheme": "asymmetric", "scale_dtype": "float16"} for bits in (2, 3, 5, 6)],
)
def test_encoded_weights_are_saved_as_they_are(tmp_path, capfd, options, tie):
    import qcore.torch

    model = llama(tie=tie)
    layers = {"*.down_proj": {"compute": "float"}, "*.0.mlp.up_proj": {"bits": 4}, "*.q_proj": {"encoding": "q6_k"}}
    qcore.torch.quantize_(model, layers=layers, **options)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert weights_of(again) == weights_of(model)
    assert {weight.encoding is None for weight in weights_of(again).values()} == {False, True}
    assert torch.equal(logits(model), logits(again))
    assert [module.compute for _, module in packed_modules(again)] == [
        module.compute for _, module in packed_modules(model)
    ]
    assert "UNEXPECTED" not in capfd.readouterr().err
    with open_checkpoint(tmp_path) as checkpoint:
        for name, weight in weights_of(model).items():
            assert f"{name}.weight" not in checkpoint or checkpoint[f"{name}.weight"] == weight


def test_a_small_share_is_a_warning(tmp_path, caplog):
    float_folder(tmp_path / "float")
    transformers.utils.logging.enable_propagation()
    try:
        quantized(tmp_path / "float", config=qt.QcoreConfig(modules_to_not_convert=["mlp"]))
    finally:
        transformers.utils.logging.disable_propagation()
    assert "% of the model's parameters are quantized" in caplog.text
    assert "proj.weight: modules_to_not_convert has 'mlp'" in caplog.text


def vit():
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_layer_whose_dtype_other_code_reads(tmp_path, dtype):
    torch.manual_seed(0)
    model = vit().eval()
    float_folder(tmp_path / "float", model)
    config = qt.QcoreConfig(bits=8, compute="float")
    kind = transformers.ViTForImageClassification
    made = kind.from_pretrained(tmp_path / "float", quantization_config=config, dtype=dtype)
    patches = made.vit.embeddings.patch_embeddings.projection
    assert isinstance(patches, qcore.torch.Conv2d)
    assert patches.weight.dtype == dtype
    assert len(weights_of(made)) == 14
    pixels = {"pixel_values": torch.randn(1, 3, 32, 32)}
    got = logits(made, **pixels)
    assert got.dtype == dtype
    assert kl(logits(model, **pixels), got.float()) < (1e-4 if dtype is torch.float32 else 1e-3)
    made.save_pretrained(tmp_path / "saved")
    again = kind.from_pretrained(tmp_path / "saved", dtype=dtype)
    assert weights_of(again) == weights_of(made)
    assert torch.equal(logits(again, **pixels), got)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("disk", "device_map has 'disk', expected devices"),
        (
            "cpu",
            "device_map has 'cpu' beside other devices, expected CUDA devices that hold all of the model, or 'cpu'",
        ),
    ],
)
def test_parts_of_a_model_elsewhere_are_refused(tmp_path, place, message):
    float_folder(tmp_path / "float")
    with pytest.raises(qcore.QcoreValueError, match=message):
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "float", quantization_config=qt.QcoreConfig(), device_map={"model": 0, "lm_head": place}
        )


def test_embeddings_that_scale_their_rows(tmp_path):
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=16, vocab_size=96)
    model = transformers.Gemma3ForCausalLM(config).eval()
    float_folder(tmp_path / "float", model)
    made = quantized(tmp_path / "float", type(model))
    made.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    assert "model.embed_tokens" in weights_of(made)
    assert kl(logits(dequantized(model, made)), logits(made)) < 1e-6
    assert torch.equal(logits(again), logits(made))
