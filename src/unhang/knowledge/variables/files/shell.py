"""Assignments in shell and Slurm scripts and env files: `export A=b`, `A=b cmd`, `env A=b cmd`, `-x A=b`, `--env A=b`, `#SBATCH --export=ALL,A=b`.

Words are cut as a shell cuts them (quotes, escapes, continuation lines, substitutions); nothing is expanded. What stands in a here-document is data
and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unhang.knowledge.variables.files.found import Block, Found, Lines, Parsed, Said

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time", "exec", "command", "builtin"))
_DECLARING = frozenset(("export", "declare", "typeset", "readonly", "local"))
_FOR_ITSELF = _DECLARING | {"set", "unset", "shopt"}
_BEGINS = frozenset(("if", "while", "until", "for", "select", "case", "{"))
_GOES_ON = frozenset(("then", "do", "else", "elif"))
_ENDS = frozenset(("fi", "done", "esac", "}"))
_FLAGS = frozenset(("-x", "-e", "--env", "-env", "--setenv", "-E"))
_PAIR_FLAGS = frozenset(("-genv", "-env"))
_OF_BATCH = re.compile(r"#(?:SBATCH\s(?:.*\s)?--export(?:=|\s+)|PBS\s(?:.*\s)?-v\s+)(?P<list>\S+)")
_HEREDOC = re.compile(r"<<(?P<dash>-?)[ \t]*(?P<word>\\?[A-Za-z_]\w*|'[^'\n]*'|\"[^\"\n]*\")")
_USED = re.compile(r"\$\{?(\w+)")
_OPERATORS = ";&|()\n"


@dataclass(frozen=True, kw_only=True)
class _Word:
    raw: str
    start: int
    end: int


@dataclass(eq=False)
class _Open:
    """A block while its commands are counted. `by` is the word or bracket that began it, "" for the whole script, `at` where."""

    by: str
    at: int
    statements: int = 0

    def closed(self) -> Block | None:
        return Block(number=self.at, statements=self.statements, filler=":") if self.by else None


class _Blocks:
    def __init__(self) -> None:
        self.open = [_Open(by="", at=-1)]

    def enter(self, between: str, words: list[_Word]) -> _Open:
        """The block that a command stands in; `between` are the operators before it."""
        for c in between:
            if c == "(":
                self._begin("(", words[0])
            elif c == ")" and self.open[-1].by == "(":
                self.open.pop()
        for word in words:
            if word.raw in _ENDS:
                self._end()
                return self.open[-1]
            if word.raw in _GOES_ON:
                self._end()
                self.open.append(_Open(by=word.raw, at=word.start))
            elif word.raw in _BEGINS:
                self._begin(word.raw, word)
                if word.raw in ("for", "select", "case"):
                    break
            else:
                self.open[-1].statements += 1
                break
        within = self.open[-1]
        if words[0].raw == "function" and words[-1].raw == "{":
            self._begin("{", words[-1])
        return within

    def _begin(self, by: str, word: _Word) -> None:
        self.open[-1].statements += 1
        self.open.append(_Open(by=by, at=word.start))

    def _end(self) -> None:
        if len(self.open) > 1:
            self.open.pop()


def parse(text: str, *, begin: int = 0, finish: int | None = None, for_others: bool = False, lines: Lines | None = None) -> Parsed:
    """`begin` and `finish` cut a script out of a larger text, of which `lines` are known.

    `for_others`: what it sets is read by whoever loads it, also without `export`.
    """
    lines = lines or Lines(text=text)
    finish = len(text) if finish is None else finish
    settings: list[Found] = []
    options: list[Said] = []
    exported: set[str] = set()
    all_exported = for_others
    blocks = _Blocks()
    # Of each setting its block, and how many programs ran before it.
    where: dict[int, tuple[_Open, int]] = {}
    ran = 0
    for between, words in _commands(text, begin, finish, settings, lines):
        found, said = _of_command(words, lines)
        block = blocks.enter(between, words)
        rest = [w for w in words if w.raw not in _RESERVED]
        first = rest[0].raw if rest else ""
        if first in _DECLARING and _exports(rest):
            exported |= {w.raw for w in rest[1:] if _NAME.fullmatch(w.raw)} | {f.name for f in found}
        elif first == "unset" and not block.by:
            # What a program got before stays.
            names = {w.raw for w in rest[1:]}
            gone = {s.name_at for s in settings if s.name in names and where.get(s.name_at, (block, 0))[1] == ran}
            if gone:
                touched = {(s.first, s.last) for s in settings if s.name_at in gone}
                settings = [replace(s, alone=s.alone and (s.first, s.last) not in touched) for s in settings if s.name_at not in gone]
        all_exported |= first == "set" and any(w.raw in ("-a", "-o", "allexport") for w in rest[1:])
        ran += bool(rest) and first not in _FOR_ITSELF and not all(_ASSIGNMENT.match(w.raw) for w in rest)
        if between.rstrip("\n").endswith(("&&", "||", "|")):
            block = _Open(by="&&", at=words[0].start, statements=1)
        where |= {f.name_at: (block, ran) for f in found}
        settings += found
        options += said
    settings = [replace(s, block=where[s.name_at][0].closed()) if s.alone else s for s in settings]
    if not ran or all_exported:
        settings = [replace(s, exported=True) for s in settings]
    else:
        # What a script sets for itself, and hands on as `--master-addr $MASTER_ADDR`, does its work.
        exported |= set(_USED.findall(text, begin, finish))
        settings = [replace(s, exported=s.exported or s.name in exported) for s in settings]
    return Parsed(settings=tuple(settings), options=tuple(options))


def _exports(words: list[_Word]) -> bool:
    """Whether `export`, `declare -x` or the like hands on what it sets: `local` and `readonly` alone do not."""
    flags = "".join(w.raw[1:] for w in words[1:] if w.raw.startswith("-"))
    return "n" not in flags if words[0].raw == "export" else "x" in flags


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
    declaring = body[0].raw in _DECLARING
    handed_on = declaring and _exports(body)
    pure = plain or (declaring and all(_ASSIGNMENT.match(w.raw) or w.raw.startswith("-") for w in body[1:]))
    alone = whole_line and pure

    def add(
        word: _Word,
        *,
        at: int = 0,
        start: int | None = None,
        end: int | None = None,
        value: str | None = None,
        exported: bool = True,
    ) -> None:
        text = word.raw[at:]
        match = _ASSIGNMENT.match(text)
        begin, stop = word.start if start is None else start, word.end if end is None else end
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
                # A command that does nothing takes its place: `then export A=b; fi`.
                among=(body[0].start, body[-1].end) if pure and not alone else None,
            )
        )

    for word in body[:ahead]:
        add(word, exported=not plain)
    if declaring:
        for word in body[1:]:
            if _ASSIGNMENT.match(word.raw):
                add(word, exported=handed_on)
        return found, said
    in_env = of_deepspeed = False
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
        elif raw in ("--hostfile", "-H") and of_deepspeed:
            said.append(Said(name="launcher", value="deepspeed", line=lines.of(word.start)))
        of_deepspeed = of_deepspeed or raw.rpartition("/")[2] == "deepspeed"
        previous = word
    return found, said


def _bare(word: _Word, quote: int) -> _Word:
    """The word without the quote that it begins and ends with: `-e "A=b"`."""
    if not quote:
        return word
    return _Word(raw=word.raw[quote:].removesuffix(word.raw[0]), start=word.start + quote, end=word.end)


def _of_list(start: int, text: str, first: int, last: int) -> list[Found]:
    """`ALL,A=b,C=d`."""
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        start, text = start + 1, text[1:-1]
    found = []
    at = start
    for item in text.split(","):
        if match := _ASSIGNMENT.match(item):
            value, end, span = unquoted(item[match.end() :]), at + len(item), (start, start + len(text))
            found.append(Found(name=match["name"], value=value, name_at=at, start=at, end=end, first=first, last=last, alone=False, listed=span))
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


def _commands(text: str, begin: int, finish: int, settings: list[Found], lines: Lines) -> Iterator[tuple[str, list[_Word]]]:
    """The words of each simple command, and the operators before it. Assignments in the batch system's comments go to `settings` as they come."""
    words: list[_Word] = []
    between = ""
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
                yield between, words
                words, between = [], ""
            between += c
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
        yield between, words


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
