"""unhang doctor --live --fix: after what failed, the smallest change of settings that works, and the file that holds it."""

from __future__ import annotations

import os

from unhang.knowledge.settings.installed import installed
from unhang.knowledge.settings.presets import CONSERVATIVE
from unhang.model import Live, Outcome, StageResult
from unhang.remedies import ladder, rungs, settings, trial
from unhang.report import climbing, screen, solution
from unhang.report.language import Language

# Where one rank alone fails there, no way of talking to others is the answer.
_ALONE = ("import", "device", "train-step")


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
        rungs.rungs(
            verdict=failed.verdict,
            installed=here,
            backend=live.backend,
            world_size=bench.world_size,
            address=os.environ.get("MASTER_ADDR") or "127.0.0.1",
            conservative=CONSERVATIVE.settings,
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


def proposed(outcome: Outcome | None) -> tuple[settings.Setting, ...]:
    """The change as a file of variables, where that is all of it: a part of it is not what was proven."""
    found = {} if outcome is None else solution.variables(outcome)
    return tuple(settings.Setting(name=name, value=value, cause=outcome.why if outcome else "") for name, value in found.items())
