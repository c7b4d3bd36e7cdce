"""The corpus: inputs of unhang, and the facts in its answer to each. A change of the code that changes a fact fails `make test`.

    scripts/corpus.py compare [KIND...]         what differs from the recorded facts, as a diff
    scripts/corpus.py compare --against REV     what differs from the answers of that revision
    scripts/corpus.py record                    make today's facts the recorded ones
    scripts/corpus.py show ID                   an input and its recorded facts
    scripts/corpus.py add DIR...                inputs from directories of input.json and files/

An input is a directory of files with a command line of unhang. Facts are what a user acts on: cause, standing, ranks, hosts, where, evidence as
source and line, remedies with their commands, what was not examined, exit code, attempt, world size, timeline; of a sentence its numbers and names,
never its wording; of a refusal and of a reason its template too; an exported file is kept whole, of its comments the values. In tier 1 (real) facts
must be equal. In tier 2 (taken from unit tests) an answer may become less specific, never wrong; each such input is listed with its reason in
tests/corpus/less_specific.json, at most 3 %.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import gc
import hashlib
import io
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "corpus"
KINDS = ("logs", "runs", "dumps", "machines", "rest")
MOST_LESS_SPECIFIC = 0.03
# Of CPU time: an input that takes longer costs more than it shows.
MOST_CPU_S = 0.4
# Long timelines: the first and the last lines, and a sum over all.
TIMELINE = 30
# Differences that are shown whole.
SHOWN = 12
NOW_S = 1_795_500_000.0
# Longest match of the packer: inputs repeat each other.
WINDOW_LOG = 26

Facts = dict[str, Any]
Input = dict[str, Any]

# Sentences: their values are facts, their words are not. Whatever "messages" of a document has a template of is one as well.
SENTENCES = frozenset({"says", "why", "what", "summary", "details", "unread", "leads_to", "title", "formula", "default", "hint", "conclusion"})
# Sentences, also of one word.
TOLD = frozenset({"instead", "says", "summary", "title"})
# What was printed from the input itself, how long it took, and where it ran.
DROPPED = frozenset({"text", "seconds", "elapsed_s", "schema", "messages"})
FINDINGS = ("primary", "contributing", "symptoms")
# What a refusal consists of: beside its values its template, so that no refusal equals another.
REFUSALS = frozenset({"error", "cause", "try"})
# Not `#SBATCH`, `#PBS` and `#!`: these are for a machine.
_COMMENT = re.compile(r"\s*#+(\s|$)|//")
_VALUE = re.compile(r"[0-9/._]")


def values(sentence: str) -> list[str]:
    """The numbers and names in a sentence: words with a digit, a slash, a dot or an underscore."""
    words = (w.strip(".,;:()[]{}'\"`!?") for w in sentence.split())
    return sorted(w for w in words if _VALUE.search(w))


def template(sentence: str) -> str:
    return " ".join("#" if _VALUE.search(w.strip(".,;:()'\"`")) else w for w in sentence.split())


def exported(text: str) -> list[Any]:
    """A file for a launcher: its lines as they are, and the values in its comments."""
    lines = [line for line in text.splitlines() if line.strip()]
    comments = [line for line in lines if _COMMENT.match(line)]
    return [[line for line in lines if line not in comments], values(" ".join(comments))]


def reduced(document: object, key: str = "", messages: Collection[str] = ()) -> Any:
    """A document of --json without wording."""
    if isinstance(document, dict):
        if set(document) == {"en", "zh"}:
            return values(document["en"])
        if {"id", "command", "verify", "trial"} <= set(document):
            return [document[k] for k in ("id", "env", "command", "verify", "trial")]
        if {"what", "why", "unread"} <= set(document):
            return [template(document["why"]), values(document["what"]), document["unread"], values(document["why"])]
        if {"text", "companions"} <= set(document):
            companions = {name: exported(text) for name, text in document["companions"].items()}
            return {"text": exported(document["text"]), "companions": companions, "refused": reduced(document["refused"], "", messages)}
        if {"source", "text", "line"} <= set(document):
            return f"{document['source']}:{document['line']}"
        messages = document.get("messages", messages)
        return {k: reduced(v, k, messages) for k, v in document.items() if k not in DROPPED and not k.endswith("_zh") and v not in (None, [], {}, "")}
    if isinstance(document, list):
        return [reduced(one, key, messages) for one in document]
    if isinstance(document, str) and (key in TOLD or (document in messages and key not in REFUSALS | {"id", "where"})):
        return values(document)
    if isinstance(document, str) and key in REFUSALS and " " in document:
        return [template(document), values(document)]
    if isinstance(document, str) and key in SENTENCES and " " in document:
        return values(document)
    return document


def ordered(facts: Facts) -> Facts:
    """Which of the findings comes first is a fact; the order of those beside it is none."""
    for role in FINDINGS[1:]:
        if isinstance(facts.get(role), list):
            facts[role] = sorted(facts[role], key=lambda f: json.dumps(f, sort_keys=True))
    return facts


class Unhang:
    """The verbs of the unhang that can be imported, each command answered in this process."""

    def __init__(self, home: Path) -> None:
        import typer

        from unhang.cli import app
        from unhang.diagnosis import logs
        from unhang.facts import processes
        from unhang.knowledge import catalogue
        from unhang.report import language

        self._app, self._language = app, language
        self._judged: list[Any] = []
        judge_logs = logs.judge_logs

        @functools.wraps(judge_logs)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._judged.append(judge_logs(*args, **kwargs))
            return self._judged[-1]

        def ask(id: str, judge: str, needs: Sequence[str], view: Any) -> Any:
            """Judges that need not be asked are: one that finds anything fails, which its facts tell."""
            found = catalogue.answer(id, judge, view)
            found = list(found) if judge == "on_host" else found
            assert not found or catalogue.is_open(judge, needs, view), "it was not to be asked"
            return found

        logs.judge_logs = noted
        catalogue.ask = ask
        # Made once in a process, as they are once for a command.
        app.whole = functools.cache(app.whole)
        typer.main.get_command = functools.cache(typer.main.get_command)
        logs.Needles = functools.cache(logs.Needles)
        self._home = home
        # Nobody's machine: one core, so that nothing is forked, and a clock that stands still.
        os.sched_getaffinity = lambda pid: {0}
        os.cpu_count = lambda: 1
        time.time = lambda: NOW_S
        processes.is_alive = lambda host, process: None
        # As the command has it.
        gc.set_threshold(50_000, 10, 10)
        gc.freeze()

    def facts(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Facts:
        os.chdir(cwd)
        home = {"HOME": str(self._home), "XDG_CACHE_HOME": str(self._home), "PATH": "/nonexistent", "TZ": "UTC", "LC_ALL": "C"}
        os.environ.clear()
        os.environ.update({**home, **environ})
        time.tzset()
        self._language.chosen(None)
        self._judged.clear()
        code, out, err = (one.replace(str(cwd), "@") if isinstance(one, str) else one for one in self._answer(argv))
        facts: Facts = {"exit": code}
        try:
            facts |= ordered(reduced(json.loads(out)))
        except (ValueError, TypeError):
            facts |= {"printed": out.splitlines(), "error": [[template(line), values(line)] for line in err.splitlines()]}
        if self._judged:
            judged = self._judged[-1]
            told = [f"{m.source}:{m.line} {m.cause}" for m in judged.timeline]
            if len(told) > 2 * TIMELINE:
                told = [*told[:TIMELINE], hashlib.sha256("\n".join(told).encode()).hexdigest()[:12], *told[-TIMELINE:]]
            facts |= {"attempt": [judged.attempt, judged.attempts], "world_size": judged.chosen.view.world_size, "timeline": told}
        return facts

    def _answer(self, argv: Sequence[str]) -> tuple[int, str, str]:
        err = io.StringIO()
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape", write_through=True)
        sys.argv = ["unhang", *argv]
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                self._app._answer()
            except SystemExit as e:
                code = e.code if isinstance(e.code, int) else int(e.code is not None)
        return code, out.buffer.getvalue().decode("utf-8", "replace"), err.getvalue()  # type: ignore[attr-defined]


def kind_of(given: Input, files: Iterable[Path]) -> str:
    if given["argv"][0] != "why" or "--ras" in given["argv"]:
        return "machines" if given["argv"][0] == "doctor" else "rest"
    names = {f.name for f in files}
    if names & {"run.json", "events.jsonl"}:
        return "runs"
    return "dumps" if any(f.is_file() and f.read_bytes()[:1] == b"\x80" for f in files) else "logs"


def inputs(kind: str, under: Path | None = None) -> dict[str, Input]:
    """The inputs of a kind by id; their files are unpacked under a directory, if one is given."""
    path = DATA / f"{kind}.tar.zst"
    if not path.exists():
        return {}
    unpacked = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).stream_reader(path.open("rb"), closefd=True)
    with unpacked, tarfile.open(fileobj=unpacked, mode="r|") as tar:
        if under is None:
            told = ((m.name.split("/"), tar.extractfile(m)) for m in tar)
            return {id: json.load(f) for (id, *name), f in told if name == ["input.json"] and f is not None}
        tar.extractall(under, filter="fully_trusted")
    return {p.parent.name: json.loads(p.read_text()) for p in sorted(under.glob("*/input.json"))}


def pack(kind: str, folders: Iterable[Path]) -> None:
    def neutral(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime) if "/files/" in member.name and member.isfile() else 0
        return member

    with (DATA / f"{kind}.tar.zst").open("wb") as f:
        parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=WINDOW_LOG, enable_ldm=True)
        with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(f) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            # Of the same test one behind the other: they repeat each other.
            for folder in sorted(folders, key=lambda p: (json.loads((p / "input.json").read_text())["from"], p.name)):
                tar.add(folder, arcname=folder.name, filter=neutral)


def recorded(kind: str) -> dict[str, Facts]:
    path = DATA / f"{kind}.facts.zst"
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode().splitlines() if path.exists() else []
    return dict(map(json.loads, lines))


def write_facts(kind: str, facts: Mapping[str, Facts]) -> None:
    lines = "".join(json.dumps(one, sort_keys=True) + "\n" for one in sorted(facts.items()))
    (DATA / f"{kind}.facts.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(lines.encode()))


def asked(kind: str, *, reverse: bool = False, only: Sequence[str] = ()) -> Iterator[tuple[str, Facts, float]]:
    """What the unhang that can be imported answers to each input, with the CPU time that it took."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        folder = Path(name).resolve()
        (folder / "home").mkdir()
        found = inputs(kind, folder / "in")
        unhang = Unhang(folder / "home")
        for id, given in sorted(found.items(), reverse=reverse):
            if only and id not in only:
                continue
            at = given["argv"].index("--") if "--" in given["argv"] else len(given["argv"])
            argv = [*given["argv"][:at], "--json", *given["argv"][at:]]
            before = resource.getrusage(resource.RUSAGE_SELF)
            facts = unhang.facts(argv, given["environ"], folder / "in" / id / "files")
            after = resource.getrusage(resource.RUSAGE_SELF)
            yield id, facts, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        os.chdir("/")


def answers(kind: str, *, source: Path = ROOT, seed: int = 0, reverse: bool = False, tmp: str | None = None) -> dict[str, tuple[Facts, float]]:
    """The same in a process of its own, with the sources and the script of a checkout."""
    script = source / "scripts" / "corpus.py"
    environ = {**os.environ, "PYTHONPATH": str(source / "src"), "PYTHONHASHSEED": str(seed), "CORPUS_DATA": str(DATA)} | (
        {"TMPDIR": tmp} if tmp else {}
    )
    command = [sys.executable, str(script if script.exists() else Path(__file__)), "answer", kind, *(("--reverse",) if reverse else ())]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return {id: (facts, cpu_s) for id, facts, cpu_s in map(json.loads, done.stdout.splitlines())}


def reworded(pairs: Iterable[tuple[Facts, Facts]]) -> dict[str, str]:
    """Reasons in new words: each old template has become one new one, and no two of them the same."""
    forth: dict[str, set[str]] = defaultdict(set)
    back: dict[str, set[str]] = defaultdict(set)
    for old, new in pairs:
        a, b = old.get("not_examined", []), new.get("not_examined", [])
        for one, other in zip(a, b, strict=False) if len(a) == len(b) else ():
            forth[one[0]].add(other[0])
            back[other[0]].add(one[0])
    return {a: b for a, (b, *more) in forth.items() if not more and len(back[b]) == 1}


def renamed(facts: Facts, words: Mapping[str, str]) -> Facts:
    if "not_examined" not in facts:
        return facts
    return {**facts, "not_examined": [[words.get(n[0], n[0]), *n[1:]] for n in facts["not_examined"]]}


STANDINGS = ("not-established", "possible", "likely", "established")
VAGUE = frozenset({"unknown", "collective-timeout"})


def is_less_specific(new: Facts, old: Facts) -> bool:
    """Whether it says less than before, and nothing else. A list about a machine or a launcher's file may only get shorter."""
    if new.get("exit") != old.get("exit") or (old.get("primary") and not new.get("primary")):
        return False
    if not any(role in facts for role in FINDINGS for facts in (new, old)):
        return all(entry in old.get(k, []) for k, v in new.items() if isinstance(v, list) for entry in v)
    before = [f for role in FINDINGS for f in _many(old.get(role))]
    after = [(role, f) for role in FINDINGS for f in _many(new.get(role))]
    return all(any(_is_within(f, g) for g in before) or (role == "primary" and _is_vague(f)) for role, f in after)


def _is_vague(found: Mapping[str, Any]) -> bool:
    return found["cause"] in VAGUE and found["standing"] == "not-established"


def _many(found: Any) -> list[dict[str, Any]]:
    return found if isinstance(found, list) else [found] if found else []


def _is_within(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return (
        new["cause"] == old["cause"]
        and STANDINGS.index(new["standing"]) <= STANDINGS.index(old["standing"])
        and all(set(new.get(k, ())) <= set(old.get(k, ())) for k in ("ranks", "hosts"))
        and all(one in old.get(k, ()) for k in ("evidence", "remedies") for one in new.get(k, ()))
        and new.get("where") in (None, old.get("where"))
    )


def compare(kinds: Sequence[str], against: str | None) -> int:
    listed: dict[str, str] = json.loads((DATA / "less_specific.json").read_text())
    failed = 0
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(checkout(against)) if against else None
        for kind in kinds:
            old = {id: facts for id, (facts, _) in answers(kind, source=base).items()} if base else recorded(kind)
            now = answers(kind)
            new = {id: facts for id, (facts, _) in now.items()}
            given = inputs(kind)
            # Either side without the other compares nothing.
            alone = sorted(set(old) ^ set(new)) if base is None else []
            old = {id: facts for id, facts in old.items() if id in new}
            words = reworded((old[id], new[id]) for id in old.keys() & new.keys())
            differing = [id for id in sorted(old) if renamed(old[id], words) != new[id]]
            stale = [id for id in listed if id in old and id not in differing and not against]
            wrong = [id for id in differing if given[id]["tier"] == 1 or id not in listed or not is_less_specific(new[id], old[id])]
            reasons = [f"a reason has new words: {a!r} is now {b!r}" for a, b in sorted(words.items()) if a != b]
            complaints = [*reasons, *(f"{id}: an input without recorded facts, or facts without their input" for id in alone)]
            complaints += [difference(id, given[id], old[id], new[id]) for id in wrong[:SHOWN]]
            if len(wrong) > SHOWN:
                columns = Counter(k for id in wrong for k in old[id].keys() | new[id].keys() if old[id].get(k) != new[id].get(k))
                complaints.append(f"and {len(wrong) - SHOWN} more: {' '.join(wrong[SHOWN:])}\nall by what differs: {dict(columns.most_common())}")
            complaints += [f"{id} is as recorded: take it out of less_specific.json" for id in stale]
            second = [id for id in given if given[id]["tier"] == 2]
            many = sum(id in listed for id in second) > MOST_LESS_SPECIFIC * len(second)
            complaints += [f"more than {MOST_LESS_SPECIFIC:.0%} of tier 2 are listed in less_specific.json"] if many else []
            less, cpu_s = len(differing) - len(wrong), sum(cpu for _, cpu in now.values())
            print(*complaints, f"{kind}: {len(old)} inputs, {len(wrong)} differ, {less} less specific as listed; {cpu_s:.1f} CPU s", sep="\n")
            failed |= bool(wrong or stale or many or alone or (reasons and base is None))
    return int(failed)


def difference(id: str, given: Input, old: Facts, new: Facts) -> str:
    a, b = (json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for facts in (old, new))
    lines = [line for line in difflib.unified_diff(a, b, lineterm="", n=1) if not line.startswith(("---", "+++", "@@"))]
    more = [f"  ... {len(lines) - 40} more lines"] if len(lines) > 40 else []
    return "\n".join([f"{id} (tier {given['tier']}, from {given['from']}): unhang {' '.join(given['argv'])}", *lines[:40], *more])


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkout"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", "--quiet", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(path)], check=True)


def record(kinds: Sequence[str]) -> int:
    """Twice, as two machines might: in another order, directory and order of hashes. What differs, or takes too long, leaves the corpus."""
    listed = json.loads((DATA / "less_specific.json").read_text())
    failed = 0
    dropped: dict[str, str] = json.loads((DATA / "dropped.json").read_text()) if (DATA / "dropped.json").exists() else {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="a-longer-name-of-a-directory-") as tmp:
            once, again = answers(kind), answers(kind, seed=1, reverse=True, tmp=tmp)
            given = inputs(kind, Path(tmp) / "in")
            before, out = recorded(kind), {}
            real = {id: facts for id, (facts, _) in once.items() if given[id]["tier"] == 1 and "refused" not in given[id]["from"]}
            if refused := [f"{id}: unhang {' '.join(given[id]['argv'])}: {facts['error']}" for id, facts in real.items() if is_refusal(facts)]:
                print(f"{kind}: not recorded; refused, and not meant to be, are the real inputs", *refused, sep="\n  ")
                failed = 1
                continue
            for id, (facts, cpu_s) in once.items():
                about = f"{given[id]['from']}: unhang {' '.join(given[id]['argv'])}"
                if facts != again[id][0]:
                    columns = sorted(k for k in facts.keys() | again[id][0].keys() if facts.get(k) != again[id][0].get(k))
                    out[id] = f"{about}: two recordings differ in {', '.join(columns)}"
                elif min(cpu_s, again[id][1]) > MOST_CPU_S:
                    out[id] = f"{about}: takes {cpu_s:.1f} s"
            kept = {id: before[id] if id in listed and id in before else facts for id, (facts, _) in once.items() if id not in out}
            write_facts(kind, kept)
            if out:
                dropped |= out
                pack(kind, [Path(tmp) / "in" / id for id in kept])
            print(f"{kind}: {len(kept)} inputs, {sum(cpu for _, cpu in once.values()):.1f} CPU s, {len(out)} dropped")
    (DATA / "dropped.json").write_text(json.dumps(dict(sorted(dropped.items())), indent=1) + "\n")
    return failed


def is_refusal(facts: Facts) -> bool:
    return facts["exit"] == 2 and "error" in facts


def add(folders: Sequence[Path]) -> int:
    """Takes inputs in, equal ones once: a real one before one from a test."""
    with tempfile.TemporaryDirectory() as name:
        by_kind: dict[str, dict[str, Path]] = {kind: {} for kind in KINDS}
        for kind in KINDS:
            by_kind[kind] = {id: Path(name) / kind / id for id in inputs(kind, Path(name) / kind)}
        added: Counter[str] = Counter()
        for folder in folders:
            given = json.loads((folder / "input.json").read_text())
            kind = kind_of(given, list((folder / "files").rglob("*")))
            if folder.name not in by_kind[kind] or given["tier"] == 1:
                by_kind[kind][folder.name] = folder
                added[kind] += 1
        for kind in KINDS:
            if added[kind]:
                pack(kind, by_kind[kind].values())
            print(f"{kind}: {added[kind]} added, {len(by_kind[kind])} in all")
    return 0


def show(id: str) -> int:
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            given = inputs(kind, Path(name)).get(id)
            if given is not None:
                files = sorted(str(p.relative_to(Path(name) / id / "files")) for p in (Path(name) / id / "files").rglob("*") if p.is_file())
                print(json.dumps({**given, "files": files, "facts": recorded(kind).get(id)}, indent=1, ensure_ascii=False))
    return 0


def main() -> int:
    global DATA
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("compare", "record", "show", "add", "answer"))
    parser.add_argument("what", nargs="*")
    parser.add_argument("--against", metavar="REV")
    parser.add_argument("--reverse", action="store_true", help=argparse.SUPPRESS)
    asked_for = parser.parse_args()
    DATA = Path(os.environ.get("CORPUS_DATA", DATA))
    if asked_for.verb == "answer":
        out = sys.stdout
        for one in itertools.chain.from_iterable(asked(kind, reverse=asked_for.reverse) for kind in asked_for.what):
            out.write(json.dumps(one) + "\n")
        return 0
    if asked_for.verb == "add":
        return add([Path(p) for p in asked_for.what])
    if asked_for.verb == "show":
        return show(asked_for.what[0])
    kinds = asked_for.what or KINDS
    return compare(kinds, asked_for.against) if asked_for.verb == "compare" else record(kinds)


if __name__ == "__main__":
    sys.exit(main())
