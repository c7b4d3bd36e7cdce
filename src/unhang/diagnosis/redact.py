"""Credentials, taken out of everything that a verdict shows.

Launch scripts carry tokens in command lines and environments, tracebacks and logs repeat them, and verdicts are pasted into bug reports.
The rules are data: `redact.tsv` lists the names, and the values that need none; this module defines the separators and the forms of values.
Logs are untrusted: the time grows linearly with the length of a text. Repetitions are bounded, or consume what they match.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

from unhang.i18n import Text
from unhang.model import Remedy
from unhang.patterns import lazily
from unhang.printable import UNPRINTABLE, strip_unprintable

T = TypeVar("T")
Span = tuple[int, int]

HIDDEN = "[redacted]"

_QUOTE = r"\\{0,4}['\"]"
_BLANK = r"[ \t\u00a0\u2000-\u200a\u3000]"
# Separators of a name and its value; a number and a closing quote after the name are skipped.
_JOINERS = {
    # Behind its type, or a word of a sentence; before YAML's tag.
    "sign": rf"(?:{_BLANK}{{0,2}}[:(\[][ \t]?(?:str|string|(?:Optional\[)?(?:SecretStr|str\])|SecretStr\])[)\]]?|[ ](?:provided|given|used|is|was))?"
    rf"{_BLANK}{{0,80}}(?:={{1,3}}>?|:=|:(?!:)|：|%3[AD]|&#(?:61|58);|\\u003[ad]){_BLANK}{{0,80}}(?:[!&][!\w]{{1,20}}[ \t])?",
    "arrow": rf"{_BLANK}{{0,8}}(?:->|→){_BLANK}{{0,8}}",
    # A pod's environment.
    "item": rf",?\s{{0,40}}(?:\[[\w ]{{1,20}}\]:\s{{0,40}})?(?:{_QUOTE})?value(?:{_QUOTE})?\s{{0,4}}[:=][ \t]{{0,8}}",
    "element": r"</(?:name|key)>\s{0,40}<(?:value|string)>|>(?=[^<\n]{1,200}</)",
    "dots": r"[ \t]{0,2}(?:\.{4,200}|…{2,100})[ \t]{0,8}",
    "box": r"[ \t]{0,80}[|│┃║][ \t]{0,80}",
    "pair": r"(?<=['\"]),\s{0,40}(?=[bu]?\\{0,4}['\"])",
    "blank": r"[ \t]{1,80}(?![ \t-])",
}
# Which one it is.
_OF_WHICH = r"_?\d{1,2}|[-_](?:prod|dev|staging|test|read|write|r[ow]|old|new|main|openai|git(?:hub|lab)|wandb|hf|aws|azure|gcp|db|redis)"
_AFTER = (
    rf"(?:{_OF_WHICH})?(?P<closed>{_QUOTE}|&quot;|&#39;|%2[27])?\]?(?:" + "|".join(f"(?P<{name}>{joiner})" for name, joiner in _JOINERS.items()) + ")"
)
# Least length of a value without both letters and digits, unless only a setting can stand there.
_LEAST_CHARS = {"token": 6, "header": 8}
_MIXED = r"(?=[A-Za-z+/=_.~@!#%-]{0,64}\d)(?=[\d+/=_.~@!#%-]{0,64}[A-Za-z])"
# The form that a value must have if its name or its separator says little.
_LOOKS = {
    "mixed": lazily(rf"{_MIXED}[A-Za-z0-9+/=_-]{{8}}"),
    "random": lazily(r"(?=[A-Za-z+/]{0,64}\d)(?=[a-z\d+/]{0,64}[A-Z])(?=[A-Z\d+/]{0,64}[a-z])[A-Za-z\d+/]{20,128}={0,2}(?![\w./=-])"),
    "weak": lazily(_MIXED),
}
_END = r"(?=[\s,;&)\]}'\"\\\x1b<]|$)"
# Code in a traceback, settings that are off, unexpanded shell variables.
_NO_SECRET = lazily(
    rf"{re.escape(HIDDEN)}|(?:None|True|False|null|str|bytes|required|optional|missing){_END}|\*{{3,64}}{_END}|(?:yes|no)\)"
    rf"|<(?:set to|not set|unset|none|hidden)\b|Optional\[|[\w.]{{1,64}}\(\)|(?:self|args|cfg|config|opts?|torch)\."
    rf"|os\.(?:environ|getenv)|\$\(|\$\{{\w{{1,64}}\}}{_END}|(?-i:\$[A-Z_][A-Z0-9_]{{1,64}}){_END}",
    re.IGNORECASE,
)
_COUNT = lazily(rf"[-+]?\d{{1,9}}(?:\.\d{{0,9}})?(?:e[-+]?\d{{1,3}})?(?:ns|us|ms|s|k|m|b|kb|mb|gb|%)?{_END}", re.IGNORECASE)
# `SecretStr('`, `b"`, `['`.
_OPENING = lazily(r"(?:[A-Za-z_][\w.]{0,40}\(|(?P<list>\[)\s?)?[bBuUrRfF]{0,2}(?P<escape>\\{0,4})(?P<quote>['\"])")
_TO_QUOTE = {q: lazily(rf"[^\\\n{q}]*(?:\\.[^\\\n{q}]*)*") for q in "'\""}
_TO_ESCAPED_QUOTE = lazily(r"[^\\\n]*(?:\\(?!\\{0,3}['\"])[^\\\n]*)*")
# After a comma or an ampersand the next setting may begin; otherwise the value goes on.
_BARE = lazily(r"(?:[^\s'\",;&)\]}\\\x1b]|\\(?!['\"])|[,;&)\]}](?=[A-Za-z0-9])(?!\w{1,40}[ \t]?[=:]))+")
_CELL = lazily(r"[^\s|│┃║][^\n|│┃║]*(?<!\s)")
_TO_BRACKET = lazily(r"[^\]\n]+")
_TO_TAG = lazily(r"[^<\n]+")
_SCHEME = lazily(r"(?:bearer|basic|token|negotiate|api-?key)[ \t]{1,8}", re.IGNORECASE)
_LONG_SCHEME = lazily(r"(?:aws4-\S{1,30}|digest|oauth|signature)[ \t][^'\n]*", re.IGNORECASE)
# YAML's `password: |`, and a value on the line below its name.
_BELOW = lazily(r"(?P<block>[|>][-+\d]{0,2}[ \t]*)?\r?\n")
_DIGIT = re.compile(r"\d")
_MAX_BLOCK_LINES = 200
_MAX_HEAD_CHARS = 200
_NAME_CHARS = "-_.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_MAX_NAME_CHARS = 64
# The longest prefix of a name's word in the table, and one character for lookbehinds.
_MAX_BEFORE_CHARS = 18
_MAX_QUOTED_CHARS = 400
# `--header Authorization: Bearer abc`, `login NAME password abc`, `docker login -u NAME -p abc`.
_NAMING_WORDS = 6

# A password may contain a slash; a port is followed by a path.
_URL = lazily(r"://(?P<user>[^\s:/@'\"<>]{0,256}):?(?P<password>(?<=:)(?!\d{1,5}[/,])(?:[^\s/'\"<>]|/(?!/)){1,512})?@")
_TOKEN_AS_USER = lazily(r"(?=[^\d]{0,256}\d).{12,}|.{20,}")
# Also after an escaped line break and a percent-encoded character.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
_KEY_BEGINS, _KEY_ENDS = (lazily(rf"-----{word} [A-Z ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----") for word in ("BEGIN", "END"))
# What a terminal does not show, and line breaks where it wrapped a word that ends the next line.
# It begins with one class of characters: `re` skips to the next of them.
_UNSEEN = lazily(
    UNPRINTABLE.pattern[:-1] + r"\n\[\^#\\](?:(?:(?<=[\x1b\x9b])\[|(?<=\^)\[\[|(?<=#)033\[|(?<=\\)(?:x1b|u001b|033|e)\[|(?<=\[))[\d;]{1,16}m"
    r"|(?<=\x1b)\[[\d;?]{0,16}[ -/]?[@-~]|(?<![\n\r\v\f\[\^#\\])"
    r"|(?P<wrap>(?:(?<=[\w+/=.~%-]\n)|(?<=[\w+/=.~%-]\r)\n)(?=(?P<rest>[\w+/=.~%-]{1,400})['\",;)\]}]{0,3}[ \t\r]{0,8}(?:\n|\Z))))"
)
_MIN_WRAPPED_CHARS = 40
# What `env` prints below: the next variable.
_SETTING = lazily(r"[A-Za-z_]\w*=[^=]")
# Characters that `re.IGNORECASE` equates with an ASCII letter, and full-width ones.
_ASCII = str.maketrans({"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"} | {chr(0xFEE0 + c): chr(c) for c in range(0x21, 0x7F)})
# Hiding one credential may expose the next.
_MAX_PASSES = 5
# A command as Python prints it.
_LIST = lazily(r"\[(?:(?:'[^'\n]{0,400}'|\"[^\"\n]{0,400}\")(?:,[ \t\n]{0,40}|(?=\]))){2,200}\]")
_ITEM = lazily(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_OF_THE_SHELL = "'\"\\#$`;&|<>()*? \t\n"
# The rest of a word that was cut may be part of a credential.
_CUT_WORD = lazily(r"…[A-Za-z0-9_+/=.%~:@-]{20,}\S*")


class _Name:
    """What stands before the word of a name, and the kind of its value."""

    def __init__(self, before: str, no: str, kind: str) -> None:
        self.kind = kind
        self._before, self._no = (lazily(rf"(?:{pattern})\Z", re.IGNORECASE) if pattern else None for pattern in (before, no))
        self.follows = lru_cache(maxsize=1024)(self._follows)

    def _follows(self, head: str) -> bool:
        return (self._before is None or self._before.search(head) is not None) and (self._no is None or not self._no.search(head))


# A word, and a pattern that matches only around it.
_Values = list[tuple[str, re.Pattern[str]]]
# By a word, then by what matches from it to the value.
_Names = dict[str, dict[re.Pattern[str], list[_Name]]]


@cache
def _rules() -> tuple[re.Pattern[str], _Values, _Names]:
    """The table: a pattern that finds a word of any rule, the rules for values, and those for names."""
    table = [line.split("\t") for line in Path(__file__).with_name("redact.tsv").read_text("utf-8").splitlines() if not line.startswith("#")]
    let = {"QUOTE": _QUOTE} | {row[1]: row[2] for row in table if row[0] == "let"}
    values, names, ends = _Values(), _Names(), dict[str, re.Pattern[str]]()
    for what, word, *row in table:
        row = [re.sub(r"\{([A-Z]+)\}", lambda m: let[m[1]], cell) for cell in row]
        if what == "key":
            pattern = lazily(f"{_START}(?:{'|'.join(map(re.escape, word.split()))}){row[0]}")
            values += [(key.lower(), pattern) for key in word.split()]
        elif what == "value":
            pattern = lazily(row[1], re.IGNORECASE if row[0] == "i" else 0)
            values += [(one, pattern) for one in word.split("|")]
        elif what == "name":
            end = ends.setdefault(row[2], lazily(row[2] + _AFTER, re.IGNORECASE))
            names.setdefault(word, {}).setdefault(end, []).append(_Name(row[0], row[1], row[3]))
    # Grouped by their first letters: `re` tries alternatives one after the other.
    by_letter = groupby(sorted({"://", *names, *(word for word, _ in values)}), key=lambda word: word[0])
    return lazily("|".join(f"{re.escape(c)}(?:{'|'.join(re.escape(word[1:]) for word in words)})" for c, words in by_letter)), values, names


def redact(text: str) -> str:
    """Replace the credentials in a text and keep everything else, the number of lines included. Idempotent.

    A text that begins with `…` directly before a long word was cut inside that word, which is hidden.
    """
    if text.startswith("…") and (found := _CUT_WORD.match(text)):
        text = f"…{HIDDEN}{text[found.end() :]}"
    for _ in range(_MAX_PASSES):
        before, text = text, _hidden(text)
        if text == before:
            break
    return text


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """Redact a command line word by word; the words before one may name it (`--token`, `wandb login`)."""
    shown = []
    for i, word in enumerate(words):
        clean = redact(word)
        named = redact(" ".join([*words[max(0, i - _NAMING_WORDS) : i], word]))
        if not named.endswith(clean):
            # Of `me:secret` only what is behind the colon goes; of several words all.
            end = named.rpartition(" ")[2]
            clean = end if " " not in word and end.endswith(HIDDEN) else HIDDEN
        shown.append(clean)
    return tuple(shown)


def redact_data(data: T) -> T:
    """Data (a verdict, an examination, a record) with every text in it redacted, and without characters that act on a terminal."""
    clean: T = _redacted(data)
    return clean


def _hidden(text: str) -> str:
    found = [*_credentials(text), *_in_lists(text)]
    # Invisible characters split names and values: search also without them.
    if cuts := [m.span() for m in _UNSEEN.finditer(text) if m["wrap"] is None or _is_wrapped(text, m)]:
        found += _without(text, cuts)
    pieces, done = list[str](), 0
    for start, end in sorted(found):
        if end > done:
            pieces.append(text[done:start])
            lines = text[max(done, start) : end].split("\n")
            # Two that overlap are one.
            if start < done:
                lines[0] = ""
            pieces.append("\n".join(line[: len(line) - len(line.lstrip())] + HIDDEN if line.strip() else line for line in lines))
            done = end
    return "".join([*pieces, text[done:]])


def _in_lists(text: str) -> Iterator[Span]:
    for found in _LIST.finditer(text) if "['" in text or '["' in text else ():
        items = [*_ITEM.finditer(text, *found.span())]
        words = [item[item.lastindex or 0] for item in items]
        for item, word, shown in zip(items, words, redact_command(words), strict=True):
            if word and shown != word:
                yield item.span(item.lastindex or 0)


def _is_wrapped(text: str, end: re.Match[str]) -> bool:
    width = end.start() - text.rfind("\n", 0, end.start()) - 1
    return width >= max(_MIN_WRAPPED_CHARS, len(end["rest"])) and not _SETTING.match(end["rest"])


def _without(text: str, cuts: Sequence[Span]) -> Iterator[Span]:
    """The credentials of a text without its `cuts`, as spans of the whole text."""
    gone = [0, *accumulate(end - start for start, end in cuts)]
    places = [start - before for (start, _), before in zip(cuts, gone, strict=False)]
    pieces = [text[end:start] for end, start in zip((0, *(end for _, end in cuts)), (*(start for start, _ in cuts), len(text)), strict=True)]
    for start, end in _credentials("".join(pieces)):
        yield start + gone[bisect_right(places, start)], end + gone[bisect_left(places, end)]


def _credentials(text: str) -> Iterator[Span]:
    text = text if text.isascii() else text.translate(_ASCII)
    small, at = text.lower(), 0
    any_word, values_by_word, names_by_word = _rules()
    if any_word.search(small) is None:
        return
    while (begin := _KEY_BEGINS.search(text, at) if "PRIVATE KEY" in text else None) is not None:
        end = _KEY_ENDS.search(text, begin.end())
        at = len(text) if end is None else end.end()
        yield begin.start(), at
    for start, stop in _lines_with(small, "://"):
        for found in _URL.finditer(text, start, stop):
            if _TOKEN_AS_USER.fullmatch(found["user"]):
                yield found.span("user")
            if found["password"]:
                yield found.span("password")
    for word, pattern in [value for value in values_by_word if value[0] in small]:
        for start, stop in _lines_with(small, word):
            for found in pattern.finditer(text, start, stop):
                yield found.end("keep") if "keep" in pattern.groupindex else found.start(), found.end()
    for core, ends in names_by_word.items():
        at = small.find(core)
        while at >= 0:
            head = text[max(0, at - _MAX_BEFORE_CHARS) : at]
            named = ((name.kind, lead) for end, names in ends.items() if (lead := end.match(text, at)) for name in names if name.follows(head))
            values = next(filter(None, (_values(text, at, kind, lead) for kind, lead in named)), ())
            yield from values
            # Continue after what was hidden: reading it again would be quadratic.
            at = small.find(core, values[-1][1] if values else at + len(core))


def _lines_with(small: str, word: str) -> Iterator[Span]:
    """The lines that contain a word, each with the next two: a credential may stand below its name."""
    at = small.find(word)
    while at >= 0:
        start, end = small.rfind("\n", 0, at) + 1, at
        stops = []
        for _ in range(3):
            end = small.find("\n", end) + 1 or len(small)
            stops.append(end)
        yield start, end
        at = small.find(word, stops[0])


def _values(text: str, at: int, kind: str, found: re.Match[str]) -> Sequence[Span]:
    """The span of each line of a name's credential. The name's word begins at `at`; `found` reaches from there to the value."""
    head = text[max(0, at - _MAX_NAME_CHARS) : at]
    word_at, joiner = at - len(head) + len(head.rstrip(_NAME_CHARS)), found.lastgroup or ""
    word, before = text[word_at : found.start(joiner)], text[max(0, word_at - _MAX_NAME_CHARS) : word_at]
    flag, capitals = word.startswith("-"), word.isupper()
    # A line begins behind a launcher's prefix, too.
    begins = before.rstrip(" \t-").endswith("]:") or before.strip(" \t")[-1:] in ("", "\n")
    is_named = flag or word.count(".") > 1 or (capitals and ("_" in word or text[found.end() : found.end() + 1] in ("'", '"')))
    if (
        (joiner == "pair" and not (flag or capitals or before.rstrip("bu'\"\\").endswith(("(", "["))))
        or (joiner == "item" and not (found["closed"] or capitals or before.endswith("<") or set(",\n") & set(found[joiner])))
        or (joiner == "box" and before.strip(" \t")[-1:] not in ("", "\n", "|", "│", "┃", "║"))
        or (joiner == "blank" and not is_named and found[joiner] == " " and not begins)
    ):
        return ()
    looks, is_setting = _LOOKS.get(kind), flag or joiner in ("item", "element")
    is_unclear = joiner == "blank" or "[" in before[-4:] or kind in ("token", "counted")
    if looks is None and is_unclear and joiner != "sign" and not is_setting:
        looks = _LOOKS["weak"]
    if joiner == "sign" and (below := _BELOW.match(text, found.end())):
        return _below(text, word_at, below, looks or (None if kind in ("password", "key") else _LOOKS["weak"]), closed=bool(found["closed"]))
    start, end = _value(text, found, kind, looks, word_at, is_setting=is_setting or capitals)
    return ((start, end),) if start < end else ()


def _value(text: str, name: re.Match[str], kind: str, looks: re.Pattern[str] | None, word_at: int, *, is_setting: bool) -> Span:
    """The span of the credential after a name; an empty one if there is none."""
    at = first = name.end()
    if opening := _OPENING.match(text, at):
        first = opening.end()
    numbers = kind in ("token", "counted")
    code_at = first if numbers or (opening is not None and opening["list"]) else at
    begins_code = kind != "password" and text[code_at : code_at + 1] in ("[", "{", "(", "<")
    is_plural = name[0][:9].lower().startswith(("keys", "passwords"))
    if begins_code or (looks is not None and not looks.match(text, first)) or ((numbers or is_plural) and _COUNT.match(text, first)):
        return at, at
    if _NO_SECRET.match(text, first) or (first != at and _NO_SECRET.match(text, at)):
        return at, at
    if opening is not None and opening["list"]:
        end = _TO_BRACKET.match(text, first)
    elif opening is not None:
        end = (_TO_ESCAPED_QUOTE if opening["escape"] else _TO_QUOTE[opening["quote"]]).match(text, first)
    elif name["dots"] or name["box"]:
        end = _CELL.match(text, at)
    elif name["element"]:
        end = _TO_TAG.match(text, at)
    elif "==" in name[0]:
        return at, at
    else:
        if kind == "header":
            if whole := _LONG_SCHEME.match(text, at):
                return whole.span()
            if scheme := _SCHEME.match(text, at):
                first = scheme.end()
                if text.startswith(HIDDEN, first):
                    return at, at
        quote = text[max(0, word_at - 1) : word_at]
        if not name["closed"] and quote in ("'", '"'):
            # `'NAME=some words'`, quoted as a whole.
            last = text.find(quote, at, at + _MAX_QUOTED_CHARS)
            if last > at and "\n" not in text[at:last]:
                return first, last
        end = _BARE.match(text, first)
    if end is None or (end.end() - end.start() < _LEAST_CHARS.get(kind, 1) and not is_setting and not _LOOKS["weak"].match(text, end.start())):
        return at, at
    return end.span()


def _below(text: str, word_at: int, found: re.Match[str], looks: re.Pattern[str] | None, *, closed: bool) -> Sequence[Span]:
    """The lines of a value below its name. A launcher's prefix stands before each of them."""
    line_at = text.rfind("\n", max(0, word_at - _MAX_HEAD_CHARS), word_at) + 1
    head = _DIGIT.sub("0", text[line_at:word_at].rstrip("'\"\\").replace("- ", "  "))
    at, spans = found.end(), list[Span]()
    for _ in range(_MAX_BLOCK_LINES if found["block"] else 1):
        stop = text.find("\n", at) + 1 or len(text) + 1
        line = text[at : stop - 1].rstrip()
        alike = _DIGIT.sub("0", line[: len(head)]) == head
        value = line[len(head) :] if alike else line
        start = at + len(line) - len(value.lstrip())
        is_deeper = value[:1] in (" ", "\t")
        # A line without the prefix must look like a value.
        like = looks if alike else _LOOKS["weak"]
        if found["block"] and (spans or not _NO_SECRET.match(text, start)):
            if is_deeper and (alike if spans else like is None or like.match(text, start)):
                spans.append((start, at + len(line)))
            elif line:
                break
        elif not found["block"] and not _NO_SECRET.match(text, start):
            opening, word = _OPENING.match(text, start), value.strip()
            if opening is not None and (alike or closed):
                end = _TO_QUOTE[opening["quote"]].match(text, opening.end())
                if end is not None and (looks is None or looks.match(text, end.start())) and not _NO_SECRET.match(text, end.start()):
                    spans.append(end.span())
            elif is_deeper and (like is None or like.match(text, start)) and word[:1] != "#" and word[-1:] != ":" and not set(" \t") & set(word):
                spans.append((start, at + len(line)))
        at = stop
    return spans


def _redacted(value: Any) -> Any:
    if isinstance(value, Text):
        return value.each(lambda said: redact(strip_unprintable(said)))
    if isinstance(value, str):
        return redact(strip_unprintable(value))
    if isinstance(value, (list, tuple)):
        words = [strip_unprintable(v) for v in value if isinstance(v, str)]
        if len(words) == len(value) and any(w.startswith("-") for w in words):
            return _like(value, redact_command(words))
        if len(words) == len(value) == 2:
            return _like(value, (redact(words[0]), _of_setting(*words)))
        return _like(value, map(_redacted, value))
    if isinstance(value, dict):
        return _of_pair({_redacted(k): _of_setting(k, v) for k, v in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        texts = {f.name: _redacted(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Remedy):
            texts |= {"command": redact_quoted(value.command), "verify": redact_quoted(value.verify)}
        return replace(value, **_of_pair(texts))
    return value


def _like(value: Sequence[Any], clean: Iterable[Any]) -> Sequence[Any]:
    return tuple(clean) if isinstance(value, tuple) else list(clean)


def redact_quoted(text: str | None) -> str | None:
    """Redact a suggested command; None if that would remove anything that a shell does not take literally, such as a quote."""
    if text is None or (clean := redact(text)) == text:
        return text
    return clean if all(clean.count(c) == text.count(c) for c in _OF_THE_SHELL) else None


def _of_pair(data: dict[Any, Any]) -> dict[Any, Any]:
    """Redact a setting with its name in one field and its value in another."""
    return {**data, "value": _of_setting(data["name"], data["value"])} if "name" in data and "value" in data else data


def _of_setting(name: Any, value: Any) -> Any:
    """Redact a value by the name of its setting, whatever it looks like."""
    if isinstance(value, str) and isinstance(name, str) and value:
        for shown in ("xxxxxxxx", value):
            if any(start == len(name) + 1 for start, _ in _credentials(f"{name}={shown}")):
                return HIDDEN
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value) and _of_setting(name, "xxxxxxxx") == HIDDEN:
        return _like(value, (HIDDEN for _ in value))
    return _redacted(value)
