"""Modules of qcore.torch: the operators' results, state, graphs, gradients, errors."""

import copy
import dataclasses
import io
import json
import pickle
import subprocess
import sys

import encoded_weights
import pytest
import torch

import qcore
import qcore.torch as qt
from qcore.torch import packing

BACKENDS = ("eager", "aot_eager", "inductor")


# Compiled graphs that are kept on disk know nothing of changes to this package.
torch.compiler.config.force_disable_caches = True


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def linear(bits=4, scheme="asymmetric", **options):
    return qt.Linear.from_float(torch.nn.Linear(71, 20), bits=bits, block_size=32, scheme=scheme, **options)


def convolution(**options):
    return qt.Conv2d.from_float(torch.nn.Conv2d(6, 8, 3, groups=2, **options), bits=4, block_size=2)


def gru(**options):
    module = torch.nn.GRU(5, 7, **options)
    return qt.GRU.from_float(module, samples=torch.randn(20, 4, 5))


def lstm(**options):
    module = torch.nn.LSTM(5, 7, **options)
    return qt.LSTM.from_float(module, samples=torch.randn(20, 4, 5))


def embedding(**options):
    return qt.Embedding.from_float(torch.nn.Embedding(30, 71), bits=4, block_size=32, **options)


def encoded(kind="Q5_K", layer=qt.Linear, **options):
    seed = int(torch.randint(0, 1000, ()))
    encoding = dataclasses.replace(encoded_weights.ENCODINGS[kind], tensor_scale=1.0 + seed)
    weight = encoded_weights.make(encoding, 30, 71, 16, seed).weight
    return layer(weight, torch.randn(30), **options) if layer is qt.Linear else layer(weight, **options)


def sample(shape):
    """Return x of a case: floats, or indices where the shape begins with None."""
    return torch.randint(0, 30, shape[1:]) if shape[0] is None else torch.randn(shape)


CASES = {
    "embedding": (embedding, (None, 2, 5)),
    "linear": (linear, (3, 71)),
    "encoded linear": (encoded, (3, 71)),
    "encoded linear, codebook": (lambda: encoded("NVFP4", compute="float"), (3, 71)),
    "encoded embedding": (lambda: encoded("Q6_K", qt.Embedding), (None, 2, 5)),
    "linear 8 bits": (lambda: linear(8, "symmetric"), (2, 3, 71)),
    "conv2d": (lambda: convolution(stride=2, padding=(1, 2)), (2, 6, 9, 11)),
    "gru": (gru, (6, 3, 5)),
    "gru bidirectional": (lambda: gru(num_layers=2, bidirectional=True, batch_first=True), (3, 6, 5)),
    "lstm": (lambda: lstm(num_layers=2, bidirectional=True, batch_first=True), (3, 6, 5)),
    "lut": (lambda: qt.LutActivation("silu"), (4, 9)),
}
cases = pytest.mark.parametrize("make, shape", CASES.values(), ids=CASES.keys())


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return len(left) == len(right) and all(map(same, left, right))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_results_are_those_of_the_operators(dtype):
    x = torch.randn(3, 71).to(dtype)
    for bits in (4, 8):
        for scheme in ("symmetric", "asymmetric"):
            float_module = torch.nn.Linear(71, 20)
            weight = qcore.quantize(float_module.weight.detach(), bits=bits, block_size=32, scheme=scheme)
            module = qt.Linear.from_float(float_module, bits=bits, block_size=32, scheme=scheme, compute="int16")
            assert module.weight == weight
            assert same(module(x), qcore.linear(x, weight, float_module.bias.detach(), compute="int16"))
    image = torch.randn(2, 6, 9, 9).to(dtype).to(memory_format=torch.channels_last)
    module = convolution(padding=1)
    y = module(image)
    assert same(y, qcore.conv2d(image, module.weight, module.bias, padding=1, groups=2))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert same(module(image[0]), y[0])
    assert same(qt.LutActivation("gelu")(x), qcore.lut.gelu(x))
    module = gru()
    steps = torch.randn(6, 3, 5).to(dtype)
    assert same(module(steps), module.quantized(steps))
    assert same(module(steps[:, 1])[0], module(steps)[0][:, 1])


@pytest.mark.parametrize("size, dilation", [(2, 1), (3, 1), (4, 3), ((1, 2), (2, 1))])
def test_same_padding_is_that_of_torch(size, dilation):
    module = torch.nn.Conv2d(3, 4, size, padding="same", dilation=dilation)
    x = torch.randn(1, 3, 8, 9)
    made = qt.Conv2d.from_float(module, bits=8, block_size=3, compute="float")
    torch.testing.assert_close(made(x), module(x), atol=0.05, rtol=0)


@cases
@torch.no_grad()
def test_copies_give_the_same(make, shape):
    module, x = make(), sample(shape)
    y = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    rebuilt = type(module).from_state_dict({f"a.{key}": value for key, value in module.state_dict().items()}, "a.")
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
        rebuilt,
    ):
        assert same(other(x), y)
        assert repr(other) == repr(module)
        assert other.config() == module.config()
    low = copy.deepcopy(module).half()
    assert {name: each.dtype for name, each in low.named_buffers()} == {
        name: each.dtype for name, each in module.named_buffers()
    }


@cases
@torch.no_grad()
def test_state_dicts_load(make, shape):
    module, other, x = make(), make(), sample(shape)
    y = module(x)
    other(x)  # packed before it is written to
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert str(other.load_state_dict(torch.load(file, weights_only=True))) == "<All keys matched successfully>"
    assert same(other(x), y)


def test_a_state_of_another_configuration_is_refused():
    state = linear().state_dict()
    with pytest.raises(RuntimeError, match="qcore_config: the state has compute = 'int8', expected 'float'"):
        linear(compute="float").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*qcore_config"):
        linear().load_state_dict({name: state[name] for name in ("codes", "scales", "offsets", "bias")})
    with pytest.raises(ValueError, match="expected 'conv2d'"):
        qt.Conv2d.from_state_dict(state)
    with pytest.raises(ValueError, match=r"state_dict has no a\.qcore_config"):
        qt.Linear.from_state_dict(state, "a.")


@pytest.mark.parametrize("kind", encoded_weights.ENCODINGS)
@torch.no_grad()
def test_encoded_weights_keep_their_bytes(kind):
    module, x = encoded(kind), torch.randn(3, 71)
    weight = module.weight
    assert weight.encoding is not None and module.packed.nbytes == weight.nbytes
    assert same(module(x), torch.from_numpy(qcore.linear(x.numpy(), weight, module.bias)))
    state = module.state_dict()
    sizes = {name: tensor.nbytes for name, tensor in state.items() if name not in ("bias", "qcore_config")}
    assert sizes["codes"] == 30 * -(-71 * weight.bits // 8)
    assert list(sizes) == [name for name, part in weight.encoded_parts().items() if part is not None]
    restored = qt.Linear.from_state_dict(state)
    assert restored.weight == weight and restored.config() == module.config() and "encoded" in repr(restored)
    assert same(restored.state_dict()["codes"], state["codes"])
    for name in sizes:
        for broken in (state[name][:, :-1], state[name].double()):
            with pytest.raises(RuntimeError, match=rf"{name} is torch\..*, expected torch\."):
                qt.Linear.from_state_dict(state | {name: broken})
    with pytest.raises(RuntimeError, match=r"the state has .*encoding = .*, expected .*None"):
        qt.Linear(weight.plain(), module.bias).load_state_dict(state)


@cases
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_compiled_without_breaks(make, shape, backend):
    module, x = make(), sample(shape)
    assert same(torch.compile(module, fullgraph=True, backend=backend)(x), module(x))


@cases
@torch.no_grad()
def test_exported_with_dynamic_shapes(make, shape):
    module = make()
    automatic = torch.export.Dim.AUTO
    first = sample(shape)
    images = len(shape) == 4
    variable = (0, 2, 3) if images else range(first.dim() if shape[0] is None else first.dim() - 1)
    axes = {axis: automatic for axis in variable}
    program = torch.export.export(module, (first,), dynamic_shapes=(axes,)).module()
    larger = [size + 2 if axis in axes else size for axis, size in enumerate(first.shape)]
    x = sample([None, *larger] if shape[0] is None else larger)
    assert same(program(x), module(x))


@torch.no_grad()
def test_compiled_for_many_shapes_and_under_autocast():
    module = linear()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    for rows in (1, 2, 5, 9):
        x = torch.randn(rows, 71)
        assert same(call(x), module(x.bfloat16()))
    assert module.to("meta")(torch.empty(3, 71, device="meta")).shape == (3, 20)


@cases
@torch.no_grad()
def test_exported_and_run_in_a_new_process(make, shape, tmp_path):
    module, x = make(), sample(shape)
    program = torch.export.export(module, (x,))
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert getattr(torch.ops.qcore, module.kind).default in calls
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, module(x)), tmp_path / "values.pt")
    code = (
        "import sys, torch, qcore.torch\n"
        "x, y = torch.load(sys.argv[2])\n"
        "got = torch.export.load(sys.argv[1]).module()(x)\n"
        "got, y = map(torch.utils._pytree.tree_leaves, (got, y))\n"
        "assert len(got) == len(y) and all(map(torch.equal, got, y))\n"
    )
    files = [str(tmp_path / name) for name in ("program.pt2", "values.pt")]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@cases
@torch.no_grad()
def test_fake_kernels_are_right(make, shape):
    module = make()
    seen = []
    with _Recorder(seen):
        module(sample(shape))
    ((operator, arguments),) = [call for call in seen if call[0].namespace == "qcore"]
    torch.library.opcheck(operator, arguments)


class _Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append((function, args))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", (None, *BACKENDS))
@pytest.mark.parametrize(
    "make",
    [linear, lambda: linear(8, "symmetric"), encoded],
    ids=["4 bits asymmetric", "8 bits symmetric", "encoded"],
)
def test_the_gradient_of_x_is_that_of_the_dequantized_weight(make, backend):
    module = make()
    weight = torch.from_numpy(module.weight.dequantize())
    call = module if backend is None else torch.compile(module, fullgraph=True, backend=backend)
    x, grad = torch.randn(2, 3, 71, requires_grad=True), torch.randn(2, 3, module.out_features)
    module.bias.requires_grad_()
    call(x).backward(grad)
    torch.testing.assert_close(x.grad, grad @ weight)
    torch.testing.assert_close(module.bias.grad, grad.sum((0, 1)))
    assert module.packed.grad is None


def exact_activation(name):
    """Return torch's function of a fused activation."""
    if name == "gelu_tanh":
        return lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    return getattr(torch, name, None) or getattr(torch.nn.functional, name)


@pytest.mark.parametrize("activation", ("relu", "relu6", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"))
def test_the_gradient_goes_through_fused_activations(activation):
    weight = qcore.quantize(torch.randn(20, 64) * 0.3, bits=8, block_size=32)
    module = qt.Linear(weight, torch.randn(20), compute="float", activation=activation)
    x = torch.randn(5, 64, requires_grad=True)
    module(x).square().sum().backward()
    z = x.detach().clone().requires_grad_()
    before = torch.nn.functional.linear(z, torch.from_numpy(weight.dequantize()), module.bias)
    exact_activation(activation)(before).square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad, atol=2e-2, rtol=1e-2)  # silu and gelu are tables


def test_other_operators_say_that_they_have_no_gradient():
    with pytest.raises(RuntimeError, match=r"qcore.*conv2d.*autograd|autograd.*qcore.*conv2d"):
        convolution()(torch.randn(1, 6, 5, 5, requires_grad=True)).sum().backward()


def test_adapters_train_on_a_frozen_base():
    base = qt.Linear.from_float(torch.nn.Linear(32, 16), bits=8, block_size=16)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    down, up = torch.nn.Linear(32, 4, bias=False), torch.nn.Linear(4, 16, bias=False)
    first = torch.nn.Linear(32, 32)
    torch.nn.init.zeros_(up.weight)
    x, target = torch.randn(64, 32), torch.randn(64, 16)
    optimizer = torch.optim.Adam([*down.parameters(), *up.parameters(), *first.parameters()], 1e-2)
    losses = []
    for _ in range(60):
        z = first(x)
        loss = torch.nn.functional.mse_loss(base(z) + up(down(z)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def test_autocast_and_inference_mode():
    module, x = linear(), torch.randn(3, 71)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert same(y, module(x.bfloat16()))
    with torch.inference_mode():
        made = linear()
        made.to(torch.bfloat16).float()
        assert not any(buffer.is_inference() for buffer in made.buffers())
        assert same(made(x), qcore.linear(x, made.weight, made.bias))


@torch.no_grad()
def test_embedding_is_the_lookup_of_the_dequantized_weight():
    module, indices = embedding(), torch.tensor([[3, 0], [29, 3]])
    dense = torch.from_numpy(module.weight.dequantize())
    assert same(module(indices), torch.nn.functional.embedding(indices, dense))
    low = copy.deepcopy(module).to(torch.bfloat16)
    assert same(low(indices.int()), torch.nn.functional.embedding(indices, dense).bfloat16())
    assert low.half().dtype is torch.float16 and low.weight == module.weight
    head = qt.Linear(module.weight, compute="float")
    assert head.packed is module.packed
    assert same(qt.Embedding.from_state_dict(low.state_dict())(indices), low(indices))
    other = embedding()
    other.load_state_dict(low.state_dict())
    assert other.dtype is torch.float32 and same(other(indices), module(indices))


@pytest.mark.parametrize("make", [linear, convolution])
def test_a_module_has_one_copy_of_its_weight(make):
    weight = make().weight
    module = type(make())(weight)
    assert module.packed.data_ptr() == weight.storage().ctypes.data
    assert [name for name, _ in module.named_buffers()] == ["packed"]
    assert module.packed.nbytes - weight.nbytes < 3 * 64
    assert module.weight is module.weight and module.weight == weight
    assert type(module)(weight).packed is module.packed


def test_tied_modules_stay_tied():
    weight = linear().weight
    model = torch.nn.ModuleList([qt.Linear(weight), qt.Linear(weight, compute="float")])
    state = model.state_dict()
    assert state["0.codes"] is state["1.codes"] and state["0.scales"] is state["1.scales"]
    other = copy.deepcopy(model)
    assert other[0].packed is other[1].packed is not model[0].packed
    other.load_state_dict(state)
    assert other[0].packed is other[1].packed
    other.to("meta")
    assert other[0].packed is other[1].packed and other[0].packed.is_meta
    other.load_state_dict(state)
    assert other[0].packed is other[1].packed and other[1].weight == weight


def test_a_state_that_was_written_to_is_not_taken_for_the_module_s():
    module, x = linear(), torch.randn(3, 71)
    y = module(x)
    state = module.state_dict()
    state["scales"].mul_(2)
    assert torch.equal(module(x), y)
    assert torch.equal(module.state_dict()["scales"] * 2, state["scales"])
    module.load_state_dict(state)
    assert torch.equal(module.state_dict()["scales"], state["scales"])
    state["scales"].mul_(2)
    module.load_state_dict(state)
    assert torch.equal(module.state_dict()["scales"], state["scales"])


def test_views_of_graphs_are_let_go():
    before = packing.size()
    module, x = linear(), torch.randn(3, 71)
    module(x)
    assert packing.size() == before
    torch.ops.qcore.linear(x, *module._operands(), module.compute)
    assert packing.size() == before + 1
    del module
    assert packing.size() == before


def test_memory_that_moves_is_followed():
    module, x = linear(), torch.randn(3, 71)
    y = module(x)
    module.share_memory()
    assert module.packed.is_shared() and torch.equal(module(x), y)
    module.packed = module.packed.clone()
    assert torch.equal(module(x), y)
    shifted = torch.empty(module.packed.numel() + 1, dtype=torch.uint8)[1:]
    module.packed = shifted.copy_(module.packed)
    assert torch.equal(module(x), y)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state.pop("scales"), r"Missing key.*scales"),
        (lambda state: state.pop("offsets"), r"Missing key.*offsets"),
        (lambda state: state.update(more=state["codes"]), r"Unexpected key.*more"),
        (lambda state: state.update(scales=state["scales"][1:]), r"scales has shape \[19, 3\], expected \[20, 3\]"),
        (lambda state: state.update(codes=state["codes"].float()), r"codes has dtype float32, expected uint8"),
        (
            lambda state: state["scales"].fill_(float("nan")),
            r"scales holds a NaN or an infinity, the first at index \[0, 0\]",
        ),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changes(change, message):
    module, x = linear(4, "asymmetric"), torch.randn(3, 71)
    y = module(x)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    change(state)
    with pytest.raises(RuntimeError, match=message):
        module.load_state_dict(state)
    assert torch.equal(module(x), y)


def test_a_symmetric_module_refuses_offsets():
    state = linear(4, "asymmetric").state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*offsets"):
        linear(4, "symmetric").load_state_dict(state)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: qt.Linear(torch.ones(2, 2)), TypeError, "weight is a Tensor, expected a QuantizedTensor"),
        (lambda: qt.Linear(convolution().weight), ValueError, r"shape \[8, 3, 3, 3\], expected 2 dimensions"),
        (lambda: qt.Linear(linear().weight, compute="int7"), ValueError, "compute is 'int7'"),
        (lambda: qt.Linear(linear().weight, activation="erf"), ValueError, "activation is 'erf'"),
        (lambda: qt.Linear(linear().weight, torch.ones(3)), ValueError, r"bias is .* \[3\], expected .*\[20\]"),
        (lambda: qt.Conv2d(convolution().weight, stride=0), ValueError, "stride is 0"),
        (lambda: qt.Conv2d(convolution().weight, groups=3), ValueError, "groups 3"),
        (lambda: qt.Linear.from_float(torch.nn.ReLU(), bits=8), TypeError, r"expected a torch\.nn\.Linear"),
        (lambda: qt.Conv2d.from_float(torch.nn.ReLU(), bits=8), TypeError, r"expected a torch\.nn\.Conv2d"),
        (
            lambda: qt.Conv2d.from_float(torch.nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), bits=8),
            ValueError,
            "padding_mode is 'reflect'",
        ),
        (lambda: qt.GRU(3), TypeError, "expected a QuantGRU"),
        (lambda: qt.Embedding.from_float(torch.nn.Linear(2, 2), bits=8), TypeError, r"expected a torch\.nn\.Embedding"),
        (
            lambda: qt.Embedding.from_float(torch.nn.Embedding(2, 2, max_norm=1), bits=8),
            ValueError,
            r"max_norm is 1.*expected",
        ),
        (lambda: qt.Embedding(linear().weight, dtype=torch.float64), TypeError, r"dtype is torch\.float64, expected"),
        (
            lambda: embedding()(torch.tensor([30])),
            ValueError,
            "indices holds 30 at element 0, expected 0 to N - 1 = 29",
        ),
        (lambda: embedding()(torch.randn(3)), TypeError, "indices has dtype float32, expected int32 or int64"),
        (lambda: qt.GRU.from_float(torch.nn.GRU(2, 2), samples=None), ValueError, "samples is None"),
        (lambda: qt.LutActivation("nothing"), ValueError, "nothing"),
        (lambda: qt.LutActivation.from_float(torch.nn.ELU(2.0)), TypeError, "default parameters"),
        (lambda: linear()(torch.randn(2, 70)), ValueError, r"x has shape \[2, 70\]"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_torch_is_imported_only_when_asked_for():
    code = "import sys, qcore; assert 'torch' not in sys.modules; import qcore.torch as t; assert t.Linear"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class ReadsDtype(torch.nn.Module):
    """Turns x into the dtype of its layer's weight, as ViT and Mamba do."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.to(dtype=self.layer.weight.dtype, device=self.layer.weight.device))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize(
    "layer, shape",
    [(torch.nn.Linear(64, 5), (3, 64)), (torch.nn.Conv2d(4, 5, 3), (1, 4, 6, 6))],
    ids=("linear", "conv2d"),
)
@torch.no_grad()
def test_code_that_reads_dtype_and_device(layer, shape, dtype):
    model = ReadsDtype(copy.deepcopy(layer)).to(dtype)
    report = qt.quantize_(model, bits=8)
    assert report.layers[0].quantized
    assert (model.layer.weight.dtype, model.layer.weight.device) == (dtype, torch.device("cpu"))
    x = torch.randn(shape)
    expected = model(x)
    assert expected.dtype == dtype
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
    again = ReadsDtype(copy.deepcopy(layer).to(torch.float32))
    qt.restore_(again, model.state_dict())
    assert again.layer.weight.dtype == dtype
    assert torch.equal(again(x), expected)
    model.to(torch.float16)
    assert model.layer.weight.dtype == copy.deepcopy(model).layer.weight.dtype == torch.float16
    assert model.layer.weight == again.layer.weight


def test_the_dtype_of_a_weight():
    weight = qcore.quantize(torch.randn(4, 32))
    half = torch.zeros(4, dtype=torch.float16)
    assert qt.Linear(weight).weight.dtype == torch.float32
    assert qt.Linear(weight, half).weight.dtype == torch.float16
    assert qt.Linear(qt.Linear(weight, half).weight).weight.dtype == torch.float16
    assert qt.Linear(weight, half, dtype=torch.bfloat16).weight.dtype == torch.bfloat16
    with pytest.raises(
        qcore.QcoreTypeError, match=r"qcore.torch.Linear: dtype is torch.float64, expected torch.float32"
    ):
        qt.Linear(weight, dtype=torch.float64)


def test_a_state_without_a_dtype_loads():
    module = qt.Linear(qcore.quantize(torch.randn(4, 32)), dtype=torch.float16)
    state = module.state_dict()
    config = json.loads(bytes(state["qcore_config"].tolist()))
    assert config.pop("dtype") == "float16"
    state["qcore_config"] = torch.tensor(list(json.dumps(config).encode()), dtype=torch.uint8)
    again = qt.Linear.from_state_dict(state)
    assert again.weight == module.weight
    assert again.weight.dtype == torch.float32
