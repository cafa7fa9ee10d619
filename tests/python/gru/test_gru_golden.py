"""Golden files: both verifiers accept what the library writes and name the first number that was changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import qcore
from qcore.gru import Calibrator, Config, Direction, GruWeights, verify_golden

ROOT = Path(__file__).resolve().parents[3]
VERIFIER = ROOT / "tests" / "cpp" / "verify_golden.cpp"
CONFIGS = {
    "staged 8": Config(pipeline="staged"),
    "fused 8": Config(pipeline="fused"),
    "staged 16": Config(bits=16, rounding="half_even", pipeline="staged"),
    "fused 16 interp": Config(bits=16, pipeline="fused", tables="interp"),
    "mixed": Config(widths={"h": 13, "weights": 5, "z_pre": 8, "g": 11, "biases": 20}, rounding="half_even"),
    "mixed fused": Config(widths={"x": 9, "h": 16, "rh": 12, "z": 6}, pipeline="fused", rounding="half_even"),
}
STAGED_ONLY = ("rrh", "old_part", "new_part")


def weights(layers=2, directions=2, c=5, h=7, *, batch_first=False, **options):
    rng = np.random.default_rng(0)

    def direction(inputs):
        shapes = (3 * h, inputs), (3 * h, h), 3 * h, 3 * h
        return Direction(
            *(rng.normal(0, sigma, shape) for sigma, shape in zip((0.5, 0.4, 0.3, 0.3), shapes, strict=True)), **options
        )

    sizes = [c] + [directions * h] * (layers - 1)
    return GruWeights([[direction(size) for _ in range(directions)] for size in sizes], batch_first=batch_first)


def inputs(steps=6, batch=3, c=5, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (steps, batch, c)).astype(np.float32)


def states(rows=4, batch=3, h=7):
    return np.random.default_rng(2).uniform(-0.9, 0.9, (rows, batch, h)).astype(np.float32)


def written(path, config, **shape):
    given_weights = weights(**shape)
    rows = len(given_weights.layers) * given_weights.directions
    q = Calibrator(given_weights).observe(inputs(seed=3), states(rows)).finish(config)
    q.golden(path, inputs(), states(rows))
    return q


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
def test_only_the_staged_pipeline_has_its_intermediates(tmp_path, pipeline):
    written(tmp_path / "golden", Config(pipeline=pipeline))
    names = {name.rpartition(".")[2] for name in load_file(tmp_path / "golden")}
    assert names.intersection(STAGED_ONLY) == (set(STAGED_ONLY) if pipeline == "staged" else set())


def rewritten(path, tensors):
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    changed = path.with_suffix(".changed")
    save_file(tensors, changed, metadata)
    return changed


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """Return tests/cpp/verify_golden.cpp, compiled against the library that is installed."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or not VERIFIER.is_file():
        pytest.skip("needs a C++ compiler and the source tree")
    package = Path(qcore._core.__file__).parent
    library = package / "lib"
    command = [sys.executable, "-m", "qcore", "--include-dir"]
    include = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    program = tmp_path_factory.mktemp("verifier") / "verify_golden"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{include}", VERIFIER, "-o", program]
    done = subprocess.run(
        [*command, f"-L{library}", "-lqcore", f"-Wl,-rpath,{library}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


def run(program, path):
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_both_verifiers_accept(name, tmp_path, verifier):
    path = tmp_path / "golden"
    q = written(path, CONFIGS[name])
    assert [file.name for file in tmp_path.iterdir()] == ["golden"]
    check = verify_golden(path)
    tensors = 2 * 3 + (8 if q.config.pipeline == "fused" else 11)
    assert check.integers == 4 * 6 * 3 * 7 * tensors + 6 * 3 * 14 + 4 * 3 * 7
    assert str(check) == f"2 layers of 2 directions, 6 steps: {check.integers:,} integers equal"
    assert run(verifier, path) == (0, f"{path}: 2 layers of 2 directions, 6 steps: equal\n")
    y, last = q(inputs(), states())
    stored = load_file(path)
    for number, (got, wanted) in enumerate(((stored["y"], y), (stored["last"], last))):
        np.testing.assert_array_equal(
            q.format("h", 1).decode(got[-2:] if number else got), wanted[-2:] if number else y
        )


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
def test_both_verifiers_know_the_reset_before_the_product(pipeline, tmp_path, verifier):
    path = tmp_path / "golden"
    written(path, Config(pipeline=pipeline), linear_before_reset=0)
    verify_golden(path)
    assert run(verifier, path) == (0, f"{path}: 2 layers of 2 directions, 6 steps: equal\n")
    whole = load_file(path)
    whole["1.0.rh_g"][4, 2, 3] ^= 1
    status, text = run(verifier, rewritten(path, whole))
    assert status == 1 and "1.0.rh_g differs first at step 4, row 2, channel 3: " in text


def test_codes_and_batch_first(tmp_path, verifier):
    q = Calibrator(weights(1, 1, batch_first=True)).observe(inputs().transpose(1, 0, 2)).finish()
    codes = q.format("x").encode(inputs()).astype(np.int8).transpose(1, 0, 2)
    q.golden(tmp_path / "codes", codes)
    q.golden(tmp_path / "floats", inputs().transpose(1, 0, 2))
    one, other = load_file(tmp_path / "codes"), load_file(tmp_path / "floats")
    assert set(one) == set(other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)
    assert verify_golden(tmp_path / "codes").directions == 1
    assert run(verifier, tmp_path / "codes")[0] == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_one_changed_number_is_named(name, tmp_path, verifier):
    """In every tensor that a step computes, and by both verifiers at the same place."""
    path = tmp_path / "golden"
    directions = 2 if name.startswith("mixed") else 1
    written(path, CONFIGS[name], layers=1, directions=directions)
    whole = load_file(path)
    rng = np.random.default_rng(4)
    steps = [tensor for tensor in whole if tensor.count(".") == 2 and whole[tensor].ndim == 3]
    assert len(steps) == directions * (10 if CONFIGS[name].pipeline == "fused" else 13)
    for tensor in [*steps, "y", "last"]:
        values = whole[tensor].copy()
        index = tuple(int(rng.integers(size)) for size in values.shape)
        low = values.min()
        values[index] += 1 if values[index] == low else -1
        changed = rewritten(path, whole | {tensor: values})
        first = "layer and direction" if tensor == "last" else "step"
        place = f"{tensor} differs first at {first} {index[0]}, row {index[1]}, channel {index[2]}: "
        values = f"the file has {values[index]}, the definition gives {whole[tensor][index]}"
        with pytest.raises(qcore.QcoreValueError) as caught:
            verify_golden(changed)
        assert place + values in str(caught.value), (tensor, str(caught.value))
        status, said = run(verifier, changed)
        assert status == 1 and place + values in said, (tensor, said)


def test_changed_parameters_are_found(tmp_path, verifier):
    path = tmp_path / "golden"
    written(path, CONFIGS["staged 16"], layers=1)
    whole = load_file(path)
    places = {
        "0.0.parameters.w": (3, 2),
        "0.1.parameters.r_exponents": (5,),
        "0.0.table_g": (4000,),
        "0.x": (2, 1, 4),
        "0.1.h0": (1, 3),
    }
    for tensor, index in places.items():
        values = whole[tensor].copy()
        values[index] += 1
        changed = rewritten(path, whole | {tensor: values})
        with pytest.raises(qcore.QcoreValueError, match="differs first at"):
            verify_golden(changed)
        status, said = run(verifier, changed)
        assert status == 1 and "differs first at" in said, (tensor, said)


def test_lacking_files(tmp_path, verifier):
    path = tmp_path / "golden"
    written(path, Config(), layers=1, directions=1)
    whole = load_file(path)

    def refused(words, tensors):
        changed = rewritten(path, tensors)
        with pytest.raises(qcore.QcoreError) as caught:
            verify_golden(changed)
        assert words in str(caught.value) and str(caught.value).startswith("gru golden: "), str(caught.value)
        assert run(verifier, changed)[0] in (1, 2)

    refused("has no tensor 0.0.rb", {name: value for name, value in whole.items() if name != "0.0.rb"})
    refused("has no tensor 0.x", {"y": whole["y"]})
    refused("0.0.z has dtype int64, expected int32", whole | {"0.0.z": whole["0.0.z"].astype(np.int64)})
    refused("0.0.z has shape [3, 6, 7], expected [6, 3, 7]", whole | {"0.0.z": whole["0.0.z"].reshape(3, 6, 7)})
    refused("0.0.table_z has shape [65535]", whole | {"0.0.table_z": whole["0.0.table_z"][:-1].copy()})
    formats = whole["0.0.formats"].copy()
    formats[1, 0] = 40
    refused("0.0.formats of h is [40, 1,", whole | {"0.0.formats": formats})
    with pytest.raises(FileNotFoundError):
        verify_golden(tmp_path / "none")
    save_file(whole, tmp_path / "other", {"format": "qcore.gru.2"})
    with pytest.raises(qcore.QcoreValueError, match=r"has format 'qcore\.gru\.2', expected"):
        verify_golden(tmp_path / "other")


@given(st.data())
def test_damaged_files_are_refused(tmp_path_factory, data):
    """Any change of a byte, or a cut, is an error of ours; nothing crashes."""
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.golden"
    if not whole.exists():
        q = (
            Calibrator(weights(1, 1, 2, 3))
            .observe(inputs(c=2))
            .finish(Config(widths={"z_pre": 8, "r_pre": 8, "g_pre": 8}))
        )
        q.golden(whole, inputs(3, 2, 2))
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.golden"
    damaged.write_bytes(content)
    try:
        verify_golden(damaged)
    except qcore.QcoreError as error:
        assert str(error).startswith("gru golden: ")


def test_bad_inputs(tmp_path):
    q = Calibrator(weights(1, 1)).observe(inputs()).finish()
    for call, words in [
        (lambda: q.golden(tmp_path / "g", inputs(c=4)), "gru: x has shape [6, 3, 4], expected [T, B, C] with C = 5"),
        (lambda: q.golden(tmp_path / "g", inputs(0)), "expected [T, B, C] with C = 5 and at least one step"),
        (lambda: q.golden(tmp_path / "g", inputs(), states(2)), "gru: h0 has shape [2, 3, 7], expected [1, 3, 7]"),
        (lambda: q.golden(tmp_path / "g", inputs().astype(np.int16)), "x has dtype int16, expected numbers or int8"),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
    assert not list(tmp_path.iterdir())
