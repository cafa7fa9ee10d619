"""Row lookup and weight storage on a CUDA device: the bits of the CPU.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernel on the CPU.
"""

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

import qcore.torch as qt  # noqa: E402

pytestmark = pytest.mark.gpu


def weight_of(shape, **options):
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return qcore.quantize(values, **options)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("shape, g", [((5, 7), 4), ((100, 130), 32), ((33, 600), 6), ((1000, 896), 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_have_the_bits_of_the_cpu(bits, scheme, shape, g, dtype):
    weight = weight_of(shape, bits=bits, scheme=scheme, block_size=g)
    there = weight.to("cuda")
    for count in (0, 1, 9, 70000 // shape[1]):
        indices = torch.randint(0, shape[0], (count,))
        expected = qcore.embedding(indices, weight, out_dtype=dtype)
        got = qcore.embedding(indices.cuda(), there, out_dtype=dtype)
        assert torch.equal(got.cpu(), expected)
    assert qcore.last_kernel("embedding") == "simt"
    strided = torch.full((9, shape[1], 2), 7.0, dtype=dtype, device="cuda")
    indices = torch.randint(0, shape[0], (9,), dtype=torch.int32)
    qcore.embedding(indices.cuda(), there, out=strided[:, :, 1])
    assert torch.equal(strided[:, :, 1].cpu(), qcore.embedding(indices, weight, out_dtype=dtype))
    assert (strided[:, :, 0] == 7).all()


def test_an_index_outside_gives_nan():
    there = weight_of((6, 40), bits=4, block_size=8).to("cuda")
    got = qcore.embedding(torch.tensor([-1, 6, 2], device="cuda"), there)
    assert torch.isnan(got[:2]).all() and torch.isfinite(got[2]).all()


@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
def test_a_tied_head_shares_the_memory_of_the_embedding(scale_dtype):
    weight = weight_of((300, 128), bits=4, block_size=32, scale_dtype=scale_dtype)
    embedding, head = qt.Embedding(weight), qt.Linear(weight, compute="float")
    model = torch.nn.ModuleList([embedding, head]).cuda()
    assert model[0].packed is model[1].packed and model[0].packed.is_cuda
    indices = torch.tensor([[1, 299], [0, 5]])
    assert torch.equal(model[0](indices.cuda()).cpu(), qcore.embedding(indices, weight))
    assert model[1].weight.to("cpu") == weight
    back = model.cpu()
    assert back[0].packed is back[1].packed and back[0].weight == weight
    compiled = torch.compile(model.cuda()[0], fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(indices.cuda()).cpu(), qcore.embedding(indices, weight))


def test_stacked_and_cut_weights_stay_on_the_device():
    weight = weight_of((40, 64), bits=4, scheme="asymmetric", block_size=32)
    there = qcore.concatenate([weight.to("cuda"), weight.to("cuda")])
    assert there.device.startswith("cuda")
    assert there.slice_rows(40, 80).to("cpu") == weight
    view = qcore.QuantizedTensor.from_storage(
        torch.from_dlpack(there.storage()),
        there.shape,
        bits=4,
        block_size=32,
        scale_dtype="float32",
        offset_dtype="float32",
    )
    assert view == there
