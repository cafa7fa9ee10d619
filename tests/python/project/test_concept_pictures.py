"""The pictures of docs/concepts.md say what the library computes now."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "concept_pictures.py"
PICTURES = ROOT / "docs" / "images" / "concepts"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs a source tree")


def words(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def test_words_and_numbers_are_the_scripts(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("concept_pictures", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, "concept_pictures", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    assert script.main() == 0
    made, kept = sorted(tmp_path.glob("*.svg")), sorted(PICTURES.glob("*.svg"))
    assert [path.name for path in made] == [path.name for path in kept]
    for new, old in zip(made, kept, strict=True):
        assert words(new)
        assert words(new) == words(old), f"{old.name}: run scripts/concept_pictures.py"
    shown = set(re.findall(r"images/concepts/([\w-]+\.svg)#", (ROOT / "docs" / "concepts.md").read_text()))
    assert shown == {path.name for path in kept}
