"""YAML and JSON with the line of each key, what can be wrong in them, and the names that programs know (known/*.yaml)."""

from __future__ import annotations

import difflib
import functools
import json
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from unhang.errors import UnhangError
from unhang.knowledge.words import NOTHING, Text, msg, same
from unhang.model import frozen

if TYPE_CHECKING:
    import yaml

_MAX_DEPTH = 100
# Ten lines of anchors that hold one another twice are a thousand million keys.
_MAX_NODES = 200_000


@frozen
class Problem:
    """`line` counts from 1. `note`: worth knowing, and no fault."""

    line: int
    says: Text
    instead: Text = NOTHING
    note: bool = False


@frozen
class Layout:
    """What the user said of the job, and the options of the command that reads the file (`named_by`); None where nothing was."""

    nodes: int | None = None
    processes: int | None = None
    options: Mapping[str, str] | None = None

    @property
    def world(self) -> int | None:
        return (self.nodes or 1) * self.processes if self.processes else None


@frozen
class Key:
    """`path` leads to it, numbers for items of lists; `line` counts from 1. `value` is None for what holds others, too; `document` counts from 0.

    What is no leaf is a list or a mapping.
    """

    path: tuple[str | int, ...]
    line: int
    value: Any
    is_leaf: bool = True
    is_list: bool = False
    document: int = 0

    def problem(self, says: Text, instead: str = NOTHING, *, note: bool = False) -> Problem:
        return Problem(line=self.line, says=says, instead=same(instead) if instead else NOTHING, note=note)


# A key that a file does not have.
ABSENT = Key(path=(), line=1, value=None)


# Which form a file has is asked first, then what is wrong with it: PyYAML takes a second for a thousand containers.
@functools.lru_cache(maxsize=1)
def keys(name: str, text: str) -> tuple[Key, ...]:
    """Every key of every document, outer ones first. JSON is taken as JSON. Raises UnhangError with line and column where it is neither."""
    import yaml

    if text.lstrip().startswith("{"):
        parse_json(name, text)
        return tuple(_of_json(text))
    found: list[Key] = []
    try:
        loader = yaml.SafeLoader(text)
        number, walk = 0, _Walk(loader)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                found += walk(node, (), number)
            number += 1
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        said = ", ".join(one for one in (getattr(e, "context", None), getattr(e, "problem", None)) if one) or str(e)
        hint = "YAML is indented by spaces, and this line has a tab" if mark is not None and _has_tab(text, mark.line) else None
        raise UnhangError(f"{name}{where} is no YAML: {said}", hint=hint) from e
    return tuple(found)


def _has_tab(text: str, line: int) -> bool:
    written = "".join(text.splitlines()[line : line + 1])
    return "\t" in written[: len(written) - len(written.lstrip())]


def parse_json(name: str, text: str) -> Any:
    """Raises UnhangError with line and column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise UnhangError(f"{name}:{e.lineno}:{e.colno} is no JSON: {e.msg}", hint=_usual_slip(text, e.pos)) from e
    except (RecursionError, ValueError) as e:
        raise UnhangError(f"{name} is no JSON: {e}") from e


def _usual_slip(text: str, position: int) -> str | None:
    before, here = text[:position].rstrip(), text[position:].lstrip()
    # Python 3.13 points to the comma.
    if (here[:1] in ("}", "]") and before.endswith(",")) or (here[:1] == "," and here[1:].lstrip()[:1] in ("}", "]")):
        return "JSON takes no comma behind the last item"
    if here.startswith(("//", "#", "/*")):
        return "JSON has no comments"
    if here[:1] == "'" or here.startswith(("True", "False", "None")):
        return 'JSON has "double quotes", true, false and null'
    return None


def twice(found: Iterable[Key]) -> Iterator[Problem]:
    """Keys that stand more than once in one place. PyYAML takes the last in silence, DeepSpeed refuses the file."""
    first: dict[tuple[object, ...], Key] = {}
    told: set[tuple[object, ...]] = set()
    for key in found:
        place = (key.document, *key.path)
        if isinstance(key.path[-1], int) or first.setdefault(place, key) is key:
            continue
        # What a repeated mapping holds repeats with it, and is told once.
        if not any(place[:i] in told for i in range(2, len(place))):
            name, line = dotted(key.path), first[place].line
            says = msg("{name} stands here again, first in line {line}: one of both is lost", name=name, line=line)
            yield key.problem(says, msg("one of them", "documents"))
        told.add(place)


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


@functools.cache
def _known(program: str) -> Mapping[str, Any]:
    import yaml

    read: Mapping[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("known").joinpath(f"{program}.yaml").read_text("utf-8"))
    return read


@functools.cache
def known(program: str) -> Mapping[str, frozenset[str]]:
    """Names by section; those of nested sections by their dotted path."""
    return {path: frozenset(words.split()) for path, words in _known(program).items() if isinstance(words, str)}


def table(program: str, name: str) -> Mapping[str, str]:
    """What else is known: "values" that names may have, what to write "instead" of them, "examples", further "words"."""
    found: Mapping[str, str] = _known(program)[name]
    return found


def nearest(name: str, among: Collection[str]) -> str:
    """What to write instead; nothing where none is near."""
    small = name.lower()
    near = next(iter(difflib.get_close_matches(small, sorted(among), 1, 0.6)), None)
    if near is None and len(small) > 2:
        near = next((one for one in sorted(among) if one.startswith(small)), None)
    return near or ""


def _of_json(text: str) -> Iterator[Key]:
    """Keys of what is JSON. YAML's scanner would take neither tabs, DEL nor surrogates, nor 1e-5 for a number."""
    lines = [i for i, c in enumerate(text) if c == "\n"]
    decoder = json.JSONDecoder()

    def after(at: int) -> int:
        while text[at] in " \t\r\n":
            at += 1
        return at

    def line(at: int) -> int:
        return bisect_left(lines, at) + 1

    def walk(at: int, path: tuple[str | int, ...]) -> Generator[Key, None, int]:
        """From a value on, to behind it."""
        is_list = text[at] == "["
        if text[at] not in "{[" or len(path) > _MAX_DEPTH:
            return decoder.raw_decode(text, at)[1]
        at = after(at + 1)
        number = 0
        while text[at] not in "}]":
            begin, here = at, (*path, number)
            if not is_list:
                name, at = decoder.raw_decode(text, at)
                here = (*path, name)
                at = after(after(at) + 1)
            is_leaf, holds_list = text[at] not in "{[", text[at] == "["
            if is_leaf or not is_list:
                value = decoder.raw_decode(text, at)[0] if is_leaf else None
                yield Key(path=here, line=line(begin), value=value, is_leaf=is_leaf, is_list=holds_list)
            at = after((yield from walk(at, here)))
            at, number = after(at + (text[at] == ",")), number + 1
        return at + 1

    return walk(after(0), ())


class _Walk:
    """Through nodes as they were composed: an anchor's are walked wherever they are named. Raises yaml.MarkedYAMLError."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._above: set[int] = set()
        self._left = _MAX_NODES

    def __call__(self, node: yaml.Node, path: tuple[str | int, ...], document: int) -> Iterator[Key]:
        import yaml

        self._left -= 1
        if self._left < 0:
            raise yaml.MarkedYAMLError(
                problem=f"with what its anchors stand for it holds more than {_MAX_NODES} values", problem_mark=node.start_mark
            )
        if id(node) in self._above:
            raise yaml.MarkedYAMLError(problem="an anchor holds itself", problem_mark=node.start_mark)
        if len(path) > _MAX_DEPTH or isinstance(node, yaml.ScalarNode):
            return
        self._above.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="found unhashable key", problem_mark=key.start_mark)
                here = (*path, str(key.value))
                is_leaf, is_list = isinstance(value, yaml.ScalarNode), isinstance(value, yaml.SequenceNode)
                yield Key(path=here, line=key.start_mark.line + 1, value=self._scalar(value), is_leaf=is_leaf, is_list=is_list, document=document)
                yield from self(value, here, document)
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                if isinstance(value, yaml.ScalarNode):
                    yield Key(path=(*path, i), line=value.start_mark.line + 1, value=self._scalar(value), document=document)
                yield from self(value, (*path, i), document)
        self._above.discard(id(node))

    def _scalar(self, node: yaml.Node) -> Any:
        import yaml

        return self._loader.construct_object(node, deep=True) if isinstance(node, yaml.ScalarNode) else None
