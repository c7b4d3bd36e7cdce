"""`ENV A=b C="d e"` and `ENV A b` of Dockerfiles, and what the commands in them set: `RUN`, `CMD`, `ENTRYPOINT`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from unhang.files import shell
from unhang.files.found import Found, Item, Lines
from unhang.files.shell_words import Word, unquoted

_INSTRUCTION = re.compile(r"[ \t]*(?:ONBUILD[ \t]+)?(?P<name>ENV|ARG|RUN|CMD|ENTRYPOINT)[ \t]+(?:--[a-z]+(?:=\S*)?[ \t]+)*", re.IGNORECASE)
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_ALL_HEREDOC = re.compile(r"<<-?(?P<quote>['\"]?)\w+(?P=quote)[ \t\r]*\n")
_EXEC = re.compile(r"\[\s*\"")
_JSON_WORD = re.compile(r'"(?P<word>[^"\\\n]*)"')
_PAIR = re.compile(r"(?:[ \t]|\\\r?\n(?:[ \t]*#.*\n)*)*(?P<name>[A-Za-z_][\w.-]*)=(?P<value>(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\[^\n\r]|[^\s\\\"'])*)")
_USED = re.compile(r"\$\{?(\w+)")
_OLD = re.compile(r"(?P<name>[A-Za-z_]\w*)[ \t]+(?P<value>.*)")


def parse(text: str) -> Iterator[Item]:
    lines = Lines(text=text)
    used = set(_USED.findall(text))
    row = 0
    rows = text.split("\n")
    while row < len(rows):
        first = row
        while row < len(rows) - 1 and (rows[row].rstrip().endswith("\\") or (row > first and rows[row].lstrip().startswith("#"))):
            row += 1
        instruction = _INSTRUCTION.match(rows[first])
        if instruction is not None:
            begin = lines.starts[first] + instruction.end()
            if here := _HEREDOC.search(rows[row]):
                # Where it ends with the file, the shell's reader says so.
                row = next((n for n in range(row + 1, len(rows)) if rows[n].strip() == here["end"]), len(rows) - 1)
            end = lines.starts[row] + len(rows[row])
            name = instruction["name"].upper()
            if name == "ENV":
                yield from _of_env(text, begin, end, first)
            elif name == "ARG":
                # `ENV A=$A` hands it on.
                yield from (replace(one, only_in_build=one.name not in used) for one in _of_arg(text, begin, end, first))
            else:
                for item in _of_command(text, begin, end, lines):
                    # `RUN A=b make` is meant for that command.
                    yield replace(item, only_in_build=name == "RUN" and item.alone) if isinstance(item, Found) else item
        row += 1


def _of_command(text: str, begin: int, end: int, lines: Lines) -> list[Item]:
    """`RUN`, `CMD` and `ENTRYPOINT`: a script, or a list of words that no shell sees."""
    if here := _ALL_HEREDOC.match(text, begin, end):
        return shell.parse(text, begin=here.end(), finish=text.rfind("\n", here.end() - 1, end) + 1, lines=lines)
    if not _EXEC.match(text, begin, end):
        return shell.parse(text, begin=begin, finish=end, lines=lines)
    words = [
        # A word with blanks is taken for quoted, as it is in JSON.
        Word(raw=m[0] if re.search(r"[\s;&|]", m["word"]) else m["word"], start=m.start() + quoted, end=m.end() - quoted)
        for m in _JSON_WORD.finditer(text, begin, end)
        for quoted in [not re.search(r"[\s;&|]", m["word"])]
    ]
    return shell.of_words(words, lines) if words else []


def _of_arg(text: str, begin: int, end: int, line: int) -> list[Found]:
    """`ARG A=b`; without a value it is told by who builds."""
    return [] if "=" not in text[begin:end] else _of_env(text, begin, end, line)


def _of_env(text: str, begin: int, end: int, line: int) -> list[Found]:
    found = []
    at = begin
    while pair := _PAIR.match(text, at, end):
        at = pair.end()
        found.append(Found(name=pair["name"], value=unquoted(pair["value"]), line=line))
    if not found and (old := _OLD.match(text, begin, end)):
        found.append(Found(name=old["name"], value=old["value"].strip(), line=line))
    return found
