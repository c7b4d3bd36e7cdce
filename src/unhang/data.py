"""What is written as data (`knowledge/causes/*.toml`, and tables elsewhere) and its translations (`locale/`), in a form that loads in milliseconds.

A wheel holds that form. A checkout makes it when a file has changed, and keeps it in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import re
import string
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unhang import cache

_ROOT = Path(__file__).parent
_CAUSES = _ROOT / "knowledge" / "causes"
# Pieces of patterns that several causes use.
_PATTERNS = _ROOT / "knowledge" / "patterns.toml"
_CHINESE = _ROOT / "locale" / "zh_CN" / "LC_MESSAGES" / "unhang.po"
COMPILED = "compiled.bin"
# Every Python that unhang runs on reads it.
_MARSHAL_VERSION = 4

# What values are. A line break is a space in prose, nothing in a pattern, and kept in a text.
_TYPES: dict[str, Any] = {"prose": str, "pattern": str, "text": str, "number": int, "flag": bool, "list": list, "table": dict}
# The keys of each section; "*" is any other, and those in front of the "/" are needed. A value may also be one of another section, or several.
_KEYS = {
    "": "role:text title:prose what:prose why:prose sources:list explain:prose / leads-to:list judge.run:list judge.logs:list judge.host:list",
    "patterns": "/ *:pattern",
    "signature": "needle:text / name:text pattern:pattern near:pattern unless:pattern over:pattern then:pattern lines:number standing:text "
    "says:prose remedies:list keep:number newest:flag",
    "remedy": "says:prose / env:table command:text verify:text",
    "finding": "/ like:text says:prose leads-to:prose area:text severity:text standing:text by:text remedies:list evidence:table command:table",
    "note": "/ *:prose",
    "instead": "/ *:table",
    "mistaken-for": "/ *:prose",
    "tests": "hits:list near-misses:list /",
    "variable": "owner:text what:prose / kind:text default:text traps:trap refused:flag secret:flag since:text removed:text now:text now_since:text "
    "both:prose instead:prose also:list",
    "environment": "marks:list / unless:list words:table lacks:pattern no_command:pattern",
    "exception": "says:prose / of:text needles:list pattern:pattern command:text",
    "form": "file:text title:prose launcher:text / native:list keys:table example:table reads:list alone:list needs_unhang:flag runs_unhang:flag",
    "kernel-line": "needle:text pattern:pattern / kind:text",
    "library": "own:pattern / traps:list talk:table words:signature",
    "names": "/ *:text",
    "preset": "title:prose cost:prose settings:table why:reasons / like:text",
    "reasons": "/ *:prose",
    "rung": "title:prose cost:prose /",
    "setting": "title:prose cost:prose layer:text forms:prose example:text values:text / variable:text written:table hook:text llamafactory:text "
    "flag:text instead:text",
    "stage": "title:prose bound_s:number / ranks:text needed:flag",
    "trap": "when:pattern severity:text says:prose /",
}
# What a judge may need besides the hits of causes ("own-hits": those of its own cause). It is asked only where at least one of these is there.
_EVIDENCE = {
    "judge.run": "incident",
    "judge.logs": "ends exits frames nccl.interfaces nccl.versions stacks timeouts tracebacks",
    "judge.host": "clock container gpu infiniband kernel libraries limits memory names network numa pcie ports python_env shm speed storage "
    "variables",
}
# Tables, and the section that each of their rows is.
_TABLES = {
    "diagnosis/remedies": "remedy",
    "kernel_lines": "kernel-line",
    "knowledge/exceptions": "exception",
    "knowledge/environments": "environment",
    "knowledge/other_libraries": "library",
    "knowledge/packages": "names",
    "probes/stages": "stage",
    "remedies/exports/forms": "form",
    "logs/signatures": "signature",
    "report/words": "names",
    "remedies/rungs": "rung",
    "settings/presets": "preset",
    "settings/settings": "setting",
    "variables/launchers": "variable",
    "variables/nccl": "variable",
    "variables/pytorch": "variable",
}
# What stands below the head of a cause: these are tables, or lists of them.
_SECTIONS = {"patterns": dict, "signature": list, "remedy": dict, "finding": dict, "note": dict, "instead": dict, "mistaken-for": dict, "tests": dict}
_WORDS = {"role": ("root", "symptom"), "standing": ("established", "likely", "possible", "not-established"), "severity": ("error", "warning", "note")}
_PIECE = re.compile(r"%\(([a-z0-9-]+)\)s")


@functools.cache
def load() -> Mapping[str, Any]:
    """Everything: "causes" by id, messages by language, and "tables", which `table` decodes."""
    with contextlib.suppress(FileNotFoundError):
        return _loaded((_ROOT / COMPILED).read_bytes())
    folder = None
    with contextlib.suppress(OSError):
        folder, _ = cache.directory()
    if folder is None:
        return compiled()
    stamps = [
        (str(p), s.st_size, s.st_mtime_ns)
        for p in (Path(__file__), _PATTERNS, _CHINESE, *sorted(_CAUSES.glob("*.toml")), *(_ROOT / f"{name}.toml" for name in _TABLES))
        for s in (p.stat(),)
    ]
    path = folder / f"knowledge-{cache.digest(repr(stamps).encode()).hex()}"
    with contextlib.suppress(OSError):
        return _loaded(cache.read(path))
    cache.write(path, dumped(made := compiled()))
    return made


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """The rows of a table in the order of its file. Few commands need any: it is decoded when somebody asks for it."""
    return _loaded(load()["tables"][name])


def pieces() -> Mapping[str, str]:
    """Of patterns, by name: causes of any origin use them."""
    named: Mapping[str, str] = load()["pieces"]
    return named


def _loaded(data: bytes) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = marshal.loads(data)
    return loaded


def dumped(made: Any) -> bytes:
    return marshal.dumps(made, _MARSHAL_VERSION)


def compiled() -> Mapping[str, Any]:
    """From the sources. Raises ValueError that names file and line of whatever is wrong in them."""
    import polib

    shared = Source(_PATTERNS)
    files = [Source(path, shared.raw) for path in sorted(_CAUSES.glob("*.toml"))]
    causes = {file.path.stem: file.cause() for file in files}
    rows = {name: Source(_ROOT / f"{name}.toml", shared.raw) for name in _TABLES}
    tables = {name: dumped(file.rows(_TABLES[name])) for name, file in rows.items()}
    messages = {f"{e.msgctxt}\4{e.msgid}" if e.msgctxt else e.msgid: e.msgstr for e in polib.pofile(str(_CHINESE)) if e.translated()}
    for file in files:
        file.translated(causes[file.path.stem], messages)
    if problems := [*shared.problems, *(p for file in (*files, *rows.values()) for p in file.problems)]:
        raise ValueError("\n".join(problems))
    return {"causes": causes, "tables": tables, "pieces": shared.raw, "zh_CN": messages}


class Source:
    """One file of TOML, and what is wrong in it."""

    def __init__(self, path: Path, pieces: Mapping[str, str] | None = None) -> None:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        self.path = path
        self.problems: list[str] = []
        self.text = path.read_text("utf-8")
        self.raw: dict[str, Any] = {}
        try:
            self.raw = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as e:
            self.problems.append(f"{path}: {e}")
        if not isinstance(self.raw.get("patterns", {}), dict):
            self.problems.append(f"{path}: 'patterns' is no table")
            self.raw = {}
        self.pieces = {**(pieces or {}), **self.raw.get("patterns", {})}

    def cause(self) -> dict[str, Any]:
        """The sections of a cause, as `knowledge.cause` takes them."""
        raw = {}
        for section, kind in _SECTIONS.items():
            raw[section] = self.raw.pop(section, kind())
            if not isinstance(raw[section], kind):
                self._wrong("", 0, section, f"{section!r} is no {'list of tables' if kind is list else 'table'}")
                raw[section] = kind()
        judges = {f"judge.{key}": needs for key, needs in self.raw.pop("judge", {}).items()}
        made = self._section("", {**self.raw, **judges})
        made["judges"] = {key: self._needs(key, made.pop(key)) for key in _EVIDENCE if key in made}
        for section in ("note", "instead", "mistaken-for", "tests"):
            made[section] = self._section(section, raw[section]) if raw[section] else {}
        self._section("patterns", raw["patterns"])
        made["remedy"] = {id: self._section("remedy", values, f"remedy.{id}") for id, values in raw["remedy"].items()}
        made["finding"] = {key: self._section("finding", values, f"finding.{key}") for key, values in raw["finding"].items()}
        for key, finding in made["finding"].items():
            ids = {*finding.get("remedies", ()), *finding.get("command", {})}
            self._remedies(f"finding.{key}", "remedies", ids, made["remedy"])
        made["signature"] = [self._section("signature", values, nth=n) for n, values in enumerate(raw["signature"])]
        names: dict[str, tuple[int, ...]] = {}
        for n, signature in enumerate(made["signature"]):
            if name := signature.pop("name", None):
                names[name] = (*names.get(name, ()), n)
            self._signature(n, signature, made["remedy"])
        for key, pairs in made["instead"].items():
            self._remedies("instead", key, {id for pair in pairs.items() for id in pair}, made["remedy"])
        return {**made, "names": names}

    def _needs(self, key: str, needs: tuple[str, ...]) -> tuple[str, ...]:
        known = {*_EVIDENCE[key].split(), *(() if key == "judge.host" else ("own-hits", *(p.stem for p in _CAUSES.glob("*.toml"))))}
        for name in sorted(set(needs) - known):
            self._wrong("", 0, key, f"unknown evidence {name!r}")
        return tuple(self.path.stem if name == "own-hits" else name for name in needs)

    def rows(self, section: str) -> dict[str, Any]:
        self._section("patterns", self.raw.pop("patterns", {}))
        return {id: self._nested(section, row, id) for id, row in self.raw.items()}

    def _nested(self, section: str, value: Any, header: str) -> Any:
        if isinstance(value, list):
            return tuple(self._section(section, one, header, n) for n, one in enumerate(value))
        return self._section(section, value, header)

    def _section(self, section: str, values: Mapping[str, Any], header: str = "", nth: int = 0) -> dict[str, Any]:
        header = header or section
        if not isinstance(values, dict):
            self._wrong("", 0, header.rpartition(".")[2], f"{header!r} is no table")
            return {}
        needed, _, others = (dict(pair.split(":") for pair in part.split()) if part != "/" else {} for part in _KEYS[section].partition("/"))
        for key in needed.keys() - values.keys():
            self._wrong(header, nth, "", f"{key!r} is missing")
        made: dict[str, Any] = {}
        for key, value in values.items():
            named = needed.get(key) or others.get(key)
            kind = named or others.get("*")
            if kind is None:
                self._wrong(header, nth, key, f"unknown key {key!r}")
            elif not isinstance(value, _TYPES.get(kind, (dict, list))) or not all(isinstance(one, str) for one in (value if kind == "list" else ())):
                self._wrong(header, nth, key, f"{key!r} is no {kind}")
            elif (named and key in _WORDS and value not in _WORDS[key] and not (key == "severity" and "{" in value)) or (
                kind == "number" and value < 0
            ):
                self._wrong(header, nth, key, f"{key} = {value!r}: {', '.join(_WORDS.get(key, ('from 0 on',)))}")
            elif kind in _KEYS:
                made[key] = self._nested(kind, value, f"{header}.{key}")
            else:
                made[key] = self._made(kind, value, functools.partial(self._wrong, header, nth, key))
        return made

    def translated(self, made: Mapping[str, Any], messages: Mapping[str, str]) -> None:
        """Whether what judges find has its Chinese, with the same values."""
        for header, key, english in (
            *((f"finding.{key}", says, of[says]) for key, of in made["finding"].items() for says in ("says", "leads-to") if says in of),
            *(("note", *note) for note in made["note"].items()),
        ):
            chinese = messages.get(f"{self.path.stem}\4{english}") or messages.get(english)
            named = {
                n for _, _, form, _ in string.Formatter().parse(english) if form and form[0] in "?*" for n in form[1:].rstrip(",&").split("/") if n
            }
            for note in sorted(named - made["note"].keys()):
                self._wrong(header, 0, key, f"unknown note {note!r}")
            if chinese is None and any(text.strip() for text, *_ in string.Formatter().parse(english)):
                self._wrong(header, 0, key, f"no Chinese of {english!r}")
            elif chinese is not None and _values(chinese) != _values(english):
                self._wrong(header, 0, key, f"other values in Chinese: {chinese!r}")

    def _signature(self, n: int, signature: Mapping[str, Any], remedies: Mapping[str, Any]) -> None:
        self._remedies("signature", "remedies", set(signature.get("remedies", ())), remedies, n)
        if not signature.get("needle"):
            self._wrong("signature", n, "needle", "the needle is empty")
        groups: set[str] = set()
        for key in ("pattern", "near", "then"):
            with contextlib.suppress(re.error):
                groups |= re.compile(signature.get(key, ""), re.MULTILINE).groupindex.keys()
        for name in sorted(_values(signature.get("says", "")) - groups):
            self._wrong("signature", n, "says", f"no pattern captures {{{name}}}")

    def _remedies(self, header: str, key: str, ids: set[str], known: Mapping[str, Any], nth: int = 0) -> None:
        for id in sorted(ids - known.keys()):
            self._wrong(header, nth, key, f"unknown remedy {id!r}")

    def _made(self, kind: str, value: Any, wrong: Callable[[str], None]) -> Any:
        if kind == "pattern":
            value = self._expanded(value, wrong)
            try:
                re.compile(value, re.MULTILINE)
            except re.error as e:
                wrong(f"{e}: {value}")
        return value.replace("\n", " ") if kind == "prose" else tuple(value) if kind == "list" else value

    def _expanded(self, written: str, wrong: Callable[[str], None]) -> str:
        def piece(found: re.Match[str]) -> str:
            if found[1] not in self.pieces:
                wrong(f"unknown pattern {found[1]!r}")
            return self._expanded(self.pieces.get(found[1], ""), wrong)

        return _PIECE.sub(piece, written.replace("\n", ""))

    def _wrong(self, header: str, nth: int, key: str, says: str) -> None:
        text = self.text.replace('"', "")
        headers = [m.end() for m in re.finditer(rf"^\[\[?{re.escape(header)}\]", text, re.MULTILINE)] if header else [0]
        begin = headers[nth] if nth < len(headers) else 0
        found = re.compile(rf"^(?:{re.escape(key)} =|\[\[?{re.escape(key)}[.\]])", re.MULTILINE).search(text, begin) if key else None
        line = text.count("\n", 0, found.start() if found else begin) + 1
        self.problems.append(f"{self.path}:{line}: {says}")


def _values(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}
