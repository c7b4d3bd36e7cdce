"""Causes that a site adds: files of TOML as in `knowledge/causes`, of data alone. Their ids begin with "site/".

They are looked for in the directories of UNHANG_CAUSES (`--causes`), in those that `[knowledge] causes` of the nearest unhang.toml names, and in
`~/.config/unhang/causes`. Files that others can control are not read.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import string
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang import data, fsio

VARIABLE, PREFIX = "UNHANG_CAUSES", "site/"
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_CONFIGURATION = "unhang.toml"
# What a site need not write down.
_DEFAULTS = {"role": "root", "why": "", "sources": [], "tests": {"hits": [], "near-misses": []}}
_HEALTHY = Path(__file__).with_name("healthy.txt.gz")
_SHORTEST, _LONGEST_DRAFT = 8, 60
# Of a line as long as any is matched; a pattern that is well needs a thousandth of it.
_PROBE_CHARS, _PROBE_S = 4000, 2.0
_PROBE = "import re,sys;p=re.compile(sys.argv[1],re.M);[p.search(sys.argv[2]+c*int(sys.argv[3])+'\\0') for c in 'a0 .:/_-=x,']"
# What differs from one line to the next, with the group that it becomes.
_VARYING = re.compile(
    r"(?P<path>(?<!\w)/[\w./-]+)|(?P<address>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?)|(?P<code>\b0x[0-9a-fA-F]+)|(?P<number>\b\d+(?:\.\d+)?)"
)
_FORMS = {"path": r"\S{1,200}", "address": r"[\d.]{7,15}(?::\d{1,5})?", "code": "0x[0-9a-fA-F]{1,16}", "number": r"\d[\d.]{0,20}"}


def folders() -> Iterator[Path]:
    yield from map(Path, filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
    yield from (path.parent / folder for path, folder in _configured()[0])
    yield Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "unhang" / "causes"


@functools.cache
def _configured() -> tuple[tuple[tuple[Path, str], ...], str]:
    """What the nearest unhang.toml names, and what is wrong with it."""
    here = Path.cwd()
    path = next((folder / _CONFIGURATION for folder in (here, *here.parents) if (folder / _CONFIGURATION).is_file()), None)
    try:
        # Whoever may write it is told of by those who read its settings.
        if path is None or fsio.check_owner(path) is not None:
            return (), ""
        named = data.Source(path).raw.get("knowledge", {}).get("causes", ())
    except (OSError, UnicodeError, AttributeError) as e:
        return (), f"{path}: {e}"
    if not isinstance(named, list | tuple) or not all(isinstance(one, str) for one in named):
        return (), f"{path}: [knowledge] causes is no list of directories"
    return tuple((path, one) for one in named), ""


@functools.cache
def load() -> tuple[Mapping[str, Mapping[str, Any]], tuple[str, ...]]:
    """The data of each cause by id, and why others are not there: with file and line."""
    found: dict[str, Mapping[str, Any]] = {}
    problems = [_configured()[1]] if _configured()[1] else []
    for folder in folders():
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            made, wrong = read(path)
            if wrong:
                problems += wrong
            else:
                found.setdefault(PREFIX + path.stem, made)
    return found, tuple(problems)


def read(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    """One file as `knowledge.cause` takes it, and what is wrong in it."""
    try:
        if (wrong := fsio.check_owner(path)) is not None:
            return {}, [wrong]
        source = data.Source(path, data.pieces())
    except (OSError, UnicodeError) as e:
        return {}, [f"{path}: {e}"]
    if source.problems:
        return {}, source.problems
    if not _NAME.fullmatch(path.stem):
        source.problems.append(f"{path}: its name becomes the cause's id: small letters, digits and hyphens")
    known = {**_DEFAULTS, "what": source.raw.get("title", ""), **source.raw}
    source.raw = {"explain": known["what"], **known}
    try:
        made = source.cause()
    except (TypeError, ValueError, AttributeError, RecursionError) as e:
        return {}, [*source.problems, f"{path}: it has not the form of a cause: {e}"]
    if not made["signature"]:
        source.problems.append(f"{path}: no [[signature]]: nothing would find it")
    return made, source.problems


def check(path: Path) -> Iterator[str]:
    """All that is wrong with a file: what `read` finds, needles of ordinary lines, patterns that take for ever, and its own tests."""
    from unhang.knowledge.cause import from_data
    from unhang.logs import clean, match

    made, problems = read(path)
    yield from problems
    if problems:
        return
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if "TODO" in line:
            yield f"{path}:{number}: still to be written: {line.strip()}"
    signatures = from_data(PREFIX + path.stem, made).signatures
    for n, signature in enumerate(signatures, 1):
        if len(signature.needle) < _SHORTEST:
            yield f"{path}: signature {n}: the needle {signature.needle!r} is so short that many lines hold it: take at least {_SHORTEST} characters"
        elif hit := next((line for line in healthy() if match(line, (signature,), source="")), None):
            yield f"{path}: signature {n} is found in the log of a healthy training: {hit[:150]!r}"
        for pattern in filter(None, (signature.pattern, signature.near, signature.unless, signature.over, signature.then)):
            if _takes_for_ever(pattern, signature.needle):
                yield f"{path}: signature {n}: the pattern needs ever more time for longer lines (nested or adjacent repetitions): {pattern!r}"
                return
    groups = {group for s in signatures for group in re.compile(s.pattern).groupindex}
    for id, remedy in made["remedy"].items():
        for name in sorted(groups.intersection(re.findall(r"(?<!\$)\{(\w+)\}", remedy.get("command", "")))):
            yield f"{path}: the command of remedy {id!r} is printed as it stands, and {{{name}}} in it is no value"
    for lines, wanted in ((made["tests"].get("hits", ()), True), (made["tests"].get("near-misses", ()), False)):
        for text in lines:
            around = "\n".join(clean(line)[0] for line in text.splitlines())
            if any(match(line, signatures, source="", around=around) for line in around.splitlines()) is not wanted:
                yield f"{path}: {'no signature finds' if wanted else 'a signature finds'} {text[:150]!r}"


@functools.cache
def healthy() -> tuple[str, ...]:
    """Lines of trainings in which nothing was wrong, each kind once."""
    return tuple(gzip.decompress(_HEALTHY.read_bytes()).decode().splitlines())


def _takes_for_ever(pattern: str, needle: str) -> bool:
    words = [sys.executable, "-c", _PROBE, pattern, needle, str(_PROBE_CHARS)]
    try:
        return subprocess.run(words, timeout=_PROBE_S, capture_output=True, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def draft(lines: Sequence[str]) -> str:
    """A first file for lines of a log: what varies in them becomes groups of a pattern. The title and remedies are for a person to write."""
    from unhang.logs import clean

    texts = [text for line in lines if (text := clean(line)[0].strip())]
    made = ['title = "TODO: what has gone wrong, in one sentence"', 'explain = """', 'TODO: why it happens, and how one sees it."""']
    for text in dict.fromkeys(_VARYING.sub("#", t) for t in texts):
        made += ["", "[[signature]]", *_signature(next(t for t in texts if _VARYING.sub("#", t) == text)), 'remedies = ["first"]']
    made += ["", "[remedy.first]", 'says = "TODO: what to do."', "", "[tests]", f"hits = [{_quoted(texts)}]", "near-misses = []"]
    return "\n".join(made) + "\n"


def _signature(text: str) -> Iterator[str]:
    pattern, says, end, count = "", "", 0, dict.fromkeys(_FORMS, 0)
    for found in _VARYING.finditer(text):
        kind = found.lastgroup or "number"
        count[kind] += 1
        name = kind + (str(count[kind]) if count[kind] > 1 else "")
        pattern += re.escape(text[end : found.start()]).replace(r"\ ", " ") + f"(?P<{name}>{_FORMS[kind]})"
        says += text[end : found.start()].replace("{", "{{").replace("}", "}}") + f"{{{name}}}"
        end = found.end()
    pattern += re.escape(text[end:]).replace(r"\ ", " ")
    yield f"needle = {_quoted([max(_VARYING.split(text)[:: len(_FORMS) + 1], key=len).strip()[:_LONGEST_DRAFT]])}"
    if end:
        yield f"pattern = {_quoted([pattern])}"
    yield f"says = {_quoted([says + text[end:].replace('{', '{{').replace('}', '}}')])}"


def _quoted(texts: Iterable[str]) -> str:
    """As TOML has them; literal where that can be, so that a pattern stays legible."""
    return ", ".join(f"'{t}'" if "'" not in t and t.isprintable() else _basic(t) for t in texts)


def _basic(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c in string.printable[:95] or c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
