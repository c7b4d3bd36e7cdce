"""What of a run could not be looked at, and why, has its Chinese: as a message, or in the table of such sentences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.chinese import english
from tests.conformance.test_refusals import ROOMS, ROOT, templates
from tests.tables import for_each

from unhang.report import language

# Made of what the training, the system or another module says: what stands in a place of its own has its sentence there.
_CALLS = {"NotExamined": ("what", "why"), "Missed": ("what", "why")}


def said_in(tree: ast.AST) -> list[str]:
    """What is written where something is left out, {} for each value; also what a name near it is given, such as why = "..."."""
    found: list[str] = []
    for function in [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))]:
        names: dict[str, list[str]] = {}
        for n in ast.walk(function):
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
                names.setdefault(n.targets[0].id, []).extend(templates(n.value))
        for call in [n for n in ast.walk(function) if isinstance(n, ast.Call)]:
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            values: list[ast.expr] = []
            if name in _CALLS:
                keywords = {k.arg: k.value for k in call.keywords}
                values = [keywords[n] for n in _CALLS[name] if n in keywords]
            elif name == "_miss" or (name == "add" and isinstance(call.func, ast.Attribute) and "miss" in ast.unparse(call.func.value)):
                values = list(call.args)
            for value in values:
                found += names.get(value.id, []) if isinstance(value, ast.Name) else templates(value)
    return sorted(set(found))


def untranslated(said: str) -> bool:
    asked = said.replace("{}", "X1")
    # A name, a value, or what is put together of parts that are looked up by themselves.
    return bool(re.search(r"[a-z]{2,} [a-z]{2,}", asked)) and english(re.sub(r"flight.recorder|unhang why \S+", "FR", language.reason(asked, "zh")))


@for_each("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_was_not_examined_has_its_chinese(path):
    assert [said for said in said_in(ast.parse(path.read_text("utf-8"))) if untranslated(said)] == []


def test_one_without_is_found():
    tree = ast.parse(
        "def look(self):\n"
        '    why = "nobody has ever opened it" if never else f"it is a copy of {other}, equal to the nanosecond"\n'
        '    yield NotExamined(what=f"the colour of {name}", why=why)\n'
        '    self._miss("the kernel log", f"somebody painted over {n} lines")\n'
        '    yield NotExamined(what=msg("the smell of it"), why=str(e))\n'
    )
    assert [s for s in said_in(tree) if untranslated(s)] == ["nobody has ever opened it", "somebody painted over {} lines", "the colour of {}"]
    assert len({said for path in ROOMS for said in said_in(ast.parse(Path(path).read_text("utf-8")))}) > 60
