"""A verdict on plain logs, where no supervisor wrote anything down: the same signatures, and only what they say.

There are no stacks and no clocks to compare, so nothing here can name a rank that printed nothing; the verdict says so under `not_examined`.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from unhang.diagnosis.redact import redact_verdict
from unhang.diagnosis.unknown import NCCL_DEBUG, SUPERVISE, WAITING, only_symptoms
from unhang.diagnosis.verdict import ORDER, ask, of_hits
from unhang.errors import RecordError, UnhangError
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.model import Evidence, Finding, Input, NotExamined, Verdict
from unhang.records import logs
from unhang.records.logs import Hit, Signature, Traceback
from unhang.records.picture import by_cause

MAX_FILES = 4096
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".tar", ".zip", ".tgz")
_RECORDS = ("run.json", "host.json", "events.jsonl", "incident.json", "verdict.json", "verdict.md")
_INCIDENT = re.compile(r"/incidents/\d+/")
_MARKS = tuple(Signature(needle=n) for n in ("Segmentation fault", "core dumped", "Fatal Python error", "Bus error", "FATAL", "CRITICAL"))


def judge_logs(paths: Sequence[Path]) -> Verdict:
    """The verdict on files, and on the logs in directories. Raises UnhangError where one is missing or cannot be read."""
    reader = _Reader()
    for path in paths:
        reader.add(path)
    return reader.verdict()


class _Reader:
    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.marks: list[Hit] = []
        self.tracebacks: list[Traceback] = []
        self.inputs: list[Input] = []
        self.not_examined: list[NotExamined] = []

    def add(self, path: Path) -> None:
        try:
            mode = path.stat().st_mode
        except OSError as e:
            raise UnhangError(f"cannot read {path}: {e.strerror or e}") from e
        if not stat.S_ISDIR(mode):
            if path.name in _RECORDS:
                raise UnhangError(f"{path} is a record that unhang wrote, not a log", hint=f"unhang why {path.parent}")
            if not stat.S_ISREG(mode):
                raise UnhangError(f"{path} is neither a file nor a directory")
            try:
                self._read(path)
            except RecordError as e:
                raise UnhangError(str(e), cause=e.cause) from e
            return
        files = list(_files(path, self.not_examined))
        if not files:
            raise UnhangError(f"there is no log in {path}", hint="name a run directory (it holds run.json) or a log file")
        for file in files:
            try:
                self._read(file)
            except RecordError as e:
                self.not_examined.append(NotExamined(what=str(file), why=str(e)))

    def _read(self, path: Path) -> None:
        if path.name.endswith(_COMPRESSED):
            self.not_examined.append(NotExamined(what=str(path), why="it is compressed; unpack it first"))
            return
        if _binary(path):
            self.not_examined.append(NotExamined(what=str(path), why="it is not text"))
            return
        known = catalogue.signatures()
        found = logs.scan(path, (*known, *_MARKS))
        self.hits += [h for h in found if h.signature in known]
        self.marks += [h for h in found if h.signature not in known]
        self.tracebacks += logs.tracebacks(path)
        self.inputs.append(Input(source=str(path), kind="log", bytes=path.stat().st_size))

    def verdict(self) -> Verdict:
        view = LogView(hits=by_cause(self.hits, catalogue.signatures()), tracebacks=tuple(self.tracebacks))
        roots: list[Finding] = []
        symptoms: list[Finding] = []
        for cause in catalogue.load().values():
            hits = view.hits.get(cause.id, ())
            found = ask(cause, lambda c, hits=hits: c.in_logs(view) if c.in_logs else of_hits(c, hits), self.not_examined)  # type: ignore[misc]
            if found is not None:
                (roots if cause.role == "root" else symptoms).append(found)
        if not (self.hits or self.marks or self.tracebacks):
            read = self.inputs[0].source if len(self.inputs) == 1 else f"{len(self.inputs)} files"
            if self.inputs:
                self.not_examined.append(NotExamined(what=read, why="nothing in it was recognised: it may be a healthy log, or none of a training"))
        order = {i.source: n for n, i in enumerate(self.inputs)}
        roots.sort(key=lambda f: (ORDER.index(f.standing), *_first_line(f, order)))
        self.not_examined.append(
            NotExamined(
                what="stacks, flight recorder, process states, kernel log",
                why="only logs were given; unhang run takes these before anything is ended",
            )
        )
        return redact_verdict(
            Verdict(
                primary=roots[0] if roots else self._unknown(symptoms),
                contributing=tuple(roots[1:]),
                symptoms=tuple(symptoms),
                not_examined=tuple(self.not_examined),
                inputs=tuple(self.inputs),
            )
        )

    def _unknown(self, symptoms: Sequence[Finding]) -> Finding | None:
        if symptoms:
            return only_symptoms(symptoms, remains=WAITING, remedies=(SUPERVISE, NCCL_DEBUG))
        evidence = [Evidence(source=t.source, line=t.end, text=t.says) for t in self.tracebacks]
        evidence += [Evidence(source=h.source, line=h.line, text=h.text.strip()) for h in self.marks]
        if not evidence:
            return None
        return Finding(
            cause="unknown",
            standing="not-established",
            says="something failed, and no signature known here names the cause",
            evidence=tuple(evidence[:5]),
            remedies=(SUPERVISE,),
        )


def _files(folder: Path, not_examined: list[NotExamined]) -> Iterator[Path]:
    """The files of a directory that are text, in order of name."""
    count = 0
    for path in sorted(folder.rglob("*")):
        try:
            if not path.is_file():
                continue
            if path.name in _RECORDS or _INCIDENT.search(path.as_posix()):
                not_examined.append(NotExamined(what=str(path), why="it is a record that unhang wrote, not a log"))
                continue
            binary = _binary(path)
        except (OSError, RecordError) as e:
            not_examined.append(NotExamined(what=str(path), why=str(e)))
            continue
        if binary and not path.name.endswith(_COMPRESSED):
            not_examined.append(NotExamined(what=str(path), why="it is not text"))
            continue
        count += 1
        if count > MAX_FILES:
            not_examined.append(NotExamined(what=f"further files in {folder}", why=f"only the first {MAX_FILES} were read"))
            return
        yield path


def _binary(path: Path) -> bool:
    try:
        with path.open("rb") as f:
            return b"\0" in f.read(4096)
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror or e}") from e


def _first_line(finding: Finding, order: dict[str, int]) -> tuple[int, int]:
    lines = [(order.get(e.source, 0), e.line or 0) for e in finding.evidence]
    return min(lines, default=(0, 0))
