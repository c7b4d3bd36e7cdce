"""Every sentence that a command refuses with has its Chinese: as a message, or in the table of sentences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import unhang
from unhang.errors import UnhangError
from unhang.report import language

ROOT = Path(unhang.__file__).parent
# Those of a training's own process speak to its log.
ROOMS = [p for p in ROOT.rglob("*.py") if not {"attach", "runtime", "integrations"} & set(p.relative_to(ROOT).parts)]
_KINDS = {"UnhangError"}
while more := {c.__name__ for c in UnhangError.__subclasses__()} - _KINDS:
    _KINDS |= more
# Three words in a row that are no command, no option, no name.
_PROSE = re.compile(r"(?<![-\w/.{])[a-z']+(?:,? [a-z']+){2,}")
_COMMAND = re.compile(r"^(?:unhang|pip|dmesg|iconv|which|chmod|--?[a-z])")
# Put together of parts, each of which has its own sentence: `tests/report/test_language.py` and `tests/cli/test_refusals.py` have examples.
COMPOSED = {
    "{}: it is {}",
    "{} seen yet: a standstill is taken for a hang after {} s (--startup)",
    "nothing was read: {} {}",
}


def templates(node: ast.expr) -> list[str]:
    """What is said, with {} for each value; nothing of what is not written there."""
    if isinstance(node, ast.IfExp):
        return templates(node.body) + templates(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [said for value in node.values for said in templates(value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def sentences(path: Path) -> list[str]:
    found = []
    for call in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)):
        kind = getattr(call.func, "id", getattr(call.func, "attr", ""))
        named = {k.arg: k.value for k in call.keywords}
        if kind in _KINDS:
            parts = [*call.args[:1], *(named[name] for name in ("cause", "hint") if name in named)]
        elif kind == "Note":
            parts = [named["text"]]
        else:
            continue
        found += [said for part in parts for said in templates(part)]
    return found


def untranslated(said: str) -> bool:
    if said in COMPOSED or _COMMAND.match(said) or not _PROSE.search(said):
        return False
    return language.refusal(said.replace("{}", "X1")) == said.replace("{}", "X1")


@pytest.fixture
def zh():
    language.chosen("zh")
    yield
    language.chosen("en")


def test_every_refusal_has_its_chinese(zh):
    missing = {f"{path.relative_to(ROOT)}: {said}" for path in ROOMS for said in sentences(path) if untranslated(said)}
    assert not missing


def test_one_without_is_found(zh, tmp_path):
    module = tmp_path / "verb.py"
    module.write_text(
        'raise RecordError(f"{name} has never been seen here", cause="it was made by nobody at all", hint="unhang why train.log now please")\n'
    )
    assert [said for said in sentences(module) if untranslated(said)] == ["{} has never been seen here", "it was made by nobody at all"]
    assert len([said for path in ROOMS for said in sentences(path)]) > 300
