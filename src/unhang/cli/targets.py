"""The files that `unhang why` writes beside what it tells: whose place they may take, and how."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from unhang import files
from unhang.cli.aside import say
from unhang.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from unhang.model import Verdict
    from unhang.report.html.scene import Scene
    from unhang.report.language import Language


def check_bundle(bundle: Path, ras: list[str] | None) -> None:
    from unhang.errors import UnhangError

    if ras:
        raise UnhangError("--bundle is for what has ended; of a job that runs, keep the answers: unhang why --ras HOST:PORT --json")
    from unhang.diagnosis.bundle import is_one

    _check_target("--bundle", bundle, (".tar.gz", ".tgz"), "why.tar.gz", is_one)


def check_report(report: Path) -> None:
    from unhang.report.html import HEAD_BYTES, is_page

    def is_ours(path: Path) -> bool:
        with path.open("rb") as f:
            return is_page(f.read(HEAD_BYTES))

    _check_target("--report", report, (".html", ".htm"), "why.html", is_ours)


def _check_target(option: str, target: Path, endings: tuple[str, ...], example: str, is_ours: Callable[[Path], bool]) -> None:
    """Before anything is read: what is meant as PATH, or is somebody's own, must not be written over."""
    from unhang.errors import UnhangError
    from unhang.records.logs.opening import shown

    name = f"{option} {shown(str(target))}"
    hint = f"unhang why train.log {option} {example}"
    if not target.name.lower().endswith(endings):
        raise UnhangError(f"{name}: its name has to end in {endings[0]}", hint=hint)
    try:
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnhangError(f"{name}: it is {'a directory' if stat.S_ISDIR(status.st_mode) else 'no regular file'}", hint=hint)
        if status.st_size and not is_ours(target):
            raise UnhangError(f"{name}: that file was not written by unhang, and is left as it is", hint=hint)
    except FileNotFoundError:
        return
    except OSError as e:
        raise UnhangError(f"{name}: {e.strerror or e}", hint=hint) from e


def write_report(path: Path, verdict: Verdict, scene: Scene | None, lang: Language) -> None:
    from unhang.errors import UnhangError
    from unhang.records.logs.opening import shown
    from unhang.report.html import render

    page = render(verdict, scene, lang=lang).encode("utf-8", "replace")
    try:
        files.write_named(path, page)
    except OSError as e:
        raise UnhangError(f"cannot write the report {shown(str(path))}: {e.strerror or e}", hint="name another place with --report FILE.html") from e
    say(Text("wrote {path}", "已写入 {path}").fill(path=shown(str(path))))
