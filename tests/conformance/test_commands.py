"""Every command with a value in it is a template and kinds of values: whatever the values say, a shell reads what the template says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from string import Formatter

from tests.shell import HOSTILE, shape

import unhang
from unhang import data
from unhang.knowledge import catalogue
from unhang.knowledge.commands import command

PACKAGE = Path(unhang.__file__).parent
HARMLESS = {
    "host": ("node7", "10.0.0.7", "fd00::7"),
    "login": ("root@node7", "node7"),
    "network": ("10.0.0.0/24", "fd00::/64"),
    "port": ("29500",),
    "pid": ("4711",),
    "number": ("8", "0.85"),
    "interface": ("eth0", "bond0.100"),
    "pci": ("0000:3b:00.0", "3b:00.0"),
    "variable": ("NCCL_DEBUG",),
    "name": ("mlx5_0:1", "GPU-8f6c"),
    "requirement": ("nvidia-nccl-cu12==2.21.5", "torch==2.5.1+cu121"),
    "path": ("/data/run-1", "run_1"),
    "program": ("/opt/venv/bin/python", "train.py"),
    "text": ("a=b",),
}
# They make commands, hand them on, or put words of their own into them.
CHANGED = {"knowledge/commands.py", "knowledge/cause.py", "knowledge/environments.py", "diagnosis/rerun_command.py", "diagnosis/why.py"}


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module in which a command or a remedy may be made. To parse them takes seconds."""
    texts = {p: p.read_text("utf-8") for p in sorted(PACKAGE.rglob("*.py"))}
    return {p: ast.parse(text) for p, text in texts.items() if re.search(r"\bcommand\(|\bCommand\b|remed", text)}


def name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def scopes(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    """The innermost function that something stands in, or the module."""
    return {node: scope for scope in ast.walk(tree) if isinstance(scope, (ast.Module, ast.FunctionDef)) for node in ast.walk(scope)}


def given(node: ast.Name, *scopes: ast.AST) -> list[ast.expr]:
    """All that is assigned to a name, in the first scope that does."""
    for scope in scopes:
        pairs = [(t, n.value) for n in ast.walk(scope) if isinstance(n, ast.Assign) for t in n.targets]
        pairs += [(n.target, n.value) for n in ast.walk(scope) if isinstance(n, ast.AnnAssign) and n.value is not None]
        if found := [value for target, value in pairs if name(target) == node.id]:
            return found
    return []


def texts(node: ast.expr, *scopes: ast.AST) -> list[str]:
    """All that a template may be; fails where it is anything but literals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body, *scopes), *texts(node.orelse, *scopes)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a, b in product(texts(node.left, *scopes), texts(node.right, *scopes))]
    assert isinstance(node, ast.Name) and given(node, *scopes), f"no literal: {ast.unparse(node)}"
    return [text for value in given(node, *scopes) for text in texts(value, *scopes)]


def templates() -> Iterator[tuple[str, str]]:
    for path, tree in trees().items():
        taken = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and str(n.module).startswith("unhang.knowledge.c") for a in n.names}
        # What these are given is read below.
        if "command" not in taken or path.name in ("exceptions.py", "judge.py", "remains.py"):
            continue
        for node, scope in scopes(tree).items():
            if isinstance(node, ast.Call) and name(node.func) == "command":
                yield from ((f"{path.stem}:{node.lineno}", text) for text in texts(node.args[0], scope, tree))
    for table, rows in (("exceptions", data.table("knowledge/exceptions")["exceptions"]), ("remedies", data.table("diagnosis/remedies").values())):
        yield from ((f"{table}.toml", row["command"]) for row in rows if "{" in row.get("command", ""))
    for cause, known in data.load()["causes"].items():
        for key, finding in known["finding"].items():
            for template in finding.get("command", {}).values():
                # Fields may reach into a value.
                yield from (
                    (f"{cause}:{key}", re.sub(r"\{[\w.[\]]+:", lambda m: "{" + re.sub(r"\W", "_", m[0][1:-1]) + ":", one)) for one in _all(template)
                )


def _all(template):
    return [template] if isinstance(template, str) else template.values()


def test_no_value_becomes_more_than_its_word():
    made = list(templates())
    assert len(made) > 100
    wrong = []
    for where, template in made:
        try:
            check_template(template)
        except AssertionError as e:
            wrong.append(f"{where}: {template}: {e}")
    assert wrong == []


def check_template(template):
    fields = {field: kind or "" for _, field, kind, _ in Formatter().parse(template) if field}
    usual = {field: HARMLESS[kind.rstrip("*,")][0] for field, kind in fields.items()}
    made = lambda values: command(template, **{f: [v] if fields[f][-1] in "*," else v for f, v in values.items()})  # noqa: E731
    plain = made(usual)
    assert plain is not None
    for field, kind in fields.items():
        for value in HARMLESS[kind.rstrip("*,")]:
            assert (told := made(usual | {field: value})) is not None and shape(told) == shape(plain)
        for value in HOSTILE:
            if (told := made(usual | {field: value})) is not None:
                # Words of a run's own command may be options.
                assert kind.startswith("text") or (shape(told) == shape(plain) and kind.startswith(("path", "program"))), value
                assert shape(told)[0] == shape(plain)[0], value
        assert command(template, **{f: None if f == field else [v] if fields[f][-1] in "*," else v for f, v in usual.items()}) is None


def test_nothing_else_makes_a_command():
    """mypy refuses other texts where `Command` is asked for; what a remedy is given by itself is looked at here."""
    makers = {
        f.name
        for tree in trees().values()
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef) and f.returns and "Command | None" in ast.unparse(f.returns)
    }

    def made(node: ast.expr, *scopes: ast.AST) -> bool:
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Call) and name(node.func) in makers):
            return True
        if isinstance(node, ast.IfExp):
            return made(node.body, *scopes) and made(node.orelse, *scopes)
        return isinstance(node, ast.Name) and bool(values := given(node, *scopes)) and all(made(v, *scopes) for v in values)

    wrong = []
    for path, tree in trees().items():
        room = str(path.relative_to(PACKAGE))
        if room in CHANGED or "remed" not in path.read_text("utf-8").lower():
            continue
        for call, scope in scopes(tree).items():
            if isinstance(call, ast.Call) and name(call.func) in ("Command", "cast") and "Command" in map(name, (call.func, *call.args)):
                wrong.append(f"{room}:{call.lineno}")
            if isinstance(call, ast.Call) and name(call.func) in ("Remedy", "replace"):
                wrong += [f"{room}:{k.value.lineno}" for k in call.keywords if k.arg in ("command", "verify") and not made(k.value, scope, tree)]
    assert wrong == []


def test_settings_of_remedies_are_words_of_a_shell():
    of = [(c.id, n, v) for c in catalogue.load().values() for r in c.remedies for n, v in r.env.items()]
    assert of and [o for o in of if shape(f"{o[1]}={o[2]}")[0] != "w"] == []
