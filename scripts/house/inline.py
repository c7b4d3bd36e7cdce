"""Puts private functions that are called once into their only caller, where that costs no reader anything.

    inline.py src/unhang/records          rewrite the modules of a room; one line for each function that went
    inline.py --dry src/unhang/records    say what would go

A function of one `return` goes into the expression that calls it, one of several statements in front of the statement that calls it, or in its place. The new text
is taken only if it parses to the tree that results from replacing the call in the old tree, so precedence holds. `inline.skip` beside this names what stays
(`path:function`): what read worse, or did not satisfy mypy.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SKIP = Path(__file__).with_suffix(".skip")
RUFF = Path(sys.executable).with_name("ruff")
TOKENS = 25  # of an expression that goes into another
STATEMENTS, LINES, CALLER_LINES, COLUMN = 20, 32, 60, 24
ORDERED = (
    "runtime",
    "launch",
    "probes",
    "cli",
    "integrations",
    "testing",
    "pack",
    "remedies",
    "bench",
    "facts",
)  # rooms in which the order of calls may matter
LEFT = ("attach",)  # loaded at every interpreter start and entered by frames that others look for

Function = ast.FunctionDef
Scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


REFUSED: Counter[str] = Counter()


class Refused(Exception):
    """Why a function stays."""


class Edit(NamedTuple):
    text: str
    tree: ast.AST  # what the text must parse to


def bound(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    names |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    names |= {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name}
    names |= {n.name for n in ast.walk(node) if n is not node and isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    return names | {(a.asname or a.name).split(".")[0] for n in ast.walk(node) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}


def used(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | bound(node)


def of_comprehensions(node: ast.AST) -> set[str]:
    loops = [g.target for n in ast.walk(node) if isinstance(n, Comprehensions) for g in n.generators]
    return {n.id for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Name)}


def names_of(function: ast.AST) -> set[str]:
    """Every name in a function, but for those that only its comprehensions bind."""
    inside = {id(n) for c in ast.walk(function) if isinstance(c, Comprehensions) for n in ast.walk(c)}
    loops = of_comprehensions(function)
    return (
        {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not (n.id in loops and id(n) in inside)}
        | (bound(function) - loops)
        | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    )


def is_dotted(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and is_dotted(node.value))


def ends(body: list[ast.stmt]) -> bool:
    """Whether control never runs past the last statement."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and ends(last.body) and ends(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise)) or (isinstance(last, ast.With) and ends(last.body))


def token_count(text: str) -> int:
    return (
        sum(
            1
            for t in tokenize.generate_tokens(io.StringIO(f"({text})").readline)
            if t.type in (tokenize.OP, tokenize.NAME, tokenize.STRING, tokenize.NUMBER)
        )
        - 2
    )


class Source:
    """A module: its text by byte offsets, as `ast` counts columns."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.bytes = text.encode()
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def lines(self, first: int, last: int) -> tuple[int, int]:
        return self.starts[first - 1], self.starts[last]

    def of(self, span: tuple[int, int]) -> str:
        return self.bytes[span[0] : span[1]].decode()

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node


def copied(node: Any, swap: dict[ast.AST, list[Any]], names: dict[str, ast.expr]) -> list[Any]:
    """A tree with some nodes, and some names, replaced: a list, as a statement may become several."""
    if node in swap:
        return swap[node]
    if isinstance(node, ast.Name) and node.id in names:
        (given,) = copied(names[node.id], {}, {})
        if isinstance(given, ast.Name):
            given.ctx = node.ctx
        return [given]
    new = type(node)()
    for field, value in ast.iter_fields(node):
        if isinstance(value, list):
            value = [n for v in value for n in (copied(v, swap, names) if isinstance(v, ast.AST) else [v])]
        elif isinstance(value, ast.AST):
            value = copied(value, swap, names)[0]
        setattr(new, field, value)
    return [new]


def with_values(source: Source, span: tuple[int, int], nodes: list[ast.AST], values: dict[str, ast.expr], around: str) -> str:
    """The text of a span, with each use of a parameter replaced by its argument."""
    uses = [n for top in nodes for n in ast.walk(top) if isinstance(n, ast.Name) and n.id in values]
    data, end = source.bytes[span[0] : span[1]], span[0]
    for use in sorted(uses, key=source.span, reverse=True):
        start, stop = source.span(use)
        if source.of((start, stop)) != use.id or start < end:
            raise Refused("a name inside an f-string")
        value = source.of(source.span(values[use.id]))
        data = data[: start - end] + around.replace("*", value).encode() + data[stop - end :]
    return data.decode()


def arguments(source: Source, function: Function, call: ast.Call) -> dict[str, ast.expr]:
    given = function.args
    if (
        given.vararg
        or given.kwarg
        or given.posonlyargs
        or any(isinstance(a, ast.Starred) for a in call.args)
        or any(k.arg is None for k in call.keywords)
    ):
        raise Refused("any number of arguments")
    names = [a.arg for a in given.args]
    values: dict[str, ast.expr] = {}
    if isinstance(call.func, ast.Attribute):
        values[names.pop(0)] = call.func.value
    values |= dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    defaults = dict(zip(reversed([a.arg for a in given.args]), reversed(given.defaults), strict=False))
    defaults |= {a.arg: d for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None}
    for name, default in defaults.items():
        if name not in values:
            if not isinstance(default, ast.Constant):
                raise Refused("a default")
            values[name] = default
    return values


def body_of(function: Function) -> tuple[str | None, list[ast.stmt]]:
    doc = ast.get_docstring(function)
    return doc, function.body[1:] if doc is not None else function.body


def result_of(source: Source, body: list[ast.stmt]) -> tuple[ast.expr | None, list[ast.expr], int]:
    """What a body returns at its end, as one expression; what that consists of; the line that this begins at."""
    last, branch = body[-1], body[-2] if len(body) > 1 else None
    if not isinstance(last, ast.Return) or last.value is None:
        return None, [], 0
    if (
        isinstance(branch, ast.If)
        and not branch.orelse
        and len(branch.body) == 1
        and isinstance(short := branch.body[0], ast.Return)
        and short.value is not None
    ):
        parts = [short.value, branch.test, last.value]
        if sum(token_count(source.of(source.span(p))) for p in parts) < TOKENS and not any(
            isinstance(n, (ast.IfExp, ast.NamedExpr)) for p in parts for n in ast.walk(p)
        ):
            return ast.IfExp(branch.test, short.value, last.value), parts, branch.lineno
    return last.value, [last.value], last.lineno


def joined(source: Source, parts: list[ast.expr], values: dict[str, ast.expr], around: str) -> str:
    texts = [with_values(source, source.span(p), [p], values, around) for p in parts]
    return texts[0] if len(texts) == 1 else "{} if {} else {}".format(*texts)


def caller_of(source: Source, call: ast.AST) -> Function:
    functions = [n for n in source.up(call) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not functions or not isinstance(functions[-1], ast.FunctionDef) or not isinstance(functions[0], ast.FunctionDef):
        raise Refused("called outside a function")
    return functions[-1]


def check_names(function: Function, caller: Function, values: dict[str, ast.expr]) -> None:
    given = {n.id for v in values.values() for n in ast.walk(v) if isinstance(n, ast.Name)}
    own = of_comprehensions(function)
    if own & given:
        raise Refused("a comprehension hides an argument")
    free = {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)} - bound(function)
    if free & bound(caller):
        raise Refused("the caller hides a name")
    rebound = {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} & set(values)
    if rebound:
        raise Refused("a parameter is bound again")


def expression(source: Source, function: Function, call: ast.Call) -> Iterator[Edit]:
    doc, body = body_of(function)
    value, parts, _ = result_of(source, body)
    assert value is not None
    caller, text = caller_of(source, call), joined(source, parts, {}, "*")
    if doc is not None or "#" in source.of(source.lines(function.lineno, function.end_lineno or 0)):
        raise Refused("it says why")
    if token_count(text) > TOKENS:
        raise Refused("long")
    inside = list(ast.walk(value))
    if any(isinstance(n, ast.NamedExpr) for n in inside) or any(
        isinstance(n, ast.Constant) and isinstance(n.value, (int, float)) and n.value not in (0, 1, -1, True, False) for n in inside
    ):
        raise Refused("a number, or a name of its own")
    if any(isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "re" for n in inside):
        raise Refused("a pattern")
    loops = sum(isinstance(n, Comprehensions) for n in inside)
    above = list(source.up(call))
    within = [n for n in above[: above.index(caller)] if isinstance(n, (*Comprehensions, ast.Lambda, ast.IfExp, ast.JoinedStr))]
    if any(isinstance(n, ast.JoinedStr) for n in within) or loops > 1 or (loops and any(isinstance(n, Comprehensions) for n in within)):
        raise Refused("loops in loops")
    branches = any(isinstance(n, ast.IfExp) for n in inside)
    if branches and (within or not isinstance(source.parents[call], (ast.Return, ast.Assign, ast.keyword, ast.Call))):
        raise Refused("conditions in conditions")
    if isinstance(value, ast.BoolOp) and isinstance(source.parents[call], (ast.IfExp, ast.UnaryOp)):
        raise Refused("conditions in conditions")
    values = arguments(source, function, call)
    check_names(function, caller, values)
    if of_comprehensions(value) & bound(caller):
        raise Refused("a variable means two things")
    for name, argument in values.items():
        times = sum(isinstance(n, ast.Name) and n.id == name for n in inside)
        if isinstance(argument, (ast.Name, ast.Constant)) or (is_dotted(argument) and times < 3):
            continue
        hidden = any(
            isinstance(n, (*Comprehensions, ast.Lambda, ast.IfExp, ast.BoolOp)) and any(isinstance(x, ast.Name) and x.id == name for x in ast.walk(n))
            for n in inside
        )
        if times != 1 or hidden or any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield, *Comprehensions, ast.IfExp)) for n in ast.walk(argument)):
            raise Refused("an argument is more than a name")
    span = source.span(call)
    for around in ("*", "(*)"):
        inner = joined(source, parts, values, around)
        for outer in (inner, f"({inner})"):
            yield finished(source, function, [(span, outer)], {call: copied(value, {}, values)})


def finished(source: Source, function: Function, edits: list[tuple[tuple[int, int], str]], swap: dict[ast.AST, list[Any]]) -> Edit:
    """The module with some edits done and the function gone."""
    data = source.bytes
    gone = source.lines(function.lineno, function.end_lineno or 0)
    for span, text in sorted([*edits, (gone, "")], key=lambda e: e[0], reverse=True):
        data = data[: span[0]] + text.encode() + data[span[1] :]
    return Edit(data.decode(), copied(source.tree, swap | {function: []}, {})[0])


def header(statement: ast.stmt) -> ast.AST | None:
    """The part of a statement that is evaluated first, once."""
    if isinstance(statement, (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
        return statement.value
    if isinstance(statement, ast.For):
        return statement.iter
    return statement.test if isinstance(statement, ast.If) else None


def is_always_first(source: Source, call: ast.expr, top: ast.AST | None, ordered: bool) -> bool:
    """Whether a statement evaluates a call in any case, and before whatever it would matter to be before."""
    node: ast.AST = call
    while node is not top:
        parent = source.parents[node]
        if isinstance(parent, ast.comprehension):
            owner = source.parents[parent]
            if not (isinstance(owner, Comprehensions) and owner.generators[0] is parent and parent.iter is node):
                return False
        elif isinstance(parent, Comprehensions):
            if not isinstance(node, ast.comprehension):
                return False
        elif isinstance(parent, ast.BoolOp):
            if parent.values[0] is not node:
                return False
        elif isinstance(parent, ast.IfExp):
            if parent.test is not node:
                return False
        elif isinstance(parent, ast.Compare):
            if parent.left is not node and parent.comparators[0] is not node:
                return False
        elif not isinstance(
            parent,
            (
                ast.Call,
                ast.keyword,
                ast.Attribute,
                ast.Subscript,
                ast.BinOp,
                ast.Starred,
                ast.Tuple,
                ast.List,
                ast.Set,
                ast.UnaryOp,
                ast.Dict,
            ),
        ):
            return False
        node = parent
    assert top is not None
    ancestors = {call, *source.up(call)}
    before = [n for n in ast.walk(top) if isinstance(n, ast.expr) and n not in ancestors and source.span(n) < source.span(call)]
    worse = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, *((ast.Call,) if ordered else ()))
    return not any(isinstance(n, worse) for n in before)


def is_used_at_once(source: Source, first: ast.stmt, name: str, ordered: bool) -> bool:
    top = header(first)
    uses = [] if top is None else [n for n in ast.walk(top) if isinstance(n, ast.Name) and n.id == name]
    return len(uses) == 1 and is_always_first(source, uses[0], top, ordered)


def indented(text: str, by: int, to: int) -> str:
    return "".join(line if not line.strip() else " " * to + line[by:] for line in text.splitlines(keepends=True))


def is_spare(source: Source, caller: Function, statement: ast.stmt, name: str) -> bool:
    """Whether a function is done with a name, or has not begun with it, where a statement stands."""
    repeats = any(isinstance(n, (ast.For, ast.While)) for n in source.up(statement))
    first, last = statement.lineno, statement.end_lineno or 0
    places = {(n.lineno > last) - (n.lineno < first) for n in ast.walk(caller) if isinstance(n, ast.Name) and n.id == name}
    return not repeats and name not in {a.arg for a in ast.walk(caller) if isinstance(a, ast.arg)} and len(places) == 1 and 0 not in places


def statements(source: Source, function: Function, call: ast.Call, ordered: bool) -> Iterator[Edit]:
    doc, body = body_of(function)
    caller = caller_of(source, call)
    values = arguments(source, function, call)
    check_names(function, caller, values)
    nodes = [n for s in body for n in ast.walk(s)]
    if any(
        isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Await, ast.AsyncFor, ast.AsyncWith))
        for n in nodes
    ):
        raise Refused("a scope of its own")
    statement = next(n for n in source.up(call) if isinstance(n, ast.stmt))
    line = source.of(source.lines(statement.lineno, statement.lineno))
    if line[: statement.col_offset].strip() or line.lstrip().startswith("elif"):
        raise Refused("in the middle of a line")
    if statement not in ast.walk(caller) or any(isinstance(n, (ast.Lambda, ast.JoinedStr)) for n in source.up(call) if n in ast.walk(statement)):
        raise Refused("in a lambda")
    length, depth = (function.end_lineno or 0) - body[0].lineno + 1, (statement.col_offset - caller.col_offset) // 4
    if sum(isinstance(n, ast.stmt) for n in nodes) > STATEMENTS or length > LINES // depth:
        raise Refused("large")
    if doc is not None and len(doc.splitlines()) > 4:
        raise Refused("a long docstring")
    replaced: dict[str, ast.expr] = {}
    first = ""
    for name, argument in values.items():
        times = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
        if isinstance(argument, ast.Name) and argument.id == name:
            continue
        names = {n.id for n in ast.walk(argument) if isinstance(n, ast.Name)}
        if isinstance(argument, (ast.Name, ast.Constant)) or (is_dotted(argument) and times < 3) or not times:
            if not times and not (is_dotted(argument) or isinstance(argument, ast.Constant)):
                raise Refused("an argument is left out")
            replaced[name] = argument
        elif times == 1 and is_used_at_once(source, body[0], name, ordered):
            replaced[name] = argument
        elif name in bound(caller) and not is_spare(source, caller, statement, name):
            raise Refused("a parameter is a name of the caller")
        else:
            first += f"{name} = {source.of(source.span(argument))}\n"
        if names & bound(function) - set(values):
            raise Refused("a name of its own is one of an argument")
    locals_ = bound(function) - set(values) - of_comprehensions(function)
    result = body[-1]
    kept: str | None = None  # the variable that a call is assigned to, where the function returns one of its own: it is that one
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(target := statement.targets[0], ast.Name):
        earlier = any(isinstance(n, ast.Name) and n.id == target.id and source.span(n) < source.span(statement) for n in ast.walk(caller))
        own = result.value.id if isinstance(result, ast.Return) and isinstance(result.value, ast.Name) and result.value.id in locals_ else None
        if statement.value is call and own is not None and not earlier and not first and (own == target.id or target.id not in used(function)):
            kept = target.id
            if own != kept:
                replaced[own] = ast.Name(
                    kept,
                    ast.Load(),
                    lineno=target.lineno,
                    col_offset=target.col_offset,
                    end_lineno=target.end_lineno,
                    end_col_offset=target.end_col_offset,
                )
                locals_.remove(own)
    if any(not is_spare(source, caller, statement, name) for name in (locals_ - {kept}) & names_of(caller)):
        raise Refused("a name of its own is one of the caller")
    if first.count("\n") > 1:
        raise Refused("arguments that are more than names")
    if first and any(n.id in bound(function) for n in ast.walk(ast.parse(first)) if isinstance(n, ast.Name) and n.id not in values):
        raise Refused("names mixed up")

    start = body[0].lineno
    while source.of(source.lines(start - 1, start - 1)).lstrip().startswith("#"):
        start -= 1
    by, to = body[0].col_offset, statement.col_offset
    note = "".join(f"{' ' * to}# {said}".rstrip() + "\n" for said in (doc or "").splitlines())
    bind = indented(first, 0, to)
    returns = [n for n in nodes if isinstance(n, ast.Return)]
    value, parts, pre = result_of(source, body)
    yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes)
    whole = source.lines(statement.lineno, statement.end_lineno or 0)
    is_last = caller.body[-1] is statement and not any(isinstance(n, ast.Lambda) for n in source.up(call))
    parent = source.parents[call]

    bindings = ast.parse(first).body

    def put(last: int, column: int) -> str:
        if last < start:
            return ""
        span, within = source.lines(start, last), [b for b in body if b.lineno <= last]
        for around in ("*", "(*)"):
            text = with_values(source, span, within, replaced, around)
            with contextlib.suppress(SyntaxError):
                wanted = [n for b in within for n in copied(b, {}, replaced)]
                whole_text = "def _():\n" + indented(text, by, 4)
                if [ast.dump(n) for n in ast.parse(whole_text).body[0].body] == [ast.dump(n) for n in wanted]:
                    break
        return indented(text, by, column)

    if "#" in source.of(whole) and not isinstance(statement, (ast.If, ast.For)):
        raise Refused("the call has a comment")
    end = function.end_lineno or 0
    inlined = [*bindings, *(n for b in body for n in copied(b, {}, replaced))]
    if yields:
        if not (isinstance(parent, ast.YieldFrom) and source.parents[parent] is statement and isinstance(statement, ast.Expr)) or (
            returns and not is_last
        ):
            raise Refused("a generator")
        yield finished(source, function, [(whole, note + bind + put(end, to))], {statement: inlined})
        return
    if isinstance(statement, ast.Return) and parent is statement and ends(body):
        yield finished(source, function, [(whole, note + bind + put(end, to))], {statement: inlined})
        return
    if isinstance(statement, ast.Expr) and parent is statement and (not returns or (is_last and all(r.value is None for r in returns))):
        yield finished(source, function, [(whole, note + bind + put(end, to))], {statement: inlined})
        return
    if (
        isinstance(statement, ast.Return)
        and isinstance(parent, ast.IfExp)
        and source.parents[parent] is statement
        and ends(body)
        and call is not parent.test
    ):
        test, other = source.of(source.span(parent.test)), source.of(source.span(parent.orelse if call is parent.body else parent.body))
        pad = " " * to
        if call is parent.body and not isinstance(parent.test, ast.Name) and length > LINES // 4:
            raise Refused("large")
        if call is parent.orelse or isinstance(parent.test, ast.Name):
            refused = parent.test if call is parent.orelse else ast.UnaryOp(ast.Not(), parent.test)
            test = test if call is parent.orelse else f"not {test}"
            unless = ast.If(refused, [ast.Return(parent.body if call is parent.orelse else parent.orelse)], [])
            swap = [unless, *inlined]
            text = f"{pad}if {test}:\n{pad}    return {other}\n{note}{bind}{put(end, to)}"
        else:
            swap = [ast.If(parent.test, inlined, []), ast.Return(parent.orelse)]
            text = f"{pad}if {test}:\n{indented(note + bind, to, to + 4)}{put(end, to + 4)}{pad}return {other}\n"
        yield finished(source, function, [(whole, text)], {statement: swap})
        return
    choice = statement.value if isinstance(statement, ast.Return) and isinstance(statement.value, ast.IfExp) else None
    if choice is not None and value is not None and len(parts) == 1 == len(returns) and "#" not in source.of(source.lines(pre, end)):
        branch = next((b for b in (choice.body, choice.orelse) if call in ast.walk(b)), None)
        if branch is not None and is_always_first(source, call, branch, ordered):
            other = choice.orelse if branch is choice.body else choice.body
            pad, deeper = " " * to, 0 if branch is choice.orelse else 4
            (low, high), (left, right) = source.span(branch), source.span(call)
            rest = [*inlined[:-1], *(ast.Return(b) for b in copied(branch, {call: copied(value, {}, replaced)}, {}))]
            test = source.of(source.span(choice.test))
            for around in ("*", "(*)"):
                inner = joined(source, parts, replaced, around)
                for outer in (inner, f"({inner})"):
                    last = f"{pad}return ({source.of((low, left))}{outer}{source.of((right, high))})\n"
                    text = indented(note + bind, to, to + deeper) + put(pre - 1, to + deeper) + " " * deeper + last
                    if deeper:
                        made = f"{pad}if {test}:\n{text}{pad}return {source.of(source.span(other))}\n"
                        swap = [ast.If(choice.test, rest, []), ast.Return(other)]
                    else:
                        made = f"{pad}if {test}:\n{pad}    return {source.of(source.span(other))}\n{text}"
                        swap = [ast.If(choice.test, [ast.Return(other)], []), *rest]
                    yield finished(source, function, [(whole, made)], {statement: swap})
            return
    top = header(statement)
    if value is None or len(returns) != (1 if len(parts) == 1 else 2) or top is None or call not in ast.walk(top):
        raise Refused("several ends")
    if not is_always_first(source, call, top, ordered):
        raise Refused("called in a condition, or after something else")
    if "#" in source.of(source.lines(pre, end)):
        raise Refused("it says why")
    if parent is not statement and (
        token_count(joined(source, parts, {}, "*")) > TOKENS or (isinstance(value, ast.IfExp) and not isinstance(parent, (ast.Call, ast.keyword)))
    ):
        raise Refused("a long value inside a statement")
    if kept:
        yield finished(source, function, [(whole, note + put(result.lineno - 1, to))], {statement: inlined[:-1]})
        return
    place = statement.lineno
    while source.of(source.lines(place - 1, place - 1)).lstrip().startswith("#"):
        place -= 1
    at = source.lines(place, place)[0]
    text = note + bind + put(pre - 1, to)
    for around in ("*", "(*)"):
        inner = joined(source, parts, replaced, around)
        for outer in (inner, f"({inner})"):
            last = copied(statement, {call: copied(value, {}, replaced)}, {})
            yield finished(
                source, function, [((at, at), text), (source.span(call), outer)], {statement: [*inlined[: -1 if len(parts) == 1 else -2], *last]}
            )


def formatted(text: str, path: Path) -> str:
    return subprocess.run([RUFF, "format", "-", "--stdin-filename", path], input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def elsewhere(root: Path) -> dict[Path, str]:
    return {
        p: p.read_text("utf-8")
        for d in ("src", "tests", "scripts", "benchmarks", "recipes")
        for p in (root / d).rglob("*.py")
        if p != Path(__file__).resolve()
    }


def candidates(source: Source, path: Path, others: dict[Path, str]) -> Iterator[tuple[Function, ast.Call]]:
    everything = re.findall(r"\w+", source.text)
    functions = [
        (f, owner)
        for owner in (source.tree, *(n for n in source.tree.body if isinstance(n, ast.ClassDef)))
        for f in owner.body
        if isinstance(f, ast.FunctionDef)
    ]
    for function, owner in sorted(functions, key=lambda f: (f[0].end_lineno or 0) - f[0].lineno):
        name, is_method = function.name, isinstance(owner, ast.ClassDef)
        if (is_method and not name.startswith("_")) or name.startswith("__") or function.decorator_list or everything.count(name) != 2:
            continue
        if function.lineno == function.body[0].lineno or source.of(source.lines(function.lineno - 1, function.lineno - 1)).startswith("#"):
            continue
        calls = [
            n
            for n in ast.walk(source.tree)
            if isinstance(n, ast.Call)
            and (n.func.id if isinstance(n.func, ast.Name) else n.func.attr if isinstance(n.func, ast.Attribute) else None) == name
        ]
        if len(calls) != 1 or isinstance(calls[0].func, ast.Attribute) != is_method:
            continue
        call = calls[0]
        if is_method:
            method = next((n for n in source.up(call) if isinstance(n, ast.FunctionDef) and source.parents[n] is owner), None)
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            if method is None or not (
                isinstance(receiver, ast.Name) and method.args.args and receiver.id == method.args.args[0].arg == function.args.args[0].arg
            ):
                continue
        if function in source.up(call):
            continue
        if isinstance(owner, ast.ClassDef):
            bases = {ast.unparse(b) for b in owner.bases} - {"NamedTuple", "Protocol"}
            is_alone = not bases and not any(owner.name in text and re.search(rf"class \w+\([^)]*\b{owner.name}\b", text) for text in others.values())
            word = re.compile(
                rf"""{"(?<!self)(?<!cls)" if is_alone else ""}\.{name}\b|["']{name}["']{"" if is_alone else rf"|^    def {name}"}""", re.M
            )
        else:
            word = re.compile(rf"""\b(?!self|cls)\w+\.{name}\b|import [^\n]*\b{name}\b|["']{name}["']""")
        if not name.startswith("_"):
            word = re.compile(rf"(?<!def )\b{name}\b")
        if any(name in text and word.search(text) for p, text in others.items() if p != path):
            continue
        yield function, call


def is_same(edit: Edit) -> bool:
    try:
        return ast.dump(ast.parse(edit.text)) == ast.dump(edit.tree)
    except SyntaxError:
        return False


def is_readable(new: str, before: Function, statement: ast.stmt, is_expression: bool) -> bool:
    functions = [n for n in ast.walk(ast.parse(new)) if isinstance(n, ast.FunctionDef) and n.name == before.name]
    length = max((f.end_lineno or 0) - f.lineno + 1 for f in functions)
    was = (before.end_lineno or 0) - before.lineno + 1
    if is_expression:
        return length <= was or (statement.lineno == statement.end_lineno and length <= was + 2)
    deep = max(n.col_offset for f in functions for n in ast.walk(f) if isinstance(n, ast.stmt))
    return length <= CALLER_LINES and deep <= COLUMN


def tokens_of(text: str) -> int:
    kinds = (tokenize.OP, tokenize.NAME, tokenize.STRING, tokenize.NUMBER)
    return sum(t.type in kinds for t in tokenize.generate_tokens(io.StringIO(text).readline))


def step(path: Path, text: str, others: dict[Path, str], stays: set[str], tried: set[str]) -> str | None:
    source = Source(text)
    where = path.relative_to(ROOT).as_posix()
    ordered = path.relative_to(ROOT / "src" / "unhang").parts[0] in ORDERED
    for function, call in candidates(source, path, others):
        if function.name in tried or f"{where}:{function.name}" in stays:
            continue
        tried.add(function.name)
        _, body = body_of(function)
        single = len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None
        single = single or (len(body) == 2 and len(result_of(source, body)[1]) == 3)
        statement = next(n for n in source.up(call) if isinstance(n, ast.stmt))
        try:
            edit = next(
                (e for e in (expression(source, function, call) if single else statements(source, function, call, ordered)) if is_same(e)), None
            )
        except Refused as why:
            REFUSED[str(why)] += 1
            continue
        if edit is None:
            REFUSED["not the same tree"] += 1
            continue
        new, caller = formatted(edit.text, path), caller_of(source, call)
        gain = tokens_of(text) - tokens_of(new)
        if gain > 0 and is_readable(new, caller, statement, single):
            print(f"{where}:{function.name} -> {caller.name} ({gain})", flush=True)
            return new
        REFUSED["no gain, or too long a caller"] += 1
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    stays = set(SKIP.read_text().split()) if SKIP.exists() else set()
    others = elsewhere(ROOT)
    for path in sorted(m for p in options.paths for m in ([p.resolve()] if p.is_file() else p.resolve().rglob("*.py"))):
        if any(f"/unhang/{part}" in path.as_posix() for part in LEFT):
            continue
        text, tried = others[path], set[str]()
        while (new := step(path, text, others, stays, tried)) is not None:
            text = new
        if text != others[path] and not options.dry:
            path.write_text(text, "utf-8")
        others[path] = text
    print(*(f"{times:5} {why}" for why, times in REFUSED.most_common()), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
