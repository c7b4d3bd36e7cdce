"""Assignments in shell and Slurm scripts and env files: `export A=b`, `A=b cmd`, `env A=b cmd`, `-x A=b`, `--env A=b`, `#SBATCH --export=ALL,A=b`.

Also those that an array holds for `env "${ENVS[@]}" cmd`, and those of a script in a word: `bash -c 'A=b cmd'`, `ssh host 'export A=b; cmd'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from unhang.errors import UnhangError
from unhang.files.found import Found, Item, Lines, Said, Unclosed
from unhang.files.shell_words import ASSIGNMENT, Cutter, Word, pieces, unquoted

_NAME = re.compile(r"[A-Za-z_]\w*")
RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time", "exec", "command", "builtin"))
DECLARING = frozenset(("export", "declare", "typeset", "readonly", "local"))
# What begins a block, and what ends one.
_DEPTH = dict.fromkeys(("if", "while", "until", "for", "select", "case", "{"), 1) | dict.fromkeys(("fi", "done", "esac", "}"), -1)
_FOR_ITSELF = DECLARING | {"set", "unset", "shopt"}
_FLAGS = frozenset(("-x", "-e", "--env", "-env", "--setenv", "-E"))
_PAIR_FLAGS = frozenset(("-genv", "-env"))
# What `env` and `sudo` take a word for.
_TAKES_WORD = frozenset(("-u", "-C", "-g", "-h", "-p", "-r", "-t", "-D", "-R", "-T", "-U", "--user", "--group", "--host", "--chdir", "--unset"))
# Of these -e and -x say nothing of variables: `echo -e "A=b"`, `grep -e A=b`.
_OF_TEXT = frozenset(("echo", "printf", "grep", "egrep", "fgrep", "zgrep", "rg", "sed", "perl", "awk", "read", "set", "curl"))
_BEFORE_SSH = frozenset(("sudo", "env", "nohup", "timeout", "nice", "sshpass"))
_SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "su"))
_SCRIPT_FLAG = re.compile(r"-[A-Za-z]*c|--command")
# A script in quotes of which the text is that of the script: `\$A` is what the inner shell is to see of it.
_SCRIPT = re.compile(r"(?:'(?P<single>[^']*)'|\"(?P<double>(?:[^\"\\`]|\\\$|\\\r?\n)*)\"|(?P<bare>[^'\"\\`\s]+))")
_OF_SSH = frozenset(f"-{c}" for c in "BbcDEeFIiJLlmOoPpQRSWw")
_OF_BATCH = re.compile(r"#(?:SBATCH\s(?:.*\s)?--export(?:=|\s+)|PBS\s(?:.*\s)?-v\s+)(?P<list>(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'])+)")
_PER_NODE = re.compile(r"#SBATCH\s(?:.*\s)?(?:--ntasks-per-node[= ]|--gpus-per-node[= ](?:\w+:)?|--gres[= ]gpu:(?:\w+:)?)(?P<count>\d{1,5})\b")
# `torchrun --nnodes $WORLD_SIZE` knows what it counts.
_COUNTS_HOSTS = re.compile(r"--(?:nnodes|num[_-]machines|num[_-]nodes)[= ]+\"?\$\{?WORLD_SIZE\b")
_LOADS_ROCM = re.compile(r"^[ \t]*(?:module|ml)[ \t][^#\n;&|]*\brocm(?:/(?P<release>[\w.]+))?(?=[ \t\r;&|]|$)", re.MULTILINE)
_MOST_HOPS = 20
_USED = re.compile(r"\$\{?(\w+)")


def parse(
    text: str, *, begin: int = 0, finish: int | None = None, indent: int = 0, for_others: bool = False, lines: Lines | None = None
) -> list[Item]:
    """`begin` and `finish` cut a script out of a larger text, of which `lines` are known and where each line has `indent` spaces ahead of it.

    `for_others`: what it sets is read by whoever loads it, also without `export`. Settings come in their order in the text.
    """
    lines = lines or Lines(text=text)
    finish = len(text) if finish is None else finish
    items: list[Item] = []
    exported: set[str] = set()
    all_exported = for_others
    # By name which settings were made since the last program ran, and which of all may be unset: what a program got before stays.
    since: dict[str, list[int]] = {}
    undone: set[int] = set()
    ran = commented = depth = 0
    cutter = Cutter(text, finish, indent)
    seen = _Seen(lines=lines, indent=indent)
    arrays: list[Word] = []
    for words in cutter.commands(begin):
        for one in _of_comments(cutter.comments[commented:], lines):
            if not ran:
                since.setdefault(one.name, []).append(len(items))
            items.append(one)
        commented = len(cutter.comments)
        found = list(_of_command(words, seen))
        for word in words:
            if word.raw not in RESERVED and word.raw not in _DEPTH:
                break
            depth = max(0, depth + _DEPTH.get(word.raw, 0))
        rest = [w for w in words if w.raw not in RESERVED]
        first = rest[0].raw if rest else ""
        if first in DECLARING and _exports(rest):
            exported |= {w.raw for w in rest[1:] if _NAME.fullmatch(w.raw)} | {f.name for f in found}
        elif first == "unset" and not depth:
            undone.update(i for w in rest[1:] for i in since.pop(w.raw, ()))
        all_exported |= first == "set" and any(w.raw in ("-a", "-o", "allexport") for w in rest[1:])
        if rest and first not in _FOR_ITSELF and not first.startswith("((") and not all(ASSIGNMENT.match(w.raw) for w in rest):
            ran += 1
            since.clear()
        for new in found:
            since.setdefault(new.name, []).append(len(items))
            items.append(new)
        arrays += [w for w in words if w.elements is not None]
    items = [item for i, item in enumerate(items) if i not in undone or isinstance(item, Said)]
    items += _of_comments(cutter.comments[commented:], lines)
    items += seen.items
    # What a script sets for itself, and hands on as `--master-addr $MASTER_ADDR`, does its work.
    exported |= set(_USED.findall(text, begin, finish))
    for i, item in enumerate(items):
        if isinstance(item, Found) and not item.exported and (not ran or all_exported or item.name in exported):
            items[i] = replace(item, exported=True)
    for array in arrays:
        items += _of_array(array, seen)
    items += (
        Said(name="per_node", value=m["count"], line=lines.of(start)) for start, stop in cutter.comments if (m := _PER_NODE.match(text, start, stop))
    )
    items += (Said(name="rocm", value=m["release"] or "", line=lines.of(m.start())) for m in _LOADS_ROCM.finditer(text, begin, finish))
    items += (Said(name="nnodes", value="WORLD_SIZE", line=lines.of(m.start())) for m in _COUNTS_HOSTS.finditer(text, begin, finish))
    items += (Unclosed(what=what, line=lines.of(at)) for what, at in cutter.unclosed)
    return sorted(items, key=lambda item: item.at if isinstance(item, Found) else finish)


@dataclass(kw_only=True)
class _Seen:
    """What the scripts set that stand in a script's words."""

    lines: Lines
    indent: int
    items: list[Item] = field(default_factory=list)

    def script(self, word: Word) -> None:
        """Read a word as the script that another shell gets; what is quoted in it again is left."""
        found = _SCRIPT.fullmatch(word.raw)
        if found is None or found.lastgroup is None:
            return
        begin, finish = (word.start + at for at in found.span(found.lastgroup))
        self.items += parse(self.lines.text, begin=begin, finish=finish, indent=self.indent, lines=self.lines)


def _of_comments(comments: list[tuple[int, int]], lines: Lines) -> Iterator[Found]:
    """What the batch system's comments set."""
    for start, stop in comments:
        if batch := _OF_BATCH.match(lines.text, start, stop):
            yield from _of_list(batch.start("list"), batch["list"], lines.of(start), lines)


def _exports(words: list[Word]) -> bool:
    """Whether `export`, `declare -x` or the like hands on what it sets: `local` and `readonly` alone do not."""
    flags = "".join(w.raw[1:] for w in words[1:] if w.raw.startswith("-"))
    return "n" not in flags if words[0].raw == "export" else "x" in flags


def _of_command(words: list[Word], seen: _Seen) -> Iterator[Found | Said]:
    lines = seen.lines
    i = 0
    while i < len(words) and words[i].raw in RESERVED:
        i += 1
    body = words[i:]
    if not body:
        return
    line = lines.of(words[0].start)
    ahead = _ahead(body)
    plain = ahead == len(body)
    yield from (_found(word, line, lines, exported=not plain, alone=plain) for word in body[:ahead])
    if body[0].raw not in DECLARING:
        yield from _of_arguments(body[ahead:], line, seen)
        return
    named = [_assigned(word) for word in body[1:]]
    alone = all(n is not None or w.raw.startswith("-") for n, w in zip(named, body[1:], strict=True))
    exported = _exports(body)
    yield from (_found(word, line, lines, exported=exported, alone=alone) for word in named if word is not None)


def _ahead(words: list[Word]) -> int:
    """How many of a command's words are assignments ahead of it."""
    return next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word.raw)), len(words))


def _assigned(word: Word) -> Word | None:
    """The assignment that a word is, without quotes around it: `export "A=b"`."""
    quote = re.match(r"['\"]?(?=[A-Za-z_]\w*\+?=)", word.raw)
    if quote is None or not quote[0]:
        return word if quote is not None else None
    return Word(raw=word.raw[1:].removesuffix(quote[0]), start=word.start + 1, end=word.end)


def _of_arguments(words: list[Word], line: int | None, seen: _Seen, hops: int = 0) -> Iterator[Found | Said]:
    """What a program is handed: `env A=b`, `-x A=b`, `--export=ALL,A=b`, and the scripts that shells are, `bash -c 'A=b cmd'`.

    Without `line` each setting has the one of its own flag or word. `hops` counts the hosts that ssh has gone through to get there.
    """
    lines = seen.lines
    in_env = of_deepspeed = False
    # Whether the words so far only start the program that follows: `sudo timeout 5 ssh`.
    only_start = True
    of_shell = ""
    previous: Word | None = None
    if words and words[0].raw.rpartition("/")[2] in _OF_TEXT:
        return
    if words and words[0].raw == "eval":
        for word in words[1:]:
            seen.script(word)
        return
    for n, word in enumerate(words):
        raw = word.raw
        before = "" if previous is None else previous.raw
        assigned = _assigned(word)
        program = raw.rpartition("/")[2]
        # No `--rsh ssh`.
        if program == "ssh" and only_start and not before.startswith("--"):
            if hops == _MOST_HOPS:
                raise UnhangError(f"more than {_MOST_HOPS} hosts, each reached by ssh from the one before: that is no script")
            yield from _of_remote(words[n + 1 :], line, seen, hops + 1)
            return
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
        elif in_env and assigned is not None:
            yield _found(assigned, line, lines)
        elif in_env and not raw.startswith("-") and before not in _TAKES_WORD:
            in_env = False
        if assigned is not None and before in _FLAGS:
            yield _found(assigned, line, lines, flag=previous)
        elif (m := re.match(r"(?:--env|-e|--setenv)=?(?P<quote>['\"]?)(?=[A-Z_][A-Z0-9_]*=)", raw)) is not None:
            named = Word(raw=raw[m.end() :].removesuffix(m["quote"]), start=word.start + m.end(), end=word.end)
            yield _found(named, line, lines)
        elif before in _PAIR_FLAGS and _NAME.fullmatch(raw) and n + 1 < len(words):
            pair = Word(raw=f"{raw}={words[n + 1].raw}", start=word.start, end=words[n + 1].end)
            yield _found(pair, line, lines, flag=previous)
        elif (m := re.match(r"(?P<quote>['\"]?)--export=", raw)) is not None:
            yield from _of_list(word.start + m.end(), raw[m.end() :], line, lines, quote=m["quote"])
        elif before == "--export":
            yield from _of_list(word.start, raw, line, lines)
        elif (m := re.match(r"--ddp[_-]timeout(?:=(?P<value>\d+))?$", raw)) is not None:
            given = m["value"] or (words[n + 1].raw if n + 1 < len(words) else "")
            if given.isdigit():
                yield Said(name="ddp_timeout", value=given, line=lines.of(word.start))
        elif raw in ("--hostfile", "-H") and of_deepspeed:
            yield Said(name="launcher", value="deepspeed", line=lines.of(word.start))
        of_deepspeed = of_deepspeed or program == "deepspeed"
        is_ahead = raw in _BEFORE_SSH or raw.startswith("-") or raw[:1].isdigit() or ASSIGNMENT.match(raw) is not None or before in _TAKES_WORD
        only_start = only_start and is_ahead
        previous = word


def _of_remote(words: list[Word], line: int | None, seen: _Seen, hops: int) -> Iterator[Found | Said]:
    """What stands behind `ssh`: options, the host, and the command."""
    at = 0
    while at < len(words) and words[at].raw.startswith("-"):
        at += 2 if words[at].raw in _OF_SSH else 1
    rest = words[at + 1 :]
    if len(rest) == 1 or (rest and rest[0].raw[:1] in ("'", '"') and _assigned(rest[0]) is None):
        seen.script(rest[0])
        rest = rest[1:]
    ahead = _ahead(rest)
    yield from (_found(word, line, seen.lines) for word in rest[:ahead])
    yield from _of_arguments(rest[ahead:], line, seen, hops)


def of_words(words: list[Word], lines: Lines) -> list[Item]:
    """A command that no shell sees, word by word: `["env", "A=b", "torchrun"]`."""
    seen = _Seen(lines=lines, indent=0)
    return [*_of_arguments(words, lines.of(words[0].start), seen), *seen.items]


def _of_array(array: Word, seen: _Seen) -> Iterator[Found | Said]:
    """What stands in `ENVS=(A=b C=d)` or `ARGS=(-x A=b)`, each on its own line."""
    elements = list(array.elements or ())
    found = list(_of_arguments(elements, None, seen))
    yield from found
    taken = {f.at for f in found if isinstance(f, Found)}
    named = filter(None, map(_assigned, elements))
    yield from (_found(word, None, seen.lines) for word in named if word.start not in taken)


def _found(word: Word, line: int | None, lines: Lines, *, flag: Word | None = None, exported: bool = True, alone: bool = False) -> Found:
    match = ASSIGNMENT.match(word.raw)
    assert match is not None
    return Found(
        name=match["name"],
        value=None if word.elements is not None else unquoted(word.raw[match.end() :]),
        line=lines.of((flag or word).start) if line is None else line,
        at=word.start,
        exported=exported,
        alone=alone,
    )


def _of_list(at: int, raw: str, line: int | None, lines: Lines, quote: str = "") -> Iterator[Found]:
    """`ALL,A=b,"C=d e"`, which begins at `at` and within `quote`."""
    given = list(pieces(raw, quote))
    # The quotes that Slurm itself takes away: a comma in them divides nothing.
    commas, inner = [], ""
    for n, (_, _, c) in enumerate(given):
        if c in ("'", '"') and (not inner or inner == c):
            inner = "" if inner else c
        elif c == "," and not inner:
            commas.append(n)
    for before, after in pairwise([-1, *commas, len(given)]):
        item = given[before + 1 : after]
        match = ASSIGNMENT.match("".join(c for *_, c in item))
        if match is None or not raw.startswith(match[0], item[0][0]):
            continue
        begin, value = at + item[0][0], match.string[match.end() :]
        yield Found(
            name=match["name"],
            value=value[1:-1] if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1] else value,
            line=lines.of(begin) if line is None else line,
            at=begin,
        )
