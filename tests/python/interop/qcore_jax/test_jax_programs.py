"""Tests operators inside programs of jax: bits and dtypes of a plain call under every transformation.

All calls that vmap batches make one callback.
"""

import os
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcore
import qcore.jax
from qcore import static
from qcore.gru import Calibrator, Config, GruWeights, QuantGRU
from qcore.jax import calls

RNG = np.random.default_rng(0)
DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def normal(*shape, dtype=np.float32):
    return jnp.asarray(RNG.standard_normal(shape, dtype=np.float32), dtype)


def codes(*shape):
    return jnp.asarray(RNG.integers(0, 256, shape), jnp.uint8)


WEIGHT = qcore.quantize(normal(20, 70), bits=4, block_size=32, scheme="asymmetric")
REORDERED = qcore.ReorderedTensor(WEIGHT, RNG.permutation(70))
FILTER = qcore.quantize(normal(6, 2, 3, 3), bits=8, block_size=2)
QLINEAR = static.QLinear.from_float(0.02, 100, normal(9, 17), 0.1, 120, normal(9))
QCONV = static.QConv2d.from_float(0.02, 100, normal(6, 4, 3, 3), 0.1, 120, normal(6), padding=1, y_dtype="int8")
SQUARE = qcore.lut.table("square")
BIAS, BIAS6, SCALE = normal(20), normal(6), normal(13)


def make_gru(batch_first):
    weights = GruWeights.from_arrays(RNG.normal(0, 0.4, (24, 5)), RNG.normal(0, 0.3, (24, 8)))
    made = Calibrator(weights).observe(RNG.normal(0, 1, (20, 4, 5)).astype(np.float32)).finish(Config(bits=8))
    return QuantGRU(made._layers, made.config, batch_first=batch_first)


GRU, GRU_BATCH_FIRST = make_gru(False), make_gru(True)
WINDOW = {"stride": 2, "padding": (1, 0, 2, 1), "groups": 2}

# name: (in programs of jax, plain, shape of x)
OPERATORS = {
    "linear": (
        lambda x: qcore.jax.linear(x, WEIGHT, BIAS, activation="silu"),
        lambda x: qcore.linear(x, WEIGHT, BIAS, activation="silu"),
        (3, 70),
    ),
    "linear, one row": (lambda x: qcore.jax.linear(x, WEIGHT), lambda x: qcore.linear(x, WEIGHT), (70,)),
    "linear, reordered": (lambda x: qcore.jax.linear(x, REORDERED), lambda x: qcore.linear(x, REORDERED), (3, 70)),
    "conv2d": (
        lambda x: qcore.jax.conv2d(x, FILTER, BIAS6, activation=(0, 2), **WINDOW),
        lambda x: qcore.conv2d(x, FILTER, BIAS6, activation=(0, 2), **WINDOW),
        (2, 4, 9, 8),
    ),
    "silu": (qcore.jax.lut.silu, qcore.lut.silu, (3, 13)),
    "a table": (lambda x: qcore.jax.lut.apply(x, SQUARE), SQUARE, (3, 13)),
    "softmax": (lambda x: qcore.jax.lut.softmax(x, 0), lambda x: qcore.lut.softmax(x, 0), (3, 13)),
    "rms_norm": (lambda x: qcore.jax.lut.rms_norm(x, SCALE), lambda x: qcore.lut.rms_norm(x, SCALE), (3, 13)),
    "gru": (lambda x: qcore.jax.gru(x, GRU), GRU, (7, 2, 5)),
    "gru, batch first": (lambda x: qcore.jax.gru(x, GRU_BATCH_FIRST), GRU_BATCH_FIRST, (2, 7, 5)),
    "static.qlinear": (lambda x: qcore.jax.static(x, QLINEAR), QLINEAR, (3, 17)),
    "static.qconv2d": (lambda x: qcore.jax.static(x, QCONV), QCONV, (2, 4, 6, 5)),
}
each_operator = pytest.mark.parametrize("name", OPERATORS)


def array(name, *batch, dtype=np.float32):
    shape = (*batch, *OPERATORS[name][2])
    return codes(*shape) if name.startswith("static") else normal(*shape, dtype=dtype)


def plain(name, x):
    """Apply the operator to arrays of NumPy, without jax."""
    return jax.tree.map(np.asarray, OPERATORS[name][1](np.asarray(x)))


def assert_same(got, expected):
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, jax.Array)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.fixture
def runs(monkeypatch):
    """Return the classes of calls that reached an operator."""
    seen = []
    for kind in subclasses(calls.Call):
        if "run" in vars(kind) and not getattr(kind.run, "__isabstractmethod__", False):

            def run(self, *arrays, original=kind.run):
                seen.append(arrays[0].shape if arrays else ())
                return original(self, *arrays)

            monkeypatch.setattr(kind, "run", run)
    return seen


def subclasses(kind):
    return [kind] + [deeper for child in kind.__subclasses__() for deeper in subclasses(child)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@each_operator
def test_eager_and_compiled(name, dtype):
    x = array(name, dtype=dtype)
    expected = plain(name, x)
    function = OPERATORS[name][0]
    assert_same(function(x), expected)
    assert_same(jax.jit(function)(x), expected)
    assert_same(jax.jit(lambda x: jax.tree.map(lambda y: -y, function(x)))(x), jax.tree.map(np.negative, expected))
    shapes = jax.eval_shape(function, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert [(one.shape, one.dtype) for one in jax.tree.leaves(shapes)] == [
        (one.shape, one.dtype) for one in jax.tree.leaves(expected)
    ]


@each_operator
def test_vmap_is_one_call(name, runs):
    x = array(name, 3)
    function = OPERATORS[name][0]
    expected = jax.tree.map(lambda *parts: np.stack(parts), *(plain(name, one) for one in x))
    for mapped in (jax.vmap(function), jax.jit(jax.vmap(function))):
        runs.clear()
        assert_same(mapped(x), expected)
        # The others are stand-ins of no elements or one, which shapes are found with.
        assert len([shape for shape in runs if np.prod(shape) > 1]) == 1

    deep = jnp.stack([x, x[::-1]])
    expected = jax.tree.map(lambda part: np.stack([part, part[::-1]]), expected)
    runs.clear()
    assert_same(jax.jit(jax.vmap(jax.vmap(function)))(deep), expected)
    assert len([shape for shape in runs if np.prod(shape) > 1]) == 1


@each_operator
def test_vmap_along_other_axes(name):
    x = array(name, 3)
    function = OPERATORS[name][0]
    expected = jax.tree.map(lambda *parts: np.stack(parts, -1), *(plain(name, one) for one in x))
    assert_same(jax.vmap(function, in_axes=-1, out_axes=-1)(jnp.moveaxis(x, 0, -1)), expected)


@each_operator
def test_scan_and_map(name):
    x = array(name, 3)
    function = OPERATORS[name][0]
    expected = jax.tree.map(lambda *parts: np.stack(parts), *(plain(name, one) for one in x))
    assert_same(jax.lax.map(function, x), expected)
    assert_same(jax.lax.map(function, x, batch_size=2), expected)
    assert_same(jax.jit(lambda x: jax.lax.scan(lambda carry, one: (carry + 1, function(one)), 0, x))(x)[1], expected)


@each_operator
def test_a_donated_array(name):
    x = array(name, dtype=np.float32)
    expected = plain(name, np.array(x))
    function = jax.jit(lambda x: (OPERATORS[name][0](x), x * 0), donate_argnums=0)
    result, zeros = function(x)
    assert_same(result, expected)
    assert not np.asarray(zeros).any()


@pytest.mark.parametrize("out_dtype", ["float32", jnp.float16, jnp.dtype("bfloat16")], ids=str)
def test_out_dtype(out_dtype):
    x = normal(3, 70, dtype=jnp.bfloat16)
    name = jnp.dtype(out_dtype).name
    expected = qcore.linear(np.asarray(x), WEIGHT, out_dtype=name)
    assert_same(jax.jit(lambda x: qcore.jax.linear(x, WEIGHT, out_dtype=out_dtype))(x), expected)
    image = normal(1, 4, 5, 5)
    expected = qcore.conv2d(np.asarray(image), FILTER, groups=2, out_dtype=name)
    assert_same(jax.jit(lambda x: qcore.jax.conv2d(x, FILTER, groups=2, out_dtype=out_dtype))(image), expected)


def test_vmap_over_the_bias_too():
    x, biases = normal(4, 3, 70), normal(4, 20)
    expected = np.stack(
        [qcore.linear(np.asarray(one), WEIGHT, np.asarray(b)) for one, b in zip(x, biases, strict=True)]
    )

    def function(x, b):
        return qcore.jax.linear(x, WEIGHT, b)

    assert_same(jax.vmap(function)(x, biases), expected)
    expected = np.stack([qcore.linear(np.asarray(x[0]), WEIGHT, np.asarray(b)) for b in biases])
    assert_same(jax.jit(jax.vmap(function, (None, 0)))(x[0], biases), expected)
    outer = jax.vmap(jax.vmap(function, (0, None)), (None, 0))
    assert outer(x, biases).shape == (4, 4, 3, 20)
    np.testing.assert_array_equal(outer(x, biases)[2, 1], qcore.linear(np.asarray(x[1]), WEIGHT, np.asarray(biases[2])))


@pytest.mark.parametrize("batched", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap_over_states_of_a_gru(batched):
    x, h0 = normal(3, 7, 2, 5), normal(3, 1, 2, 8)
    given = [one if axis == 0 else one[0] for one, axis in zip((x, h0), batched, strict=True)]
    every = [one if axis == 0 else [one[0]] * 3 for one, axis in zip((x, h0), batched, strict=True)]
    pairs = [GRU(np.asarray(one), np.asarray(state)) for one, state in zip(*every, strict=True)]
    expected = jax.tree.map(lambda *parts: np.stack(parts), *pairs)
    assert_same(jax.vmap(lambda x, h: qcore.jax.gru(x, GRU, h), batched)(*given), expected)


def test_codes_into_a_gru():
    x = jnp.asarray(RNG.integers(-100, 100, (7, 2, 5)), jnp.int8)
    assert_same(jax.jit(lambda x: qcore.jax.gru(x, GRU))(x), GRU(np.asarray(x)))


def test_weights_among_parameters():
    """They are nodes without leaves: constants to jit, and nothing to grad and to tree.map."""
    parameters = {"base": WEIGHT, "table": SQUARE, "layer": QCONV, "gru": GRU, "up": normal(20, 4)}
    assert len(jax.tree.leaves(parameters)) == 1
    x = normal(3, 70)
    traced = []

    @jax.jit
    def loss(parameters, x):
        traced.append(parameters["base"])
        y = qcore.jax.linear(x, parameters["base"])
        return ((y @ parameters["up"]) ** 2).mean()

    assert loss(parameters, x) == loss(parameters, x)
    assert len(traced) == 1
    again = parameters | {"base": pickle.loads(pickle.dumps(WEIGHT))}
    assert loss(again, x) == loss(parameters, x)
    assert len(traced) == 2  # another object is another program, equal or not
    gradient = jax.grad(loss)(parameters, x)
    assert gradient["base"] is WEIGHT
    step = jax.tree.map(lambda value, slope: value - 1e-4 * slope, parameters, gradient)
    assert step["base"] is WEIGHT
    assert loss(step, x) < loss(parameters, x)


def test_compiled_once():
    traced = []

    @jax.jit
    def function(x):
        traced.append(x)
        return qcore.jax.linear(x, WEIGHT, activation=(0, 1)) + qcore.jax.lut.exp(x[:, :20])

    for _ in range(3):
        function(normal(3, 70))
    assert len(traced) == 1


def test_threads():
    w = qcore.quantize(normal(256, 256), bits=8, block_size=64)

    @jax.jit
    def function(x):
        for _ in range(3):
            x = qcore.jax.linear(x @ x.T @ x / 1e4, w) / 16
        return qcore.jax.lut.softmax(x)

    inputs = [normal(256, 256) for _ in range(4)]
    expected = [np.asarray(function(x)) for x in inputs]
    wrong = []

    def work(x, y):
        wrong.extend(number for number in range(8) if not np.array_equal(np.asarray(function(x)), y))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_devices():
    """Arrays spread over devices are gathered for a call; its result goes where the program wants it."""
    script = """
import jax, jax.numpy as jnp, numpy as np, qcore, qcore.jax
from jax.sharding import NamedSharding, PartitionSpec
w = qcore.quantize(np.random.default_rng(0).standard_normal((20, 70), dtype=np.float32), bits=8, block_size=32)
x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 70), dtype=np.float32))
mesh = jax.make_mesh((2,), ("rows",))
spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))
for function in (lambda x: qcore.jax.linear(x, w), jax.jit(lambda x: qcore.jax.linear(x, w))):
    np.testing.assert_array_equal(np.asarray(function(spread)), qcore.linear(np.asarray(x), w))
    second = jax.device_put(x, jax.devices()[1])
    np.testing.assert_array_equal(np.asarray(function(second)), qcore.linear(np.asarray(x), w))
"""
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_jax_is_imported_when_asked_for():
    script = (
        "import sys, qcore\n"
        "assert 'jax' not in sys.modules and 'jax' in dir(qcore)\n"
        "from qcore import *\n"
        "assert 'jax' not in globals()\n"
        "assert callable(qcore.jax.linear) and callable(qcore.jax.lut.silu) and 'silu' in dir(qcore.jax.lut)\n"
        "assert 'jax' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match=r"module 'qcore.jax.lut' has no attribute 'nothing'"):
        _ = qcore.jax.lut.nothing
