"""The words of a shell script, cut as bash cuts them: quotes, escapes, continuation lines, substitutions, arithmetic, arrays, here-documents.

Nothing is expanded. What stands in a here-document is data and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from unhang.model import frozen

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\+?=")
# Behind these another command begins.
_BEFORE_COMMANDS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "in"))
_OPERATORS = ";&|()\n"
_BREAKS = frozenset(" \t\r<>" + _OPERATORS)
_BEFORE_COMMENTS = frozenset(" \t\n;&|()")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\033", "E": "\033", "f": "\f", "v": "\v"}
_CODED = re.compile(r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3})|[uU](?P<point>[0-9A-Fa-f]{1,4}))")
_MAX_DEPTH = 60
_LONGEST_ARITHMETIC = 4096
# Characters that are read in vain for the end of arithmetic, which would make a file of brackets take minutes.
_IN_VAIN = 1_000_000


@frozen
class Word:
    """`elements` are those of `NAME=(...)`, which is one word."""

    raw: str
    start: int
    end: int
    elements: tuple[Word, ...] | None = None


class Cutter:
    """One script: `text` up to `finish`, of which each line begins with `indent` spaces that are not its own.

    As `commands` goes on, `comments` and `unclosed` (what is open at the end, and where it began) fill.
    """

    def __init__(self, text: str, finish: int, indent: int = 0) -> None:
        self.text, self.finish, self.indent = text, finish, indent
        self.comments: list[tuple[int, int]] = []
        self.unclosed: list[tuple[Literal["quote", "bracket", "here-document"], int]] = []
        self._ends: dict[tuple[int, bool], int] = {}
        self._depth = 0
        self._in_vain = 0

    def commands(self, begin: int) -> Iterator[list[Word]]:
        """The words of each simple command. Redirections are no words."""
        text, finish = self.text, self.finish
        words: list[Word] = []
        heredocs: list[tuple[str, bool, int]] = []
        is_target = is_test = False
        i = begin
        while i < finish:
            c = text[i]
            if width := self._continued(i):
                i += width
            elif c == "#" and (i == begin or text[i - 1] in _BEFORE_COMMENTS):
                stop = self._line_end(i)
                self.comments.append((i, stop))
                i = stop
            elif text.startswith("((", i) and all(w.raw in _BEFORE_COMMANDS or w.raw == "for" for w in words) and (end := self._arithmetic(i)):
                # `if ((x)) then` needs no ; between.
                yield [*words, self._word(i, end)]
                words, is_test = [], False
                i = end
            elif text.startswith("&>", i):
                i += 1
            elif c in _OPERATORS:
                if words:
                    yield words
                    words, is_test = [], False
                is_target = False
                i = self._behind_operator(i, heredocs)
            elif c in " \t\r":
                i += 1
            elif c in "<>":
                i, is_target = self._redirected(i, heredocs)
            else:
                end = self._end_of_word(i)
                is_number = text[i:end].isdigit() and text[end : end + 1] in ("<", ">")
                if ASSIGNMENT.fullmatch(text, i, min(end, finish)) and text.startswith("(", end) and end < finish:
                    word, end = self._array(i, end)
                else:
                    word = self._word(i, end)
                if end > finish:
                    self.unclosed.append(("bracket" if word.elements is not None else "quote", i))
                if not is_target and not is_number:
                    words.append(word)
                    is_test = is_test or word.raw == "[["
                is_target = False
                i = end
                if word.raw == "]]" and is_test:
                    yield words
                    words, is_test = [], False
        if words:
            yield words
        for _, _, at in heredocs:
            self.unclosed.append(("here-document", at))

    def _word(self, start: int, end: int) -> Word:
        end = min(end, self.finish)
        return Word(raw=self.text[start:end], start=start, end=end)

    def _array(self, start: int, bracket: int) -> tuple[Word, int]:
        """The word, and where it ends: behind `finish` where nothing closes it."""
        text, finish = self.text, self.finish
        elements: list[Word] = []
        i = bracket + 1
        while i < finish:
            c = text[i]
            if width := self._continued(i):
                i += width
            elif c == "#" and text[i - 1] in _BEFORE_COMMENTS:
                stop = self._line_end(i)
                self.comments.append((i, stop))
                i = stop
            elif c == ")":
                return Word(raw=text[start : i + 1], start=start, end=i + 1, elements=tuple(elements)), i + 1
            elif c in _BREAKS:
                i += 1
            else:
                end = self._end_of_word(i)
                elements.append(self._word(i, end))
                i = end
        return Word(raw=text[start:finish], start=start, end=finish, elements=tuple(elements)), finish + 1

    def _continued(self, at: int) -> int:
        """How long the backslash and the end of its line are, 0 where no line goes on."""
        if self.text.startswith("\\\n", at):
            return 2
        return 3 if self.text.startswith("\\\r\n", at) else 0

    def _line_end(self, at: int) -> int:
        stop = self.text.find("\n", at, self.finish)
        return self.finish if stop < 0 else stop

    def _redirected(self, at: int, heredocs: list[tuple[str, bool, int]]) -> tuple[int, bool]:
        """Where it goes on, and whether the next word is a file."""
        text = self.text
        if text.startswith("<<<", at):
            return at + 3, True
        if text.startswith("<<", at):
            dashed = text.startswith("-", at + 2)
            begin = at + 2 + dashed
            while text[begin : begin + 1] in (" ", "\t"):
                begin += 1
            end = min(self._end_of_word(begin), self.finish)
            if end > begin:
                heredocs.append((unquoted(text[begin:end]), dashed, at))
            return max(begin, end), False
        if text.startswith("(", at + 1):
            return at + 1, False
        return at + (2 if text[at + 1 : at + 2] in (">", "&", "|") else 1), True

    def _behind_operator(self, at: int, heredocs: list[tuple[str, bool, int]]) -> int:
        """Behind one character of it; where it ends a line, behind the here-documents that were waiting for that, which are then none any more."""
        if self.text[at] != "\n" or not heredocs:
            return at + 1
        waiting = [*heredocs]
        heredocs.clear()
        return self._behind_heredocs(at + 1, waiting)

    def _behind_heredocs(self, at: int, heredocs: list[tuple[str, bool, int]]) -> int:
        for delimiter, dashed, began in heredocs:
            while at < self.finish:
                stop = self._line_end(at)
                line = self.text[at:stop].rstrip("\r")
                at = min(stop + 1, self.finish)
                line = line[self.indent :] if not line[: self.indent].strip() else line
                if (line.lstrip("\t") if dashed else line) == delimiter:
                    break
            else:
                self.unclosed.append(("here-document", began))
        return at

    def _end_of_word(self, at: int) -> int:
        """Behind `finish` where a quote or bracket in it is not closed. So with all below."""
        text, finish = self.text, self.finish
        i = at
        while i < finish:
            c = text[i]
            if width := self._continued(i):
                if i + width >= finish or text[i + width] in _BREAKS:
                    return i
                i += width
            elif c == "\\":
                i = min(i + 2, finish)
            elif c in "'\"`":
                i = self._behind_quote(i)
            elif c == "$" and text[i + 1 : i + 2] in ("(", "{", "'"):
                i = self._behind_dollar(i)
            elif c in _BREAKS:
                return i
            else:
                i += 1
        return i

    def _behind_quote(self, at: int) -> int:
        text, finish = self.text, self.finish
        quote = text[at]
        if quote == "'":
            stop = text.find("'", at + 1, finish)
            return finish + 1 if stop < 0 else stop + 1
        i = at + 1
        while i < finish:
            c = text[i]
            if c == "\\":
                i += 2
            elif c == quote:
                return i + 1
            elif quote == '"' and c == "`":
                i = self._behind_quote(i)
            elif quote == '"' and c == "$" and text[i + 1 : i + 2] in ("(", "{"):
                i = self._behind_dollar(i, quoted=True)
            else:
                i += 1
        return finish + 1

    def _behind_dollar(self, at: int, *, quoted: bool = False) -> int:
        """Behind `$(...)`, `$((...))`, `${...}` or `$'...'`."""
        key = (at, quoted)
        if key not in self._ends:
            self._depth += 1
            self._ends[key] = self.finish + 1 if self._depth > _MAX_DEPTH else self._of_dollar(at, quoted)
            self._depth -= 1
        return self._ends[key]

    def _of_dollar(self, at: int, quoted: bool) -> int:
        text, finish = self.text, self.finish
        if text[at + 1] == "{":
            return self._behind_brace(at, quoted)
        if text[at + 1] == "(":
            return (self._arithmetic(at + 1) if text.startswith("((", at + 1) else 0) or self._behind_substitution(at + 2)
        i = at + 2
        while i < finish:
            if text[i] == "'":
                return i + 1
            i += 2 if text[i] == "\\" else 1
        return finish + 1

    def _behind_brace(self, at: int, quoted: bool, *, single: bool = True) -> int:
        """In bash ' is a quote also in `"${a:-'b'}"`; in other shells `"${a:-it's}"` is whole."""
        text, finish = self.text, self.finish
        i = at + 2
        while i < finish:
            c = text[i]
            if c == "\\":
                i += 2
            elif c == "}":
                return i + 1
            elif c in '"`' or (c == "'" and single):
                i = self._behind_quote(i)
            elif c == "$" and text[i + 1 : i + 2] in ("(", "{"):
                i = self._behind_dollar(i, quoted=quoted)
            else:
                i += 1
        return self._behind_brace(at, quoted, single=False) if quoted and single else finish + 1

    def _arithmetic(self, at: int) -> int:
        """Behind `((...))`; 0 where that is no arithmetic but a subshell in another: the inner bracket then closes before the outer one."""
        text = self.text
        stop = min(self.finish, at + _LONGEST_ARITHMETIC) if self._in_vain < _IN_VAIN else at
        depth, i = 1, at + 2
        while i < stop:
            c = text[i]
            if c == "\\":
                i += 2
                continue
            if c in '"`':
                i = self._behind_quote(i)
                continue
            if c == "$" and text[i + 1 : i + 2] in ("(", "{"):
                i = self._behind_dollar(i)
                continue
            depth += (c == "(") - (c == ")")
            i += 1
            if not depth:
                if text.startswith(")", i) and i < self.finish:
                    return i + 1
                break
        self._in_vain += max(0, min(i, stop) - at)
        return 0

    def _behind_substitution(self, at: int) -> int:
        """`at` is behind the bracket that opens."""
        text, finish = self.text, self.finish
        depth, is_first = 1, True
        cases: list[int] = []
        heredocs: list[tuple[str, bool, int]] = []
        i = at
        while i < finish:
            c = text[i]
            if width := self._continued(i):
                i += width
            elif c == "#" and text[i - 1] in _BEFORE_COMMENTS:
                i = self._line_end(i)
            elif is_first and text.startswith("((", i) and (end := self._arithmetic(i)):
                i, is_first = end, False
            elif c in _OPERATORS:
                # The bracket behind a pattern of `case` opens nowhere.
                if c == "(":
                    depth += 1
                elif c == ")" and not (cases and cases[-1] == depth):
                    depth -= 1
                    if not depth:
                        return i + 1
                is_first = True
                i = self._behind_operator(i, heredocs)
            elif c in " \t\r":
                i += 1
            elif c in "<>":
                i, _ = self._redirected(i, heredocs)
            else:
                end = self._end_of_word(i)
                raw = text[i:end]
                if is_first and raw == "case":
                    cases.append(depth)
                elif is_first and raw == "esac" and cases:
                    cases.pop()
                is_first = raw in _BEFORE_COMMANDS
                i = end
        return finish + 1


def unquoted(raw: str) -> str:
    """The value as the shell gives it; substitutions stand as they are."""
    return "".join(piece for _, _, piece in pieces(raw))


def pieces(raw: str, quote: str = "") -> Iterator[tuple[int, int, str]]:
    """Each character that the shell gives, or substitution as it stands: where it begins and ends in `raw`, and it.

    `quote` is the one that is open already.
    """
    cutter = Cutter(raw, len(raw))
    i = 0
    while i < len(raw):
        c, following = raw[i], raw[i + 1 : i + 2]
        end, given = i + 1, c
        if quote == "$'":
            if c == "'":
                quote, i = "", end
                continue
            if c == "\\" and following:
                coded = _CODED.match(raw, i)
                end, given = i + 2, _ESCAPES.get(following, following if following in "\\'\"?" else c + following)
                if coded is not None:
                    digits = coded["hex"] or coded["point"]
                    end, given = coded.end(), chr(int(digits, 16) if digits else int(coded["octal"], 8) & 0xFF)
        elif c == "$" and quote != "'" and following in ("(", "{"):
            end = min(cutter._behind_dollar(i, quoted=bool(quote)), len(raw))
            given = raw[i:end]
        elif c == "`" and quote != "'":
            end = min(cutter._behind_quote(i), len(raw))
            given = raw[i:end]
        elif c == "$" and following == "'" and not quote:
            quote, i = "$'", i + 2
            continue
        elif c == quote:
            quote, i = "", end
            continue
        elif c in "'\"" and not quote:
            quote, i = c, end
            continue
        elif c == "\\" and following and (not quote or (quote == '"' and following in '"\\$`\n')):
            end = i + 2
            given = "" if following == "\n" else following
        yield i, end, given
        i = end
