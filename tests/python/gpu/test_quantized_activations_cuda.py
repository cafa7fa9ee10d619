"""Codes as x, one scale per row and given scales on a CUDA device: the bits of the CPU.

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

KERNELS = [row.name for row in qcore.kernels("linear") if row.device == "cuda" and row.available]
SHAPES = [
    (1, 128, 256, 64),
    (3, 75, 96, 32),
    (8, 160, 512, 512),
    (17, 160, 256, 128),
    (70, 96, 192, 32),
    (150, 272, 272, 272),
]


def random(*shape):
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(x)


def values(m, k, dtype=torch.float32):
    x = random(m, k)
    x[0] *= 30
    if m > 2:
        x[1, k // 2], x[2] = float("nan"), 0
    return x.to(dtype)


def assert_same(actual, expected, *what):
    np.testing.assert_array_equal(actual.float().cpu().numpy(), expected.float().numpy(), str(what))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["int8", "int8_asym", "int16"])
def test_activations_have_the_bits_of_the_cpu(mode, dtype):
    for m, k, g in [(1, 64, 16), (5, 200, 32), (7, 4096, 128), (3, 4096, None), (2, 33000, None), (4, 100, 7)]:
        x = values(m, k, dtype)
        for scale in (None, 0.02) if mode == "int8" else (None,):
            here = qcore.quantize_activations(x, g, mode, scale=scale)
            there = qcore.quantize_activations(x.cuda(), g, mode, scale=scale)
            assert_same(there.codes, here.codes, m, k, g)
            assert_same(there.scales, here.scales, m, k, g)
            if here.offsets is not None:
                assert_same(there.offsets, here.offsets, m, k, g)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", ["int8", "int8_asym", "int16"])
def test_products_have_the_bits_of_the_cpu(kernel, mode):
    ran = 0
    for m, n, k, g in SHAPES:
        for bits, scheme in ((4, "symmetric"), (8, "symmetric"), (4, "asymmetric")):
            weight = qcore.quantize(
                random(n, k), bits=bits, scheme=scheme, block_size=g, method="rtn", scale_dtype="float32"
            )
            x, there = values(m, k), weight.to("cuda")
            calls = [({"compute": mode}, qcore.quantize_activations(x, size, mode)) for size in {g, k}]
            if mode == "int8":
                calls += [({"compute": "int8_token"}, None), ({"x_scale": 0.05}, None)]
            for options, codes in calls:
                given = x if codes is None else codes
                expected = qcore.linear(given, weight, **options)
                if codes is not None:
                    offsets = None if codes.offsets is None else codes.offsets.cuda()
                    given = qcore.QuantizedActivations(
                        codes.codes.cuda(), codes.scales.cuda(), offsets, block_size=codes.block_size, compute=mode
                    )
                with qcore.force_kernel("linear", kernel):
                    try:
                        y = qcore.linear(given if codes is not None else x.cuda(), there, **options)
                    except qcore.QcoreValueError as refused:  # a shape or mode that this kernel leaves to others
                        assert kernel in str(refused)
                        continue
                ran += 1
                assert_same(y, expected, kernel, (m, n, k, g), bits, scheme, options)
    if not ran:
        pytest.skip(f"{kernel} takes none of these problems with {mode}")


def test_mixtures_of_experts_take_codes():
    counts, x = torch.tensor([3, 0, 5, 90]), values(98, 128)
    weight = qcore.quantize(random(4 * 32, 128), block_size=64, method="rtn", scale_dtype="float32")
    for size in (64, None):
        expected = qcore.grouped_linear(qcore.quantize_activations(x, size), weight, counts)
        codes = qcore.quantize_activations(x.cuda(), size)
        assert_same(qcore.grouped_linear(codes, weight.to("cuda"), counts.cuda()), expected)
    assert_same(qcore.grouped_linear(x.cuda(), weight.to("cuda"), counts.cuda(), compute="int8_token"), expected)
