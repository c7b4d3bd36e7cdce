"""unhang export --check: files of launchers read, what is wrong in each, and the worst exit code of all."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path

from unhang import fsio
from unhang.errors import EXIT_FOUND, EXIT_OK, EXIT_USER, UnhangError
from unhang.files.opening import MAX_BYTES
from unhang.knowledge.words import msg
from unhang.model import frozen
from unhang.printable import one_line
from unhang.remedies import lint
from unhang.remedies.lint.documents import Problem
from unhang.report import language, screen

_STDIN = "-"
# What is made by a command (`<(ssh host cat FILE)`) takes a while; a named pipe may have nobody who writes.
_PATIENCE_S = 60
_CLEAN = {
    False: msg("nothing wrong was found in this file"),
    True: msg("nothing wrong was found with its variables; no launcher was seen in it"),
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@frozen
class Checked:
    """`refused` is why it was not understood. `starts_nothing`: no launcher was seen in it."""

    name: str
    form: str | None = None
    problems: tuple[Problem, ...] = ()
    refused: UnhangError | None = None
    starts_nothing: bool = False

    @property
    def code(self) -> int:
        return EXIT_USER if self.refused is not None else EXIT_FOUND if any(not p.note for p in self.problems) else EXIT_OK


def check(names: Sequence[str], *, form: str | None, nodes: int | None, processes: int | None) -> list[Checked]:
    """Each of them, whatever is wrong with the others; `-` is what is piped in. Behind them come the files that their commands read."""
    if names.count(_STDIN) > 1:
        raise UnhangError("- is what is piped in, and can be read once")
    found, asked = [], list(names)
    texts, given = dict[str, str](), dict[str, Mapping[str, str]]()
    for name in asked:
        try:
            texts[name] = text = _text(name)
            commands = list(lint.named_by(text))
        except UnhangError as e:
            found.append(Checked(name=name, refused=e))
            texts.pop(name, None)
            continue
        for file, options in commands:
            path = next((str(p) for p in (Path(name).parent / file, Path(file)) if p.is_file()), None)
            if path is not None:
                given[path] = options
                asked += [] if path in asked else [path]
    for name, text in texts.items():
        try:
            own = form if name in names else None
            recognised, problems = lint.check(name, text, form=own, nodes=nodes, processes=processes, options=given.get(name, {}))
            starts_nothing = lint.starts_nothing(recognised, text)
            found.append(Checked(name=name, form=recognised, problems=problems, starts_nothing=starts_nothing))
        except UnhangError as e:
            found.append(Checked(name=name, refused=e))
    return found


def show(found: Sequence[Checked], lang: language.Language) -> None:
    """Raises the refusal of a file that is the only one."""
    for one in found:
        if one.refused is not None:
            if len(found) == 1:
                raise one.refused
            said = f"unhang: {one_line(language.refusal(one.refused.message))}"
            hint = f"\n{language.LABELS[lang]['try']}: {language.refusal(one.refused.hint)}" if one.refused.hint else ""
            screen.echo(said + hint, stderr=True)
            continue
        for p in one.problems:
            mark = msg("note: ").of(lang) if p.note else ""
            screen.echo(one_line(f"{one.name}:{p.line}: {mark}{p.says.of(lang)}"))
            # What is said of a variable ends in it.
            if (instead := p.instead.of(lang)) and not p.says.of(lang).endswith(instead):
                screen.echo(one_line(f"    {msg('instead').of(lang)}: {instead}"))
        if one.code == EXIT_OK:
            screen.echo(f"{one_line(one.name)}: {one.form}: {_CLEAN[one.starts_nothing].of(lang)}")


def as_json(one: Checked) -> dict[str, object]:
    listed = [{"line": p.line, "says": p.says, "instead": p.instead, "note": p.note} for p in one.problems]
    more = {"starts_nothing": True} if one.starts_nothing else {}
    refused = {} if one.refused is None else {"error": one.refused.message, "try": one.refused.hint}
    return {"file": one.name, "form": one.form, "problems": listed, **more, **refused}


def _text(name: str) -> str:
    try:
        data = fsio.read_stdin().read(MAX_BYTES + 1) if name == _STDIN else _waited_for(name)
    except OSError as e:
        raise UnhangError(f"cannot read {name}: {e.strerror}") from e
    if data.startswith(_UTF_16):
        raise UnhangError(f"{name} is UTF-16, which no launcher reads", hint=f"iconv -f UTF-16 -t UTF-8 {fsio.as_argument(name)}")
    if len(data) > MAX_BYTES:
        raise UnhangError(f"{name} is larger than {MAX_BYTES >> 10} KiB: no file of a launcher")
    if b"\0" in data:
        raise UnhangError(f"{name} is no file of a launcher")
    return data.decode("utf-8", errors="surrogateescape")


def _waited_for(name: str) -> bytes:
    """Raises OSError, TimeoutError among them, where nothing comes any more."""
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data = b""
    with os.fdopen(fd, "rb", buffering=0) as f:
        while len(data) <= MAX_BYTES:
            if not select.select([f], [], [], _PATIENCE_S)[0]:
                raise TimeoutError(errno.ETIMEDOUT, f"nothing came for {_PATIENCE_S} s", name)
            read = f.read(MAX_BYTES + 1 - len(data))
            if read == b"":
                break
            data += read or b""
    return data
