"""Measures each room in tokens of Python and holds it to its bound in `scripts/size.json`. `scripts/check` calls it.

    scripts/size.py               fail if a room is larger than its bound, or smaller: then its bound is to be lowered; writes nothing
    scripts/size.py --write       lower the bounds of rooms that have shrunk
    scripts/size.py --raise ROOM  set the bound of one room to its present size; the commit says why it had to grow
    scripts/size.py --show        the table: tokens, statements and modules of each room; bytes of data

Tokens as the tokenizer gives them, without comments, line ends, indentation and docstrings; an f-string is one, as before Python 3.12.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "unhang"
NUMBERS = ROOT / "scripts" / "size.json"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
F_STRING = {getattr(tokenize, "FSTRING_START", -1): 1, getattr(tokenize, "FSTRING_END", -2): -1}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def room(path: Path) -> str:
    first, *rest = path.relative_to(SOURCE).parts
    return "core" if not rest else "knowledge/causes" if (first, rest[0]) == ("knowledge", "causes") else first


def tokens(source: str, tree: ast.AST) -> int:
    docstrings = {n.body[0].lineno for n in ast.walk(tree) if isinstance(n, DOCUMENTED) and n.body and ast.get_docstring(n, clean=False) is not None}
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        inside = depth > 0
        depth += F_STRING.get(token.type, 0)
        if not (inside or token.type in NO_CODE or (token.type == tokenize.STRING and token.start[0] in docstrings)):
            count += 1
    return count


def measured() -> dict[str, Counter[str]]:
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        statements = sum(isinstance(n, ast.stmt) for n in ast.walk(tree))
        rooms.setdefault(room(path), Counter()).update(tokens=tokens(source, tree), statements=statements, modules=1)
    return rooms


def show(rooms: dict[str, Counter[str]]) -> None:
    for name, size in (*sorted(rooms.items(), key=lambda r: -r[1]["tokens"]), ("sum", sum(rooms.values(), Counter()))):
        print(f"{name:18}{size['tokens']:>9,}{size['statements']:>8,}{size['modules']:>5}")
    for suffix in ("toml", "po"):
        print(f".{suffix:17}{sum(p.stat().st_size for p in SOURCE.rglob(f'*.{suffix}')):>9,} bytes")


def problems(sizes: dict[str, int], bounds: dict[str, int]) -> Iterator[str]:
    for name in sorted(sizes.keys() | bounds.keys()):
        size, bound = sizes.get(name, 0), bounds.get(name, 0)
        if size > bound:
            yield f"{name} has {size:,} tokens, {size - bound:,} more than it may have (make it smaller, or scripts/size.py --raise {name})"
        elif size < bound:
            yield f"{name} has {size:,} tokens and may have {bound:,} (scripts/size.py --write lowers the bound)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold each room to its bound in scripts/size.json.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="lower the bounds of rooms that have shrunk")
    action.add_argument("--raise", dest="room", metavar="ROOM", help="set the bound of this room to its present size")
    action.add_argument("--show", action="store_true", help="print tokens, statements and modules of each room")
    asked = parser.parse_args()
    rooms = measured()
    if asked.show:
        show(rooms)
        return 0
    if not NUMBERS.exists():
        print("scripts/size.json is missing: git checkout scripts/size.json", file=sys.stderr)
        return 1
    sizes = {name: size["tokens"] for name, size in rooms.items()}
    bounds: dict[str, int] = json.loads(NUMBERS.read_text())
    if asked.room is not None and asked.room not in sizes:
        parser.error(f"there is no room {asked.room}; the rooms are {', '.join(sorted(sizes))}")
    if asked.write:
        bounds = {name: min(bound, sizes[name]) for name, bound in bounds.items() if name in sizes}
    elif asked.room is not None:
        bounds[asked.room] = sizes[asked.room]
    if asked.write or asked.room is not None:
        NUMBERS.write_text(json.dumps(bounds, indent=2, sort_keys=True) + "\n")
    found = list(problems(sizes, bounds))
    for line in found:
        print(f"scripts/size.json: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
