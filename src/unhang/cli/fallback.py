"""`unhang run --fallback`: after a failure that settings could answer, the smallest change that works on this machine, and the memory of it."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from unhang.cli import own_steps as of_own_steps
from unhang.cli import training_command
from unhang.cli.options import cache_folder
from unhang.diagnosis.redact import redact_command
from unhang.errors import UnhangError
from unhang.facts.host import Host
from unhang.i18n import same
from unhang.knowledge.words import NOTHING, Text, msg
from unhang.launch import command as commands
from unhang.launch import events
from unhang.launch.attempt import Result
from unhang.launch.supervise import Changed
from unhang.model import Outcome, Trial, Verdict
from unhang.records.rundir import RunDir, not_written
from unhang.remedies import ladder, ladder_steps, outcome_store, trial
from unhang.report import ladder_report, language, screen
from unhang.settings.catalogue import PRESETS
from unhang.settings.installed import installed as find_installed
from unhang.settings.setting import Choice, Installed, applied

Mode = Literal["auto", "ask", "off"]
Tell = Callable[[events.Event], None]

_MOST_PER_CORE = 4
_LOOK_S = 0.25
# Of the whole time, what is kept for the answer and for one more trial of what was chosen.
_FOR_ANSWER = 1 / 4
# A trial is given it even where nothing is left, and then says so.
_LEAST_S = 1.0
# For a memory that does not answer at the end; SQLite itself waits 5 s for a lock.
_KEEP_S = 10.0


def _say_nothing(event: events.Event) -> None:
    """Until there is a run."""


class Fallback:
    """`at_start` is what an earlier run of this job found; `after` a failure it climbs the ladder, and answers with the smallest change that works.

    `outcome` is what it found, None where it looked for nothing.
    """

    def __init__(
        self,
        command: commands.Command,
        *,
        rundir: RunDir,
        words: Sequence[str],
        options: Sequence[str] = (),
        environ: Mapping[str, str],
        mode: Mode = "auto",
        limit_s: float = ladder.LIMIT_S,
        forgets: bool = False,
        own_steps: str | None = None,
        own_limit_s: float = of_own_steps.LIMIT_S,
        typed: Collection[str] = (),
        host: Host | None = None,
    ) -> None:
        """`options` are our own in front of `words`, as they were typed; `typed` are keys of settings that were typed: they stay as they are."""
        self._command = command
        self._rundir = rundir
        self._words = words
        self._typed = (*options, *words)
        self._environ = environ
        self._mode = mode
        self._forgets = forgets
        self._typed_keys = frozenset(typed)
        if "PET_RDZV_CONF" in environ or commands.option(command, "--rdzv-conf") is not None:
            # A timeout would take its place, and it may hold more than that.
            self._typed_keys |= {"timeout"}
        # Whether the training runs with `outcome` now, and whether what was found is to be remembered once it has proved itself.
        self._in_force = False
        self._unproven = False
        self._keeping: threading.Thread | None = None
        # What it has to say, told by whoever tells all else: the terminal's line is not shared among threads.
        self._of_keeping: deque[str] = deque()
        self._hinted = False
        self._elsewhere = False
        self._cancelled: Callable[[], bool] = lambda: False
        self._own = (
            None
            if own_steps is None
            else of_own_steps.runner(own_steps, python=command.python, environ=environ, limit_s=own_limit_s, cancelled=lambda: self._cancelled())
        )
        self._tell: Tell = _say_nothing
        self._limit_s = limit_s
        self._host = host or Host()
        folder = cache_folder()
        self._path = None if folder is None else folder / outcome_store.FILE
        self._memory = outcome_store.Memory(self._path, trouble=lambda why: self._tell(events.Note(text=why)))
        self._installed: Installed | None = None
        self._key: outcome_store.Key | None = None
        self._backend: str | None = None
        self.outcome: Outcome | None = None

    def saw(self, event: events.Event) -> None:
        """Ranks tell which backend they really use and how many they are; their first step, or the end, proves a change.

        It is called while the training is watched, and returns at once, but for the end, when what is being remembered is waited for.
        """
        if isinstance(event, events.Finished):
            self._end_keeping()
        while self._of_keeping:
            self._tell(events.Note(text=self._of_keeping.popleft()))
        if isinstance(event, events.Joined):
            self._elsewhere = self._elsewhere or (bool(self._command.world_size) and event.world_size > self._world_size())
            if not self._in_force:
                self._backend = "nccl" if "nccl" in event.backend else event.backend
        elif isinstance(event, events.FirstStep):
            self._remember()
        elif isinstance(event, events.Finished) and event.exitcode == 0 and self._remember():
            self.saw(event)

    def _remember(self) -> bool:
        """Whether it is being remembered. Probes that pass are no training that runs: only what has brought it to a step is worth a second time."""
        if not self._in_force or not self._unproven or self.outcome is None:
            return False
        self._unproven = False
        key, outcome = self._keyed(), self.outcome
        mind = outcome_store.Memory(self._path, trouble=self._of_keeping.append)

        def keep() -> None:
            if mind.keep(key, outcome, command=" ".join(map(str, self._words[:1]))):
                self._of_keeping.append(f"{_named(outcome)} works, and is remembered for this job (unhang run --forget forgets it)")

        # Another training may hold the file for seconds, and a home on a file server for longer.
        self._keeping = threading.Thread(target=keep, daemon=True)
        self._keeping.start()
        return True

    def _end_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.join(_KEEP_S)
            if self._keeping.is_alive():
                self._of_keeping.append(f"whether it is remembered for the next run is not known: {self._path} has not answered for {_KEEP_S:g} s")
            self._keeping = None

    def at_start(self, tell: Tell, *, looks_only: bool = False) -> Changed | None:
        """`looks_only`: nothing of the memory is changed."""
        self._tell = tell
        if self._mode == "ask" and not _can_ask():
            self._tell(
                events.Note(text="--fallback ask: there is no terminal to ask on, so nothing will be tried (--fallback auto tries without asking)")
            )
        # Path.exists raises for a name that is too long, or behind a directory that nobody may enter.
        there = self._path is not None and os.path.exists(self._path)  # noqa: PTH110
        if self._forgets and not looks_only:
            forgotten = there and self._memory.forget(self._keyed())
            # Where that is not known, what is in the way has been told.
            if forgotten is not None:
                tell(events.Note(text="what earlier runs of this job found is forgotten" if forgotten else "nothing was remembered of this job"))
        if self._mode == "off" or self._forgets or not there:
            return None
        found = self._memory.recall(self._keyed(), forgets=not looks_only)
        if found.expired:
            self._tell(events.Note(text=f"what an earlier run of this job found no longer holds: {found.expired}"))
        if found.outcome is None or not found.outcome.chosen:
            return None
        why = self._why_not()
        if typed := self._typed_keys & found.outcome.chosen.keys():
            why = f"{', '.join(sorted(typed))} was given by hand"
        if why is not None:
            self._tell(events.Note(text=f"an earlier run of this job found {_named(found.outcome)}; not used: {why}"))
            return None
        self.outcome = found.outcome
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.found_s))
        says = msg("{what} is what this job got on with here on {day} (unhang run --forget forgets it)", what=_named(found.outcome), day=day)
        return self._changed(found.outcome, says)

    def after(self, result: Result, tell: Tell, cancelled: Callable[[], bool]) -> Changed | None:
        self._tell = tell
        self._cancelled = cancelled
        verdict = result.verdict
        answerable = verdict is not None and verdict.primary is not None and ladder_steps.answerable(verdict)
        if self._mode == "off":
            if answerable:
                assert verdict is not None
                self._hint(verdict)
            return None
        if self.outcome is not None:
            if not self._in_force or result.steps:
                return None
            self._end_keeping()
            is_gone = self._memory.forget(self._keyed()) is not None
            self._in_force = False
            if not (answerable and self.outcome.remembered):
                back = msg("taken back, and forgotten") if is_gone else msg("taken back")
                self._note(msg("with {what} it failed before its first step: {back}", what=_named(self.outcome), back=back))
                self.outcome = replace(
                    self.outcome,
                    chosen=None,
                    confirmed=False,
                    says=msg(
                        "{outcome} passed its trials, and the training failed with it before its first step: taken back", outcome=_named(self.outcome)
                    ),
                )
                self._write(self.outcome)
                return Changed(environ=self._environ, command=self._command)
            back = msg("forgotten") if is_gone else msg("taken back")
            self._note(msg("with {what} it failed all the same: that is {back}", what=_named(self.outcome), back=back))
            self.outcome = None
            assert verdict is not None
            # What is forgotten is not kept either, whatever else is found.
            return self._climbed(verdict, cancelled) or Changed(environ=self._environ, command=self._command)
        return self._climbed(verdict, cancelled) if answerable and verdict is not None else None

    def _climbed(self, verdict: Verdict, cancelled: Callable[[], bool]) -> Changed | None:
        """The smallest change that works, None where none is found or may be tried."""
        assert verdict.primary is not None
        if self._backend is None and verdict.primary.cause.startswith("gloo-"):
            # It never came to the point where ranks tell.
            self._backend = "gloo"
        if (why := self._why_not_after(verdict)) is not None:
            self._tell(events.Note(text=f"settings that may answer {verdict.primary.cause} are not tried: {why}"))
            return None
        if self._mode == "ask" and not _can_ask():
            return None
        until = time.monotonic() + self._limit_s
        bench = self._bench(loaders=ladder_steps.of_loaders(verdict), cancelled=cancelled)
        if ladder_steps.lacks_nccl(verdict):
            # Its library may be installed, but the ranks have found it unusable here: no trial has to show that again.
            bench = replace(bench, backend="nccl", installed=replace(bench.installed, nccl=None))
        asks = self._mode == "ask"
        limit_s = self._limit_s * (1 - _FOR_ANSWER) if asks else self._limit_s
        self._tell(
            events.Climbing(
                cause=verdict.primary.cause, ranks=bench.world_size, limit_s=self._limit_s, answer_s=self._limit_s - limit_s if asks else None
            )
        )
        address = commands.master(self._command)[0] or self._environ.get("MASTER_ADDR") or "127.0.0.1"
        candidates = ladder_steps.rungs(
            verdict=verdict,
            installed=bench.installed,
            backend=bench.backend,
            world_size=bench.world_size,
            address=address,
            conservative={key: value for key, value in PRESETS["conservative"].settings.items() if key not in self._typed_keys},
        )
        candidates = tuple(rung for rung in candidates if not self._typed_keys & rung.adds.keys() and self._can_start(rung.adds))
        self.outcome = ladder.climb(
            bench,
            candidates,
            why=verdict.primary.cause,
            limit_s=limit_s,
            whole_s=self._limit_s if asks else None,
            several=asks,
            tell=self._progress,
        )
        if asks and self.outcome.chosen and not cancelled():
            self.outcome = self._asked(self.outcome, bench, until)
        self._write(self.outcome)
        if cancelled():
            self._note(self._interrupted(self.outcome))
            return None
        if not self.outcome.chosen:
            says = same(self.outcome.says)
            self._note(says + msg("; nothing is changed"))
            return None
        self._unproven = True
        # Now, while nothing is watched: it looks at the machine.
        self._keyed()
        return self._changed(self.outcome, same(self.outcome.says))

    def _note(self, said: Text) -> None:
        self._tell(events.Note(text=said))

    def _interrupted(self, outcome: Outcome) -> Text:
        """What a Ctrl-C leaves behind: an hour later nobody knows what had passed by then."""
        passed = [f"{ladder.named(w.trials[0].choice)} ({w.passed}x)" for w in ladder_report.ways(outcome, "en") if w.passed and w.trials[0].choice]
        said = msg("nothing had passed until then")
        if passed:
            said = msg("until then {passed} had passed", passed=", ".join(passed))
        return msg(
            "interrupted while settings were tried; nothing is changed: {said}; what was tried is in {path}",
            said=said,
            path=str(self._rundir.solution_report),
        )

    def _hint(self, verdict: Verdict) -> None:
        """Once, where it would be tried."""
        if self._hinted or verdict.primary is None or self._why_not_after(verdict) is not None:
            return
        self._hinted = True
        self._tell(events.Note(text=f"settings may answer {verdict.primary.cause}: with --fallback auto they would be tried now"))

    def _asked(self, outcome: Outcome, bench: trial.Bench, until: float) -> Outcome:
        """What the user has chosen; nothing where that is none of them, or where `until` has come: GPUs stand idle meanwhile."""
        lang = language.from_locale(os.environ)
        ways = [w for w in ladder_report.ways(outcome, lang) if w.passed and w.trials[0].choice]
        # What the ladder ends on is proposed first, then what costs least.
        order = [rung.trial.choice for rung in outcome.rungs if rung.trial is not None]
        ways.sort(
            key=lambda way: -1 if (choice := way.trials[0].choice) == outcome.chosen else order.index(choice) if choice in order else len(order)
        )
        self._tell(events.Asking(ways=len(ways), within_s=max(0.0, round(until - time.monotonic(), 3))))
        screen.echo(ladder_report.menu(ways, lang=lang), stderr=True)
        # What was typed while the training ran is no answer.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        while number := self._number(len(ways), lang, bench.cancelled, until):
            choice = ways[number - 1].trials[0].choice
            if choice == outcome.chosen:
                return outcome
            # Everything else has been tried once.
            again = trial.run(bench, choice, limit_s=max(_LEAST_S, until - time.monotonic()))
            outcome = replace(outcome, dropping=(*outcome.dropping, again))
            said = ladder.named(choice)
            self._tell(_event("dropping", msg("{said}, once more", said=said), again))
            if again.outcome == "passed":
                done = applied(choice, bench.installed, launcher=bench.launcher)
                return replace(
                    outcome,
                    chosen=choice,
                    environment=dict(done.env),
                    arguments=(*(word for option in done.options for word in option), *done.arguments),
                    says=msg("{said} was chosen; it passed twice", said=said),
                )
        says = msg("none of the ways was chosen")
        if number is None:
            says = msg("none of the ways was chosen before the time of {limit_s:g} s was over", limit_s=self._limit_s)
        return replace(outcome, chosen=None, confirmed=False, says=says)

    def _number(self, most: int, lang: language.Language, cancelled: Callable[[], bool], until: float) -> int | None:
        """0 where nobody can answer any more, None where nobody has until then: Ctrl-C has to be heard while we wait."""
        while True:
            screen.echo(ladder_report.question(lang=lang), stderr=True, end="")
            while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
                if cancelled():
                    # Behind what the terminal echoes.
                    screen.echo(stderr=True)
                    return 0
                if time.monotonic() > until:
                    screen.echo(stderr=True)
                    return None
            # A terminal hands over one line at a time; a reader of Python's would keep what select does not see.
            line = os.read(sys.stdin.fileno(), 4096)
            if not line:
                return 0
            number = ladder_report.read_choice(line.decode(errors="replace"), most)
            if number is not None:
                return number
            screen.echo(ladder_report.not_understood(most, lang=lang), stderr=True)

    def _why_not(self) -> str | None:
        """Why nothing can be tried, or used that was."""
        if (told := self._several()) is not None:
            return f"{told}, and what works on this host alone would say nothing about the others (unhang doctor --live on each)"
        ranks, cores = self._world_size(), len(os.sched_getaffinity(0))
        if self._backend_here() != "nccl" and ranks > _MOST_PER_CORE * cores:
            return f"{ranks} ranks on {cores} cores would take minutes for each of them"
        return None

    def _why_not_after(self, verdict: Verdict) -> str | None:
        """Why nothing can be tried after this failure."""
        if ladder_steps.lacks_nccl(verdict):
            if self._here().gpus:
                return "there are GPUs here, and on the CPU it would be another training (if you want it: unhang run --set backend=gloo)"
            if "CUDA_VISIBLE_DEVICES" in self._environ:
                return "CUDA_VISIBLE_DEVICES may hide the GPUs (if it is to train on the CPU: unhang run --set backend=gloo)"
        return self._why_not()

    def _several(self) -> str | None:
        """What says that ranks run elsewhere, too: on other hosts, or under another unhang."""
        told = training_command.several_hosts(self._command, self._environ)
        return told or ("more ranks have joined than run here" if self._elsewhere else None)

    def _bench(self, *, loaders: bool, cancelled: Callable[[], bool]) -> trial.Bench:
        return trial.Bench(
            python=self._command.python,
            world_size=self._world_size(),
            backend=self._backend_here(),
            environ=self._environ,
            installed=self._here(),
            launcher=commands.launcher(self._command),
            loaders=loaders,
            own=self._own,
            trials=self._rundir.trials,
            cancelled=cancelled,
        )

    def _world_size(self) -> int:
        return self._command.world_size or self._here().gpus or 2

    def _backend_here(self) -> str:
        here = self._here()
        # Our hook ignores any other value.
        if self._environ.get("UNHANG_BACKEND", "").strip().lower() == "gloo":
            return "gloo"
        return self._backend or ("nccl" if here.gpus and here.nccl is not None else "gloo")

    def _here(self) -> Installed:
        if self._installed is None:
            self._installed = find_installed(self._command.python, self._host)
        return self._installed

    def _keyed(self) -> outcome_store.Key:
        if self._key is None:
            self._key = outcome_store.key(
                words=self._words,
                world_size=self._command.world_size or 0,
                cwd=Path.cwd(),
                installed=self._here(),
                environ=self._environ,
                host=self._host,
            )
        return self._key

    def _changed(self, outcome: Outcome, says: Text) -> Changed:
        assert outcome.chosen is not None
        self._in_force = True
        done = applied(outcome.chosen, self._here(), launcher=commands.launcher(self._command))
        options = tuple(word for option in done.options for word in option)
        self._tell(
            events.FellBack(
                choice=outcome.chosen,
                environment=dict(done.env),
                arguments=(*options, *done.arguments),
                says=says,
                remembered=outcome.remembered,
            )
        )
        command = commands.with_settings(self._command, options=done.options, arguments=done.arguments, environ=self._environ)
        return Changed(environ={**self._environ, **done.env}, command=command)

    def _can_start(self, choice: Choice) -> bool:
        """Whether the launcher would take it."""
        done = applied(choice, self._here(), launcher=commands.launcher(self._command))
        try:
            commands.with_settings(self._command, options=done.options, arguments=done.arguments, environ=self._environ)
        except UnhangError as e:
            said = ladder.named(choice)
            self._tell(events.Note(text=f"{said} is not tried: {e}"))
            return False
        return True

    def _progress(self, told: ladder.Told) -> None:
        if told.tried is not None:
            tried = told.tried
            self._tell(_event(tried.id, same(tried.title), tried.trial, same(tried.skipped)))
        elif told.dropping is not None:
            said = ladder.named(told.dropping.choice)
            title = msg("{said}, once more", said=said) if told.again else msg("{said} alone", said=said)
            self._tell(_event("dropping", title, told.dropping))

    def _write(self, outcome: Outcome) -> None:
        try:
            self._rundir.write(self._rundir.solution, outcome)
            text = ladder_report.render(outcome, lang=language.from_locale(os.environ), command=redact_command(self._typed))
            self._rundir.write_bytes(self._rundir.solution_report, text.encode("utf-8", "replace"))
        except OSError as e:
            self._tell(events.Note(text=not_written(self._rundir.solution_report, e)))


def _event(rung: str, title: Text, tried: Trial | None, skipped: Text = NOTHING) -> events.RungTried:
    if tried is None:
        return events.RungTried(rung=rung, title=title, outcome="skipped", says=skipped)
    return events.RungTried(
        rung=rung,
        title=title,
        outcome=tried.outcome,
        says=tried.says,
        busbw_gbps=tried.busbw_gbps,
        seconds=tried.seconds,
    )


def _named(outcome: Outcome) -> str:
    return ladder.named(outcome.chosen or {})


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()
