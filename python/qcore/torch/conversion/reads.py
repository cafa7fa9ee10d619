"""Finds which attributes of its submodules the code of a module reads.

A module that calls ``self.proj(x)`` works with any module in the place of ``proj``. One that reads ``self.proj.weight``
works only if the other module has such a weight. The source of ``forward``, and of the methods and functions that it
calls, is followed symbolically: values are paths from ``self``, and everything else is ignored. So a read is found
where it is written as one, through local variables, loops over containers and arguments of functions; a read in code
without Python source is not.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

ANY = "*"
"""Stands for every element of a container in a path."""

Path = tuple[str, ...]
Paths = frozenset[Path]

_NOTHING: Paths = frozenset()
_DEPTH = 6
"""Largest depth of nested calls that are followed."""
_LENGTH = 8
"""Largest number of names in a path, so that a loop over a recursive structure ends."""
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_HARMLESS_CALLS = ("isinstance", "hasattr", "print", "repr", "str", "id", "type", "callable")
_CONTAINER_CALLS = ("items", "values", "children", "modules", "copy")
_CALLED = ("forward", "get_", "encode", "decode", "embed", "project")
"""Beginnings of the names of public methods that a forward pass may call; others make or change a model."""
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Read:
    """Describes a read of an attribute of a module.

    Attributes:
        attribute: its name: "weight".
        rest: names that the code reads of it in turn: ("dtype",) in ``proj.weight.dtype``.
        reader: name of the class whose code reads it.
    """

    attribute: str
    rest: Path
    reader: str


def reads_of(model: torch.nn.Module) -> dict[int, set[Read]]:
    """Return the reads of each module's attributes by the modules above and beside it, by the id of the module."""
    found: dict[int, set[Read]] = {}
    for module in model.modules():
        for path in _paths_of(module):
            for child, attribute, rest in _resolved(module, path):
                found.setdefault(id(child), set()).add(Read(attribute, rest, type(module).__name__))
    return found


def _resolved(module: torch.nn.Module, path: Path) -> Iterator[tuple[torch.nn.Module, str, Path]]:
    """Yield the modules below a module that a path leads to, with the attribute read of each."""
    modules = [module]
    for position, name in enumerate(path):
        below: list[torch.nn.Module] = []
        for each in modules:
            children = dict(each._modules.items())  # for a scripted module it is no dictionary
            if name == ANY:
                below += [child for child in children.values() if child is not None]
            elif (child := children.get(name)) is not None:
                below.append(child)
            elif position > 0:
                yield each, name, path[position + 1 :]
        modules = below


_cache: dict[type, list[tuple[dict[Path, Any], Paths]]] = {}
"""Paths that were found for a class, with the values of attributes that decided which branches run."""


def _paths_of(module: torch.nn.Module) -> Paths:
    """Return the paths that the methods of a module read."""
    kind = type(module)
    if _is_of_torch(kind):
        return _NOTHING
    for values, paths in _cache.setdefault(kind, []):
        if all(_attribute(module, path) == (value,) for path, value in values.items()):
            return paths
    reader = _Reader(module)
    called = (name for name in vars(kind) if name.startswith(_CALLED))
    for name in dict.fromkeys(("forward", *called)):
        method = inspect.getattr_static(kind, name, None)
        if inspect.isfunction(method):
            reader.follow(method, kind, [frozenset({()})], {})
    paths = frozenset(path for path in reader.found if len(path) > 1)
    _cache[kind].append((reader.decided, paths))
    return paths


def _attribute(module: torch.nn.Module, path: Path) -> tuple[Any]:
    """Return a value of a plain type at the end of a path, in a tuple; an empty one if there is none."""
    value: Any = module
    try:
        for name in path:
            value = getattr(value, name)
    except (AttributeError, KeyError, RuntimeError):
        return ()  # type: ignore[return-value]
    return (value,) if isinstance(value, _PLAIN) else ()  # type: ignore[return-value]


def _is_of_torch(owner: Any) -> bool:
    module = getattr(owner, "__module__", None) or ""
    return module == "torch" or module.startswith(("torch.", "qcore."))


@functools.lru_cache(maxsize=4096)
def _tree_of(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)


@dataclass
class _Frame:
    kind: type | None
    names: dict[str, Any]
    """Values of the function's globals and builtins."""
    values: dict[str, Paths]
    returned: set[Path] = field(default_factory=set)


class _Reader:
    """Follows functions and collects the paths that they read."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found: set[Path] = set()
        self.decided: dict[Path, Any] = {}
        self._module = module
        self._active: list[Any] = []
        self._done: dict[Any, Paths] = {}

    def follow(
        self, function: Callable[..., Any], kind: type | None, positional: list[Paths], keywords: dict[str, Paths]
    ) -> Paths:
        """Return the paths that a call of the function returns."""
        function = inspect.unwrap(function)
        if not inspect.isfunction(function) or _is_of_torch(function) or len(self._active) >= _DEPTH:
            return _NOTHING
        tree = _tree_of(function)
        if tree is None:
            return _NOTHING
        parameters = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
        values = dict(zip(parameters, positional, strict=False)) | keywords
        key = function, kind, frozenset(values.items())
        if key in self._done or key in self._active:
            return self._done.get(key, _NOTHING)
        self._active.append(key)
        frame = _Frame(kind, vars(builtins) | function.__globals__, values)
        for _ in range(2):  # the beginning of a loop may use names that its end binds
            for statement in tree.body:
                self._statement(statement, frame)
        self._active.pop()
        self._done[key] = frozenset(frame.returned)
        return self._done[key]

    def _statement(self, node: ast.AST, frame: _Frame) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                paths = self._value(node.value, frame)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._bind(target, node.value, paths, frame)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._bind_all(node.target, self._elements(node.iter, frame), frame)
            for child in node.ifs if isinstance(node, ast.comprehension) else (*node.body, *node.orelse):
                self._statement(child, frame)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                frame.returned |= self._value(node.value, frame)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            for child in (
                *node.generators,
                *(getattr(node, name) for name in ("elt", "key", "value") if hasattr(node, name)),
            ):
                self._statement(child, frame)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for child in node.body if isinstance(node.body, list) else [node.body]:
                self._statement(child, frame)
        elif isinstance(node, ast.If):
            truth = self._truth(node.test, frame)
            self._use(node.test, frame)
            for branch, runs in ((node.body, truth is not False), (node.orelse, truth is not True)):
                for statement in branch if runs else ():
                    self._statement(statement, frame)
        elif isinstance(node, ast.expr):
            self._use(node, frame)
        else:
            for below in ast.iter_child_nodes(node):
                self._statement(below, frame)

    def _truth(self, node: ast.expr, frame: _Frame) -> bool | None:
        """Return whether a test of attributes of the module itself holds, None where only a call can tell."""
        if isinstance(node, ast.BoolOp):
            truths = [self._truth(each, frame) for each in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self._truth(node.operand, frame)
            return None if truth is None else not truth
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            left, right = self._plain(node.left, frame), self._plain(node.comparators[0], frame)
            try:
                return bool(_COMPARISONS[type(node.ops[0])](left[0], right[0])) if left and right else None
            except TypeError:
                return None
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance" and len(node.args) == 2:
            # The weight of a quantized module is no tensor, and for other modules the answer does not matter.
            kind = node.args[1]
            name = kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")
            paths = self._value(node.args[0], frame)
            is_weight = bool(paths) and all(len(path) > 1 and path[-1] == "weight" for path in paths)
            return False if is_weight and name in ("Tensor", "Parameter") else None
        value = self._plain(node, frame)
        return bool(value[0]) if value else None

    def _plain(self, node: ast.expr, frame: _Frame) -> tuple[Any, ...]:
        if isinstance(node, ast.Constant):
            return (node.value,)
        names: list[str] = []
        root: Any = node
        while isinstance(root, ast.Attribute):
            names.insert(0, root.attr)
            root = root.value
        if not isinstance(root, ast.Name) or frame.values.get(root.id) != frozenset({()}) or names[-1:] == ["training"]:
            return ()
        value = _attribute(self._module, tuple(names))
        if value:
            self.decided[tuple(names)] = value[0]
        return value

    def _bind(self, target: ast.AST, value: ast.AST, paths: Paths, frame: _Frame) -> None:
        if isinstance(target, ast.Name):
            frame.values[target.id] = frame.values.get(target.id, _NOTHING) | paths
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            if len(target.elts) == len(value.elts):
                for each, given in zip(target.elts, value.elts, strict=True):
                    self._bind(each, given, self._value(given, frame), frame)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._read(paths)
            self._bind_all(target, _extended(paths, ANY), frame)
        else:
            self._read(paths)

    def _bind_all(self, target: ast.AST, paths: Paths, frame: _Frame) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                frame.values[node.id] = frame.values.get(node.id, _NOTHING) | paths

    def _elements(self, node: ast.AST, frame: _Frame) -> Paths:
        """Return the paths of the elements that iterating over an expression yields."""
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in ("enumerate", "zip", "reversed", "list", "tuple", "iter"):
                return frozenset().union(*(self._elements(argument, frame) for argument in node.args))
        return _extended(self._value(node, frame), ANY)

    def _use(self, node: ast.AST, frame: _Frame) -> None:
        """Record the reads of an expression whose value is not needed."""
        self._read(self._value(node, frame))

    def _read(self, paths: Paths) -> None:
        self.found |= paths

    def _value(self, node: ast.AST, frame: _Frame) -> Paths:
        """Return the paths that an expression may stand for, and record the reads that computing it needs."""
        if isinstance(node, ast.Name):
            return frame.values.get(node.id, _NOTHING)
        if isinstance(node, ast.Attribute):
            return _extended(self._value(node.value, frame), node.attr)
        if isinstance(node, ast.Subscript):
            self._use(node.slice, frame)
            paths = self._value(node.value, frame)
            return paths if isinstance(node.slice, ast.Slice) else _extended(paths, ANY)
        if isinstance(node, ast.Call):
            return self._call(node, frame)
        if isinstance(node, ast.IfExp):
            truth = self._truth(node.test, frame)
            self._use(node.test, frame)
            body = self._value(node.body, frame) if truth is not False else _NOTHING
            return body | (self._value(node.orelse, frame) if truth is not True else _NOTHING)
        if isinstance(node, ast.BoolOp):
            paths = _NOTHING
            for each in node.values:
                paths |= self._value(each, frame)
                if self._truth(each, frame) is isinstance(node.op, ast.Or):
                    break
            return paths
        if isinstance(node, ast.NamedExpr):
            self._statement(node, frame)
            return self._value(node.target, frame)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Lambda)):
            self._statement(node, frame)
        elif isinstance(node, ast.Compare) and all(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            for each in (node.left, *node.comparators):
                self._value(each, frame)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._use(child, frame)
        return _NOTHING

    def _call(self, node: ast.Call, frame: _Frame) -> Paths:
        arguments = [each.value if isinstance(each, ast.Starred) else each for each in node.args]
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name == "getattr" and len(arguments) >= 2:
                of = self._value(arguments[0], frame)
                constant = arguments[1].value if isinstance(arguments[1], ast.Constant) else ANY
                return _extended(of, str(constant))
            if name in _HARMLESS_CALLS and name not in frame.values:
                for argument in arguments:
                    self._value(argument, frame)
                return _NOTHING
            target = frame.names.get(name)
            owner: type | None = None
            positional = []
        elif isinstance(node.func, ast.Attribute):
            of = self._value(node.func.value, frame)
            if node.func.attr in _CONTAINER_CALLS and of:
                return of
            # self.method(...) is found in the class itself, super().method(...) in one of its bases
            is_super = isinstance(node.func.value, ast.Call) and getattr(node.func.value.func, "id", "") == "super"
            owner = frame.kind if () in of or is_super else None
            target = None if owner is None else _method(owner, node.func.attr, is_super)
            if target is None:
                target = _of_module(node.func, frame)
            positional = [frozenset({()})] if owner is not None and inspect.isfunction(target) else []
            if not positional:
                self._read(_extended(of, node.func.attr))
        else:
            self._use(node.func, frame)
            target, owner, positional = None, None, []
        given = [self._value(argument, frame) for argument in arguments]
        named = {each.arg: self._value(each.value, frame) for each in node.keywords if each.arg is not None}
        for each in node.keywords:
            if each.arg is None:
                self._use(each.value, frame)
        if (
            inspect.isfunction(target)
            and not _is_of_torch(target)
            and (positional or any(given) or any(named.values()))
        ):
            return self.follow(target, owner, positional + given, named)
        for paths in (*given, *named.values()):
            self._read(paths)
        return _NOTHING


def _method(kind: type, name: str, is_super: bool) -> Any:
    for each in kind.__mro__[1:] if is_super else kind.__mro__:
        if name in vars(each):
            found = vars(each)[name]
            return found if inspect.isfunction(found) else None
    return None


def _of_module(node: ast.Attribute, frame: _Frame) -> Any:
    """Return the function ``module.name`` of an imported module."""
    if isinstance(node.value, ast.Name):
        module = frame.names.get(node.value.id)
        if inspect.ismodule(module):
            return getattr(module, node.attr, None)
    return None


def _extended(paths: Paths, name: str) -> Paths:
    return frozenset((*path, name) for path in paths if len(path) < _LENGTH)
