"""Tables and charts of the documents come from the kept results."""

import re
from pathlib import Path

import pytest
from benchmarks import documents
from benchmarks.__main__ import main

import qcore

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "results").is_dir(), reason="needs a source tree")


def test_tables_of_documents_are_current(capsys):
    assert main(["tables", "--check"]) == 0, capsys.readouterr().out
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert all(f"<!-- table {name} -->" in text for name in documents.TABLES)


def test_a_changed_table_is_seen_and_written(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "docs"
    folder.mkdir()
    page = folder / "page.md"
    page.write_text("Before.\n\n<!-- table gru-device -->\nold\n<!-- end of table -->\n\nAfter.\n", encoding="utf-8")
    table = documents.gru_device()
    monkeypatch.setitem(documents.TABLES, "gru-device", lambda: table)
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    assert main(["tables", "--check"]) == 1
    assert capsys.readouterr().out == "docs/page.md: is not current\n"
    assert main(["tables"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text == f"Before.\n\n<!-- table gru-device -->\n\n{table}\n<!-- end of table -->\n\nAfter.\n"
    assert main(["tables", "--check"]) == 0


def test_a_changed_chart_is_seen_and_written(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "page.md").write_text("![speed](images/performance/linear-gpu.svg)\n", encoding="utf-8")
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    assert main(["tables"]) == 0
    chart = folder / "images" / "performance" / "linear-gpu.svg"
    drawn = chart.read_text(encoding="utf-8")
    assert 'role="img" aria-label="A linear layer of 4096 x 4096 on an H200' in drawn
    chart.write_text(drawn.replace("H200", "H100"), encoding="utf-8")
    capsys.readouterr()
    assert main(["tables", "--check"]) == 1
    assert capsys.readouterr().out == "docs/images/performance/linear-gpu.svg: is not current\n"


def test_kernels_by_architecture_are_those_of_this_build():
    """The sources are parsed; what this build has must be among them, in the same order."""
    columns = {"nothing": "kNoRequirement"} | {
        kernel.needs: requirement
        for kernel in qcore.kernels()
        for requirement, words in re.findall(
            r'Requirement (k\w+)\{DeviceType::\w+,\s*"([^"]+)"',
            (ROOT / "src" / "runtime" / "requirements.h").read_text(),
        )
        if kernel.needs == words
    }
    found = documents.kernels.kernel_rows()
    assert set(found) == {kernel.op for kernel in qcore.kernels()}
    for op, rows in found.items():
        built = [(kernel.name, columns[kernel.needs]) for kernel in qcore.kernels(op)]
        assert [row for row in rows if row in built] == built
    columns = (*documents.kernels.CPU.values(), *documents.kernels.CUDA.values())
    assert {needs for rows in found.values() for _, needs in rows} == {needs for column in columns for needs in column}


def test_an_unknown_table_is_an_error():
    with pytest.raises(qcore.QcoreValueError, match="page has a table 'nothing', expected one of linear-ratios, "):
        documents.written("<!-- table nothing -->\n<!-- end of table -->", "page")
