"""How large each room is, in tokens of Python, and that none grows: `scripts/size.json` holds the most that each may have. `scripts/check` calls it.

    scripts/size.py          fail if a room is above its number; lower the number of one that has shrunk
    scripts/size.py --show   the table: tokens, statements and modules of each room

Tokens as the tokenizer gives them, without comments, line ends, indentation and docstrings; an f-string is one, as before Python 3.12.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
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


def main() -> int:
    rooms = measured()
    if "--show" in sys.argv[1:]:
        for name, size in (*sorted(rooms.items(), key=lambda r: -r[1]["tokens"]), ("sum", sum(rooms.values(), Counter()))):
            print(f"{name:18}{size['tokens']:>9,}{size['statements']:>8,}{size['modules']:>5}")
        return 0
    most: dict[str, int] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {name: size["tokens"] for name, size in rooms.items()}
    grown = {name: size["tokens"] for name, size in rooms.items() if size["tokens"] > most.get(name, 0)}
    for name, size in sorted(grown.items()):
        print(f"scripts/size.json: {name} has {size:,} tokens, {size - most.get(name, 0):,} more than it may have", file=sys.stderr)
    if not grown:
        NUMBERS.write_text(json.dumps({name: rooms[name]["tokens"] for name in sorted(rooms)}, indent=2) + "\n")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
