"""A long command over several lines, which a shell takes as it takes the one: cut behind operators, else at blanks with a backslash.

Nothing inside of quotes and brackets is cut, so that a long word stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_OPENS, _CLOSES = ("for", "while", "until", "if", "case"), ("done", "fi", "esac")
_GO_ON = ("|", "||", "&&")
_PAIRS = {"(": ")", "{": "}", "[": "]"}


def split(command: str, at_most: int) -> list[str]:
    """Lines of at most so many characters, as far as words allow; a comment at the end gets a line of its own."""
    if len(command) <= at_most or "\n" in command:
        return [command]
    words = list(_words(command))
    remark = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
    lines = [line for statement in _statements(words[:remark]) for line in _filled(statement, at_most)]
    return [*lines, *([" ".join(words[remark:])] if remark < len(words) else [])]


def _words(command: str) -> Iterator[str]:
    """At blanks outside of quotes and brackets."""
    open_: list[str] = []
    begin = i = 0
    while i < len(command):
        c, inside = command[i], open_[-1] if open_ else ""
        if c == "\\" and inside != "'":
            i += 2
            continue
        if c == inside:
            open_.pop()
        elif inside != "'" and ((c in "'`" and inside != '"') or c == '"' or (c in _PAIRS and (inside != '"' or command[i - 1 : i] == "$"))):
            open_.append(_PAIRS.get(c, c))
        elif c == " " and not open_:
            if i > begin:
                yield command[begin:i]
            begin = i + 1
        i += 1
    if begin < len(command):
        yield command[begin:]


def _statements(words: Sequence[str]) -> Iterator[list[str]]:
    """Each up to its `;`, a loop as a whole."""
    statement: list[str] = []
    depth = 0
    for word in words:
        statement.append(word)
        bare = word.rstrip(";")
        depth += (bare in _OPENS) - (bare in _CLOSES)
        if word.endswith(";") and not word.endswith((";;", "\\;")) and depth <= 0:
            yield [*statement[:-1], bare]
            statement = []
    if statement:
        yield statement


def _filled(words: Sequence[str], at_most: int) -> Iterator[str]:
    line: list[str] = []
    first = True
    for word in words:
        # Two for " \\" and as many for the indent.
        if line and word not in _GO_ON and sum(map(len, line)) + len(line) + len(word) + 2 + (0 if first else 2) > at_most:
            # Behind an operator the shell reads on by itself.
            cut = next((i for i in range(len(line) - 1, 0, -1) if line[i] in _GO_ON or line[i].endswith(";")), None)
            at = cut + 1 if cut is not None and cut >= len(line) // 2 else len(line)
            yield ("" if first else "  ") + " ".join(line[:at]) + ("" if line[at - 1] in _GO_ON or line[at - 1].endswith(";") else " \\")
            line, first = line[at:], False
        line.append(word)
    if line:
        yield ("" if first else "  ") + " ".join(line)
