"""Assignments in shell and Slurm scripts and env files: `export A=b`, `A=b cmd`, `env A=b cmd`, `-x A=b`, `--env A=b`, `#SBATCH --export=ALL,A=b`.

Words are cut as a shell cuts them (quotes, escapes, continuation lines, substitutions); nothing is expanded. What stands in a here-document is data
and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unhang.knowledge.variables.files.found import Found, Lines, Parsed, Said

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time", "exec", "command", "builtin"))
_EXPORTING = frozenset(("export", "declare", "typeset", "readonly", "local"))
_FLAGS = frozenset(("-x", "-e", "--env", "-env", "--setenv", "-E"))
_PAIR_FLAGS = frozenset(("-genv", "-env"))
_OF_BATCH = re.compile(r"#(?:SBATCH\s+(?:.*\s)?--export(?:=|\s+)|PBS\s+(?:.*\s)?-v\s+)(?P<list>\S+)")
_HEREDOC = re.compile(r"<<(?P<dash>-?)[ \t]*(?P<word>\\?[A-Za-z_]\w*|'[^'\n]*'|\"[^\"\n]*\")")
_USED = re.compile(r"\$\{?(\w+)")
_OPERATORS = ";&|()\n"


@dataclass(frozen=True, kw_only=True)
class _Word:
    raw: str
    start: int
    end: int


def parse(text: str, *, begin: int = 0, finish: int | None = None) -> Parsed:
    """`begin` and `finish` cut a script out of a larger text."""
    lines = Lines(text=text)
    finish = len(text) if finish is None else finish
    settings: list[Found] = []
    options: list[Said] = []
    exported: set[str] = set()
    all_exported = runs = False
    for words in _commands(text, begin, finish, settings, lines):
        found, said = _of_command(words, lines)
        rest = [w for w in words if w.raw not in _RESERVED]
        first = rest[0].raw if rest else ""
        if first in _EXPORTING:
            exported |= {w.raw for w in rest[1:] if _NAME.fullmatch(w.raw)} | {f.name for f in found}
        elif first == "unset":
            gone = {w.raw for w in rest[1:]}
            settings = [s for s in settings if s.name not in gone]
            continue
        all_exported |= first == "set" and any(w.raw in ("-a", "-o", "allexport") for w in rest[1:])
        runs |= bool(rest) and not all(_ASSIGNMENT.match(w.raw) for w in rest)
        settings += found
        options += said
    if not runs or all_exported:
        settings = [replace(s, exported=True) for s in settings]
    else:
        # What a script sets for itself, and hands on as `--master-addr $MASTER_ADDR`, does its work.
        exported |= set(_USED.findall(text))
        settings = [replace(s, exported=s.exported or s.name in exported) for s in settings]
    return Parsed(settings=tuple(settings), options=tuple(options))


def _of_command(words: list[_Word], lines: Lines) -> tuple[list[Found], list[Said]]:
    found: list[Found] = []
    said: list[Said] = []
    i = 0
    while i < len(words) and words[i].raw in _RESERVED:
        i += 1
    reserved, body = i, words[i:]
    if not body:
        return [], []
    first, last = lines.of(words[0].start), lines.of(words[-1].end - 1)
    whole_line = reserved == 0 and _is_whole(words[0].start, words[-1].end, lines)
    ahead = 0
    while ahead < len(body) and _ASSIGNMENT.match(body[ahead].raw):
        ahead += 1
    plain = ahead == len(body)
    exporting = body[0].raw in _EXPORTING
    alone = whole_line and (plain or (exporting and all(_ASSIGNMENT.match(w.raw) or w.raw.startswith("-") for w in body[1:])))

    def add(
        word: _Word,
        *,
        at: int = 0,
        start: int | None = None,
        end: int | None = None,
        value: str | None = None,
        exported: bool = True,
        instead: str = "",
    ) -> None:
        text = word.raw[at:]
        match = _ASSIGNMENT.match(text)
        begin, stop = word.start if start is None else start, word.end if end is None else end
        if not instead:
            begin, stop = _with_space(begin, stop, lines)
        found.append(
            Found(
                name=match["name"] if match is not None else text,
                value=value if match is None else unquoted(text[match.end() :]),
                name_at=word.start + at,
                start=begin,
                end=stop,
                first=first,
                last=last,
                alone=alone,
                exported=exported,
                instead=instead,
            )
        )

    # A command that is nothing but one assignment leaves a command that does nothing: `then export A=b; fi`.
    if not alone and (plain or exporting) and sum(_ASSIGNMENT.match(w.raw) is not None for w in body) == 1 and _ASSIGNMENT.match(body[-1].raw):
        add(body[-1], start=body[0].start, exported=exporting, instead=":")
        return found, said
    for word in body[:ahead]:
        add(word, exported=not plain)
    if exporting:
        for word in body[1:]:
            if _ASSIGNMENT.match(word.raw):
                add(word)
        return found, said
    in_env = False
    previous: _Word | None = None
    for n, word in enumerate(body[ahead:], ahead):
        raw = word.raw
        if raw == "env" or raw.endswith("/env"):
            in_env = True
        elif in_env and _ASSIGNMENT.match(raw):
            add(word)
        elif in_env and not raw.startswith("-") and (previous is None or previous.raw not in ("-u", "-C", "-S")):
            in_env = False
        if previous is not None and previous.raw in _FLAGS and (m := re.match(r"['\"]?(?=[A-Za-z_]\w*=)", raw)):
            add(_bare(word, m.end()), start=previous.start, end=word.end)
        elif (m := re.match(r"(?:--env|-e|--setenv)=?['\"]?(?=[A-Z_][A-Z0-9_]*=)", raw)) is not None:
            add(word, at=m.end())
        elif previous is not None and previous.raw in _PAIR_FLAGS and _NAME.fullmatch(raw) and n + 1 < len(body):
            add(word, value=unquoted(body[n + 1].raw), start=previous.start, end=body[n + 1].end)
        elif (m := re.match(r"--export=", raw)) is not None:
            found += _of_list(word.start + m.end(), raw[m.end() :], first, last)
        elif (m := re.match(r"--ddp[_-]timeout(?:=(?P<value>\d+))?$", raw)) is not None:
            value = m["value"] or (body[n + 1].raw if n + 1 < len(body) else "")
            if value.isdigit():
                said.append(Said(name="ddp_timeout", value=value, line=lines.of(word.start)))
        elif raw in ("--hostfile", "-H") and any(w.raw.rpartition("/")[2] == "deepspeed" for w in body[:n]):
            said.append(Said(name="launcher", value="deepspeed", line=lines.of(word.start)))
        previous = word
    return found, said


def _bare(word: _Word, quote: int) -> _Word:
    """The word without the quote that it begins and ends with: `-e "A=b"`."""
    if not quote:
        return word
    return _Word(raw=word.raw[quote:].removesuffix(word.raw[0]), start=word.start + quote, end=word.end)


def _of_list(start: int, text: str, first: int, last: int) -> list[Found]:
    """`ALL,A=b,C=d`."""
    found = []
    at = start
    for item in text.split(","):
        if match := _ASSIGNMENT.match(item):
            comma = 1 if at > start else 0
            value = unquoted(item[match.end() :])
            found.append(
                Found(name=match["name"], value=value, name_at=at, start=at - comma, end=at + len(item), first=first, last=last, alone=False)
            )
        at += len(item) + 1
    return found


def _is_whole(start: int, end: int, lines: Lines) -> bool:
    text = lines.text
    stop = text.find("\n", end)
    after = text[end : len(text) if stop < 0 else stop].strip()
    return not text[lines.starts[lines.of(start)] : start].strip() and (not after or after.startswith("#") or after == ";")


def _with_space(start: int, end: int, lines: Lines) -> tuple[int, int]:
    """What goes with a word: the space before it, or behind it where it begins its command."""
    text = lines.text
    begin = start
    while begin > 0 and text[begin - 1] in " \t":
        begin -= 1
    if begin == 0 or text[begin - 1] == "\n":
        # The first word of a line: indentation stays.
        while end < len(text) and text[end] in " \t":
            end += 1
        return start, end
    return begin, end


def unquoted(raw: str) -> str:
    """The value as the shell gives it; substitutions stand as they are."""
    out, quote, i = [], "", 0
    while i < len(raw):
        c = raw[i]
        if c == "$" and quote != "'" and raw[i + 1 : i + 2] in ("(", "{"):
            end = _behind_bracket(raw, i + 1, len(raw))
            out.append(raw[i:end])
            i = end - 1
        elif quote:
            if c == quote:
                quote = ""
            elif c == "\\" and quote == '"' and i + 1 < len(raw) and raw[i + 1] in '"\\$`\n':
                i += 1
                out.append("" if raw[i] == "\n" else raw[i])
            else:
                out.append(c)
        elif c in "'\"":
            quote = c
        elif c == "\\" and i + 1 < len(raw):
            i += 1
            out.append("" if raw[i] == "\n" else raw[i])
        else:
            out.append(c)
        i += 1
    return "".join(out)


def _commands(text: str, begin: int, finish: int, settings: list[Found], lines: Lines) -> Iterator[list[_Word]]:
    """The words of each simple command. Assignments in the batch system's comments go to `settings` as they come."""
    words: list[_Word] = []
    heredocs: list[tuple[str, bool]] = []
    i = begin
    while i < finish:
        c = text[i]
        if c == "\\" and text[i + 1 : i + 2] == "\n":
            i += 2
        elif c == "\\" and text[i + 1 : i + 3] == "\r\n":
            i += 3
        elif c == "#" and (i == begin or text[i - 1] in " \t\n;&|()"):
            stop = text.find("\n", i)
            stop = finish if stop < 0 else min(stop, finish)
            if batch := _OF_BATCH.match(text, i, stop):
                row = lines.of(i)
                settings += _of_list(batch.start("list"), batch["list"], row, row)
            i = stop
        elif c in _OPERATORS:
            if words:
                yield words
                words = []
            i += 1
            if c == "\n" and heredocs:
                for delimiter, dashed in heredocs:
                    i = _behind(text, i, finish, delimiter, dashed)
                heredocs = []
        elif c in " \t\r":
            i += 1
        elif c in "<>":
            if text.startswith("<<", i) and not text.startswith("<<<", i) and (found := _HEREDOC.match(text, i)):
                heredocs.append((found["word"].strip("'\"\\"), bool(found["dash"])))
                i = found.end()
            else:
                i += 3 if text.startswith("<<<", i) else 1
        else:
            end = _end_of_word(text, i, finish)
            words.append(_Word(raw=text[i:end], start=i, end=end))
            i = end
    if words:
        yield words


def _behind(text: str, at: int, finish: int, delimiter: str, dashed: bool) -> int:
    while at < finish:
        stop = text.find("\n", at)
        stop = finish if stop < 0 else stop
        line = text[at:stop].rstrip("\r")
        at = stop + 1
        if (line.lstrip("\t") if dashed else line) == delimiter:
            break
    return min(at, finish)


def _end_of_word(text: str, at: int, finish: int) -> int:
    i = at
    while i < finish:
        c = text[i]
        if c == "\\":
            if text[i + 1 : i + 2] == "\n" and i > at:
                return i
            i += 2
        elif c == "'":
            stop = text.find("'", i + 1)
            i = finish if stop < 0 else stop + 1
        elif c == '"':
            i = _behind_quote(text, i + 1, finish)
        elif c == "`":
            stop = text.find("`", i + 1)
            i = finish if stop < 0 else stop + 1
        elif c == "$" and text[i + 1 : i + 2] in ("(", "{"):
            i = _behind_bracket(text, i + 1, finish)
        elif c in " \t\r<>" or c in _OPERATORS:
            return i
        else:
            i += 1
    return min(i, finish)


def _behind_quote(text: str, at: int, finish: int) -> int:
    while at < finish:
        if text[at] == "\\":
            at += 2
        elif text[at] == '"':
            return at + 1
        elif text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _behind_bracket(text, at + 1, finish)
        else:
            at += 1
    return finish


def _behind_bracket(text: str, at: int, finish: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    opening, closing, depth = text[at], ")" if text[at] == "(" else "}", 0
    while at < finish:
        c = text[at]
        if c == "\\":
            at += 1
        elif c == "'" and depth and opening == "(":
            stop = text.find("'", at + 1)
            at = finish if stop < 0 else stop
        elif c == opening:
            depth += 1
        elif c == closing:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return finish
