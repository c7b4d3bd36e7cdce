"""What the user of unhang asks for over the script's head, and the account of what came of it.

Values come from the environment. One that is no value is left out of everything and reported; each change is reported once, with the line of the
script that asked for something else.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import session
from .frames import glance
from .protocol import ENV_BACKEND, ENV_BUCKET, ENV_TIMEOUT

if TYPE_CHECKING:
    import inspect

# timedelta's own bound is a thousand times this; torch turns the timeout into milliseconds of 64 bits.
_MAX_TIMEOUT_S = 10 * 365 * 86400.0

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
