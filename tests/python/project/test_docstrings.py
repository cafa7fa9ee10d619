"""Docstrings of functions begin with a verb, and those of public names tell of every parameter and of errors.

ruff's D rules keep their form. qcore.torch: interop/qcore_torch/test_docstrings_torch.py.
"""

import ast
import importlib
from pathlib import Path

import docstrings
import pytest

import qcore
from qcore import QuantizedTensor
from qcore.formats import Checkpoint
from qcore.gru import QuantGRU
from qcore.lut import Table

PACKAGE = Path(qcore.__file__).parent
# Words that begin a description of what there is, or a fragment, instead of what the function does.
NO_VERBS = {
    "a", "an", "and", "any", "as", "at", "before", "both", "each", "every", "for", "from", "how", "if", "in", "its",
    "not", "of", "on", "only", "some", "that", "the", "their", "these", "this", "those", "to", "what", "where",
    "whether", "which", "who", "why", "with", "within", "without",
}  # fmt: skip


def beginnings(source):
    """Yields (line, name, first word) of the docstring of every function that is no property."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield node.lineno, node.name, text.split()[0]


def is_command(path):
    """Tells whether docstrings of a file are help texts, which follow the custom of command lines."""
    return path.name == "cli.py" or path.name.endswith("command.py")


def complaints(path):
    for line, name, word in beginnings(path.read_text(encoding="utf-8")):
        if word.strip("`'\"(.,:;").lower() in NO_VERBS and not (is_command(path) and not name.startswith("_")):
            yield f"{path.relative_to(PACKAGE)}:{line}: {name} begins with {word!r}, expected a verb"


@pytest.mark.skipif(not (PACKAGE / "gru").is_dir(), reason="needs the package's files")
def test_functions_say_what_they_do():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    found = [complaint for path in files for complaint in complaints(path)]
    assert not found, "\n".join(found)


def test_fragments_are_seen():
    source = """
def of(): "Of a weight."
def returns(): "Returns a weight."
class Weight:
    @property
    def size(self): "The size."
    def rows(self): "``[N]`` rows."
"""
    assert [(name, word) for _, name, word in beginnings(source)] == [
        ("of", "Of"),
        ("returns", "Returns"),
        ("rows", "``[N]``"),
    ]
    assert "of" in NO_VERBS


MODULES = ("qcore", "qcore.awq", "qcore.decoder", "qcore.formats", "qcore.gru", "qcore.lut", "qcore.static")
MADE_ELSEWHERE = (Checkpoint, QuantGRU, QuantizedTensor, Table)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_documented(module):
    package = importlib.import_module(module)
    assert package.__doc__
    complaints = [
        complaint
        for name in package.__all__
        if callable(getattr(package, name))
        for complaint in docstrings.missing(f"{module}.{name}", getattr(package, name), made_elsewhere=MADE_ELSEWHERE)
    ]
    assert not complaints, "\n".join(complaints)


def test_what_is_missing_is_seen():
    class Silent:
        def __init__(self, a):
            pass

    def half(x, y, *, z):
        """Something.

        Args:
            x, y: numbers; z: no entry.

        Returns:
            z: neither.
        """

    assert list(docstrings.missing("Silent", Silent)) == [
        "Silent has no docstring",
        "Silent says nothing about its parameter a",
    ]
    assert list(docstrings.missing("half", half)) == [
        "half says nothing about its parameter z",
        "half says nothing about errors",
    ]
    Silent.__module__ = "qcore.somewhere"
    Silent.size = property(lambda self: 1)
    assert "Silent.size has no docstring" in list(docstrings.missing("Silent", Silent))
