"""unhang doctor --fix: what would be done, the question, and what was done; with --live, the smallest change of settings that works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from unhang import fsio
from unhang.facts import shm
from unhang.facts.snapshot import Snapshot
from unhang.model import Examination, Live, Outcome, StageResult, frozen
from unhang.remedies import cleaning, ladder, ladder_steps, settings_file, trial
from unhang.report import ladder_report, repairs, screen
from unhang.report.language import Language
from unhang.settings.catalogue import PRESETS
from unhang.settings.installed import installed

_MOST_BYTES = 1024 * 1024
# Where one rank alone fails there, no way of talking to others is the answer.
_ALONE = ("import", "device", "train-step")


@frozen
class Repair:
    """`segments` in /dev/shm, each with what became of it. `settings` were `written` to that file; "" where they were not, and `why`."""

    segments: tuple[cleaning.Step, ...]
    settings: tuple[settings_file.Setting, ...]
    written: str = ""
    why: str = ""

    @property
    def changed(self) -> bool:
        return any(s.outcome == "removed" for s in self.segments)


class Dialogue:
    """What is shown and asked. Where only JSON is to be printed (`quiet`), or without a terminal, nobody is asked: only `yes` agrees."""

    def __init__(self, *, yes: bool, quiet: bool, lang: Language) -> None:
        self._yes = yes
        self._can_ask = not quiet and sys.stdin.isatty()
        self._console = None if quiet else screen.console()
        self._lang = lang

    def show(self, render: Callable[..., None], *what: object) -> None:
        if self._console is not None:
            render(*what, self._console, lang=self._lang)

    def say(self, id: str, style: str = "", **values: object) -> None:
        if self._console is not None:
            self._console.print(repairs.word(id, lang=self._lang, **values), style=style)

    def warn_if_nobody_can_agree(self) -> None:
        if not (self._yes or self._can_ask):
            self.say("nobody-asked", "yellow")

    def agrees(self, question: str, *, even_with_yes: bool = False) -> bool:
        if self._yes and not even_with_yes:
            return True
        if not self._can_ask:
            return False
        try:
            return typer.confirm(repairs.word(question, lang=self._lang), default=False)
        except typer.Abort:
            # Ctrl-D. Ctrl-C has left before.
            screen.echo()
            return False

    def decline(self, what: str) -> None:
        if self._can_ask:
            self.say(what)


def repair(seen: Snapshot, examination: Examination, dialogue: Dialogue, *, goes_on: bool = False) -> Repair:
    """Ask before each thing is done. `goes_on`: more is tried afterwards, and nothing is concluded here."""
    shared = seen.get(shm.SUBJECT)
    steps = cleaning.propose(shared) if shared is not None else ()
    wanted = settings_file.proposed(examination.findings)
    if steps or wanted or not goes_on:
        dialogue.show(repairs.render_preview, steps, wanted)
    removable = any(s.outcome == "proposed" for s in steps)
    if removable or wanted:
        dialogue.warn_if_nobody_can_agree()
    if removable and dialogue.agrees("remove"):
        steps = cleaning.apply(steps)
        dialogue.show(repairs.render_outcome, steps)
    elif removable:
        dialogue.decline("not-removed")
    written, why = _write(wanted, dialogue) if wanted else ("", "")
    return Repair(segments=steps, settings=wanted, written=written, why=why)


def write(wanted: tuple[settings_file.Setting, ...], before: Repair, dialogue: Dialogue) -> str:
    """Ask, and write what was proven on this machine beside what was written `before`: the file, "" where there is none."""
    names = {s.name for s in wanted}
    earlier = before.settings if before.written else ()
    together = (*(s for s in earlier if s.name not in names), *wanted)
    dialogue.show(repairs.render_preview, (), together)
    dialogue.warn_if_nobody_can_agree()
    written, _ = _write(together, dialogue, is_ours=bool(earlier))
    return written


def _write(wanted: tuple[settings_file.Setting, ...], dialogue: Dialogue, *, is_ours: bool = False) -> tuple[str, str]:
    """The file that was written, or why none was; both empty where declined. `is_ours`: a file that is there was written a moment ago."""
    if not dialogue.agrees("write"):
        dialogue.decline("not-written")
        return "", ""
    path, why = Path(settings_file.FILE), ""
    try:
        there = path.exists()
        differs = there and not is_ours and fsio.bounded_read(path, _MOST_BYTES).decode(errors="replace") != settings_file.text(wanted)
        if differs and not dialogue.agrees("overwrite", even_with_yes=True):
            raise FileExistsError
        settings_file.write(path, wanted, overwrite=there)
    except FileExistsError:
        why = f"{path} is there already, and is left as it is"
    except OSError as e:
        why = f"cannot write {path}: {e.strerror}"
    if why:
        dialogue.show(repairs.render_refusal, why)
        return "", why
    dialogue.say("written", file=path)
    return str(path), ""


def climb(live: Live, dialogue: Dialogue, *, limit_s: float) -> Outcome | None:
    """None where nothing that settings of communication could answer has failed."""
    failed = next((s for s in live.stages if s.state == "failed"), None)
    if failed is None or failed.stage in _ALONE:
        dialogue.say("needless" if failed is None else "not-settings")
        return None
    here = installed(live.python)
    bench = trial.Bench(
        python=live.python,
        world_size=max(s.world_size for s in live.stages),
        backend=live.backend,
        environ=dict(os.environ),
        installed=here,
    )
    dialogue.say("begin", "bold", s=limit_s)
    rungs = ladder_steps.rungs(
        verdict=failed.verdict,
        installed=here,
        backend=live.backend,
        world_size=bench.world_size,
        address=os.environ.get("MASTER_ADDR") or "127.0.0.1",
        conservative=PRESETS["conservative"].settings,
    )
    found = ladder.climb(bench, rungs, why=_why(failed), limit_s=limit_s, tell=lambda told: dialogue.show(repairs.render_told, told))
    dialogue.show(repairs.render_end, found)
    return found


def _why(failed: StageResult) -> str:
    return failed.verdict.primary.cause if failed.verdict is not None and failed.verdict.primary is not None else failed.stage


def proposed(outcome: Outcome | None) -> tuple[settings_file.Setting, ...]:
    """The change as a file of variables, where that is all of it: a part of it is not what was proven."""
    if outcome is None:
        return ()
    return tuple(settings_file.Setting(name=name, value=value, cause=outcome.why) for name, value in ladder_report.variables(outcome).items())
