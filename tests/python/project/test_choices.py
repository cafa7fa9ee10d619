"""The tables and charts of docs/choices.md are those of their data, and the data what the library computes now."""

import dataclasses
import importlib
import os
import sys
from pathlib import Path

import pytest

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
    assert found[0].startswith("normal: 2 bits, symmetric, g = 32, float16, rtn: 1.0 bytes per weight, kept")
    assert "error of the output" in found[1]
    sampled = next(i for i, row in enumerate(old.rows) if row.method == "gptq")
    rows = list(old.rows)
    rows[sampled] = dataclasses.replace(rows[sampled], output=1.02 * rows[sampled].output)
    assert script.differences("normal", dataclasses.replace(old, rows=rows), old) == []
    assert script.differences("normal", dataclasses.replace(old, rows=rows[1:]), old) == ["normal: other forms"]
