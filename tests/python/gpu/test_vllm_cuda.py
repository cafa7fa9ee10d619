"""The plugin for vLLM on a CUDA device, in vLLM's own layers and models: the weights and results of the CPU."""

import json

import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)
pytest.importorskip("vllm", reason="vLLM is not installed")

import vllm_setup as setup  # noqa: E402
from vllm_setup import QUANTIZATION, expected_sum, experts_of, llama, mixtral, random  # noqa: E402

import qcore.vllm  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _context(tmp_path_factory):
    with setup.in_vllm(tmp_path_factory.mktemp("group")):
        qcore.vllm.register()
        yield


def packed_layers(model):
    return {name: module for name, module in model.named_modules() if hasattr(module, "qcore_linear")}


def check_layers(there, here):
    """Check that every packed layer on the device has the CPU's weight and computes what the CPU's does."""
    mine, expected = packed_layers(there), packed_layers(here)
    assert list(mine) == list(expected)
    assert mine
    assert not [name for name, tensor in there.named_parameters() if not tensor.is_cuda]
    for name, layer in mine.items():
        weight = layer.qcore_linear.weight
        assert str(weight.device) == "cuda:0", name
        assert weight.to("cpu") == expected[name].qcore_linear.weight.to("cuda").to("cpu"), name
        x = random(5, weight.shape[1], seed=1)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            got = layer.quant_method.apply(layer, x.cuda().to(dtype))
            assert got.is_cuda and got.dtype == dtype
            torch.testing.assert_close(
                got.cpu(),
                expected[name].quant_method.apply(expected[name], x.to(dtype)),
                rtol=tolerance,
                atol=tolerance,
            )


@pytest.mark.parametrize("compute", ["float", "int8"])
@pytest.mark.parametrize("online", [False, True])
def test_a_model_on_the_device(tmp_path, online, compute):
    quantization = QUANTIZATION | {"compute": compute}
    tensors, _ = llama(tmp_path, quantization=None if online else quantization)
    options = {}
    if online:
        text = json.dumps(quantization | {"bits": 8})
        options = {"quantization": "qcore", "hf_overrides": {"quantization_config_dict_json": text}}
    here, _ = setup.load_model(tmp_path, tensors.items(), **options)
    there, _ = setup.load_model(tmp_path, tensors.items(), device="cuda", **options)
    check_layers(there, here)
    tokens = torch.tensor([0, 7, 99])
    assert torch.equal(there.model.embed_tokens(tokens.cuda()).cpu(), here.model.embed_tokens(tokens))
    x = random(3, 64, seed=5)
    torch.testing.assert_close(there.compute_logits(x.cuda()).cpu(), here.compute_logits(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("online", [False, True])
def test_experts_on_the_device(tmp_path, online):
    tensors, values = mixtral(tmp_path, quantization=None if online else QUANTIZATION)
    options = {}
    if online:
        text = json.dumps(QUANTIZATION | {"bits": 8, "embeddings": False})
        options = {"quantization": "qcore", "hf_overrides": {"quantization_config_dict_json": text}}
    model, _ = setup.load_model(tmp_path, tensors.items(), device="cuda", **options)
    experts = experts_of(model)
    x = random(7, 64, seed=3)
    ids = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))[:2] for i in range(7)])
    weights = torch.rand(7, 2, generator=torch.Generator().manual_seed(0))
    given = [x.cuda(), weights.cuda(), ids.int().cuda()]
    y = experts.quant_method.apply(experts, *given)
    tolerance = 2e-2 if online else 1e-4
    expected = expected_sum(values, x, weights, ids)
    torch.testing.assert_close(y.cpu(), expected, rtol=tolerance, atol=tolerance)

    # While a CUDA graph is recorded, every expert runs over every token.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = experts.quant_method.apply(experts, *given)
    given[0].copy_(torch.flip(x, [0]))
    graph.replay()
    expected = expected_sum(values, torch.flip(x, [0]), weights, ids)
    torch.testing.assert_close(recorded.cpu(), expected, rtol=tolerance, atol=tolerance)


def test_a_layer_in_a_cuda_graph(tmp_path):
    tensors, _ = llama(tmp_path)
    model, _ = setup.load_model(tmp_path, tensors.items(), device="cuda")
    layer = model.model.layers[0].mlp.gate_up_proj
    x = random(4, 64, seed=2).cuda()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded, _ = layer(x)
    x.neg_()
    graph.replay()
    expected, _ = layer(x)
    assert torch.equal(recorded, expected)
