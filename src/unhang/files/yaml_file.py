"""YAML and JSON: env maps (`A: b`), lists of `name` and `value` (Kubernetes), lists of `A=b` (docker-compose), scripts, `ddp_timeout`.

Scripts stand in blocks or on one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.files import shell
from unhang.files.found import Found, Item, Lines, Said, Unclosed
from unhang.variables.known import is_known

if TYPE_CHECKING:
    import yaml

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ITEM = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*)", re.DOTALL)
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
_INDENT = re.compile(r"(?:[ ]*\r?\n)*(?P<indent>[ ]*)")
_COMMAND = re.compile(r"[A-Z][A-Z0-9_]+=\S*[\s;]")
_MAX_DEPTH = 200


def parse(text: str, *, name: str, is_json: bool) -> list[Item]:
    """Raises UnhangError where that is no YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines = Lines(text=text)
    try:
        # libyaml composes by recursion and ends the process where its stack does.
        if _depth(yaml.parse(text, Loader=loader)) > _MAX_DEPTH:
            raise UnhangError(f"{name} is nested too deeply: more than {_MAX_DEPTH} levels")
        return [item for document in yaml.compose_all(text, Loader=loader) for item in _walk(document, lines, set(), 0)]
    except yaml.YAMLError as e:
        # PyYAML from 6.0.4 on has a bound of its own.
        if "nesting depth" in str(e):
            raise UnhangError(f"{name} is nested too deeply: {e}") from e
        mark = getattr(e, "problem_mark", None)
        at = f":{mark.line + 1}" if mark is not None else ""
        raise UnhangError(
            f"{name}{at} is no {'JSON' if is_json else 'YAML'}: {getattr(e, 'problem', None) or e}", cause="a template that is not filled in yet"
        ) from e


def _depth(events: Iterable[yaml.Event]) -> int:
    import yaml

    depth = most = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            most = max(most, depth)
            if most > _MAX_DEPTH:
                break
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return most


def _walk(node: yaml.Node | None, lines: Lines, seen: set[int], depth: int) -> Iterator[Item]:
    import yaml

    if node is None or id(node) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        before = ""
        for item in node.value:
            is_script, before = _SCRIPT_FLAG.fullmatch(before) is not None, item.value if isinstance(item, yaml.ScalarNode) else ""
            if isinstance(item, yaml.ScalarNode) and not is_script and (found := _ITEM.fullmatch(item.value)):
                seen.add(id(item))
                yield _found(found["name"], found["value"], item)
            yield from _walk(item, lines, seen, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        pairs = {k.value: (k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode)}
        if "name" in pairs and ("value" in pairs or "valueFrom" in pairs):
            key, called = pairs["name"]
            last = pairs.get("value", pairs.get("valueFrom"))
            if isinstance(called, yaml.ScalarNode) and _NAME.fullmatch(called.value) and last is not None:
                value = last[1].value if isinstance(last[1], yaml.ScalarNode) and "value" in pairs else None
                yield _found(called.value, value, key if key.start_mark.index < last[0].start_mark.index else last[0])
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                if key.value == "ddp_timeout" and value.value.isdigit():
                    yield Said(name="ddp_timeout", value=value.value, line=key.start_mark.line)
                elif _NAME.fullmatch(key.value):
                    seen.add(id(value))
                    given = None if value.tag.endswith(":null") and not value.value else value.value
                    yield _found(key.value, given, key)
            yield from _walk(value, lines, seen, depth + 1)
    elif isinstance(node, yaml.ScalarNode) and node.style == "|":
        script = lines.text.find("\n", node.start_mark.index) + 1
        if 0 < script <= node.end_mark.index:
            finish = node.end_mark.index
            indented = _INDENT.match(lines.text, script, finish)
            indent = len(indented["indent"]) if indented is not None else 0
            yield from shell.parse(lines.text, begin=script, finish=finish, indent=indent, lines=lines)
    elif isinstance(node, yaml.ScalarNode) and _COMMAND.search(node.value):
        yield from _on_one_line(node, lines)


def _on_one_line(node: yaml.ScalarNode, lines: Lines) -> list[Item]:
    """`command: bash -c "A=b torchrun"`, where the text of the file is that of the value and it sets something."""
    quoted = node.style in ("'", '"')
    begin, finish = node.start_mark.index + quoted, node.end_mark.index - quoted
    if lines.text[begin:finish] != node.value:
        return []
    inside = shell.parse(lines.text, begin=begin, finish=finish, lines=lines)
    sets = any(isinstance(one, Found) and is_known(one.name) for one in inside)
    return inside if sets and not any(isinstance(one, Unclosed) for one in inside) else []


def _found(name: str, value: str | None, at: yaml.Node) -> Found:
    return Found(name=name, value=value, line=at.start_mark.line)
