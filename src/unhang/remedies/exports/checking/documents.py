"""YAML and JSON with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unhang.errors import UnhangError

if TYPE_CHECKING:
    import yaml

_MAX_DEPTH = 100


@dataclass(frozen=True, kw_only=True)
class Key:
    """`path` leads to it, numbers for items of lists; `line` counts from 1."""

    path: tuple[str | int, ...]
    line: int
    value: Any


def keys(name: str, text: str) -> tuple[Key, ...]:
    """Every key of every document, outer ones first. Raises UnhangError where that is no YAML."""
    import yaml

    found: list[Key] = []
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                found += _walk(node, (), loader, 0)
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise UnhangError(f"{name}{where} is no YAML: {getattr(e, 'problem', None) or e}") from e
    return tuple(found)


def _walk(node: yaml.Node, path: tuple[str | int, ...], loader: Any, depth: int) -> Iterator[Key]:
    import yaml

    if depth > _MAX_DEPTH:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            plain = loader.construct_object(value, deep=True) if isinstance(value, yaml.ScalarNode) else None
            yield Key(path=here, line=key.start_mark.line + 1, value=plain)
            yield from _walk(value, here, loader, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            if isinstance(value, yaml.ScalarNode):
                yield Key(path=(*path, i), line=value.start_mark.line + 1, value=loader.construct_object(value))
            yield from _walk(value, (*path, i), loader, depth + 1)
