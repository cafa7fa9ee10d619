"""The tables and charts of docs/choices.md are those of their data, and the data what the library computes now."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import qcore

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "choices.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs a source tree")


@pytest.fixture(scope="module")
def script():
    before, environment = list(sys.path), dict(os.environ)
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        yield importlib.import_module("choices")
    finally:
        sys.path[:] = before
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture(scope="module")
def layer(script):
    rng = np.random.default_rng(3)
    w = rng.standard_normal((8, 288), dtype=np.float32)
    w[2, :64] = 0
    return script.Layer(w, w, w)


def test_tables_and_charts_are_those_of_the_data(script, tmp_path):
    made, results = script.kept()
    assert script.stale(made, results, tmp_path) == []
    assert script.written(made, results) == script.DATA.read_text(encoding="utf-8")
    page = script.PAGE.read_text(encoding="utf-8")
    for name in ("overview", *script.SETS):
        assert f"(images/choices/{name.lower()}.svg)" in page


def test_a_page_with_other_tables_is_found(script, tmp_path):
    made, results = script.kept()
    first = results["GRU"].rows[0]
    results["GRU"].rows[0] = dataclasses.replace(first, output=2 * first.output)
    found = script.stale(made, results, tmp_path)
    assert found[0] == "choices.md: its tables are others"


def test_a_page_without_a_marker_is_an_error(script):
    with pytest.raises(ValueError, match=r"expected one <!-- choices: best --> and one <!-- end of best -->"):
        script.page_with("no marker", {"best": "table"})


def test_data_that_need_no_model_are_what_the_library_computes(script):
    _, kept = script.kept()
    for name in ("GRU", "normal"):
        assert script.differences(name, script.measure(script.SETS[name]()), kept[name]) == []


def test_differences_name_the_form(script):
    _, kept = script.kept()
    old = kept["normal"]
    row = old.rows[0]
    new = dataclasses.replace(old, rows=[dataclasses.replace(row, bytes=1.0, output=1.002 * row.output), *old.rows[1:]])
    found = script.differences("normal", new, old)
    assert len(found) == 2
    assert found[0].startswith("normal: 4 bits, symmetric, g = 16, float16, rtn: 1.0 bytes per weight, kept")
    assert "error of the output" in found[1]
    sampled = next(i for i, row in enumerate(old.rows) if row.method == "gptq")
    rows = list(old.rows)
    rows[sampled] = dataclasses.replace(rows[sampled], output=1.02 * rows[sampled].output)
    assert script.differences("normal", dataclasses.replace(old, rows=rows), old) == []
    assert script.differences("normal", dataclasses.replace(old, rows=rows[1:]), old) == ["normal: other forms"]


@pytest.mark.parametrize(
    "name", ["NF4", "FP4", "IQ4_NL", "NVFP4", "5 bits, minimum, g = 64", "4 bits, zero points, g = 32"]
)
def test_weights_are_rounded_to_the_nearest_value_of_their_block(script, layer, name):
    """Every value that another code of the same block has is at least as far from the weight."""
    form = next(form for form in script.forms() if form.name == name)
    weight = form.made(layer, qcore.Hessian(288))
    parts, count = weight.encoded_parts(), 2**weight.bits
    distance = np.abs(weight.dequantize() - layer.weight)
    for code in range(count):
        parts["codes"] = np.full((8, 288), code, np.uint8)
        options = {key: value for key, value in parts.items() if value is not None}
        other = qcore.QuantizedTensor.from_encoded(**options, encoding=weight.encoding, block_size=weight.block_size)
        # The codes are chosen in float32.
        assert (distance <= np.abs(other.dequantize() - layer.weight) + 1e-5).all()
    assert not np.isnan(distance).any()
