"""Weights & Biases: in the training's own run where there is one, without moving its step.

W&B refuses whatever is logged at a step below its newest one. Rows that somebody else commits move that step on, and the training's own would be
lost: in its run nothing of ours is committed. Values go into the row that the training logs next, and into the summary at once, where they show
during a hang too.
"""

from __future__ import annotations

import netrc
import os
from typing import Any
from urllib.parse import urlsplit

from unhang.runtime import log
from unhang.runtime.monitoring.counters import Snapshot
from unhang.runtime.monitoring.sinks.measures import flat, needed

_STEP = "unhang/step"
# Below the patience of the monitor, so that what is told is W&B's own reason.
_INIT_TIMEOUT_S = 8.0


class WandB:
    """`run`: the training's; without one that which is active when a snapshot comes, else one of its own, made with `init` (as wandb.init takes it).

    Never logs in and never asks: without a key a run of its own is kept offline. Raises MissingExtra.
    """

    def __init__(self, run: Any = None, **init: Any) -> None:
        needed("WandB", "wandb", "wandb")
        self._given, self._init = run, init
        self.where = getattr(run, "id", None)
        self._own: Any = None
        self._theirs: Any = None
        self._defined: set[str] = set()

    def write(self, snapshot: Snapshot) -> None:
        run, own = self._run()
        if run is None:
            return
        values = flat(snapshot)
        if snapshot.step is not None:
            if run.id not in self._defined:
                run.define_metric(_STEP, hidden=True)
                run.define_metric("unhang/*", step_metric=_STEP)
                self._defined.add(run.id)
            values[_STEP] = snapshot.step
        run.log(values, commit=own)
        if not own:
            run.summary.update(values)

    def close(self) -> None:
        if self._own is not None:
            self._own.finish()

    def _run(self) -> tuple[Any, bool]:
        """None where the training has finished the run that it had."""
        import wandb

        theirs = self._given or wandb.run
        if theirs is not None and not bool(getattr(theirs, "_is_finished", False)):
            if self._own is not None:
                self._own.finish()
                self._own = None
            self._theirs = theirs
            return theirs, False
        if self._theirs is not None or self._given is not None:
            return None, False
        if self._own is None:
            self._own = self._start(wandb)
        return self._own, True

    def _start(self, wandb: Any) -> Any:
        wanted = {"project": "unhang", **self._init}
        keyless = (wanted.get("mode") or os.environ.get("WANDB_MODE")) not in ("offline", "disabled", "dryrun") and not _has_key()
        if keyless:
            wanted["mode"] = "offline"
        # What a training prints is its own affair: without `console` all of it would go to this run.
        given = wanted.get("settings")
        named = dict(given) if isinstance(given, dict) else {}
        run = wandb.init(
            **{
                **wanted,
                "reinit": "create_new",
                "settings": wandb.Settings(**{"console": "off", "silent": True, "init_timeout": _INIT_TIMEOUT_S, **named}),
            }
        )
        # The training may start a run of its own later: wandb.init would give it the newest one that it knows of.
        if (known := getattr(run, "_wl", None)) is not None and hasattr(known, "remove_active_run"):
            known.remove_active_run(run)
        if keyless:
            where = getattr(run.settings, "sync_dir", "wandb/offline-run-...")
            log.warning("the monitor's WandB has found no key (WANDB_API_KEY, ~/.netrc) and writes offline: `wandb sync %s` uploads it later", where)
        return run


def _has_key() -> bool:
    """In the places where wandb looks: its own look ends in a question where there is none."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
