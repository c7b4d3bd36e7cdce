"""Assignments in shell and Slurm scripts and env files: `export A=b`, `A=b cmd`, `env A=b cmd`, `-x A=b`, `--env A=b`, `#SBATCH --export=ALL,A=b`.

Also those that an array holds for `env "${ENVS[@]}" cmd`, and those of a script in a word: `bash -c 'A=b cmd'`, `ssh host 'export A=b; cmd'`.
csh's `setenv A b` and fish's `set -x A b` are known; else such a script is read as one of bash. Long because a command may hold assignments in each
of its places, and one pass over its words has to tell all of them apart.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from unhang.knowledge.variables.files.found import Block, Found, Item, Lines, Parsed, Said, Unclosed
from unhang.knowledge.variables.files.mentions import mentions
from unhang.knowledge.variables.files.shell_words import ASSIGNMENT, Cutter, Word, acts, pieces, unquoted

_NAME = re.compile(r"[A-Za-z_]\w*")
_RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time", "exec", "command", "builtin"))
_DECLARING = frozenset(("export", "declare", "typeset", "readonly", "local"))
_FOR_ITSELF = _DECLARING | {"set", "unset", "shopt"}
_BEGINS = frozenset(("if", "while", "until", "for", "select", "case", "{"))
_GOES_ON = frozenset(("then", "do", "else", "elif"))
_ENDS = frozenset(("fi", "done", "esac", "}"))
_FLAGS = frozenset(("-x", "-e", "--env", "-env", "--setenv", "-E"))
_PAIR_FLAGS = frozenset(("-genv", "-env"))
_OF_ENV = frozenset(("-i", "-", "--ignore-environment", "-0", "--null", "-v", "--debug", "env"))
# What `env` and `sudo` take a word for.
_TAKES_WORD = frozenset(("-u", "-C", "-g", "-h", "-p", "-r", "-t", "-D", "-R", "-T", "-U", "--user", "--group", "--host", "--chdir", "--unset"))
# Of these -e and -x say nothing of variables: `echo -e "A=b"`, `grep -e A=b`.
_OF_TEXT = frozenset(("echo", "printf", "grep", "egrep", "fgrep", "zgrep", "rg", "sed", "perl", "awk", "read", "set", "curl"))
# These set nothing, unless what they print is written to a file or read by a program.
_PRINTS = frozenset(("echo", "printf"))
_SEARCHES = frozenset(("grep", "egrep", "fgrep", "zgrep", "rg"))
_WRITES = re.compile(r"(?<![02-9])>(?!&)|\|")
_STATEMENT_ENDS = re.compile(r"\n|;|&&|\|\|")
# Of a name without a value these say whether it is there, or hand on what was set before.
_NAMES_ONLY = _DECLARING | {"unset", "printenv", "for", "select", "[", "[[", "test"}
_LIST_FLAGS = frozenset(("-genvlist", "-envlist", "--export"))
_BEFORE_SSH = frozenset(("sudo", "env", "nohup", "timeout", "nice", "sshpass"))
_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "su"))
_SCRIPT_FLAG = re.compile(r"-[A-Za-z]*c|--command")
# A script in quotes of which the text is that of the script: `\$A` is what the inner shell is to see of it.
_SCRIPT = re.compile(r"(?:'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\`]|\\\$|\\\r?\n)*)\"|(?P<bare>[^'\"\\`\s]+))")
_HANDS_ON = re.compile(r"(?:-e|--env=|--setenv=|--preserve-env=).*")
_OF_SSH = frozenset(f"-{c}" for c in "BbcDEeFIiJLlmOoPpQRSWw")
_SETS_FISH = re.compile(r"-[A-Za-z]*x[A-Za-z]*|--export")
_OF_BATCH = re.compile(r"#(?:SBATCH\s(?:.*\s)?--export(?:=|\s+)|PBS\s(?:.*\s)?-v\s+)(?P<list>(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'])+)")
_PER_NODE = re.compile(r"#SBATCH\s(?:.*\s)?(?:--ntasks-per-node[= ]|--gpus-per-node[= ](?:\w+:)?|--gres[= ]gpu:(?:\w+:)?)(?P<count>\d{1,5})\b")
# `torchrun --nnodes $WORLD_SIZE` knows what it counts.
_COUNTS_HOSTS = re.compile(r"--(?:nnodes|num[_-]machines|num[_-]nodes)[= ]+\"?\$\{?WORLD_SIZE\b")
_LOADS_ROCM = re.compile(r"^[ \t]*(?:module|ml)[ \t][^#\n;&|]*\brocm(?:/(?P<release>[\w.]+))?(?=[ \t\r;&|]|$)", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)")
# Where the place or the number of elements counts, none can go: `${A[1]}`, `${#A[@]}`, `$A`.
_COUNTED = re.compile(r"\$\{[#!](\w+)\[|\$\{(\w+)\[(?![@*]\](?:[}/]|:?\+))|\$\{?(\w+)(?![\w\[])")
# bash calls an array without elements unbound until 4.3.
_UNBOUND_FAILS = re.compile(r"\bset[ \t]+(?:[-+]\w+[ \t]+)*-\w*u|\bnounset\b")


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

    def enter(self, between: str, words: list[Word]) -> _Open:
        """The block that a command stands in; `between` are the operators before it."""
        for c in between:
            if c == "(":
                self._begin("(", words[0])
            elif c == ")" and self.open[-1].by == "(":
                self.open.pop()
        has_ended = False
        for word in words:
            if word.raw in ("!", "time"):
                continue
            if word.raw in _ENDS:
                # `then` may follow on the same line: `} then`.
                self._end()
                has_ended = True
                continue
            if word.raw in _GOES_ON:
                self._end()
                self.open.append(_Open(by=word.raw, at=word.start))
            elif word.raw in _BEGINS:
                self._begin(word.raw, word)
                if word.raw in ("for", "select", "case"):
                    break
            else:
                self.open[-1].statements += not has_ended
                break
        within = self.open[-1]
        if words[0].raw == "function" and words[-1].raw == "{":
            self._begin("{", words[-1])
        return within

    def _begin(self, by: str, word: Word) -> None:
        self.open[-1].statements += 1
        self.open.append(_Open(by=by, at=word.start))

    def _end(self) -> None:
        if len(self.open) > 1:
            self.open.pop()


def parse(text: str, *, begin: int = 0, finish: int | None = None, indent: int = 0, for_others: bool = False, lines: Lines | None = None) -> Parsed:
    """`begin` and `finish` cut a script out of a larger text, of which `lines` are known and where each line has `indent` spaces ahead of it.

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
    ran = commented = 0
    cutter = Cutter(text, finish, indent)
    seen = _Seen(lines=lines, indent=indent)
    arrays: list[Word] = []
    for between, words in cutter.commands(begin):
        settings += _of_comments(cutter.comments[commented:], lines)
        commented = len(cutter.comments)
        found, said = _of_command(words, seen)
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
        ran += bool(rest) and first not in _FOR_ITSELF and not first.startswith("((") and not all(ASSIGNMENT.match(w.raw) for w in rest)
        if between.rstrip("\n").endswith(("&&", "||", "|", "|&")):
            block = _Open(by="&&", at=words[0].start, statements=1)
        where |= {f.name_at: (block, ran) for f in found}
        settings += found
        options += said
        arrays += [w for w in words if w.elements is not None]
    settings += _of_comments(cutter.comments[commented:], lines)
    for script in seen.scripts:
        settings += map(_within_a_word, script.settings)
        options += script.options
    settings = [replace(s, block=where[s.name_at][0].closed()) if s.alone else s for s in settings]
    if not ran or all_exported:
        settings = [replace(s, exported=True) for s in settings]
    else:
        # What a script sets for itself, and hands on as `--master-addr $MASTER_ADDR`, does its work.
        exported |= set(_USED.findall(text, begin, finish))
        settings = [replace(s, exported=s.exported or s.name in exported) for s in settings]
    if arrays:
        counted = {name for m in _COUNTED.finditer(text, begin, finish) for name in m.groups() if name}
        unbound_fails = _UNBOUND_FAILS.search(text, begin, finish) is not None
        for array in arrays:
            within, said = _of_array(array, seen, unbound_fails, counted)
            settings += within
            options += said
    options += [
        Said(name="per_node", value=m["count"], line=lines.of(start)) for start, stop in cutter.comments if (m := _PER_NODE.match(text, start, stop))
    ]
    options += [Said(name="rocm", value=m["release"] or "", line=lines.of(m.start())) for m in _LOADS_ROCM.finditer(text, begin, finish)]
    options += [Said(name="nnodes", value="WORLD_SIZE", line=lines.of(m.start())) for m in _COUNTS_HOSTS.finditer(text, begin, finish)]
    inside = _rows_inside(cutter.inside, lines)
    # What follows on what is not closed is said to be unread as a whole.
    readable = min((at for _, at in cutter.unclosed), default=finish)
    scripts = seen.scripts
    return Parsed(
        settings=tuple(replace(s, above=_above(s.first, inside)) for s in sorted(settings, key=lambda s: s.name_at)),
        options=tuple(options),
        commented=tuple(sorted([*cutter.comments, *(span for script in scripts for span in script.commented)])),
        unclosed=(
            *(Unclosed(what=what, line=lines.of(at)) for what, at in cutter.unclosed),
            *(one for script in scripts for one in script.unclosed),
        ),
        mentioned=(
            *mentions(text, begin, readable, lines, settings, [*cutter.comments, *seen.understood]),
            *(one for script in scripts for one in script.mentioned),
        ),
        understood=tuple(seen.understood),
    )


@dataclass(kw_only=True)
class _Seen:
    """What a script's commands hold beside its settings: `scripts` in words, and stretches of which it is `understood` that they set nothing."""

    lines: Lines
    indent: int
    scripts: list[Parsed] = field(default_factory=list)
    understood: list[tuple[int, int]] = field(default_factory=list)

    def script(self, word: Word) -> None:
        """Read a word as the script that another shell gets; what is quoted in it again is left."""
        found = _SCRIPT.fullmatch(word.raw)
        if found is None or found.lastgroup is None:
            return
        begin, finish = (word.start + at for at in found.span(found.lastgroup))
        self.scripts.append(parse(self.lines.text, begin=begin, finish=finish, indent=self.indent, lines=self.lines))
        self.understood.append((begin, finish))

    def word(self, word: Word) -> None:
        self.understood.append((word.start, word.end))

    def command(self, words: list[Word]) -> None:
        """Where a command names variables without setting any."""
        name = words[0].raw
        if name in _NAMES_ONLY:
            self.understood += [(w.start, w.end) for w in words[1:] if _NAME.fullmatch(w.raw)]
        elif name in _SEARCHES or (name in _PRINTS and not _is_written(words, self.lines.text)):
            self.understood.append((words[0].start, words[-1].end))


def _is_written(words: list[Word], text: str) -> bool:
    """Whether what a command prints goes to a file or a program."""
    between = "".join(text[a.end : b.start] for a, b in pairwise(words))
    end = _STATEMENT_ENDS.search(text, words[-1].end)
    return _WRITES.search(between + text[words[-1].end : len(text) if end is None else end.start()]) is not None


def _within_a_word(one: Found) -> Found:
    """A setting of a script that is no file: nothing goes with its lines."""
    return replace(one, alone=False, block=None, among=one.statement if one.alone else one.among)


def _of_comments(comments: list[tuple[int, int]], lines: Lines) -> Iterator[Found]:
    """What the batch system's comments set."""
    for start, stop in comments:
        if batch := _OF_BATCH.match(lines.text, start, stop):
            row = lines.of(start)
            yield from _of_list(batch.start("list"), batch["list"], row, row)


def _rows_inside(inside: list[tuple[int, int]], lines: Lines) -> set[int]:
    """The lines that begin within a word, a here-document, or a command that goes on."""
    return {row for start, end in inside for row in range(lines.of(start) + 1, lines.of(end) + 1)}


def _above(row: int, inside: set[int]) -> int:
    while row in inside:
        row -= 1
    return row


def _exports(words: list[Word]) -> bool:
    """Whether `export`, `declare -x` or the like hands on what it sets: `local` and `readonly` alone do not."""
    flags = "".join(w.raw[1:] for w in words[1:] if w.raw.startswith("-"))
    return "n" not in flags if words[0].raw == "export" else "x" in flags


def _of_command(words: list[Word], seen: _Seen) -> tuple[list[Found], list[Said]]:
    lines = seen.lines
    i = 0
    while i < len(words) and words[i].raw in _RESERVED:
        i += 1
    reserved, body = i, words[i:]
    if not body:
        return [], []
    seen.command(body)
    first, last = lines.of(words[0].start), lines.of(words[-1].end - 1)
    ahead = 0
    while ahead < len(body) and ASSIGNMENT.match(body[ahead].raw):
        ahead += 1
    plain = ahead == len(body)
    declaring = body[0].raw in _DECLARING
    other = _of_other_shells(body, first, last, lines)
    pure = plain or other is not None or (declaring and all(_assigned(w) is not None or w.raw.startswith("-") for w in body[1:]))
    alone = pure and reserved == 0 and _is_whole(words[0].start, words[-1].end, lines)
    found = [_found(word, first, last, lines, exported=not plain) for word in body[:ahead]]
    said: list[Said] = []
    if other is not None:
        found.append(other)
    elif declaring:
        # `export $MORE` alone prints all that is exported where MORE is empty.
        by_line = not pure and not any(_NAME.fullmatch(w.raw) for w in body[1:])
        handed_on = _exports(body)
        for word in body[1:]:
            if (named := _assigned(word)) is not None:
                found.append(replace(_found(named, first, last, lines, start=word.start, exported=handed_on), by_line=by_line))
    else:
        handed, said = _of_arguments(body[ahead:], first, last, seen)
        found += handed
    if pure:
        # A command that does nothing takes its place: `then export A=b; fi`.
        found = [
            replace(f, alone=alone, statement=(body[0].start, body[-1].end), among=None if alone else (body[0].start, body[-1].end)) for f in found
        ]
    return found, said


def _assigned(word: Word) -> Word | None:
    """The assignment that a word is, also in quotes: `export "A=b"`."""
    quote = re.match(r"['\"]?(?=[A-Za-z_]\w*\+?=)", word.raw)
    return None if quote is None else _bare(word, quote.end())


def _of_other_shells(words: list[Word], first: int, last: int, lines: Lines) -> Found | None:
    """csh's `setenv A b` and fish's `set -x A b`."""
    at = 1
    if words[0].raw == "set":
        while at < len(words) and words[at].raw.startswith("-"):
            at += 1
        if at + 1 >= len(words) or not any(_SETS_FISH.fullmatch(w.raw) for w in words[1:at]):
            return None
    elif words[0].raw != "setenv" or not 2 <= len(words) <= 3:
        return None
    if not _NAME.fullmatch(words[at].raw):
        return None
    value = " ".join(unquoted(w.raw) for w in words[at + 1 :])
    found = _found(words[at], first, last, lines, start=words[0].start, end=words[-1].end, value=value)
    return replace(found, acts=any(acts(w.raw) for w in words))


def _of_arguments(words: list[Word], first: int, last: int, seen: _Seen) -> tuple[list[Found], list[Said]]:
    """What a program is handed: `env A=b`, `-x A=b`, `--export=ALL,A=b`, and the scripts that shells are, `bash -c 'A=b cmd'`."""
    lines = seen.lines
    found: list[Found] = []
    said: list[Said] = []
    in_env = of_deepspeed = False
    of_shell = ""
    previous: Word | None = None
    if words and words[0].raw.rpartition("/")[2] in _OF_TEXT:
        return [], []
    if words and words[0].raw == "eval":
        for word in words[1:]:
            seen.script(word)
        return [], []
    for n, word in enumerate(words):
        raw = word.raw
        before = "" if previous is None else previous.raw
        bare = re.match(r"['\"]?(?=[A-Za-z_]\w*\+?=)", raw)
        program = raw.rpartition("/")[2]
        if program == "ssh" and _is_begun_by(words[:n]):
            handed, told = _of_remote(words[n + 1 :], first, last, seen)
            return [*found, *handed], [*said, *told]
        if of_shell and _SCRIPT_FLAG.fullmatch(before):
            seen.script(word)
            of_shell = ""
        elif of_shell and of_shell != "su" and not raw.startswith(("-", "+")) and not before.endswith("o"):
            of_shell = ""
        if program in _SHELLS:
            of_shell = program
        if program in ("env", "sudo"):
            in_env = True
        elif in_env and before in ("-S", "--split-string"):
            seen.script(word)
            in_env = False
        elif in_env and bare is not None:
            found.append(_found(_bare(word, bare.end()), first, last, lines, start=word.start))
        elif in_env and not raw.startswith("-") and before not in _TAKES_WORD:
            in_env = False
        if previous is not None and before in _FLAGS and bare is not None:
            found.append(_found(_bare(word, bare.end()), first, last, lines, start=previous.start))
        elif (m := re.match(r"(?:--env|-e|--setenv)=?(?P<quote>['\"]?)(?=[A-Z_][A-Z0-9_]*=)", raw)) is not None:
            named = Word(raw=raw[m.end() :].removesuffix(m["quote"]), start=word.start + m.end(), end=word.end)
            found.append(_found(named, first, last, lines, start=word.start))
        elif previous is not None and before in _PAIR_FLAGS and _NAME.fullmatch(raw) and n + 1 < len(words):
            value = unquoted(words[n + 1].raw)
            found.append(_found(word, first, last, lines, start=previous.start, end=words[n + 1].end, value=value))
        elif (m := re.match(r"(?P<quote>['\"]?)--export=", raw)) is not None:
            found += _of_list(word.start + m.end(), raw[m.end() :], first, last, quote=m["quote"])
            seen.word(word)
        elif before == "--export":
            found += _of_list(word.start, raw, first, last)
            seen.word(word)
        elif (m := re.match(r"--ddp[_-]timeout(?:=(?P<value>\d+))?$", raw)) is not None:
            given = m["value"] or (words[n + 1].raw if n + 1 < len(words) else "")
            if given.isdigit():
                said.append(Said(name="ddp_timeout", value=given, line=lines.of(word.start)))
        elif raw in ("--hostfile", "-H") and of_deepspeed:
            said.append(Said(name="launcher", value="deepspeed", line=lines.of(word.start)))
        elif (before in _FLAGS and _NAME.fullmatch(raw)) or before in _LIST_FLAGS or _HANDS_ON.fullmatch(raw):
            seen.word(word)
        of_deepspeed = of_deepspeed or program == "deepspeed"
        previous = word
    return found, said


def _is_begun_by(words: list[Word]) -> bool:
    """Whether these only start the program that follows: `sudo timeout 5 ssh`, and no `--rsh ssh`."""
    return all(
        w.raw in _BEFORE_SSH or w.raw.startswith("-") or w.raw[:1].isdigit() or ASSIGNMENT.match(w.raw) or (n and words[n - 1].raw in _TAKES_WORD)
        for n, w in enumerate(words)
    ) and not (words and words[-1].raw.startswith("--"))


def _of_remote(words: list[Word], first: int, last: int, seen: _Seen) -> tuple[list[Found], list[Said]]:
    """What stands behind `ssh`: options, the host, and the command."""
    at = 0
    while at < len(words) and words[at].raw.startswith("-"):
        at += 2 if words[at].raw in _OF_SSH else 1
    rest = words[at + 1 :]
    if len(rest) == 1 or (rest and rest[0].raw[:1] in ("'", '"') and _assigned(rest[0]) is None):
        seen.script(rest[0])
        rest = rest[1:]
    ahead = 0
    while ahead < len(rest) and ASSIGNMENT.match(rest[ahead].raw):
        ahead += 1
    handed, said = _of_arguments(rest[ahead:], first, last, seen)
    return [*(_found(word, first, last, seen.lines) for word in rest[:ahead]), *handed], said


def of_words(words: list[Word], lines: Lines) -> Parsed:
    """A command that no shell sees, word by word: `["env", "A=b", "torchrun"]`."""
    seen = _Seen(lines=lines, indent=0)
    first, last = lines.of(words[0].start), lines.of(words[-1].end)
    found, said = _of_arguments(words, first, last, seen)
    return Parsed(
        settings=tuple(replace(one, by_line=True) for one in [*found, *(s for script in seen.scripts for s in map(_within_a_word, script.settings))]),
        options=(*said, *(o for script in seen.scripts for o in script.options)),
        unclosed=tuple(one for script in seen.scripts for one in script.unclosed),
        mentioned=tuple(one for script in seen.scripts for one in script.mentioned),
        understood=tuple(seen.understood),
    )


def _of_array(array: Word, seen: _Seen, unbound_fails: bool, counted: set[str]) -> tuple[list[Found], list[Said]]:
    """What stands in `ENVS=(A=b C=d)` or `ARGS=(-x A=b)`, of which each goes for itself."""
    lines = seen.lines
    elements = list(array.elements or ())
    found, said = _of_arguments(elements, 0, 0, seen)
    taken = {f.name_at for f in found}
    previous = ""
    for word in elements:
        bare = re.match(r"['\"]?(?=[A-Za-z_]\w*\+?=)", word.raw)
        if bare is not None and word.start + bare.end() not in taken:
            # What the flag ahead of it does nobody knows.
            by_line = previous.startswith("-") and previous not in _OF_ENV
            found.append(replace(_found(_bare(word, bare.end()), 0, 0, lines, start=word.start), by_line=by_line))
        previous = word.raw
    name = ASSIGNMENT.match(array.raw)
    by_place = name is not None and name["name"] in counted
    starts = [w.start for w in elements]
    taken_whole = {n for f in found if f.item is None for n in range(bisect_left(starts, f.start), bisect_left(starts, f.end))}
    others = len(taken_whole) < len(elements)
    placed = []
    for one in found:
        begin, end = one.start, one.end
        while lines.text[begin] in " \t":
            begin += 1
        while lines.text[end - 1] in " \t":
            end -= 1
        one = replace(one, first=lines.of(begin), last=lines.of(end - 1), by_line=one.by_line or by_place)
        if one.item is None:
            span = (one.start, one.end)
            item = Item(of=array.start, others=others, others_ahead=True, ahead=span, behind=span) if unbound_fails else None
            one = replace(one, alone=not one.by_line and item is None and _is_whole(begin, end, lines), item=item)
        placed.append(one)
    return placed, said


def _found(
    word: Word,
    first: int,
    last: int,
    lines: Lines,
    *,
    start: int | None = None,
    end: int | None = None,
    value: str | None = None,
    exported: bool = True,
) -> Found:
    """`start` and `end` are what goes with it; `value` is that of a name without one."""
    match = ASSIGNMENT.match(word.raw)
    begin, stop = _with_space(word.start if start is None else start, word.end if end is None else end, lines)
    if match is not None:
        value = None if word.elements is not None else unquoted(word.raw[match.end() :])
    return Found(
        name=match["name"] if match is not None else word.raw,
        value=value,
        name_at=word.start,
        start=begin,
        end=stop,
        first=first,
        last=last,
        alone=False,
        exported=exported,
        acts=acts(word.raw),
    )


def _bare(word: Word, quote: int) -> Word:
    """The word without the quote that it begins and ends with: `-e "A=b"`."""
    if not quote:
        return word
    return Word(raw=word.raw[quote:].removesuffix(word.raw[0]), start=word.start + quote, end=word.end)


def _of_list(at: int, raw: str, first: int, last: int, quote: str = "") -> Iterator[Found]:
    """`ALL,A=b,"C=d e"`, which begins at `at` and within `quote`. What is cut out begins and ends within the same quotes."""
    given = list(pieces(raw, quote))
    # The quotes that Slurm itself takes away: a comma in them divides nothing.
    commas, inner = [], ""
    for n, (_, _, _, c) in enumerate(given):
        if c in ("'", '"') and (not inner or inner == c):
            inner = "" if inner else c
        elif c == "," and not inner:
            commas.append(n)
    bounds = [-1, *commas, len(given)]
    items = [given[a + 1 : b] for a, b in pairwise(bounds)]
    named = [ASSIGNMENT.match("".join(c for *_, c in item)) for item in items]
    first_other = named.index(None) if None in named else len(named)
    for n, (item, match) in enumerate(zip(items, named, strict=True)):
        begin, end = (item[0][0], item[-1][1]) if item else (0, 0)
        if match is None or not raw.startswith(match[0], begin):
            continue
        value = "".join(c for *_, c in item)[match.end() :]
        comma, following = (given[bounds[n]] if n else None), (given[bounds[n + 1]] if n + 1 < len(items) else None)
        starts = [(comma[1], comma[2]) if comma is not None else (0, quote), (begin, item[0][2])]
        ends = [(following[0], following[2]) if following is not None else (len(raw), ""), (end, item[-1][2])]
        # Quotes that no item stands in close behind the last one.
        ahead = next((at + stop for stop, within in ends if comma is not None and within == comma[2]), None)
        behind = next((at + start for start, within in starts if following is not None and within == following[2]), None)
        yield Found(
            name=match["name"],
            value=value[1:-1] if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1] else value,
            name_at=at + begin,
            start=at + begin,
            end=at + end,
            first=first,
            last=last,
            alone=False,
            acts=acts(raw[begin:end]),
            item=Item(
                of=at,
                others=first_other < len(named),
                others_ahead=first_other < n,
                ahead=None if ahead is None or comma is None else (at + comma[0], ahead),
                behind=None if behind is None or following is None else (behind, at + following[1]),
            ),
        )


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
    if begin == 0 or text[begin - 1] in "\n(":
        # The first word of a line: indentation stays.
        while end < len(text) and text[end] in " \t":
            end += 1
        return start, end
    return begin, end
