"""qcore.torch on a CUDA device: modules move there, give the operators' bits, stay in graphs, follow streams."""

import copy

import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

qt = pytest.importorskip("qcore.torch")
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def linear(**options):
    return qt.Linear.from_float(torch.nn.Linear(160, 48), **{"bits": 8, "block_size": 32} | options)


def convolution():
    return qt.Conv2d.from_float(torch.nn.Conv2d(16, 24, 3, padding=1), bits=8, block_size=16)


def gru():
    return qt.GRU.from_float(torch.nn.GRU(8, 32), samples=torch.randn(20, 4, 8))


CASES = {
    "linear 4 bits": (lambda: linear(bits=4, scheme="asymmetric"), (3, 160)),
    "linear 8 bits": (lambda: linear(bits=8), (2, 5, 160)),
    "conv2d": (convolution, (2, 16, 9, 11)),
    "gru": (gru, (6, 3, 8)),
    "lut": (lambda: qt.LutActivation("silu"), (4, 33)),
}
cases = pytest.mark.parametrize("make, shape", CASES.values(), ids=CASES.keys())


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left.cpu(), right.cpu())
    return len(left) == len(right) and all(map(same, left, right))


def on_device(result):
    return all(each.is_cuda for each in (result if isinstance(result, tuple) else (result,)))


@cases
@torch.no_grad()
def test_moved_modules_give_the_bits_of_the_cpu(make, shape):
    module, x = make(), torch.randn(shape)
    expected = module(x)
    moved = copy.deepcopy(module).cuda()
    assert all(tensor.is_cuda for tensor in moved.buffers())
    y = moved(x.cuda())
    assert on_device(y)
    assert same(y, expected)
    assert same(moved.cpu()(x), expected)


@torch.no_grad()
def test_a_weight_elsewhere_is_refused():
    for make, shape in (CASES["linear 8 bits"], CASES["conv2d"]):
        with pytest.raises(ValueError, match=r"cuda:0.*cpu|cpu.*cuda:0"):
            make().cuda()(torch.randn(shape))


@torch.no_grad()
def test_made_from_modules_on_the_device():
    layer = torch.nn.Linear(160, 48)
    there = qt.Linear.from_float(copy.deepcopy(layer).cuda(), bits=4, block_size=32)
    assert there.packed.is_cuda
    assert there.weight == qt.Linear.from_float(layer, bits=4, block_size=32).weight


@cases
@pytest.mark.parametrize("options", ({"backend": "aot_eager"}, {}, {"mode": "reduce-overhead"}), ids=str)
@torch.no_grad()
def test_compiled_without_breaks(make, shape, options):
    module, x = make().cuda(), torch.randn(shape, device="cuda")
    compiled = torch.compile(module, fullgraph=True, **options)
    for _ in range(4):  # reduce-overhead records a CUDA graph at the second call
        assert same(compiled(x), module(x))


@cases
@torch.no_grad()
def test_follows_the_current_stream(make, shape):
    module, x = make().cuda(), torch.randn(shape, device="cuda")
    expected = module(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        y = module(late)
    stream.synchronize()
    assert same(y, expected)


@torch.no_grad()
def test_a_quantized_model():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.SiLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 64, 10)
    ).cuda()
    x = torch.randn(4, 3, 8, 8, device="cuda")
    exact = model(x)
    report = qt.quantize_(model, bits=8, calibration=x, activations=True)
    assert report.model_error < 0.05
    y = model(x)
    assert on_device(y)
    assert float((y - exact).norm() / exact.norm()) < 0.05
    with torch.autocast("cuda", torch.float16):
        assert model[0](x).dtype == torch.float16
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), y)


def test_adapters_train():
    base = linear(bits=4).cuda()
    down, up = torch.nn.Linear(160, 4, bias=False).cuda(), torch.nn.Linear(4, 48, bias=False).cuda()
    torch.nn.init.zeros_(up.weight)
    x, target = torch.randn(64, 160, device="cuda"), torch.randn(64, 48, device="cuda")
    optimizer = torch.optim.Adam([*down.parameters(), *up.parameters()], 1e-2)
    losses = []
    for _ in range(40):
        loss = torch.nn.functional.mse_loss(base(x) + up(down(x)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    z = x.clone().requires_grad_()
    base(z).sum().backward()
    weight = torch.from_numpy(base.weight.to("cpu").dequantize()).cuda()
    torch.testing.assert_close(z.grad, weight.sum(0).expand_as(z), rtol=1e-3, atol=1e-3)
