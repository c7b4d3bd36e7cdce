"""Python: what is put into os.environ, dictionaries whose keys are variables, and the timeouts that groups are made with."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter

from unhang.errors import UnhangError
from unhang.knowledge.variables.files.found import Block, Found, Lines, Parsed, Said
from unhang.knowledge.variables.files.mentions import is_known
from unhang.knowledge.variables.files.python_strings import mentioned_in

_SPACE = re.compile(r"\s*")
_BEHIND_STATEMENT, _BEHIND_ENTRY = re.compile(r"\s*(?:#.*)?"), re.compile(r"\s*,\s*(?:#.*)?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_UNITS = {"days": 86400.0, "seconds": 1.0, "milliseconds": 0.001, "minutes": 60.0, "hours": 3600.0, "weeks": 604800.0}
_MAKES_GROUPS = frozenset(("init_process_group", "InitProcessGroupKwargs", "init_distributed", "DDPStrategy", "new_group"))


def parse(text: str, *, name: str) -> Parsed:
    """Raises UnhangError where that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        at = f":{e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
        raise UnhangError(f"{name}{at} is no Python: {e.msg if isinstance(e, SyntaxError) else str(e) or 'it is nested too deeply'}") from e
    lines = Lines(text=text)
    blocks = {
        id(statement): Block(number=i, statements=len(statements), filler="pass")
        for i, statements in enumerate(_blocks(tree))
        for statement in statements
    }
    settings: list[Found] = []
    options: list[Said] = []
    for node in ast.walk(tree):
        settings += [_found(called, value, at, statement, lines, blocks.get(id(statement))) for called, value, at, statement in _assignments(node)]
        options += _options(node)
    settings.sort(key=lambda s: s.name_at)
    return Parsed(
        settings=tuple(settings),
        options=tuple(options),
        commented=tuple(_comments(text, lines)),
        mentioned=tuple(mentioned_in(tree, settings, lines)),
    )


def _comments(text: str, lines: Lines) -> Iterator[tuple[int, int]]:
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                (row, column), (_, end) = token.start, token.end
                yield lines.starts[row - 1] + column, lines.starts[row - 1] + end


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module):
            for part in ("body", "orelse", "finalbody"):
                block = getattr(node, part, None)
                if isinstance(block, list) and block:
                    yield block


def _assignments(node: ast.AST) -> Iterator[tuple[str, str | None, ast.expr | ast.keyword, ast.AST]]:
    """Name, value, where the name stands, and what has to go with it."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(target := node.targets[0], ast.Subscript):
        if (called := _text(target.slice)) is not None and (_is_environ(target.value) or is_known(called)):
            yield called, _text(node.value), target.slice, node
    elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
        function = call.func
        sets = isinstance(function, ast.Attribute) and (
            (function.attr == "setdefault" and _is_environ(function.value)) or function.attr in ("putenv", "setenv")
        )
        if sets and len(call.args) >= 2 and (called := _text(call.args[0])) is not None:
            yield called, _text(call.args[1]), call.args[0], node
        elif isinstance(function, ast.Attribute) and function.attr == "update" and _is_environ(function.value):
            for keyword in call.keywords:
                if keyword.arg:
                    yield keyword.arg, _text(keyword.value), keyword, keyword
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        for keyword in node.keywords:
            if keyword.arg and keyword.arg.isupper():
                yield keyword.arg, _text(keyword.value), keyword, keyword
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and (called := _text(key)) is not None and _NAME.fullmatch(called) and called.isupper():
                yield called, _text(value), key, _Pair(key, value)


class _Pair(ast.AST):
    """One entry of a dictionary."""

    def __init__(self, key: ast.expr, value: ast.expr) -> None:
        super().__init__()
        self.lineno, self.col_offset = key.lineno, key.col_offset
        self.end_lineno, self.end_col_offset = value.end_lineno, value.end_col_offset


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


def _found(called: str, value: str | None, at: ast.expr | ast.keyword, node: ast.AST, lines: Lines, block: Block | None) -> Found:
    begin, stop = _offset(lines, node.lineno, node.col_offset), _offset(lines, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    first, last = lines.of(begin), lines.of(stop)
    start = lines.starts[first]
    end = lines.starts[last + 1] - 1 if last + 1 < len(lines.starts) else len(lines.text)
    indent = _SPACE.match(lines.text, start)
    behind = _BEHIND_STATEMENT if isinstance(node, ast.stmt) else _BEHIND_ENTRY
    return Found(
        name=called,
        value=value,
        name_at=lines.text.find(called, _offset(lines, at.lineno, at.col_offset)),
        start=start,
        end=end,
        first=first,
        last=last,
        # Without cutting the line: a dictionary may stand on one.
        alone=indent is not None and indent.end() >= begin and behind.fullmatch(lines.text, stop, end) is not None,
        by_line=True,
        block=block,
    )


def _offset(lines: Lines, line: int, column: int) -> int:
    """Python counts columns in bytes."""
    start = lines.starts[line - 1]
    if lines.text.isascii():
        return start + column
    places = lines.wide(line - 1)
    # Each character that takes more bytes stands that much further on than its number says.
    before = bisect_right(places, column, key=itemgetter(0)) - 1
    return start + column - (places[before][1] if before >= 0 else 0)


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
