"""What is told of a machine has its Chinese: beside the English (`Text`), or in the table of what a snapshot tells of what could not be seen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.chinese import english

import unhang
from unhang.knowledge import catalogue
from unhang.report import language

ROOT = Path(unhang.__file__).parent
FACTS = sorted((ROOT / "facts").glob("*.py"))
TOLD = sorted([*FACTS, *(ROOT / "knowledge").rglob("*.py")])


def literal(node: ast.expr) -> str | None:
    """A sentence as it is written, X1 in the place of each value; None for what is not written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "X1" for v in node.values)
    return None


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", getattr(n.func, "attr", "")) == name]


def texts(tree: ast.AST) -> list[tuple[str, str]]:
    """Both sides of each Text; a sentence that is said to be the same in both languages stands on both."""
    sides = [(literal(c.args[0]), literal(c.args[1])) for c in calls(tree, "Text") if len(c.args) == 2]
    sides += [(said, said) for c in calls(tree, "same") for said in [literal(c.args[0])]]
    return [(en, zh) for en, zh in sides if en and zh]


def unseen(tree: ast.AST) -> list[str]:
    """What a collector tells of what it could not see: what it adds to `unread`, and what it raises."""
    said: list[ast.expr] = []
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "append" and "unread" in ast.unparse(n.func.value):
            said += n.args
        elif isinstance(n, ast.AugAssign) and "unread" in ast.unparse(n.target):
            said += [n.value.elt] if isinstance(n.value, ast.ListComp) else [n.value]
        elif isinstance(n, ast.keyword) and n.arg == "unread":
            said += [element for t in ast.walk(n.value) if isinstance(t, ast.Tuple) for element in t.elts]
        elif isinstance(n, ast.Call) and getattr(n.func, "id", "") in ("NotHere", "OSError", "FileNotFoundError", "TimeoutError", "ValueError"):
            said += n.args[:1]
    found = [s for one in said for part in ([one.body, one.orelse] if isinstance(one, ast.IfExp) else [one]) for s in [literal(part)]]
    return [s for s in found if s and any(c.isalpha() for c in s.replace("X1", ""))]


@pytest.mark.parametrize("path", TOLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_written_in_both_languages_is(path):
    assert [zh for en, zh in texts(ast.parse(path.read_text("utf-8"))) if english(zh)] == []


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.stem)
def test_what_could_not_be_seen_has_its_chinese(path):
    assert [said for said in unseen(ast.parse(path.read_text("utf-8"))) if english(language.unseen(said, "zh"))] == []


def test_what_is_found_on_a_host_is_told_in_both_languages():
    judging = [c for c in catalogue.load().values() if c.on_host is not None]
    assert len(judging) > 30
    cause = judging[0]
    with pytest.raises(AttributeError):
        cause.host_finding(area="shm", severity="note", says="told in English only", leads_to="to nothing")


def test_one_without_is_found():
    tree = ast.parse(
        'unread.append("the colour of it")\n'
        'raise NotHere(f"there is no such thing in {path}")\n'
        'says = Text("a rank waits", "a rank waits for ever")\n'
        'also = same("nobody has ever seen it")\n'
        'right = Text(f"{n} ranks", f"{n} 个 rank")\n'
    )
    assert [zh for _, zh in texts(tree) if english(zh)] == ["a rank waits for ever", "nobody has ever seen it"]
    assert [said for said in unseen(tree) if english(language.unseen(said, "zh"))] == ["the colour of it", "there is no such thing in X1"]
    assert sum(len(texts(ast.parse(path.read_text("utf-8")))) for path in TOLD) > 500
    assert sum(len(unseen(ast.parse(path.read_text("utf-8")))) for path in FACTS) > 50
