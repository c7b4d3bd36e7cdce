"""Checks the Chinese of messages. `scripts/check` calls it.

    scripts/translations.py       the share translated; fail on what is missing, left over, fuzzy or has other values, and on Chinese in code

What code says is found by name, `msg("...")` and `Said("...")` (of a probe); words of reports and what data says are any text in it. Contexts of
`unhang.report.language.BACKWARDS` stand in the catalogue alone.
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polib

from unhang import data
from unhang.report.language import BACKWARDS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "unhang"
CATALOGUE = SOURCE / "locale" / "zh_CN" / "LC_MESSAGES" / "unhang.po"
LEAST_SHARE = 0.95
CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
# Where code reads Chinese (of logs, and what is told of them), or writes a page of both languages.
ALLOWED = {
    "diagnosis/redact.py",
    "logs/alarms.py",
    "report/language.py",
    "text.py",
}


def strings(node: Any) -> set[str]:
    if isinstance(node, ast.AST):
        return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    if isinstance(node, dict):
        return strings(tuple(node.values()))
    return {node} if isinstance(node, str) else {s for one in node for s in strings(one)} if isinstance(node, tuple | list) else set()


def messages(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(context, English) of what code says."""
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in ("msg", "Said") and n.args):
        context = next((a.value for a in call.args[1:] if isinstance(a, ast.Constant)), "")
        v = call.args[0]
        chosen = (v.body, v.orelse) if isinstance(v, ast.IfExp) else v.args if isinstance(v, ast.Call) else (v,)
        yield from ((context, v.value) for v in chosen if isinstance(v, ast.Constant))


def names(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def problems(catalogue: list[polib.POEntry], trees: list[ast.AST], knowledge: Any) -> Iterator[str]:
    entries = {(e.msgctxt or "", e.msgid): e for e in catalogue if not e.obsolete}
    said = {(c if (c, en) in entries else "", en) for tree in trees for c, en in messages(tree)}
    known = strings(knowledge).union(*map(strings, trees))
    calls = [n for t in trees for n in ast.walk(t) if isinstance(n, ast.Call)]
    filled = {k.arg for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("fill", "msg") for k in call.keywords}
    missing = sorted(en for c, en in said if (c, en) not in entries and re.search(r"[a-z]{2}", re.sub(r"\{.*?\}", "", en)))
    print(f"zh_CN: {1 - len(missing) / max(len(said), 1):.1%} of {len(said):,} messages of code, {len(entries):,} entries")
    if len(missing) > (1 - LEAST_SHARE) * len(said):
        yield f"{len(missing)} messages have no Chinese, such as {missing[:3]}"
    if len(entries) < len(catalogue):
        yield f"{len(catalogue) - len(entries)} messages stand twice or are obsolete"
    for entry in catalogue:
        if entry.obsolete or entry.fuzzy or not entry.msgstr:
            yield f"obsolete, fuzzy or empty: {entry.msgid!r}"
        elif entry.msgctxt not in BACKWARDS:
            if entry.msgid not in known:
                yield f"nothing says it any more: {entry.msgid!r}"
            if unknown := names(entry.msgstr) - names(entry.msgid) - filled:
                yield f"the Chinese has other values ({', '.join(sorted(unknown))}): {entry.msgid!r}"


def in_code(files: dict[str, str]) -> Iterator[str]:
    """`files` maps paths below `src/unhang` to their text."""
    chinese = {path for path, text in files.items() if CHINESE.search(text)}
    rooms = {place for place in ALLOWED if place.endswith("/")}
    named = {path for path in chinese if not path.startswith(tuple(rooms))}
    yield from (f"{path}: Chinese belongs into the catalogue" for path in sorted(named - ALLOWED))
    yield from (f"{path}: has no Chinese, take it from the list of {Path(__file__).name}" for path in sorted(ALLOWED - rooms - named))


def main() -> int:
    files = {p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in sorted(SOURCE.rglob("*.py"))}
    trees: list[ast.AST] = [ast.parse(text) for text in files.values()]
    terms = (SOURCE / "plan" / "terms.tsv").read_text("utf-8").splitlines()
    knowledge = [data.compiled()["causes"], *map(data.table, data._TABLES), *(line.split("\t") for line in terms)]
    found = [*in_code(files), *problems(list(polib.pofile(str(CATALOGUE))), trees, knowledge)]
    for line in found:
        print(f"unhang.po: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
