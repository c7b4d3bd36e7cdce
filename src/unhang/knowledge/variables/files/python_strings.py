"""Names of variables in the strings of a Python program, where what is done with them is not understood."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator

from unhang.knowledge.variables.files.found import Mention
from unhang.knowledge.variables.files.mentions import is_known

_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_SETS = re.compile(r"(?<![A-Za-z0-9_$])(?P<name>[A-Z][A-Z0-9_]+)=(?!=)")
# What these are handed is looked up, or shown to people.
_LOOKS = frozenset(("get", "getenv", "pop", "unsetenv", "delenv", "getenvb", "hasattr", "startswith", "endswith"))
_SHOWS = frozenset(("print", "warn", "warning", "info", "debug", "error", "exception", "critical", "log", "echo", "add_argument"))


def mentioned_in(tree: ast.AST, settings: Container[tuple[str, int]]) -> Iterator[Mention]:
    """One for each line and name; `settings` are names that were found to be set, with the line from 0."""
    looked_at = {id(one) for node in ast.walk(tree) for one in _harmless(node)}
    said: set[tuple[str, int]] = set()
    for node in ast.walk(tree):
        if id(node) not in looked_at:
            for name, line in _named(node):
                if is_known(name) and (name, line) not in settings and (name, line) not in said:
                    said.add((name, line))
                    yield Mention(name=name, line=line)


def _named(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.keyword) and node.arg is not None and node.arg.isupper():
        yield node.arg, node.lineno - 1
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        if _NAME.fullmatch(text) and "_" in text:
            yield text, node.lineno - 1
        for found in _SETS.finditer(text):
            yield found["name"], node.lineno - 1 + text.count("\n", 0, found.start())


def _harmless(node: ast.AST) -> Iterator[ast.AST]:
    """What stands where a program reads a variable or speaks of it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Raise | ast.Assert):
        yield from ast.walk(node)
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Store):
        yield node.slice
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Call):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        if function in _SHOWS:
            yield from ast.walk(node)
        elif function in _LOOKS:
            yield from node.args[:1]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set) and all(map(_is_name, node.elts)):
        # Names alone set nothing: they are gone through, or handed on.
        yield from node.elts


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value) is not None and is_known(node.value)
