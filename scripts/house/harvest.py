"""A pytest plugin that copies what tests give to unhang into inputs of the corpus: `pytest -p harvest` with scripts/house on PYTHONPATH.

An input is a directory of files and a command line of `unhang` that reads them. What a test hands to a function becomes the command that would
hand it the same. HARVEST names the directory for them, in which equal inputs are kept once; `harvest.py` by itself
thins it out, and `scripts/corpus.py add` takes it in.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

OUT = Path(os.environ["HARVEST"]).absolute()
MOST_BYTES = 200_000
# Of one test, by verb: a hundred damaged answers show what ten do.
MOST_OF_A_TEST = 30
# What their tests judge was really printed, recorded or laid out as machines do.
REAL = ("cases", "healthy", "torch_debug", "real_gloo", "machines", "why_real_dumps", "provoked", "asked")
VERBS = ("why", "vars", "export", "plan", "doctor", "top")
# Start trainings, ask the network, write files, or look at this very machine.
NEVER = ("-o", "--output", "--calibrate", "--live", "--fix", "--save", "--digest", "--bundle", "--report", "--html", "--follow", "--help", "--list")
SITE = {"site/torch-2.9.1.dist-info": None, "site/nvidia_nccl_cu12-2.27.5.dist-info": None, "site/accelerate-1.15.0.dist-info": None}
HERE = dict(os.environ)
counts: Counter[str] = Counter()
current = ""


def _neutral() -> list[tuple[bytes, bytes]]:
    """What names this machine, each with as many bytes that do not: in a pickle all lengths stay."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    root = str(Path.cwd())
    names = [
        (boot, "0" * 8 + boot[8:].translate(str.maketrans("0123456789abcdef", "0" * 16))),
        (socket.gethostname(), "n" * len(socket.gethostname())),
    ]
    for path in (*os.environ.get("HARVEST_BASE", "/tmp/pytest-of").split(":"), root):
        names.append((path, ("/srv/" + "x" * len(path))[: len(path)]))
    return [(a.encode(), b.encode()) for a, b in names]


NEUTRAL = _neutral()


def neutral(data: bytes) -> bytes:
    for own, other in NEUTRAL:
        data = data.replace(own, other)
    return data


def keep(argv: list[str], files: dict[str, bytes | None], environ: dict[str, str] | None = None, mtimes: dict[str, float] | None = None) -> None:
    """`files` by their relative path; None is a directory."""
    files = {neutral(os.fsencode(name)).decode("utf-8", "surrogateescape"): data if data is None else neutral(data) for name, data in files.items()}
    argv = [neutral(os.fsencode(a)).decode("utf-8", "surrogateescape") for a in argv]
    environ = {k: neutral(os.fsencode(v)).decode("utf-8", "surrogateescape") for k, v in (environ or {}).items()}
    if sum(len(d or b"") for d in files.values()) > MOST_BYTES:
        counts[f"{argv[0]} too large"] += 1
        return
    try:
        told = json.dumps({"argv": argv, "environ": environ}, sort_keys=True).encode()
        for name in files:
            name.encode()
    except UnicodeEncodeError:
        counts["names"] += 1
        return
    sums = hashlib.sha256(told)
    for name, data in sorted(files.items()):
        sums.update(name.encode() + b"\0" + (data or b"") + b"\0")
    folder = OUT / sums.hexdigest()[:12]
    counts[argv[0]] += 1
    if folder.exists():
        return
    for name, data in files.items():
        path = folder / "files" / name
        (path if data is None else path.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)
            if mtimes and name in mtimes:
                os.utime(path, (int(mtimes[name]), int(mtimes[name])))
    (folder / "files").mkdir(parents=True, exist_ok=True)
    (folder / "input.json").write_text(json.dumps({"argv": argv, "environ": environ, "from": current.split("[")[0], "tier": tier(current)}))


def tier(origin: str) -> int:
    return 1 if not origin.startswith("tests/") or any(name in origin.partition("::")[0] for name in REAL) else 2


class Unfit(Exception):
    pass


def taken(paths: list[Path]) -> tuple[dict[str, bytes | None], dict[str, float], Path]:
    """The files of these paths, relative to the folder that they share."""
    paths = [p.absolute() for p in paths]
    base = Path(os.path.commonpath([p.parent for p in paths]))
    files: dict[str, bytes | None] = {}
    mtimes: dict[str, float] = {}
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            # Made from the rest, for people.
            if file.name in ("report.html", "verdict.md", "solution.md"):
                continue
            name = str(file.relative_to(base))
            if (
                file.is_symlink()
                or not (file.is_dir() or file.is_file())
                or len(files) > 3000
                or (file.is_file() and file.stat().st_size > MOST_BYTES)
            ):
                raise Unfit("special or large")
            files[name] = None if file.is_dir() else file.read_bytes()
            mtimes[name] = file.stat().st_mtime
        files.setdefault(str(path.relative_to(base)), None) if path.is_dir() else None
    if base == Path("/"):
        raise Unfit("everything")
    return files, mtimes, base


def command(argv: list[str], cwd: Path, environ: dict[str, str]) -> None:
    """A command line of unhang, as a test typed it."""
    if not argv or argv[0] not in VERBS or any(a.split("=")[0] in NEVER for a in argv) or "-" in argv:
        return
    if argv[0] == "doctor" and ("now" in argv or not any(a in ("--snapshot", "--diff") for a in argv)):
        return
    if (
        (argv[0] == "vars" and "--libs" not in argv)
        or (argv[0] == "plan" and "--gpu-memory" not in argv)
        or (argv[0] == "top" and "--json" not in argv)
    ):
        return
    named = {i: cwd / a for i, a in enumerate(argv[1:], 1) if a and "\0" not in a and len(a) < 250 and (cwd / a).exists() and a not in (".", "..")}
    if any(":" in a for i, a in enumerate(argv[1:], 1) if argv[i - 1] == "--ras"):
        return
    files: dict[str, bytes | None] = {}
    mtimes: dict[str, float] = {}
    argv = list(argv)
    if named:
        files, mtimes, base = taken(list(named.values()))
        for i, path in named.items():
            argv[i] = str(path.absolute().relative_to(base))
    if argv[0] == "why" and not named:
        raise Unfit("no files")
    keep([a for a in argv if a not in ("--json", "--markdown", "--all", "--no-color")], files, environ, mtimes)


def told(environ: dict[str, str]) -> dict[str, str]:
    """What a test has set of variables that unhang looks at."""
    left = ("HOME", "PATH", "COLUMNS", "LANG", "NO_COLOR", "LC_ALL", "PYTHONPATH", "LANGUAGE", "PWD", "OLDPWD", "TERM")
    return {k: v for k, v in environ.items() if HERE.get(k) != v and k not in left and not k.startswith(("PYTEST", "XDG", "UNHANG_TEST", "PYTHON"))}


def wrap(module: object, name: str, harvest) -> None:
    original = getattr(module, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        try:
            harvest(*args, **kwargs)
        except Unfit as e:
            counts[f"unfit: {e}"] += 1
        except Exception as e:
            counts[f"{name}: {type(e).__name__}: {str(e)[:80]}"] += 1
        return original(*args, **kwargs)

    setattr(module, name, wrapped)


def logs(paths, *, attempt=None, found=None, **_) -> None:
    if found is not None or any(str(p) == "-" for p in paths):
        return
    option = [] if attempt is None else ["--attempt", str(attempt)]
    command(["why", *option, *map(str, paths)], Path.cwd(), {})


def run(rundir, *, number=None, called=None) -> None:
    option = [] if number is None else ["--incident", str(number)]
    command(["why", *option, str(rundir.path)], Path.cwd(), {})


def dumps(paths, **_) -> None:
    command(["why", *map(str, paths)], Path.cwd(), {})


def machine(snapshot, *, only=()) -> None:
    from unhang.facts import snapshot as snapshots

    option = [word for area in only for word in ("--only", area)]
    keep(["doctor", "--snapshot", "machine.json", *option], {"machine.json": snapshots.encode(snapshot)})


def answer(data, **_) -> None:
    if len(data) < MOST_BYTES:
        keep(["why", "--ras", "a.ras"], {"a.ras": data})


def setting(name, text, *_, **__) -> None:
    file = Path(name).name
    keep(["vars", "--libs", "site", file], {file: text.encode(), **SITE})


def launcher_file(name, text, *, form=None, nodes=None, processes=None, **_) -> None:
    file = Path(name).name
    options = [w for o, v in (("--form", form), ("--nodes", nodes), ("--processes", processes)) if v is not None for w in (o, str(v))]
    keep(["export", "--check", file, *options], {file: text.encode()})


def invoked(self, app, args=None, input=None, env=None, **_) -> None:
    if args and not isinstance(args, str) and input is None:
        command(list(map(str, args)), Path.cwd(), told({**os.environ, **{k: v for k, v in (env or {}).items() if v is not None}}))


def started(args, *_, cwd=None, env=None, input=None, stdin=None, **__) -> None:
    if isinstance(args, (list, tuple)) and list(map(str, args[:3])) == [sys.executable, "-m", "unhang"] and input is None and stdin is None:
        command(list(map(str, args[3:])), Path(cwd or "."), told(dict(env if env is not None else os.environ)))


def install() -> None:
    import typer.testing

    import unhang.diagnosis.doctor
    import unhang.diagnosis.logs
    import unhang.diagnosis.recorders
    import unhang.diagnosis.why
    import unhang.files.opening
    import unhang.ras
    import unhang.remedies.lint

    OUT.mkdir(parents=True, exist_ok=True)
    wrap(unhang.diagnosis.logs, "judge_logs", logs)
    wrap(unhang.diagnosis.why, "judge", run)
    for name in ("examine",):
        wrap(unhang.diagnosis.recorders, name, dumps)
    wrap(unhang.diagnosis.doctor, "examine", machine)
    wrap(unhang.ras, "parse", answer)
    wrap(unhang.files.opening, "parse", setting)
    wrap(unhang.remedies.lint, "check", launcher_file)
    wrap(typer.testing.CliRunner, "invoke", invoked)
    wrap(subprocess, "run", started)


def pytest_runtest_setup(item) -> None:
    global current
    current = item.nodeid


def pytest_sessionfinish(session) -> None:
    (OUT / "counts.json").write_text(json.dumps(counts.most_common(), indent=1))
    print("\nharvested", len(list(OUT.glob("*/input.json"))), dict(counts.most_common(40)), shutil.disk_usage(OUT).free)


def thin() -> None:
    """Leave out what shows nothing new: most of a test's many alike, and settings in files that are checked as launchers' files as well."""
    found = {p.parent: json.loads(p.read_text()) for p in sorted(OUT.glob("*/input.json"))}
    checked = {_content(folder, given) for folder, given in found.items() if given["argv"][:2] == ["export", "--check"]}
    by_test: dict[tuple[str, str], int] = Counter()
    for folder, given in found.items():
        given["tier"] = tier(given["from"])
        test = (given["from"], given["argv"][0])
        by_test[test] += 1
        if (
            given["argv"][0] not in VERBS
            or "auto" in given["argv"]
            or (given["tier"] == 2 and by_test[test] > MOST_OF_A_TEST)
            or (given["argv"][0] == "vars" and _content(folder, given) in checked)
        ):
            shutil.rmtree(folder)
        else:
            (folder / "input.json").write_text(json.dumps(given))


def _content(folder: Path, given: dict) -> bytes:
    file = folder / "files" / given["argv"][-1]
    try:
        return file.read_bytes()
    except OSError:
        return str(folder).encode()


if __name__ == "__main__":
    thin()
else:
    # Before any conftest imports what is wrapped.
    install()
