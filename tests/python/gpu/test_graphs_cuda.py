"""CUDA graphs of several calls: scratch memory belongs to the graph, and calls in a row share it."""

import gc
import os

import numpy as np
import pytest

import qcore
import qcore.static

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")
if qcore.info()["cuda"]["device_count"] == 0:
    pytest.skip(f"no CUDA device: {qcore.info()['cuda']['reason']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def weights(count, n, bits=4, block_size=128):
    rng = np.random.default_rng(5)
    values = [rng.standard_normal((n, n), np.float32) / np.float32(np.sqrt(n)) for _ in range(count)]
    return [qcore.quantize(w, bits=bits, block_size=block_size, method="rtn").to("cuda") for w in values]


def random_like(x, seed):
    return torch.randn(x.shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda", dtype=x.dtype)


def linear(x, w, compute):
    return qcore.linear(x, w, compute=compute)


def check_replays(graph, x, results, eager):
    """Replay the graph with other inputs, twice each, and compare with calls outside of it."""
    for seed in (1, 2, 3):
        x.copy_(random_like(x, seed))
        expected = eager()
        for _ in range(2):
            for y in results:
                y.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            for y, wanted in zip(results, expected, strict=True):
                assert torch.equal(y, wanted)


@pytest.mark.parametrize("rows", [1, 16, 64, 300])
def test_calls_in_a_row(rows):
    layers = [(w, compute) for w, compute in zip(weights(6, 1024), ["int8", "float", "int8_asym"] * 2, strict=True)]
    x = torch.zeros(rows, 1024, device="cuda", dtype=torch.bfloat16)

    def run():
        results = [x]
        for w, compute in layers:
            results.append(linear(results[-1], w, compute))
        return results[1:]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    check_replays(graph, x, results, run)


@pytest.mark.parametrize("operator", ["int8", "int8_asym", "float", "static"])
def test_convolutions_in_a_row(operator):
    """A kernel may start while the one in front of it runs, but reads its results only when it has ended."""
    rng = np.random.default_rng(6)
    layers = []
    for shape, groups in [((64, 64, 3, 3), 1), ((64, 1, 3, 3), 64), ((64, 64, 1, 1), 1)] * 3:
        w = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        padding = shape[2] // 2
        if operator == "static":
            layers.append(
                qcore.static.QConv2d.from_float(1 / 32, 128, w, 1 / 32, 128, padding=padding, groups=groups).to("cuda")
            )
            continue
        weight = qcore.quantize(w, bits=8, block_size=64, method="rtn").to("cuda")
        layers.append(
            lambda x, weight=weight, padding=padding, groups=groups: qcore.conv2d(
                x, weight, padding=padding, groups=groups, compute=operator
            )
        )
    x = torch.randn(2, 64, 40, 40, device="cuda").contiguous(memory_format=torch.channels_last)
    x = (x * 32 + 128).round().clamp(0, 255).to(torch.uint8) if operator == "static" else x.half()

    def run(apart):
        results = [x]
        for layer in layers:
            results.append(layer(results[-1]))
            if apart:
                torch.cuda.synchronize()
        return results[1:]

    expected = run(True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(False)
    for _ in range(20):
        for y in results:
            y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for y, wanted in zip(results, expected, strict=True):
            assert torch.equal(y, wanted)


def test_streams_that_run_at_the_same_time():
    first, second, third = weights(3, 2048)
    x = torch.zeros(256, 2048, device="cuda", dtype=torch.float16)
    other = torch.cuda.Stream()

    def run():
        begin, end = torch.cuda.Event(), torch.cuda.Event()
        begin.record()
        other.wait_event(begin)
        with torch.cuda.stream(other):
            left = linear(x, first, "int8")
            left = linear(left, third, "int8")
            end.record(other)
        right = linear(x, second, "int8")
        right = linear(right, third, "int8")
        torch.cuda.current_stream().wait_event(end)
        return [left, right, linear(left + right, third, "int8")]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    check_replays(graph, x, results, run)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes change the device's free memory")
def test_memory_is_freed_with_the_graphs():
    (w,) = weights(1, 4096)
    x = torch.zeros(8192, 4096, device="cuda", dtype=torch.float16)
    free = []
    for _ in range(40):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            linear(x, w, "int8")
        graph.replay()
        torch.cuda.synchronize()
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    # A call's codes take 32 MiB; the driver frees a graph's memory some time after the graph.
    assert free[9] - free[-1] < 10 * 32 << 20
