"""Where shell starts launchers: words as bash cuts them, behind `env`, `srun`, `conda run`, variables and arrays, as a path, as `python -m`.

Nothing is run: what a loop, a here-document or another file sets is not seen.
"""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice

from unhang.errors import UnhangError
from unhang.files.opening import MOST_SETTINGS
from unhang.files.shell import DECLARING, RESERVED
from unhang.files.shell_words import ASSIGNMENT, Cutter, Word, pieces, unquoted
from unhang.model import frozen
from unhang.remedies.lint.documents import known

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
}
_SECOND = {"accelerate": "launch", "llamafactory-cli": "train", "lmf": "train"}
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_REMOTE = frozenset({"ssh", "pdsh", "clush", "pssh"})
_VARIABLE = re.compile(
    r"\$(?:(?P<bare>[A-Za-z_]\w*|\d)|\((?P<pod>[A-Z_][A-Z0-9_]*)\)|\{(?P<name>[A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}]*))?\})"
)
_DEFAULT = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*):?=(?P<value>[^}]*)\}")
_FILLED_IN = re.compile(r"(?<!\\)\$\{?(?P<name>[A-Za-z_]\w*)")
_NAMED = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<name>\w+)\})")
_WHICH = re.compile(r"(?:\$\(|`)\s*(?:which|command -v)\s+(?P<name>\S+?)\s*[)`]")
_MAX_DEPTH = 6
# A variable that holds others several times over doubles with each.
_MOST_WORDS = 2000
_MOST_TEXT = 10_000
# Each start keeps the variables that were set until then.
_MOST_STARTS = 2000
# Words of all commands together, after variables are filled in: scripts inside commands may nest without end.
_MOST_WORDS_OF_ALL = 50_000

Place = Callable[[int], int]


@dataclass(frozen=True)
class Value:
    """`text` without its quotes, and where it was written. `each`: in single quotes, so that the shell of each host fills it in.

    `once` are variables that the script around it has filled in before: it stands in double quotes there.
    """

    text: str
    offset: int
    each: bool = False
    once: frozenset[str] = frozenset()


@frozen
class Start:
    """`names` are those of the launchers, outer one first; `before` is what stands ahead of it, around its script, too.

    `options` are the outer launcher's own, by their names with dashes, and `rest` is what follows on them; `variables` are those that the script has
    set until then, and what stands ahead of the command.
    """

    names: tuple[str, ...]
    words: tuple[Value, ...]
    offset: int
    before: tuple[str, ...]
    options: Mapping[str, Value]
    rest: tuple[str, ...]
    variables: Mapping[str, Value]

    def option(self, *names: str) -> Value | None:
        return next((self.options[name] for name in names if name in self.options), None)

    def filled(self, value: Value) -> Value:
        """What a variable stands for, as far as the script tells; its default where nothing has set it."""
        for _ in range(_MAX_DEPTH):
            variable = _VARIABLE.fullmatch(value.text)
            if variable is None:
                break
            known = self.variables.get(variable["bare"] or variable["pod"] or variable["name"])
            if known is not None and known != value and known.text:
                value = known
            elif variable["default"] is not None:
                value = replace(value, text=unquoted(variable["default"]))
            else:
                break
        return value


@dataclass(kw_only=True)
class Script:
    """`assigned` are all variables that are set, in their order; `words` counts those that were read."""

    starts: list[Start] = field(default_factory=list)
    assigned: list[tuple[str, Value]] = field(default_factory=list)
    words: int = 0


@functools.lru_cache(maxsize=2)
def read(text: str, variables: tuple[tuple[str, str], ...] = ()) -> Script:
    """`variables` are set elsewhere. Raises UnhangError for more than any launch script holds."""
    found = Script()
    known = {name: Value(value, 0) for name, value in variables}
    _read(Value(text, 0), lambda at: at, (), known, found, 0)
    return found


def host_and_port(endpoint: Value) -> tuple[Value, Value | None]:
    """Of HOST:PORT, where a colon within `${PORT:-1}` divides nothing."""
    colons = [begin for begin, _, given in pieces(endpoint.text) if given == ":"]
    if not colons or endpoint.text.endswith("]"):
        return endpoint, None
    return replace(endpoint, text=endpoint.text[: colons[-1]]), replace(endpoint, text=endpoint.text[colons[-1] + 1 :])


def _read(script: Value, place: Place, around: tuple[str, ...], variables: dict[str, Value], found: Script, depth: int) -> None:
    cutter = Cutter(script.text, len(script.text))
    for cut in cutter.commands(0):
        if found.words > _MOST_WORDS_OF_ALL:
            raise UnhangError(f"more than {_MOST_WORDS_OF_ALL} words are in it: that is no file of a launcher")
        if max(len(found.assigned), len(variables)) > MOST_SETTINGS:
            raise UnhangError(f"more than {MOST_SETTINGS} variables are set in it: that is no file of a launcher")
        words = list(dropwhile(lambda w: w.raw in RESERVED, cut))
        ahead = 0
        while ahead < len(words) and ASSIGNMENT.match(words[ahead].raw):
            ahead += 1
        own = dict(_assigned(w, place, script.each, variables) for w in words[:ahead])
        body = words[ahead:]
        found.assigned += own.items()
        if not body:
            variables |= own
            continue
        first = body[0].raw
        if first in DECLARING:
            for word in body[1:]:
                bare = unquoted(word.raw)
                if ASSIGNMENT.match(bare):
                    name, value = _assigned(word if ASSIGNMENT.match(word.raw) else replace(word, raw=bare), place, script.each, variables)
                    variables[name] = value
                    found.assigned.append((name, value))
            continue
        if first == ":":
            for default in (m for word in body for m in _DEFAULT.finditer(word.raw)):
                variables.setdefault(default["name"], Value(unquoted(default["value"]), place(body[0].start), script.each))
            continue
        if first == "eval":
            body = body[1:]
        known: Mapping[str, Value] = ChainMap(own, variables) if own else variables
        filled = ((w, given) for w in body for given in islice(_filled(w, known), _MOST_WORDS))
        values = [Value(given, place(w.start), script.each or w.raw.startswith("'"), script.once) for w, given in islice(filled, _MOST_WORDS_OF_ALL)]
        found.words += len(values) + 1
        if not values or _starts_nothing(values):
            continue
        inner = _inner(values) if depth < _MAX_DEPTH else None
        if inner is not None:
            _read(*_within(values[inner], body, place, script), (*around, *(v.text for v in values[:inner])), dict(known), found, depth + 1)
            continue
        _start(values, around, known, found)
        if len(found.starts) > _MOST_STARTS:
            raise UnhangError(f"more than {_MOST_STARTS} launchers are started in it: that is no file of one")


def _within(value: Value, body: Sequence[Word], place: Place, script: Value) -> tuple[Value, Place]:
    """A script in a word, and how its places are those of the file: to the character where it stands there as it is."""
    word = next((w for w in body if place(w.start) == value.offset), None)
    if word is not None and word.raw[1:-1] == value.text and word.raw.startswith("'"):
        start = word.start + 1
        return value, lambda at: place(start + at)
    if word is not None and word.raw.startswith('"'):
        value = replace(value, once=frozenset(m["name"] for m in _FILLED_IN.finditer(word.raw)))
        # Escapes shift characters, not lines.
        rows = [i for i, c in enumerate(word.raw) if c == "\n"]
        return value, lambda at: place(word.start + (rows[n - 1] + 1 if (n := value.text.count("\n", 0, at)) and n <= len(rows) else 0))
    return value, lambda at: value.offset


def _assigned(word: Word, place: Place, each: bool, variables: Mapping[str, Value]) -> tuple[str, Value]:
    match = ASSIGNMENT.match(word.raw)
    assert match is not None
    raws = [word.raw[match.end() :]] if word.elements is None else [w.raw for w in word.elements]
    text = " ".join(map(unquoted, raws))
    if (before := variables.get(match["name"])) is not None and len(before.text) < _MOST_TEXT:
        text = _NAMED.sub(lambda m: before.text if match["name"] in m.groups() else m[0], text)
    if match[0].endswith("+=") and match["name"] in variables:
        text = variables[match["name"]].text + " " * (word.elements is not None) + text
    return match["name"], Value(text, place(word.start), each)


def _filled(word: Word, variables: Mapping[str, Value], within: tuple[Value, ...] = ()) -> Iterator[str]:
    """`within` are the values of variables that the word stands in: none stands for itself."""
    text = unquoted(word.raw)
    if found := _WHICH.fullmatch(text):
        yield found["name"]
        return
    variable = _VARIABLE.fullmatch(text) if not word.raw.startswith("'") else None
    value = variables.get(variable["bare"] or variable["name"] or "") if variable is not None else None
    if value is None or not value.text.strip() or len(within) >= _MAX_DEPTH or any(value is one for one in within):
        yield text
        return
    if word.raw.startswith('"') and "@" not in text and not within and " " in value.text:
        # One word: a script for `bash -c`.
        yield value.text
        return
    for one in _split(value.text):
        yield from _filled(replace(word, raw=one, elements=None), variables, (*within, value))


def _split(text: str) -> Sequence[str]:
    """At blanks, as the shell does with a variable without quotes; what a substitution will give stays one word."""
    if "$" not in text and "`" not in text:
        return text.split()
    found, start = [], 0
    for begin, end, given in pieces(text):
        if given.isspace():
            found.append(text[start:begin])
            start = end
    return [word for word in (*found, text[start:]) if word]


def _starts_nothing(values: Sequence[Value]) -> bool:
    first = values[0].text
    if first in ("-v", "-V"):
        # command -v NAME
        return True
    if first in known("scripts")["environments"]:
        return not any(v.text == "run" for v in values[1:4])
    return first in known("scripts")["start_nothing"] or any(v.text == "pip" for v in values[:3])


def _inner(values: Sequence[Value]) -> int | None:
    """Which word is the script that another shell gets: `bash -c '...'`, `ssh host '...'`."""
    shell = False
    for i, value in enumerate(values):
        base = value.text.rpartition("/")[2]
        if shell and re.fullmatch(r"-[a-z]*c", value.text):
            return i + 1 if i + 1 < len(values) else None
        shell = base in _SHELLS or (shell and value.text.startswith("-"))
        if base in _REMOTE or (i and values[0].text == "eval"):
            return next((n for n in range(i + 1, len(values)) if " " in values[n].text), None)
    return 0 if " " in values[0].text else None


def _start(values: Sequence[Value], around: tuple[str, ...], variables: Mapping[str, Value], found: Script) -> None:
    texts = [v.text for v in values]
    places = list(_launchers(texts))
    if not places:
        return
    begin, first = places[0]
    own = dict(variables)
    for value in values[:begin]:
        if match := ASSIGNMENT.match(value.text):
            own[match["name"]] = replace(value, text=value.text[match.end() :])
            found.assigned.append((match["name"], own[match["name"]]))
    # One copy for all between which nothing is set.
    kept = found.starts[-1].variables if found.starts and found.starts[-1].variables == own else own
    options, rest = _options(values[begin + 1 + (" " in first and texts[begin] not in _MODULES) :])
    found.starts.append(
        Start(
            names=tuple(name for _, name in places),
            words=tuple(values),
            offset=values[begin].offset,
            before=(*around, *texts[:begin]),
            options=options,
            rest=tuple(v.text for v in rest),
            variables=kept,
        )
    )


def _options(values: Sequence[Value]) -> tuple[Mapping[str, Value], Sequence[Value]]:
    """A launcher's own, and what follows on them."""
    found: dict[str, Value] = {}
    i = 0
    while i < len(values) and values[i].text.startswith("-"):
        name, joined, given = values[i].text.partition("=")
        if name == "--":
            return found, values[i + 1 :]
        # torchrun's argparse takes -nnodes, too.
        name = f"-{name}" if re.fullmatch(r"-\w{2,}", name) else name
        name = name.replace("_", "-")
        following = values[i + 1] if i + 1 < len(values) else None
        if joined or name in known("scripts")["flags"]:
            found[name] = replace(values[i], text=given)
        elif following is None or following.text.endswith(".py"):
            found[name] = replace(values[i], text="")
        else:
            found[name] = following
            i += 1
        i += 1
    return found, values[i:]


def _launchers(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Each with its place. Strict with options from the first one on; before, they are those of srun, env and the like."""
    inside, listed = False, known("scripts")
    for i, word in enumerate(words):
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        base = word.rsplit("/", 1)[-1] if "/bin/" in word or "/" not in word else word
        name = None
        if before == "-m":
            name = _MODULES.get(word)
        elif (
            before not in listed["naming"]
            if not inside
            else not before.startswith("-") or "=" in before or before.replace("_", "-") in listed["flags"]
        ):
            if base in ("torchrun", "deepspeed"):
                name = base
            elif _SECOND.get(base) == after:
                name = f"{base} {after}"
        if name is not None:
            inside = True
            yield i, name
        elif word.endswith(".py") or (inside and before == "-m"):
            return
