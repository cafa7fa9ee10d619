"""The README's example works as pasted, and the script that says so sees what doesn't."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "scripts" / "check_readme.py"

pytestmark = pytest.mark.skipif(not CHECK.is_file(), reason="needs a source tree")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_readme", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_run_as_pasted():
    done = subprocess.run([sys.executable, str(CHECK)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "block 1 of" in done.stdout


def test_blocks_come_with_what_they_print(script):
    text = "```python\na\n```\n\nWords.\n\n```text\nno\n```\n\n```python\nb\n```\n\n```text\nyes\n```\n```py\nc\n```\n"
    assert script.python_blocks(text) == [("a\n", ""), ("b\n", "yes\n")]


def test_a_notebook_is_one_block(script):
    cells = [
        {"cell_type": "markdown", "source": "Words."},
        {"cell_type": "code", "source": "a = 1", "outputs": []},
        {
            "cell_type": "code",
            "source": ["print(a)\n", "print(2)"],
            "outputs": [{"text": ["1\n", "2\n"]}, {"data": {}}],
        },
    ]
    assert script.notebook_block(json.dumps({"cells": cells})) == ("a = 1\nprint(a)\nprint(2)", "1\n2\n")


@pytest.mark.parametrize(
    ("block", "expected", "right"),
    [
        ("print(1)", "", True),
        ("print(1)", "1", True),
        ("print(1)", "2", False),
        ("print(1, 2)", "1 ...", True),
        ("print(1, 2)", "2 ...", False),
        ("1 / 0", "", False),
        ("1 / 0", "ZeroDivisionError: division by zero", True),
        ("1 / 0", "ZeroDivisionError: division ...", True),
        ("1 / 0", "ZeroDivisionError: another", False),
        ("1 / 1", "ZeroDivisionError: division by zero", False),
    ],
)
def test_what_a_block_must_print_or_raise(script, block, expected, right):
    assert (script.complaint(block, expected) == "") == right


def test_a_missing_package_is_a_failure_where_all_must_run(script, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\nimport not_there_at_all\n```\n")
    assert script.main([str(page)]) == 0
    assert script.main([str(page), "--all"]) == 1
    assert "SKIPPED" in capsys.readouterr().out
