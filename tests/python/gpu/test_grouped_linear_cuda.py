"""Products of mixtures of experts on a CUDA device: the bits of the CPU.

Runs only where there is a device and a torch that can use it. tests/cuda_host runs the same kernels on the CPU.
"""

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

COUNTS = ([3, 0, 1, 5], [1] * 40, [9], [0, 200, 2, 0, 130], [0, 0], [0, 3, 0, 5], [0] * 60 + [1])
KERNELS = [row.name for row in qcore.kernels("grouped_linear") if row.device == "cuda" and row.available]


def random(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", ["int8", "int8_asym", "int8_token", "int16", "float"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_kernels_have_the_bits_of_the_cpu(kernel, mode, bits, scheme):
    if kernel != "simt" and not mode.startswith("int8"):
        pytest.skip("it computes int8 and int8_asym only")
    few = kernel == "sm90_gemv"
    if few and (mode == "int8_asym" or scheme == "asymmetric"):
        pytest.skip("it computes int8 with symmetric weights only")
    for counts in [counts for counts in COUNTS if not few or sum(counts) <= 8]:
        for n, k, g in ((48, 128, 32), (160, 96, 64), (144, 512, 128), (80, 320, 320)):
            if few and mode == "int8_token" and g == 32:
                continue
            experts = len(counts)
            weight = qcore.quantize(
                random(experts * n, k), bits=bits, scheme=scheme, block_size=g, method="rtn", scale_dtype="float32"
            )
            x, bias, rows = random(sum(counts), k), random(experts, n), torch.tensor(counts)
            expected = qcore.grouped_linear(x, weight, rows, bias, compute=mode, activation="relu")
            out = torch.full((len(x), n, 2), 7.0, device="cuda")
            with qcore.force_kernel("grouped_linear", kernel):
                there = (x.cuda(), weight.to("cuda"), rows.cuda(), bias.cuda())
                qcore.grouped_linear(*there, compute=mode, activation="relu", out=out[..., 1])
            assert torch.equal(out[..., 1].cpu(), expected)
            assert (out[..., 0] == 7).all()
            with qcore.force_kernel("grouped_linear", kernel):
                plain = qcore.grouped_linear(there[0], there[1], rows.int().cuda(), there[3], compute=mode)
            assert torch.equal(plain.cpu(), qcore.grouped_linear(x, weight, rows, bias, compute=mode))


@pytest.mark.parametrize("kernel", KERNELS)
def test_counts_are_not_read_by_the_host_and_rows_without_an_expert_are_nan(kernel):
    weight = qcore.quantize(random(3 * 32, 64), block_size=32, method="rtn", scale_dtype="float32")
    x = random(8, 64)
    expected = qcore.grouped_linear(x[:6], weight, torch.tensor([2, 0, 4]))
    graph = torch.cuda.CUDAGraph()
    there, xs, counts = weight.to("cuda"), x.cuda(), torch.tensor([8, 0, 0], device="cuda")
    with qcore.force_kernel("grouped_linear", kernel):
        qcore.grouped_linear(xs, there, counts)
        with torch.cuda.graph(graph):  # a synchronization would fail in it
            y = qcore.grouped_linear(xs, there, counts)
    counts.copy_(torch.tensor([2, 0, 4]))
    graph.replay()
    assert torch.equal(y[:6].cpu(), expected) and torch.isnan(y[6:]).all()
