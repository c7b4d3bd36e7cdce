"""What is told of a run or a machine has its Chinese: as a message (`msg`), or in a table of what was not seen."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.chinese import english
from tests.tables import for_each

import unhang
from unhang.i18n import chinese
from unhang.report import language

ROOT = Path(unhang.__file__).parent
FACTS = sorted((ROOT / "facts").glob("*.py"))
JUDGING = sorted([*(ROOT / "knowledge").rglob("*.py"), *(ROOT / "diagnosis").rglob("*.py")])
TOLD = sorted([*FACTS, *JUDGING])


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
    """English and Chinese of each message; a sentence that is said to be the same in all languages stands on both sides."""
    sides = [(said, said) for c in calls(tree, "same") for said in [literal(c.args[0])]]
    named = [[literal(a) or "" for a in c.args] for c in calls(tree, "msg")]
    sides += [(names[0], chinese(*names)) for names in named]
    return [(en, zh) for en, zh in sides if en and zh]


def in_english_only(tree: ast.AST) -> list[str]:
    """What a finding says that is no message: a bare sentence, also by a name."""
    found: list[str] = []
    for function in [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Module))]:
        own = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
        names = {n.targets[0].id: n.value for n in own if isinstance(n.targets[0], ast.Name)}
        for name in ("finding", "of_hits"):
            for call in calls(function, name):
                said = [k.value for k in call.keywords if k.arg == "says"]
                found += [s for one in said for s in [literal(names.get(one.id, one) if isinstance(one, ast.Name) else one)] if s]
    for name in ("Finding", "HostFinding", "Contradiction", "replace"):
        for call in calls(tree, name):
            given = {k.arg: k.value for k in call.keywords}
            if "says" in given and (said_ := literal(given["says"])):
                found.append(said_)
    return sorted(set(found))


def seen_in_english_only(tree: ast.AST) -> list[str]:
    """What evidence tells in words of our own that have no Chinese. Lines of logs are quoted as they stand; what is found on a host shows none."""
    found: list[str] = []
    judges_hosts = any(isinstance(n, ast.FunctionDef) and n.name == "on_host" for n in ast.walk(tree))
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        if judges_hosts and not {"picture", "view"} & {a.arg for a in function.args.args}:
            continue
        names = {n.targets[0].id: n.value for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
        for call in calls(function, "Evidence"):
            given = {k.arg: k.value for k in call.keywords}
            text = given.get("text", ast.Constant(""))
            said = literal(names.get(text.id, text) if isinstance(text, ast.Name) else text)
            if said and english(said):
                found.append(said)
    return sorted(set(found))


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


@for_each("path", TOLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_written_in_both_languages_is(path):
    assert [zh for en, zh in texts(ast.parse(path.read_text("utf-8"))) if english(zh)] == []


@for_each("path", JUDGING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_found_in_a_run_is_told_in_both_languages(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert in_english_only(tree) == []
    assert seen_in_english_only(tree) == []


@for_each("path", FACTS, ids=lambda path: path.stem)
def test_what_could_not_be_seen_has_its_chinese(path):
    assert [said for said in unseen(ast.parse(path.read_text("utf-8"))) if english(language.unseen(said, "zh"))] == []


def test_one_without_is_found():
    tree = ast.parse(
        'unread.append("the colour of it")\n'
        'raise NotHere(f"there is no such thing in {path}")\n'
        'also = same("nobody has ever seen it")\n'
        'right = msg("{n} ranks", n=n)\n'
    )
    bare = ast.parse(
        "def _in_logs(view):\n"
        '    says = f"{n} ranks have left"\n'
        "    found = CAUSE.finding(standing=standing, says=says)\n"
        '    CAUSE.of_hits(hits, view, says="nobody came")\n'
        '    CAUSE.finding(standing=standing, says=msg("they came"))\n'
        '    return replace(found, says=found.says + more) or Finding(cause=cause, says="it ended")\n'
    )
    evidence = ast.parse(
        "def _in_run(picture):\n"
        '    text = f"rank {n} waits for nobody"\n'
        "    yield Evidence(source=picture.incident_source, text=text)\n"
        '    yield Evidence(source=log, text="it came too late")\n'
        "    yield Evidence(source=log, text=line.text.strip())\n"
        '    yield Evidence(source=log, text=msg("it came too late"))\n'
    )
    assert seen_in_english_only(evidence) == ["it came too late", "rank X1 waits for nobody"]
    assert in_english_only(bare) == ["X1 ranks have left", "it ended", "nobody came"]
    assert [zh for _, zh in texts(tree) if english(zh)] == ["nobody has ever seen it"]
    assert [said for said in unseen(tree) if english(language.unseen(said, "zh"))] == ["the colour of it", "there is no such thing in X1"]
    assert sum(len(texts(ast.parse(path.read_text("utf-8")))) for path in TOLD) > 500
    assert sum(len(unseen(ast.parse(path.read_text("utf-8")))) for path in FACTS) > 50
