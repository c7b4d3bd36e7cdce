"""What is not ours may steer a terminal: it leaves a command through `report/screen` or `printable`, and nothing else writes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import unhang

ROOT = Path(unhang.__file__).parent
WAYS_OUT = re.compile(
    r"print|pprint|(?:typer|click)\.s?echo|Console|rich\.print|sys\.__?std(?:out|err)__\.\w*|sys\.std(?:out|err)(?:\.buffer)?\.write(?:lines)?|traceback\.print_\w+"
)
# Processes of trainings, whose output is the training's, and programs whose output we read.
OTHERS = {"attach", "probes", "runtime", "integrations", "testing"}
JUSTIFIED = {
    "cli/app.py": 1,  # shows the cursor again
    "cli/main.py": 1,  # before anything is imported: a sentence of our own
    "cli/json_errors.py": 2,  # JSON, as `encoding` writes it; what typer says, on the stream that was asked for, which is ours
    "cli/running.py": 2,  # the same; the termination message, through our own console
    "cli/doctor.py": 1,  # a snapshot, packed
    "report/screen.py": 2,  # the door itself
    "report/live_line.py": 2,  # what the training wrote, as it is, and our own line
    "report/top/app.py": 2,  # what puts the terminal back as it was found
    "hosts/agent.py": 1,  # these four run by themselves on other hosts; what they print is read
    "pack/import_checks.py": 1,
    "pack/environment.py": 1,
    "pack/relocate.py": 2,
}


def ways_out(tree: ast.AST) -> int:
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return sum(bool(WAYS_OUT.fullmatch(name) or (name == "os.write" and not is_a_file(n))) for n in calls for name in [ast.unparse(n.func)])


def is_a_file(call: ast.Call) -> bool:
    return not re.search(r"^[12]$|^fd$|fileno\(\)", ast.unparse(call.args[0]))


def test_there_is_one_way_out():
    found = Counter()
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] not in OTHERS:
            found[name] = ways_out(ast.parse(path.read_text("utf-8")))
    assert {name: n for name, n in found.items() if n} == {name: n for name, n in JUSTIFIED.items() if n}


def test_one_that_is_not_justified_is_found():
    for code in ("print(name)", "sys.stderr.write(name)", "sys.stdout.buffer.write(b)", "typer.echo(x, err=True)", "c = Console()", "os.write(2, b)"):
        assert ways_out(ast.parse(code)) == 1
