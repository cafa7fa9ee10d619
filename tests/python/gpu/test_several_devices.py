"""Operators on a device that is not the current one, on two devices at once, and layers split over two with NCCL."""

import datetime
import threading

import numpy as np
import pytest

import qcore

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] < 2:
    pytest.skip("fewer than two CUDA devices", allow_module_level=True)
if torch.cuda.device_count() < 2:
    pytest.skip("torch sees fewer than two CUDA devices", allow_module_level=True)

pytestmark = pytest.mark.gpu
DEVICES = ("cuda:0", "cuda:1")


@pytest.fixture(autouse=True)
def first_device():
    """Begin on the first device, and leave it the current one: tests of other modules may come next."""
    torch.manual_seed(0)
    torch.cuda.set_device(0)
    yield
    torch.cuda.set_device(0)


def calls():
    """Return by name an operator with its weight moved to a device, and inputs on the CPU."""
    matrix = qcore.quantize(np.random.default_rng(0).standard_normal((96, 256), np.float32), bits=4, block_size=32)
    image = qcore.quantize(np.random.default_rng(1).standard_normal((32, 32, 3, 3), np.float32), bits=8, block_size=32)
    narrow = np.random.default_rng(2).integers(-128, 127, (32, 64)).astype(np.int8)
    layer = qcore.static.QLinear(0.02, 3, narrow, np.full(32, 0.01, np.float32), 0.05, 100, x_dtype="int8")
    gru = qcore.gru.QuantGRU.from_torch(torch.nn.GRU(16, 64), torch.randn(20, 4, 16))
    x = torch.randn
    return {
        "linear, one row": (lambda d: lambda x: qcore.linear(x, matrix.to(d)), x(1, 256)),
        "linear, rows": (lambda d: lambda x: qcore.linear(x, matrix.to(d)), x(130, 256)),
        "conv2d": (lambda d: lambda x: qcore.conv2d(x, image.to(d), padding=1), x(2, 32, 12, 12)),
        "static": (lambda d: layer.to(d), torch.randint(-128, 127, (9, 64), dtype=torch.int8)),
        "gru": (lambda d: lambda x: gru(x)[0], x(7, 3, 16)),
        "lut": (lambda d: qcore.lut.silu, x(5, 999)),
        "softmax": (lambda d: qcore.lut.softmax, x(5, 999)),
    }


CALLS = calls()
every_operator = pytest.mark.parametrize("name", CALLS)


@every_operator
def test_on_a_device_that_is_not_the_current_one(name):
    make, x = CALLS[name]
    expected = make("cpu")(x)
    for current in (0, 1):
        torch.cuda.set_device(current)
        for device in DEVICES:
            y = make(device)(x.to(device))
            assert str(y.device) == device
            assert torch.equal(y.cpu(), expected)
            assert torch.cuda.current_device() == current


@every_operator
def test_on_both_devices_by_two_threads(name):
    make, x = CALLS[name]
    expected, wrong = make("cpu")(x), []

    def repeat(device):
        operator, there = make(device), x.to(device)
        for _ in range(50):
            if not torch.equal(operator(there).cpu(), expected):
                wrong.append(device)

    threads = [threading.Thread(target=repeat, args=(device,)) for device in DEVICES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operands_of_two_devices_are_refused():
    weight = qcore.quantize(np.ones((8, 32), np.float32), block_size=32).to("cuda:0")
    with pytest.raises(ValueError, match=r"cuda:1.*cuda:0|cuda:0.*cuda:1"):
        qcore.linear(torch.ones(2, 32, device="cuda:1"), weight)


def test_weights_travel_between_devices():
    weight = qcore.quantize(np.random.default_rng(0).standard_normal((17, 70), np.float32), bits=4, block_size=32)
    moved = weight.to("cuda:0").to("cuda:1")
    assert moved.device == "cuda:1"
    assert moved.to("cpu") == weight


def rank(number, path):
    import torch.distributed as dist

    import qcore.torch as qt
    from qcore.torch.parallel import ColumnParallelLinear, RowParallelLinear

    torch.cuda.set_device(number)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{path}/store",
        rank=number,
        world_size=2,
        timeout=datetime.timedelta(seconds=90),
        device_id=torch.device("cuda", number),
    )
    torch.manual_seed(0)
    whole = qt.Linear(qcore.quantize(torch.randn(48, 320), bits=4, block_size=64), torch.randn(48)).cuda()
    x = torch.randn(3, 5, 320).cuda().requires_grad_()
    column, row = ColumnParallelLinear.from_linear(whole), RowParallelLinear.from_linear(whole)
    y, split = whole(x), row(x)
    results = {"column": torch.equal(column(x), y), "whole": y, "row": split}
    (split.sum()).backward()
    results["grad"] = x.grad.clone()
    x.grad = None
    whole(x).sum().backward()
    results["expected grad"] = x.grad
    torch.save({name: value.detach().cpu() if torch.is_tensor(value) else value for name, value in results.items()},
               f"{path}/{number}.pt")  # fmt: skip
    dist.destroy_process_group()


def test_split_over_two_devices_with_nccl(tmp_path):
    torch.multiprocessing.spawn(rank, (str(tmp_path),), nprocs=2)
    for number in range(2):
        found = torch.load(tmp_path / f"{number}.pt")
        assert found["column"]
        torch.testing.assert_close(found["row"], found["whole"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found["grad"], found["expected grad"], rtol=1e-5, atol=1e-5)
