"""What `unhang why` makes beside the verdict: the picture for a report, grouped stacks, a bundle; and whose place its files may take.

All of it is taken while what was judged is there: a run directory out of an archive is gone afterwards.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from unhang import fsio
from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.printable import one_line
from unhang.report import language, screen
from unhang.report.screen import counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from unhang.diagnosis.bundle import Bundle
    from unhang.diagnosis.logs import Judged
    from unhang.diagnosis.recorders import Examined
    from unhang.errors import UnhangError
    from unhang.logs.discovery import Discovered
    from unhang.model import Verdict
    from unhang.records.rundir import RunDir
    from unhang.records.stack_tree import Trunk
    from unhang.report.html.scene import Scene
    from unhang.report.language import Language


class Beside:
    """`drawn`: whether a report is to be written; `scene`: what it draws. `trunk`: the stacks of all ranks, in paths relative to `cwd`; `untold`:
    which stacks are not in it, and why.

    `failed`: why the bundle could not be written; the verdict is told before that.
    """

    def __init__(self, *, drawn: bool = False, stacks: bool = False, bundle: Path | None = None, quiet: bool = False) -> None:
        self.drawn = drawn
        self._stacks = stacks
        self._bundle = bundle
        self._quiet = quiet
        self.failed: UnhangError | None = None
        self.scene: Scene | None = None
        self.trunk: Trunk | None = None
        self.cwd = ""
        self.untold: list[str] = []

    def take_run(self, rundir: RunDir, verdict: Verdict, incident: int | None) -> None:
        if self.drawn:
            from unhang.report.html.of_run import gather

            self.scene = gather(rundir, number=incident)
        if self._stacks:
            from unhang.diagnosis.redact import redact_data
            from unhang.records.stack_tree import of_run as stacks_of_run

            if (found := stacks_of_run(rundir, incident)) is not None:
                self.trunk, self.cwd = redact_data(found)
        if self._bundle is not None:
            from unhang.diagnosis.bundle import of_run

            self._write(self._bundle, lambda target, progress: of_run(target, rundir, verdict, progress=progress))

    def take_dumps(self, examined: Examined, title: str) -> None:
        if self.drawn:
            from unhang.report.html.of_dumps import scene_of

            self.scene = scene_of(examined, title=title)

    def take_files(self, found: Discovered, verdict: Verdict, judged: Judged | None, called: Callable[[str], str] = str) -> None:
        """`called` gives the name by which the user knows a file that was unpacked."""
        if self._stacks and judged is not None:
            from unhang.diagnosis.redact import redact_data
            from unhang.records.stack_tree import group
            from unhang.records.stacks import main_thread

            told = judged.chosen.dumped
            self.trunk = redact_data(group({rank: main_thread(of_rank) for rank, of_rank in told.stacks.items()}))
            if told.unplaced:
                self.untold.append(f"{told.unplaced} stacks of processes whose rank the logs do not tell")
            self.untold += [f"{redact_data(source)}: the stacks in it were not read: it is too large" for source in told.left]
        if self._bundle is not None:
            from unhang.diagnosis.bundle import of_files

            self._write(
                self._bundle,
                lambda target, progress: of_files(target, found.sources, found.dumps, verdict, called=called, progress=progress),
            )

    def _write(self, target: Path, write: Callable[[Path, Callable[[int, int | None], None]], Bundle]) -> None:

        name = one_line(str(target))
        try:
            with counting("bundling", quiet=self._quiet) as progress:
                written, size = write(target, progress), target.stat().st_size
        except OSError as e:
            self.failed = UnhangError(f"cannot write the bundle {name}: {e.strerror or e}", hint="name another place with --bundle FILE.tar.gz")
            return
        screen.say(msg("wrote {name}: {n} files, {size}", name=name, n=len(written.names), size=_size(size)))
        screen.say(msg("credentials are hidden in it; hosts, paths and lines of code are not: look before you send it"))
        for left in written.left_out:
            reason = ": ".join(language.reason(said, language.spoken()) for said in (left.what, left.why))
            screen.say(msg("left out of it: {reason}", reason=reason))


def _size(size: int) -> str:
    return f"{size / 1024:.0f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"


def check_bundle(bundle: Path, ras: list[str] | None) -> None:
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
    name = f"{option} {one_line(str(target))}"
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
    from unhang.report.html import render

    page, named = render(verdict, scene, lang=lang).encode("utf-8", "replace"), one_line(str(path))
    try:
        fsio.write_named(path, page)
    except OSError as e:
        raise UnhangError(f"cannot write the report {named}: {e.strerror or e}", hint="name another place with --report FILE.html") from e
    screen.say(msg("wrote {path}", path=named))
