"""The pages of docs/api have every public name, and the site's configuration every page."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from qcore import lut

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
MODULES = (
    "qcore",
    "qcore.awq",
    "qcore.decoder",
    "qcore.formats",
    "qcore.gru",
    "qcore.jax",
    "qcore.language_model",
    "qcore.lstm",
    "qcore.transformers",
    "qcore.lut",
    "qcore.static",
    "qcore.torch",
    "qcore.torch.parallel",
)

pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").is_file(), reason="needs a source tree")


def public_names(module):
    """Return the names of ``__all__``, from the source: torch and jax need not be installed."""
    base = ROOT / "python" / Path(*module.split("."))
    source = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{source} has no __all__")


def shown(page):
    """Return the names that mkdocstrings puts on a page, and those in its tables."""
    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    names |= set(re.findall(r"heading: ([\w.]+)", text))
    return names | set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module):
    page = DOCS / "api" / f"{module.removesuffix('.parallel').split('.')[-1]}.md"
    there = shown(page)
    pages = {path.stem for path in (DOCS / "api").glob("*.md")}
    missing = [
        name
        for name in public_names(module)
        if f"{module}.{name}" not in there and name not in there and name not in pages and name != "__version__"
    ]
    assert not missing, f"{page.relative_to(ROOT)} lacks {', '.join(missing)}"


def test_formulas_are_the_functions_own():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+)` \|$", (DOCS / "api" / "lut.md").read_text(), re.MULTILINE))
    assert rows == {name: re.search(r"``(.+?)``", getattr(lut, name).__doc__)[1] for name in lut.names()}


def test_pages_of_nav_exist():
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("theme:")[0]
    pages = re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE)
    assert pages and not [page for page in pages if not (DOCS / page).is_file()]


def test_lists_of_nav_have_at_most_eight_entries():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    sizes, above = Counter(), {}
    for indent, title in re.findall(r"^( *)- (.+)$", nav, re.MULTILINE):
        above[len(indent)] = title
        sizes[tuple(above[depth] for depth in sorted(above) if depth < len(indent))] += 1
    assert sizes[("Guides:",)] and not {path: size for path, size in sizes.items() if size > 8}


def test_assets_that_the_theme_names_exist():
    assets = re.findall(r"^  (?:logo|favicon): (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(assets) == 2 and not [asset for asset in assets if not (DOCS / asset).is_file()]


def test_the_list_of_examples_has_every_notebook():
    listed = re.findall(r"\]\((notebooks/\w+\.ipynb)\)", (ROOT / "examples" / "README.md").read_text())
    assert sorted(listed) == sorted(f"notebooks/{path.name}" for path in ROOT.glob("examples/notebooks/*.ipynb"))


def test_links_of_documents_lead_somewhere():
    documents = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*/README.md")]
    broken = []
    for document in documents:
        prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^()\s#]+)", prose):
            if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)} -> {target}")
    assert not broken, "\n".join(broken)
