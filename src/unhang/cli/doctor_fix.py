"""unhang doctor --fix: what would be done, the question, and what was done; with --live, the smallest change of settings that works."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from unhang import fsio
from unhang.facts import shm
from unhang.facts.snapshot import Snapshot
from unhang.model import Examination, Live, Outcome, StageResult
from unhang.remedies import cleaning, ladder, ladder_steps, settings_file, trial
from unhang.report import ladder as climbing
from unhang.report import ladder_report, repairs, screen
from unhang.report.language import Language
from unhang.settings.catalogue import PRESETS
from unhang.settings.installed import installed

_MOST_BYTES = 1024 * 1024
# Where one rank alone fails there, no way of talking to others is the answer.
_ALONE = ("import", "device", "train-step")


@dataclass(frozen=True, kw_only=True)
class Repair:
    """`segments` in /dev/shm, each with what became of it. `settings` were `written` to that file; "" where they were not, and `why`."""

    segments: tuple[cleaning.Step, ...]
    settings: tuple[settings_file.Setting, ...]
    written: str = ""
    why: str = ""

    @property
    def changed(self) -> bool:
        return any(s.outcome == "removed" for s in self.segments)


def repair(seen: Snapshot, examination: Examination, *, yes: bool, quiet: bool, lang: Language, goes_on: bool = False) -> Repair:
    """Ask before each thing is done, unless `yes`. Without a terminal, or where only JSON is to be printed, nobody is asked and nothing is done.

    `goes_on`: more is tried afterwards, and nothing is concluded here.
    """
    shared = seen.get(shm.SUBJECT)
    steps = cleaning.propose(shared) if shared is not None else ()
    wanted = settings_file.proposed(examination.findings)
    can_ask = not quiet and sys.stdin.isatty()
    asks = _Asks(yes=yes, can=can_ask, lang=lang)
    console = None if quiet else screen.console()
    if console is not None and (steps or wanted or not goes_on):
        repairs.render_preview(steps, wanted, console, lang=lang)
    removable = any(s.outcome == "proposed" for s in steps)
    if console is not None and (removable or wanted) and not (yes or can_ask):
        repairs.render_nobody_asked(console, lang=lang)
    if removable and asks("remove"):
        steps = cleaning.apply(steps)
        if console is not None:
            repairs.render_outcome(steps, console, lang=lang)
    elif removable and console is not None and can_ask:
        repairs.render_declined("remove", console, lang=lang)
    written, why = _write(Path(settings_file.FILE), wanted, asks) if wanted else ("", "")
    if console is not None and (written or why):
        repairs.render_written(written, why, console, lang=lang)
    elif wanted and console is not None and can_ask:
        repairs.render_declined("write", console, lang=lang)
    return Repair(segments=steps, settings=wanted, written=written, why=why)


def write(wanted: tuple[settings_file.Setting, ...], before: Repair | None, *, yes: bool, quiet: bool, lang: Language) -> tuple[str, str]:
    """Ask, and write what was proven on this machine beside what was written `before`: the file, or why there is none; both empty where declined."""
    can_ask = not quiet and sys.stdin.isatty()
    names = {s.name for s in wanted}
    earlier = before.settings if before is not None and before.written else ()
    together = (*(s for s in earlier if s.name not in names), *wanted)
    console = None if quiet else screen.console()
    if console is not None:
        repairs.render_preview((), together, console, lang=lang)
        if not (yes or can_ask):
            repairs.render_nobody_asked(console, lang=lang)
    asks = _Asks(yes=yes, can=can_ask, lang=lang)
    if earlier and asks("write"):
        # Ours, of a moment ago.
        try:
            settings_file.write(Path(settings_file.FILE), together, overwrite=True)
            written, why = settings_file.FILE, ""
        except OSError as e:
            written, why = "", f"cannot write {settings_file.FILE}: {e.strerror}"
    else:
        written, why = ("", "") if earlier else _write(Path(settings_file.FILE), together, asks)
    if console is not None and (written or why):
        repairs.render_written(written, why, console, lang=lang)
    elif console is not None and can_ask:
        repairs.render_declined("write", console, lang=lang)
    return written, why


class _Asks:
    def __init__(self, *, yes: bool, can: bool, lang: Language) -> None:
        self._yes, self._can, self._lang = yes, can, lang

    def __call__(self, question: str, *, even_with_yes: bool = False) -> bool:
        if self._yes and not even_with_yes:
            return True
        if not self._can:
            return False
        try:
            return typer.confirm(repairs.question(question, self._lang), default=False)
        except typer.Abort:
            # Ctrl-D. Ctrl-C has left before.
            screen.echo()
            return False


def _write(path: Path, wanted: tuple[settings_file.Setting, ...], asks: _Asks) -> tuple[str, str]:
    """The file that was written, or why none was."""
    if not asks("write"):
        return "", ""
    try:
        there = path.exists()
        if there:
            if fsio.bounded_read(path, _MOST_BYTES).decode(errors="replace") == settings_file.text(wanted):
                return str(path), ""
            if not asks("overwrite", even_with_yes=True):
                raise FileExistsError
        settings_file.write(path, wanted, overwrite=there)
    except FileExistsError:
        return "", f"{path} is there already, and is left as it is"
    except OSError as e:
        return "", f"cannot write {path}: {e.strerror}"
    return str(path), ""


def climb(live: Live, *, limit_s: float, quiet: bool, lang: Language) -> Outcome | None:
    """None where nothing that settings of communication could answer has failed."""
    console = None if quiet else screen.console()
    failed = next((s for s in live.stages if s.state == "failed"), None)
    if failed is None or failed.stage in _ALONE:
        if console is not None:
            climbing.render_needless("nothing" if failed is None else "not-settings", console, lang=lang)
        return None
    here = installed(live.python)
    bench = trial.Bench(
        python=live.python,
        world_size=max(s.world_size for s in live.stages),
        backend=live.backend,
        environ=dict(os.environ),
        installed=here,
    )
    if console is not None:
        climbing.render_begin(limit_s, console, lang=lang)
    found = ladder.climb(
        bench,
        ladder_steps.rungs(
            verdict=failed.verdict,
            installed=here,
            backend=live.backend,
            world_size=bench.world_size,
            address=os.environ.get("MASTER_ADDR") or "127.0.0.1",
            conservative=PRESETS["conservative"].settings,
        ),
        why=_why(failed),
        limit_s=limit_s,
        tell=lambda told: None if console is None else climbing.render_told(told, console, lang=lang),
    )
    if console is not None:
        climbing.render_end(found, console, lang=lang)
    return found


def _why(failed: StageResult) -> str:
    return failed.verdict.primary.cause if failed.verdict is not None and failed.verdict.primary is not None else failed.stage


def proposed(outcome: Outcome | None) -> tuple[settings_file.Setting, ...]:
    """The change as a file of variables, where that is all of it: a part of it is not what was proven."""
    found = {} if outcome is None else ladder_report.variables(outcome)
    return tuple(settings_file.Setting(name=name, value=value, cause=outcome.why if outcome else "") for name, value in found.items())
