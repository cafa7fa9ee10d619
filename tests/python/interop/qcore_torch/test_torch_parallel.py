"""qcore.torch.parallel over real processes (gloo): bits, integers, sums, uneven and empty shards, gradients, errors.

Each number of ranks starts its processes once. They compute everything and leave it in files; the tests read those.
"""

import copy
import datetime
import io
import pickle
import time

import numpy as np
import oracle
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import qcore
import qcore.torch as qt
from qcore.torch.parallel import ColumnParallelLinear, RowParallelLinear, shard_sizes

SECONDS = 120
CASES = {
    # name: (N, K, block size, bits, scheme, compute, activation, dtype)
    "even": (32, 256, 64, 4, "symmetric", "int8", "sigmoid", torch.float32),
    "uneven, ragged last block": (37, 300, 64, 8, "asymmetric", "int8", None, torch.float32),
    "odd blocks, offsets everywhere": (21, 145, 13, 4, "asymmetric", "int8_asym", "relu", torch.float32),
    "int16": (10, 130, 32, 8, "symmetric", "int16", "gelu", torch.float16),
    "float": (16, 200, 64, 4, "asymmetric", "float", "silu", torch.float32),
    "bfloat16": (24, 192, 32, 4, "symmetric", "int8", "relu6", torch.bfloat16),
    "one block": (3, 40, 64, 4, "symmetric", "int8", "gelu_tanh", torch.float32),
    "one output": (1, 128, 32, 4, "asymmetric", "int8", "tanh", torch.float32),
}
RANKS = (1, 2, 3)


def layer_of(case):
    n, k, block_size, bits, scheme, compute, activation, _ = CASES[case]
    generator = torch.Generator().manual_seed(n * k)
    weight = qcore.quantize(torch.randn(n, k, generator=generator), bits=bits, block_size=block_size, scheme=scheme)
    return qt.Linear(weight, torch.randn(n, generator=generator), compute=compute, activation=activation)


def inputs_of(case, *leading):
    _, k, *_, dtype = CASES[case]
    return torch.randn(*leading, k, generator=torch.Generator().manual_seed(k)).to(dtype)


def computed(case):
    """Return what a rank computes with a layer."""
    layer, x = layer_of(case), inputs_of(case, 2, 5)
    column, row = ColumnParallelLinear.from_linear(layer), RowParallelLinear.from_linear(layer)
    split = ColumnParallelLinear.from_linear(layer, gather_output=False, multiple_of=4)
    parallel = RowParallelLinear.from_linear(layer, input_is_parallel=True)
    mine = x[..., row.shard.start : row.shard.stop]
    columns = x[..., :0] if layer.compute == "float" else codes_of(mine, layer)
    with torch.no_grad():
        found = {
            "column": column(x),
            "row": row(x),
            "split": split(x),
            "parallel": parallel(mine),
            "empty": torch.cat([column(x[:0]), row(x[:0])]),
            "vector": torch.stack([column(x[0, 0]), row(x[0, 0])]),
            "codes": torch.as_tensor(columns),
            "integers": torch.as_tensor(integers_of(mine, row.weight, layer)),
        }
    found["shards"] = torch.tensor([[each.shard.start, each.shard.stop] for each in (row, split)])
    found["kept"] = torch.tensor([column.weight.shape, row.weight.shape])
    return found


def codes_of(x, layer):
    codes = qcore.quantize_activations(x.float().flatten(0, -2), layer.block_size, layer.compute).codes
    return codes.numpy() if isinstance(codes, torch.Tensor) else codes


def integers_of(x, weight, layer):
    """Return int64 [M, N, P]: the sums of products of every block."""
    if layer.compute == "float":
        return np.zeros((0, 0, 0), np.int64)
    a, b = codes_of(x, layer).astype(np.int64), weight.codes().astype(np.int64)
    g = layer.block_size
    blocks = [a[:, p : p + g] @ b[:, p : p + g].T for p in range(0, a.shape[1], g)]
    return np.stack(blocks, axis=-1) if blocks else np.zeros((len(a), len(b), 0), np.int64)


def trained():
    """Return gradients through both kinds, one behind the other, with respect to x, a bias and an adapter."""
    up, down = layer_of("even"), qt.Linear(qcore.quantize(torch.randn(8, 32, generator=seeded(1)), block_size=8))
    adapter = torch.randn(8, 256, generator=seeded(2)).requires_grad_()
    results = {}
    for gather in (True, False):
        first = ColumnParallelLinear.from_linear(up, gather_output=gather, multiple_of=down.block_size)
        second = RowParallelLinear.from_linear(down, input_is_parallel=not gather)
        results[f"through {'whole' if gather else 'split'}"] = gradients(first, second, adapter)
    results["single"] = gradients(up, down, adapter)
    return results


def gradients(first, second, adapter):
    x = inputs_of("even", 4).requires_grad_()
    adapter.grad = None
    loss = (second(torch.tanh(first(x))) + x @ adapter.T).square().mean()
    loss.backward()
    return torch.cat([x.grad.flatten(), adapter.grad.flatten(), loss.detach().flatten()])


def seeded(number):
    return torch.Generator().manual_seed(number)


def state():
    """Save, load, copy and pickle on a rank."""
    layer, x = layer_of("uneven, ragged last block"), inputs_of("uneven, ragged last block", 3)
    for kind, option in ((ColumnParallelLinear, "gather_output"), (RowParallelLinear, "input_is_parallel")):
        module = kind.from_linear(layer, **{option: False})
        y = module(x)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        saved = torch.load(file)
        again = kind.from_state_dict({f"a.{key}": value for key, value in saved.items()}, "a.")
        assert torch.equal(again(x), y) and repr(again) == repr(module)
        zeros = qcore.quantize(torch.zeros(37, 300), bits=8, block_size=64, scheme="asymmetric")
        other = kind(zeros, torch.zeros(37), **{option: 0})
        other.load_state_dict(saved)
        assert torch.equal(other(x), y)
        for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.deepcopy(module).to("cpu")):
            assert torch.equal(made(x), y)
        members = dist.new_group(list(range(dist.get_world_size())))
        elsewhere = kind.from_linear(layer, members, **{option: False})
        assert torch.equal(copy.deepcopy(elsewhere)(x), y)
        with pytest.raises(qcore.QcoreTypeError, match=r"pickle: .*group"):
            pickle.dumps(elsewhere)
    if dist.get_world_size() > 1:
        with pytest.raises(qcore.QcoreValueError, match=r"this is rank . of 1, expected rank . of \d"):
            alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
            kind.from_state_dict(saved, group=alone)
        with pytest.raises(RuntimeError, match=r"the state has .*rank = \d, expected .*\d"):
            theirs = [None] * dist.get_world_size()
            dist.all_gather_object(theirs, saved["qcore_config"])
            other.load_state_dict(saved | {"qcore_config": theirs[dist.get_rank() - 1]})
        outsiders = dist.new_group([0])
        if dist.get_rank() > 0:
            with pytest.raises(qcore.QcoreValueError, match="not among its members"):
                RowParallelLinear.from_linear(layer, outsiders)
    return {"repr": repr(module)}


def errors():
    """Call what needs a group; no error may leave a rank waiting."""
    layer = layer_of("even")
    row = RowParallelLinear.from_linear(layer, input_is_parallel=True)
    width = len(row.shard)
    expectations = [
        (lambda: row(torch.zeros(2, width + 1)), rf"x has shape \[2, {width + 1}\], expected .* {width} of K = 256"),
        (lambda: RowParallelLinear.from_linear(layer)(torch.tensor(1.0)), r"x has shape \[\], expected"),
        (lambda: ColumnParallelLinear.from_linear(layer)(torch.zeros(2, 255)), r"x has shape \[2, 255\], expected"),
        (lambda: ColumnParallelLinear.from_linear(layer, multiple_of=0), "multiple_of is 0, expected 1 or more"),
        (lambda: ColumnParallelLinear(layer.weight, torch.zeros(31)), r"bias is torch.float32 \[31\], expected .*\[32"),
        (lambda: RowParallelLinear(layer.weight, 5), r"bias is int, expected a floating-point tensor \[32\]"),
        (lambda: RowParallelLinear(layer.weight, compute="int4"), "RowParallelLinear: compute is 'int4'"),
        (lambda: RowParallelLinear(qcore.quantize(torch.ones(2, 2, 3, 3))), r"shape \[2, 2, 3, 3\], expected \[N, K\]"),
        (lambda: RowParallelLinear(torch.ones(2, 2)), "weight is a Tensor, expected a QuantizedTensor"),
        (lambda: ColumnParallelLinear(layer.weight, group="all"), "group is a str, expected a torch.distributed"),
        (lambda: RowParallelLinear.from_linear(torch.nn.Linear(2, 2)), "layer is a Linear, expected a qcore.torch"),
        (lambda: RowParallelLinear.from_linear(row), "layer is a RowParallelLinear, expected a qcore.torch.Linear"),
    ]
    for call, words in expectations:
        with pytest.raises(qcore.QcoreError, match=words):
            call()


def rank_of(rank, world, folder):
    torch.set_num_threads(1)
    qcore.set_num_threads(1)
    waits = datetime.timedelta(seconds=SECONDS // 2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=waits)
    results = {case: computed(case) for case in CASES}
    results["trained"] = trained()
    results["state"] = state()
    errors()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        x, layer = inputs_of("even", 3), layer_of("even")
        results["autocast"] = {"row": RowParallelLinear.from_linear(layer)(x), "single": layer(x)}
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(world, folder):
    """Return what each rank saved."""
    started = torch.multiprocessing.start_processes(rank_of, (world, folder), world, join=False, start_method="spawn")
    deadline = time.monotonic() + SECONDS
    try:
        while not started.join(timeout=5):
            assert time.monotonic() < deadline, f"{world} ranks are not done after {SECONDS} s"
    finally:
        for process in started.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    return {world: run(world, tmp_path_factory.mktemp(f"ranks{world}")) for world in RANKS}


@pytest.fixture(params=RANKS, ids=lambda world: f"{world} ranks")
def ranks(request, by_ranks):
    return by_ranks[request.param]


cases = pytest.mark.parametrize("case", CASES)


@cases
def test_column_parallel_has_the_bits_of_one_process(ranks, case):
    layer, x = layer_of(case), inputs_of(case, 2, 5)
    expected = layer(x)
    for found in ranks:
        assert found[case]["column"].dtype == expected.dtype
        assert torch.equal(found[case]["column"], expected)
        start, stop = found[case]["shards"][1]
        assert torch.equal(found[case]["split"], expected[..., start:stop])
        assert torch.equal(found[case]["vector"][0], layer(x[0, 0]))
    assert torch.equal(torch.cat([found[case]["split"] for found in ranks], dim=-1), expected)


@pytest.mark.parametrize("case", [case for case in CASES if case != "float"])
def test_row_parallel_has_the_integers_of_one_process(ranks, case):
    layer, x = layer_of(case), inputs_of(case, 2, 5)
    whole = torch.as_tensor(codes_of(x, layer))
    assert torch.equal(torch.cat([found[case]["codes"] for found in ranks], dim=-1), whole)
    products = torch.as_tensor(integers_of(x, layer.weight, layer))
    assert torch.equal(torch.cat([found[case]["integers"] for found in ranks], dim=-1), products)


def partial_sums(layer, x, ranges):
    """Return float32 [..., N] of each rank, computed in this process."""
    codes, scales, offsets = layer.weight.codes(), layer.weight.scales(), layer.weight.offsets()
    g, found = layer.block_size, []
    for start, stop in ranges:
        some = slice(-(-start // g), -(-stop // g))
        parts = [
            codes[:, start:stop],
            scales[:, some],
            None if layer.weight.scheme == "symmetric" else offsets[:, some],
        ]
        parts = [None if part is None else np.ascontiguousarray(part) for part in parts]
        shard = qcore.QuantizedTensor.from_parts(*parts, bits=layer.bits, block_size=g)
        found.append(qcore.linear(x[..., start:stop], shard, compute=layer.compute, out_dtype="float32"))
    return found


def sizes_of_terms(layer, x):
    """Return [..., N] in float64: the sums without signs, offsets on both sides included."""
    blocks = np.arange(x.shape[-1]) // layer.block_size
    wide = np.abs(x.double().numpy())
    if layer.compute != "float":
        rows = x.float().numpy().reshape(-1, x.shape[-1])
        activations = qcore.quantize_activations(rows, layer.block_size, layer.compute)
        codes, scales, offsets, _ = oracle.activation_parts(activations)
        wide = np.abs(codes.astype(np.float64) * scales[:, blocks]) + np.abs(offsets[:, blocks])
        wide = wide.reshape(x.shape)
    weight = layer.weight
    terms = np.abs(weight.codes().astype(np.float64) * weight.scales()[:, blocks]) + np.abs(weight.offsets()[:, blocks])
    return wide @ terms.T


@cases
def test_row_parallel_sums_are_within_the_bound(ranks, case):
    layer, x = layer_of(case), inputs_of(case, 2, 5)
    ranges = [tuple(found[case]["shards"][0].tolist()) for found in ranks]
    assert ranges[0][0] == 0 and ranges[-1][1] == layer.in_features
    with torch.no_grad():
        expected = layer(x)
    # Up to three roundings for each block, one for each rank and one for the bias, on either side; then those of the
    # activation, whose slope is 1.13 at most, and of the result's dtype.
    steps = 3 * -(-layer.in_features // layer.block_size) + len(ranges) + 1
    sums = 2 * steps * 2.0**-24 * (sizes_of_terms(layer, x) + layer.bias.abs().numpy())
    rounding = torch.finfo(expected.dtype).eps + 4 * torch.finfo(torch.float32).eps
    bound = 1.13 * sums + rounding * expected.abs().double().numpy() + torch.finfo(expected.dtype).smallest_normal
    for found in ranks:
        for y in (found[case]["row"], found[case]["parallel"]):
            assert y.dtype == expected.dtype
            assert torch.equal(y, ranks[0][case]["row"])  # every rank has the same
            assert (np.abs(y.double().numpy() - expected.double().numpy()) <= bound).all()
    if len(ranks) == 2 and layer.activation in (None, "relu"):  # of two the order is no matter
        first, second = partial_sums(layer, x, ranges)
        total = first + second + layer.bias
        assert torch.equal(ranks[0][case]["row"], total.relu() if layer.activation else total)
    if len(ranks) == 1:
        assert torch.equal(ranks[0][case]["row"], expected)


@cases
def test_shards(ranks, case):
    n, k, block_size, *_ = CASES[case]
    of_k, of_n = shard_sizes(k, len(ranks), block_size), shard_sizes(n, len(ranks))
    for rank, found in enumerate(ranks):
        assert found[case]["kept"].tolist() == [[of_n[rank], k], [n, of_k[rank]]]
        assert found[case]["empty"].shape == (0, 5, n)


def test_the_smallest_cases_leave_ranks_without_work(by_ranks):
    assert by_ranks[2][1]["one block"]["kept"].tolist() == [[1, 40], [3, 0]]
    assert by_ranks[3][2]["one output"]["kept"].tolist()[0] == [0, 128]


def test_gradients_are_those_of_one_process(ranks):
    for found in ranks:
        single = found["trained"]["single"]
        for way in ("through whole", "through split"):
            torch.testing.assert_close(found["trained"][way], single, rtol=1e-4, atol=1e-6)
        assert single.abs().max() > 0.01


def test_autocast(ranks):
    for found in ranks:
        row, single = found["autocast"]["row"], found["autocast"]["single"]
        assert row.dtype == single.dtype == torch.bfloat16
        torch.testing.assert_close(row, single, rtol=2**-7, atol=1e-3)


def test_repr(by_ranks):
    assert by_ranks[2][1]["state"]["repr"] == (
        "RowParallelLinear(in_features=300, out_features=37, rank 1 of 2: inputs 192 to 300, input_is_parallel=False, "
        "bias=True, bits=8, block_size=64, asymmetric, compute='int8')"
    )


@pytest.mark.parametrize(
    "total, parts, multiple_of, sizes",
    [
        (8, 2, 1, [4, 4]),
        (300, 2, 64, [192, 108]),
        (300, 4, 64, [128, 64, 64, 44]),
        (300, 7, 64, [64, 64, 64, 64, 44, 0, 0]),
        (40, 3, 64, [40, 0, 0]),
        (0, 2, 8, [0, 0]),
    ],
)
def test_shard_sizes(total, parts, multiple_of, sizes):
    assert shard_sizes(total, parts, multiple_of) == sizes


@pytest.mark.parametrize(
    "arguments, words", [((1, 0), "parts is 0"), ((-1, 1), "total is -1"), ((1, 1, 0), "multiple")]
)
def test_shard_sizes_errors(arguments, words):
    with pytest.raises(qcore.QcoreValueError, match=words):
        shard_sizes(*arguments)


def test_without_a_process_group():
    with pytest.raises(qcore.QcoreValueError, match="init_process_group"):
        RowParallelLinear.from_linear(layer_of("even"))
