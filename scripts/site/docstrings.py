"""Extension of griffe that turns our docstrings into pages.

- Roles such as :func:`qcore.linear`, which editors and `help()` show well enough, become links.
- "Example:" is griffe's "Examples:", whose doctests are shown as code.
- Arguments that share a description ("x, h0: ...") get it each.
- The annotation Any says nothing beside a description, and is left out.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_ARGUMENTS = re.compile(r"^( *)(?:Args|Attributes):\n(?:(?:\1 +.*)?\n)*", re.MULTILINE)
_SHARED = re.compile(r"^( +)(\w+(?:, \w+)+)(: .*\n(?:\1 +.*\n)*)", re.MULTILINE)

_FUNCTIONS = {"qcore.linear": "qcore.linear.linear", "qcore.lut.table": "qcore.lut.builtin.table"}
"""Functions whose module has the same name."""


def _link(match: re.Match[str]) -> str:
    return f"[`{match[1]}`][{_FUNCTIONS.get(match[1], match[1])}]"


def _each(match: re.Match[str]) -> str:
    indent, names, text = match.groups()
    return "".join(f"{indent}{name}{text}" for name in names.split(", "))


class Docstrings(griffe.Extension):
    """mkdocstrings makes one of these and calls it for every object that was read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value) + "\n"
            text = _ARGUMENTS.sub(lambda section: _SHARED.sub(_each, section[0]), text)
            obj.docstring.value = _ROLE.sub(_link, text).rstrip()

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            if str(parameter.annotation) == "Any":
                parameter.annotation = None
        if str(func.returns) == "Any":
            func.returns = None
