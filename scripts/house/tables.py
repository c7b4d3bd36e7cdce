"""Turns `@pytest.mark.parametrize` into `@for_each` (tests/tables.py) where it makes more than MOST items of one test: `tables.py [PATH...]`.

It collects the tests, and leaves alone what `for_each` would change: cases with marks or `indirect`, hypothesis, `request`, and fixtures of our own that
are made for each test, but for those in SHARED, which the cases of a test may share. With --list it changes nothing, and prints what it would leave.
Run it from the root of the checkout, with the Python that has its tests' packages.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MOST = 8
# `for_each` renews these; the others hold nothing that a case could leave to the next.
RENEWED = frozenset({"tmp_path", "monkeypatch", "capsys", "caplog"})
# By where they are defined: what they make is new each time, never changes, or is written anew by each case that looks at it.
SHARED = {
    "tests": {"no_language_that_was_asked_for_before", "machine", "cpu_seconds"},
    "tests/cli/test_doctor.py": {"app", "run"},
    "tests/cli/test_explain.py": {"run"},
    "tests/cli/test_export.py": {"run"},
    "tests/cli/test_plan.py": {"run", "config"},
    "tests/cli/test_vars.py": {"run", "site"},
    "tests/cli/test_why.py": {"app"},
    "tests/diagnosis": {"lab", "build"},
    "tests/diagnosis/test_nccls_words.py": {"judge"},
    "tests/diagnosis/test_other_libraries.py": {"judge"},
    "tests/diagnosis/test_remedies_that_fit.py": {"judge"},
    "tests/diagnosis/test_run_and_dumps.py": {"judged"},
    "tests/diagnosis/test_starting.py": {"judge"},
    "tests/facts/test_libraries.py": {"gpu_machine"},
    "tests/facts/test_which_nccl.py": {"lay_out"},
    "tests/knowledge/causes": {"in_chinese", "logs"},
    "tests/logs/test_exits.py": {"read"},
    "tests/logs/test_tracebacks.py": {"job"},
    "tests/logs/test_watchdog.py": {"hits"},
    "tests/logs/test_work.py": {"whats"},
    "tests/flight/test_outcome_of_digests.py": {"summed_up"},
    "tests/remedies": {"bench", "world", "clock"},
}
# What starts processes in every case would be one item of minutes.
SLOW = ("tests/launch/", "tests/launchers/", "tests/integrations/", "tests/recipes/", "tests/runtime/", "tests/pack/", "tests/probes/")


@dataclass
class Test:
    count: int = 0
    why_not: set[str] = field(default_factory=set)


class Collected:
    def __init__(self) -> None:
        self.tests: dict[tuple[Path, str], Test] = defaultdict(Test)
        self.total = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.total = len(items)
        for item in items:
            if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
                continue
            name = item.nodeid.partition("::")[2].partition("[")[0]
            test = self.tests[item.path, name]
            test.count += 1
            test.why_not |= set(_reasons(item))


def _reasons(item: pytest.Function):
    if hasattr(item.obj, "hypothesis"):
        yield "hypothesis"
    own = {m.name for m in getattr(item.function, "pytestmark", ())} | {"parametrize"}
    if marks := {m.name for m in item.own_markers} - own:
        yield f"cases with marks: {', '.join(sorted(marks))}"
    if "integration" in item.keywords or any(str(item.path).startswith(str(Path(slow).absolute())) for slow in SLOW):
        yield "starts processes"
    direct = _arguments(item)
    for name in item.fixturenames:
        made = item._fixtureinfo.name2fixturedefs.get(name)
        if name == "request" and "request" in direct:
            yield "request"
        # The last is the case itself.
        elif made and made[-1].scope == "function" and name not in RENEWED and made[-1].func.__name__ != "get_direct_param_fixture_func":
            if name not in SHARED.get(made[-1].baseid, ()):
                yield f"fixture {name}"
            elif made[-1].baseid != "tests" and "tmp_path" in direct & set(made[-1].argnames):
                yield f"fixture {name} in the same tmp_path"


def _arguments(item: pytest.Function) -> set[str]:
    code = item.function.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def convert(path: Path, names: set[str]) -> Counter[str]:
    """Change the decorators of the tests called `names` (Class::test). What it leaves, by its reason."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    left: Counter[str] = Counter()
    lines = source.splitlines(keepends=True)
    taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    has_it = any(isinstance(n, ast.ImportFrom) and n.module == "tests.tables" for n in tree.body)
    changed = False
    for name, function in _functions(tree):
        if name not in names:
            continue
        made = [d for d in function.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "pytest.mark.parametrize"]
        others = [ast.unparse(d) for d in function.decorator_list if d not in made and not ast.unparse(d).startswith("pytest.mark.")]
        others = [d for d in others if not d.startswith("for_each(")]
        if others:
            left[f"decorator {others[0].partition('(')[0]}"] += 1
        elif any(len(d.args) != 2 or {k.arg for k in d.keywords} - {"ids"} for d in made):
            left["indirect or scope"] += 1
        elif "for_each" in taken and not has_it:
            left["for_each is a name here"] += 1
        elif isinstance(function, ast.AsyncFunctionDef):
            left["async"] += 1
        else:
            for d in made:
                line = lines[d.func.lineno - 1]
                assert line[d.func.col_offset :].startswith("pytest.mark.parametrize("), line
                lines[d.func.lineno - 1] = line[: d.func.col_offset] + "for_each" + line[d.func.end_col_offset :]
                changed = True
    if changed:
        if not has_it:
            at = next(n.lineno for n in tree.body if isinstance(n, ast.Import) and any(a.name == "pytest" for a in n.names))
            lines.insert(at, "from tests.tables import for_each\n")
        path.write_text("".join(lines), "utf-8")
    return left


def _functions(tree: ast.Module):
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}::{n.name}", n) for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests"])
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    found = Collected()
    if code := pytest.main(
        ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-summary", "--no-header", *asked.paths], plugins=[found]
    ):
        return int(code)
    large = {key: test for key, test in found.tests.items() if test.count > MOST}
    fit = {key: test for key, test in large.items() if not test.why_not}
    reasons: Counter[str] = Counter()
    for (path, name), test in sorted(large.items(), key=lambda one: -one[1].count):
        for why in test.why_not:
            reasons[why] += test.count
        if asked.list and test.why_not:
            print(f"{test.count:5} {path.relative_to(Path.cwd())}::{name}: {'; '.join(sorted(test.why_not))}")
    print(
        f"{found.total} items; {len(large)} tests make {sum(t.count for t in large.values())}, {len(fit)} of them {sum(t.count for t in fit.values())} that fit"
    )
    print("left:", ", ".join(f"{why} {count}" for why, count in reasons.most_common()))
    if asked.list:
        return 0
    by_file: dict[Path, set[str]] = defaultdict(set)
    for path, name in fit:
        by_file[path].add(name)
    left: Counter[str] = Counter()
    for path, names in by_file.items():
        left += convert(path, names)
    print("left in the source:", dict(left))
    ruff = str(Path(sys.executable).parent / "ruff")
    files = [str(path) for path in by_file]
    subprocess.run([ruff, "check", "--quiet", "--select", "I,F401", "--fix", *files], check=True)
    subprocess.run([ruff, "format", "--quiet", *files], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
