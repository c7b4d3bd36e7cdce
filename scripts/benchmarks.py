"""Runs all of benchmarks/, keeps their results in benchmarks/results.json, and writes the tables of docs/benchmarks.md from that.

    python scripts/benchmarks.py [--quick] [NAME ...]
    python scripts/benchmarks.py --docs       # the tables again, nothing is run
    python scripts/benchmarks.py --check      # says whether the tables are those of the results, and ends with 1 if not

Results are written after each benchmark: what was measured is kept, whatever happens to the next one. --quick runs everything in small, to see that
it works; it writes into build/ and leaves results and documentation alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Of each benchmark its options, and those of a quick run.
BENCHMARKS: Mapping[str, tuple[str, str]] = {
    "startup": ("", "--runs 2"),
    "overhead": ("", "--pairs 1 --steps 20 --warmup 5"),
    "scan": ("", "--repeats 1 --mb 8 --ranks 8"),
    "flight": ("--full --limit 200", "--only-digests --repeats 1 --entries 50"),
    "collectives": ("", "--ranks 2 --links loopback --sizes 1 --starts 1 --repeats 0.05"),
    "comm": ("", "--sizes 4096 --pairs 2"),
    "evaluation": ("", "--batches 5 --repeats 0.05"),
    "exits": ("--runs 200 --minutes 5 --switch-s 1", "--runs 2 --minutes 1"),
    "pack": ("", "--repeats 1"),
    "top": ("", "--ranks 64 --looks 2"),
    "verdicts": ("", "--comparisons 5"),
    "hosts": ("--hosts 64,256", "--hosts 64"),
}
# As the page says it; results that are older than this script lack some of it.
_MACHINE = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "system": "{}", "python": "Python {}", "torch": "torch {}"}
# Names of what only holds other names.
_HOLDERS = ("found", "sizes", "batches", "cases")
_SPREAD = ("median", "min", "max")
_MARKED = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def machine() -> dict[str, Any]:
    """What numbers depend on, without the machine's name."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE) if Path("/proc/cpuinfo").exists() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": f"{platform.machine()}{f' ({model[1].strip()})' if model else ''}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "unhang")},
    }


def run(name: str, *, quick: bool) -> dict[str, Any]:
    """One benchmark with its date and machine. Raises ValueError where it prints no result."""
    options = BENCHMARKS[name][quick].split()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as e:
        raise ValueError(f"{name} printed no result and ended with {done.returncode}") from e
    if result.get("benchmark", name) != name:
        raise ValueError(f"{name} printed the result of {result['benchmark']}")
    taken = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"taken": taken, "took_s": round(time.monotonic() - began), "options": options, "machine": machine(), "result": result}


def tables(text: str, results: Mapping[str, Any]) -> str:
    """The page with the tables of these results between its markers."""
    return _MARKED.sub(lambda found: found[1] + _section(results.get(found[2])) + found[3], text)


def _section(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "Not measured yet: `make bench`.\n"
    at, result = one["machine"], dict(one["result"])
    for name in ("benchmark", "machine"):
        result.pop(name, None)
    where = ", ".join(said.format(at[name]) for name, said in _MACHINE.items() if name in at)
    options = f", with `{' '.join(one['options'])}`" if one["options"] else ""
    unit = f" Unit: {said}." if (said := result.pop("unit", result.pop("what", ""))) else ""
    return f"Measured on {one['taken']}{options}: {where}.{unit} Spread: lowest to highest.\n\n{_table(list(_rows('', result)))}\n"


def _rows(name: str, value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """A row for each part that has numbers of its own."""
    if set(_SPREAD) <= value.keys():
        value = {"value": {k: value[k] for k in _SPREAD}, **{k: v for k, v in value.items() if k not in _SPREAD}}
    own = {key: _cell(inner) for key, inner in value.items() if not _is_part(inner) and inner != []}
    if own:
        yield name, own
    for key, inner in value.items():
        if _is_part(inner):
            yield from _rows(name if key in _HOLDERS else f"{name}, {key}".removeprefix(", "), inner)


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and set(value) != set(_SPREAD)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        spread = f" ({_cell(value['min'])} to {_cell(value['max'])})" if value["min"] != value["max"] else ""
        return f"{_cell(value['median'])}{spread}"
    if isinstance(value, list):
        return (
            f"{_cell(min(value))} to {_cell(max(value))}" if value and all(isinstance(v, (int, float)) for v in value) else ", ".join(map(str, value))
        )
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _table(rows: Sequence[tuple[str, dict[str, str]]]) -> str:
    """Rows with the same columns make one table; those that have theirs alone stand upright, in one table of their own."""
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name, cells in rows:
        alike.setdefault(tuple(cells), []).append((name, *cells.values()))
    upright = [
        (f"{name}, {key}".removeprefix(", "), cell)
        for columns, ((name, *cells), *more) in alike.items()
        if not more
        for key, cell in zip(columns, cells, strict=True)
    ]
    tables: list[tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = [(("value",), upright)]
    tables += [(columns, lines) for columns, lines in alike.items() if len(lines) > 1]
    return "\n".join(_lines(("what", *columns), lines) for columns, lines in tables if lines).replace("_", " ")


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (heads, *rows))
    return first + "|---" * len(heads) + "|\n" + "".join(others)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    source = ROOT / "docs" / "benchmarks.md"
    at, page = (
        (ROOT / "build" / "benchmarks.json", ROOT / "build" / "benchmarks.md") if asked.quick else (ROOT / "benchmarks" / "results.json", source)
    )
    results: dict[str, Any] = json.loads(at.read_text()) if at.is_file() and not asked.quick else {}
    failed = []
    at.parent.mkdir(exist_ok=True)
    for name in () if asked.docs or asked.check else asked.names or BENCHMARKS:
        sys.stderr.write(f"--- {name}\n")
        try:
            results[name] = run(name, quick=asked.quick)
        except ValueError as e:
            failed.append(str(e))
            continue
        at.write_text(json.dumps({known: results[known] for known in BENCHMARKS if known in results}, indent=1) + "\n")
    text = tables(source.read_text("utf-8"), results)
    if asked.check:
        if text != source.read_text("utf-8"):
            sys.stderr.write("docs/benchmarks.md is out of date\nTry: python scripts/benchmarks.py --docs\n")
            return 1
        return 0
    page.write_text(text, "utf-8")
    for said in failed:
        sys.stderr.write(f"{said}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
