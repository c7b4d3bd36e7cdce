"""Python: what is put into os.environ, dictionaries whose keys are variables, and the timeouts that groups are made with."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from unhang.errors import UnhangError
from unhang.files.found import Found, Item, Said
from unhang.variables.known import is_known

_NAME = re.compile(r"[A-Za-z_]\w*")
_UNITS = {"days": 86400.0, "seconds": 1.0, "milliseconds": 0.001, "minutes": 60.0, "hours": 3600.0, "weeks": 604800.0}
_MAKES_GROUPS = frozenset(("init_process_group", "InitProcessGroupKwargs", "init_distributed", "DDPStrategy", "new_group"))


def parse(text: str, *, name: str) -> list[Item]:
    """Raises UnhangError where that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        at = f":{e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        raise UnhangError(f"{name}{at} is no Python: {e.msg if isinstance(e, SyntaxError) else str(e) or 'it is nested too deeply'}") from e
    assignments = [one for node in ast.walk(tree) for one in _assignments(node)]
    assignments.sort(key=lambda one: (one[2].lineno, one[2].col_offset))
    settings = (Found(name=name, value=value, line=at.lineno - 1) for name, value, at in assignments)
    return [*settings, *(option for node in ast.walk(tree) for option in _options(node))]


def _assignments(node: ast.AST) -> Iterator[tuple[str, str | None, ast.stmt | ast.expr | ast.keyword]]:
    """Name, value, and the statement or the entry."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Subscript):
        if (called := _text(target.slice)) is not None and (_is_environ(target.value) or is_known(called)):
            yield called, _text(node.value), node
    elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
        function = call.func
        sets = isinstance(function, ast.Attribute) and (
            (function.attr == "setdefault" and _is_environ(function.value)) or function.attr in ("putenv", "setenv")
        )
        if sets and len(call.args) >= 2 and (called := _text(call.args[0])) is not None:
            yield called, _text(call.args[1]), node
        elif isinstance(function, ast.Attribute) and function.attr == "update" and _is_environ(function.value):
            for keyword in call.keywords:
                if keyword.arg:
                    yield keyword.arg, _text(keyword.value), keyword
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        for keyword in node.keywords:
            if keyword.arg and keyword.arg.isupper():
                yield keyword.arg, _text(keyword.value), keyword
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and (called := _text(key)) is not None and _NAME.fullmatch(called) and called.isupper():
                yield called, _text(value), key


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (isinstance(node, ast.Name) and node.id in ("environ", "env"))


def _text(node: ast.expr) -> str | None:
    """What a literal gives; also `str(1800)`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and len(node.args) == 1:
        inner = node.args[0]
        return str(inner.value) if isinstance(inner, ast.Constant) and isinstance(inner.value, (int, str)) else None
    return None


def _options(node: ast.AST) -> Iterator[Said]:
    if not isinstance(node, ast.Call):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    for keyword in node.keywords:
        seconds: float | None = None
        if keyword.arg == "ddp_timeout" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, int):
            yield Said(name="ddp_timeout", value=str(keyword.value.value), line=keyword.value.lineno - 1)
        elif keyword.arg == "timeout" and called in _MAKES_GROUPS:
            seconds = _seconds(keyword.value)
        if seconds is not None:
            yield Said(name="group_timeout", value=f"{seconds:g}", line=keyword.value.lineno - 1)


def _seconds(node: ast.expr) -> float | None:
    """What `timedelta(minutes=30)` gives."""
    if not isinstance(node, ast.Call) or (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) != "timedelta" or node.args:
        return None
    total = 0.0
    for keyword in node.keywords:
        if keyword.arg not in _UNITS or not isinstance(keyword.value, ast.Constant) or not isinstance(keyword.value.value, (int, float)):
            return None
        total += _UNITS[keyword.arg] * keyword.value.value
    return total
