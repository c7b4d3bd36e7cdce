"""What the user of unhang asks for over the script's head, and the account of what came of it.

Values come from the environment. One that is no value is left out of everything and reported; each change is reported once, with the line of the
script that asked for something else.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import session
from .frames import glance
from .protocol import (
    ENV_BACKEND,
    ENV_BUCKET,
    ENV_LOADER_WORKERS,
    ENV_LOADER_WORKERS_MOST,
    ENV_PERSISTENT_WORKERS,
    ENV_PIN_MEMORY,
    ENV_PREFETCH,
    ENV_TIMEOUT,
)

if TYPE_CHECKING:
    import inspect

# timedelta's own bound is a thousand times this; torch turns the timeout into milliseconds of 64 bits.
_MAX_TIMEOUT_S = 10 * 365 * 86400.0

# Options that only worker processes have, and what a loader without workers gets instead.
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}

_said: set[tuple[str, ...]] = set()
_unsent: list[tuple[str, dict[str, object]]] = []


def backend() -> str | None:
    """ "gloo", or None."""
    value = os.environ.get(ENV_BACKEND, "").strip().lower()
    if value and value != "gloo":
        ignored(ENV_BACKEND, value, "value")
        return None
    return value or None


def timeout_s() -> float | None:
    text = os.environ.get(ENV_TIMEOUT, "").strip()
    if not text:
        return None
    with contextlib.suppress(ValueError):
        value = float(text)
        if math.isfinite(value) and 0 < value <= _MAX_TIMEOUT_S:
            return value
    ignored(ENV_TIMEOUT, text, "value")
    return None


def count(name: str, *, least: int) -> int | None:
    """A whole number from `least` upwards."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal() and int(text) >= least:
        return int(text)
    ignored(name, text, "value")
    return None


def switch(name: str) -> bool | None:
    text = os.environ.get(name, "").strip()
    if text in ("0", "1"):
        return text == "1"
    if text:
        ignored(name, text, "value")
    return None


def rebound(function: Any, change: Callable[[dict[str, Any], inspect.Signature], None]) -> Any:
    """The function with its arguments, by name, as `change` leaves them."""
    import inspect

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # torch says better what is wrong with the call
            return function(*args, **kwargs)
        change(bound.arguments, signature)
        return function(*bound.args, **bound.kwargs)

    return call


def changed(what: str, *, was: object, now: object) -> None:
    """Report a change, once for each kind. Never raises."""
    if (key := (what, str(was), str(now))) not in _said:
        _said.add(key)
        with contextlib.suppress(Exception):
            place = glance(get_ident())[0]
            _send("overridden", what=what, was=str(was), now=str(now), place=list(place[:2]) if place else None)


def ignored(what: str, value: object, why: str) -> None:
    """Report what could not be changed, once. Never raises."""
    if (key := ("", what, str(value))) not in _said:
        _said.add(key)
        with contextlib.suppress(Exception):
            _send("ignored", what=what, value=str(value), why=why)


def flush() -> None:
    """Send what was reported before this process was attached."""
    attached = session.current()
    while attached is not None and _unsent:
        kind, fields = _unsent.pop(0)
        attached.link.post(kind, **fields)


def _send(kind: str, **fields: object) -> None:
    _unsent.append((kind, fields))
    flush()


def patch_ddp(module: ModuleType) -> None:
    """torch.nn.parallel.distributed: the bucket size of every DistributedDataParallel."""
    wanted = count(ENV_BUCKET, least=1)
    if wanted is None:
        return
    kind: Any = module.DistributedDataParallel

    def change(arguments: dict[str, Any], _: Any) -> None:
        asked = arguments.get("bucket_cap_mb")
        # torch 2.4 and later: None stands for it.
        if (was := getattr(module, "_DEFAULT_BUCKET_CAP_MB", 25) if asked is None else asked) != wanted:
            arguments["bucket_cap_mb"] = wanted
            changed("DDP bucket_cap_mb", was=was, now=wanted)

    kind.__init__ = rebound(kind.__init__, change)


def patch_loader(module: ModuleType) -> None:
    """torch.utils.data.dataloader: settings of every DataLoader. Subclasses come by here as long as they call its __init__."""
    _patch_loader(module, "DataLoader")


def patch_stateful_loader(module: ModuleType) -> None:
    """torchdata.stateful_dataloader.stateful_dataloader: its StatefulDataLoader repeats the code of torch's."""
    _patch_loader(module, "StatefulDataLoader")


def _patch_loader(module: Any, name: str) -> None:
    wanted = {
        "num_workers": count(ENV_LOADER_WORKERS, least=0),
        "pin_memory": switch(ENV_PIN_MEMORY),
        "persistent_workers": switch(ENV_PERSISTENT_WORKERS),
        "prefetch_factor": count(ENV_PREFETCH, least=1),
    }
    wanted = {setting: value for setting, value in wanted.items() if value is not None}
    most = count(ENV_LOADER_WORKERS_MOST, least=0)
    loader = getattr(module, name)

    def change(arguments: dict[str, Any], signature: inspect.Signature) -> None:
        defaults = {s: p.default for s, p in signature.parameters.items()}
        asked = arguments.get("num_workers", defaults["num_workers"])
        # A preset lets no loader have more, and gives none to a loader that has none.
        fewer = {"num_workers": most} if most is not None and isinstance(asked, int) and asked > most else {}
        _apply(arguments, defaults, {**fewer, **wanted})

    loader.__init__ = rebound(loader.__init__, change)


def _apply(arguments: dict[str, Any], defaults: dict[str, Any], wanted: dict[str, Any]) -> None:
    given = {**defaults, **arguments}
    applied = dict(wanted)
    if not given["num_workers"] and applied.get("num_workers") and _is_iterable(given["dataset"]):
        # Each worker would give out the whole dataset: it says nowhere that it divides itself among them.
        ignored("loader num_workers", applied.pop("num_workers"), "iterable")
    workers = applied.get("num_workers", given["num_workers"])
    if workers == 0:
        for setting in applied.keys() & {"prefetch_factor", "persistent_workers"}:
            if applied[setting]:
                ignored(f"loader {setting}", applied[setting], "workers")
        applied = {setting: value for setting, value in applied.items() if setting not in _OF_WORKERS}
        # Only where it was we who took the workers away: what the script got wrong by itself, torch tells it.
        if given["num_workers"] != 0:
            applied |= {setting: value for setting, value in _OF_WORKERS.items() if setting in arguments}
    for setting, value in applied.items():
        if setting in defaults and given[setting] != value:
            if setting in wanted and wanted[setting] == value:
                changed(f"loader {setting}", was=given[setting], now=value)
            arguments[setting] = value


def _is_iterable(dataset: Any) -> bool:
    torch_data: Any = sys.modules["torch.utils.data.dataset"]
    return isinstance(dataset, torch_data.IterableDataset)
