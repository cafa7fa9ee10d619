"""Mixtures of experts as modules of torch: the layouts of their weights, and all experts in one call."""

import copy

import pytest
import torch
from torch import nn

import qcore
import qcore.torch as qt
from qcore.torch import stacked
from qcore.torch.conversion.rules import as_linear
from qcore.torch.experts import Experts, layout_of


def float_layer(weight, bias):
    """Make a float layer where a rule makes a quantized one: results are then those of the float module."""
    return as_linear(weight, bias)


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Indexed(nn.Module):
    """Experts in parameters [E, 2I, H] and [E, H, I], or transposed."""

    def __init__(self, transposed=False, biases=False, gated=True):
        super().__init__()
        self.transposed, self.act_fn, self.num_experts = transposed, nn.SiLU(), 3
        first = "gate_up_proj" if gated else "up_proj"
        for name, rows, columns in ((first, 12 if gated else 6, 8), ("down_proj", 8, 6)):
            shape = (3, columns, rows) if transposed else (3, rows, columns)
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
            if biases:
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(3, rows)))
        self.first = first

    def project(self, name, expert, x):
        weight = getattr(self, name)[expert]
        bias = getattr(self, f"{name}_bias", None)
        return x @ (weight if self.transposed else weight.t()) + (0 if bias is None else bias[expert])

    def forward(self, hidden_states, top_k_index, top_k_weights):
        total = torch.zeros_like(hidden_states)
        for token, (numbers, shares) in enumerate(zip(top_k_index, top_k_weights, strict=True)):
            for number, share in zip(numbers, shares, strict=True):
                x = self.project(self.first, number, hidden_states[token])
                if self.first == "gate_up_proj":
                    gate, up = x.chunk(2)
                    x = self.act_fn(gate) * up
                else:
                    x = self.act_fn(x)
                total[token] += share * self.project("down_proj", number, x)
        return total


@pytest.mark.parametrize("transposed", (False, True))
@pytest.mark.parametrize("biases", (False, True))
@pytest.mark.parametrize("gated", (False, True))
@torch.no_grad()
def test_experts(transposed, biases, gated):
    module = Indexed(transposed, biases, gated)
    assert layout_of(module) == ("transposed" if transposed else "indexed")
    exact = Experts.from_float(module, float_layer)
    x = torch.randn(7, 8)
    chosen = torch.stack([torch.randperm(3)[:2] for _ in range(7)])
    chosen[0] = 1  # expert 1 twice
    shares = torch.rand(7, 2)
    torch.testing.assert_close(exact(x, chosen, shares), module(x, chosen, shares))
    compiled = torch.compile(exact, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, chosen, shares), module(x, chosen, shares))
    assert torch.equal(exact(x, torch.full((7, 2), 3), shares), torch.zeros(7, 8))  # 3 stands for no expert

    model = nn.Sequential(module)
    expected, again = module(x, chosen, shares), copy.deepcopy(model)
    report = qt.quantize_(model, bits=8)
    assert report.share == 1
    assert isinstance(model[0], Experts)
    got = model[0](x, chosen, shares)
    assert relative(got, expected) < 0.03
    qt.restore_(again, model.state_dict())
    assert torch.equal(again[0](x, chosen, shares), got)


def mixture(biases=False, bits=4, compute="int8", experts=5):
    """Return Experts with outputs that are multiples of 16, and arguments, of which one stands for no expert."""
    torch.manual_seed(0)
    module = Indexed(biases=biases)
    for name, rows, columns in (("gate_up_proj", 64, 48), ("down_proj", 48, 32)):
        setattr(module, name, nn.Parameter(torch.randn(experts, rows, columns) / 8))
        if biases:
            setattr(module, f"{name}_bias", nn.Parameter(torch.randn(experts, rows)))
    module.num_experts = experts

    def make(weight, bias):
        return qt.Linear(qcore.quantize(weight.detach(), bits=bits, block_size=16), bias, compute=compute)

    chosen = torch.randint(0, experts - 1, (9, 2))  # the last expert has no rows
    chosen[0, 1] = experts
    return Experts.from_float(module, make), (torch.randn(9, 48), chosen, torch.rand(9, 2))


def one_by_one(made):
    """Return a copy whose experts are called one after the other."""
    again = copy.deepcopy(made)
    for layers in again.projections.values():
        for layer in layers:
            layer.take_out()
    assert not again._is_grouped()
    return again


@pytest.mark.parametrize(("bits", "compute"), [(4, "int8"), (8, "int8_asym"), (4, "int16"), (8, "float")])
@pytest.mark.parametrize("biases", (False, True))
@torch.no_grad()
def test_one_call_for_all_experts_has_the_bits_of_one_each(biases, bits, compute):
    made, arguments = mixture(biases, bits, compute)
    single = one_by_one(made)
    assert made._is_grouped()
    expected = single(*arguments)
    assert torch.equal(made(*arguments), expected)
    torch._dynamo.reset()  # parameters of the test are recompilations
    assert torch.equal(torch.compile(made, fullgraph=True, backend="eager")(*arguments), expected)
    x, chosen, shares = arguments
    assert torch.equal(made(x[:1], chosen[:1], shares[:1]), expected[:1])
    for name, layers in made.projections.items():  # a layer by itself, and one that is watched
        x = torch.randn(2, 3, layers[0].in_features)
        for layer, other in zip(layers, single.projections[name], strict=True):
            assert layer.weight == other.weight
            assert torch.equal(layer(x), other(x))
    seen = []
    made.projections["down_proj"][1].register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    assert torch.equal(made(*arguments), expected)
    assert seen == [int((chosen == 1).sum())]


def test_gradients_through_one_call_for_all_experts():
    made, (x, chosen, shares) = mixture(biases=True, compute="float")
    gradients = []
    for module in (made, one_by_one(made)):
        bias = module.projections["down_proj"][1].bias.requires_grad_()
        leaf = x.clone().requires_grad_()
        module(leaf, chosen, shares).square().sum().backward()
        gradients.append((leaf.grad, bias.grad))
    for given, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(given, expected)


@torch.no_grad()
def test_experts_in_one_memory_are_saved_moved_and_copied_as_before(tmp_path):
    made, arguments = mixture(biases=True)
    single, state, expected = one_by_one(made), made.state_dict(), made(*arguments)
    other = single.state_dict()
    assert list(state) == list(other)
    assert all(torch.equal(state[name], other[name]) and state[name].dtype == other[name].dtype for name in state)
    layers = [layer for each in made.projections.values() for layer in each]
    memory = {each.untyped_storage().data_ptr(): each.nbytes for each in made.buffers()}
    assert sum(memory.values()) == sum(layer.weight.nbytes for layer in layers)  # held once

    torch.save(made, tmp_path / "whole.pt")
    loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
    cloned = copy.deepcopy(made)._apply(torch.clone)
    fresh, _ = mixture(biases=True)
    for layers in fresh.projections.values():
        for layer in layers:
            layer.take_out()
    fresh.load_state_dict(state)
    for module in (loaded, cloned, copy.deepcopy(made), fresh, made.float(), made.to("cpu")):
        assert module._is_grouped()
        assert len({each.untyped_storage().data_ptr() for each in module.buffers()}) == 2
        assert torch.equal(module(*arguments), expected)
    assert made.to("meta").projections["down_proj"][0].packed.is_meta


@torch.no_grad()
def test_experts_of_several_formats_keep_memory_of_their_own():
    weights = [qcore.quantize(torch.randn(16, 16), bits=bits, block_size=16) for bits in (4, 8)]
    layers = nn.ModuleList([qt.Linear(weight) for weight in weights])
    stacked.arrange(layers)
    assert [type(layer) for layer in layers] == [qt.Linear, qt.Linear]


@torch.no_grad()
def test_experts_that_compute_something_else_are_left():
    class Odd(Indexed):
        def forward(self, *arguments):
            return super().forward(*arguments) + 1

    with pytest.warns(UserWarning):
        report = qt.quantize_(nn.Sequential(Odd()), bits=8)
    assert report.layers[0].note == "Odd is no layout of experts that is known"
