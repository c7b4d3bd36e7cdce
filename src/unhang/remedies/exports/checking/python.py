"""Python for Lightning and Ray Train: keywords that their classes do not take, where the class is imported by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unhang.errors import UnhangError
from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.names import known, nearest
from unhang.remedies.exports.checking.problem import Problem

_PACKAGES = ("lightning", "pytorch_lightning", "ray")
_BACKEND = {"Trainer": 'strategy=DDPStrategy(process_group_backend="gloo")', "TorchTrainer": 'torch_config=TorchConfig(backend="gloo")'}


def check(name: str, text: str) -> Iterator[Problem]:
    """Raises UnhangError with line and column where that is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise UnhangError(f"{name}:{e.lineno or 1}:{e.offset or 1} is no Python: {e.msg}") from e
    except (ValueError, RecursionError, MemoryError) as e:
        # A MemoryError is the parser's own bound on nesting, and says nothing.
        raise UnhangError(f"{name} is no Python: {str(e) or 'it is nested too deeply'}") from e
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _PACKAGES
        for alias in node.names
    }
    for node in ast.walk(tree):
        called = imported.get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if not isinstance(node, ast.Call) or called is None or called not in known("python"):
            continue
        keywords = known("python")[called]
        for one in node.keywords:
            if one.arg is not None and one.arg not in keywords:
                says = Text(f"{called} takes no `{one.arg}`: a TypeError", f"{called} 没有参数 {one.arg}：会抛出 TypeError")
                meant = _BACKEND.get(called) if one.arg in ("backend", "process_group_backend") else None
                yield Problem(line=one.value.lineno, says=says, instead=same(meant) if meant else nearest(one.arg, keywords))
