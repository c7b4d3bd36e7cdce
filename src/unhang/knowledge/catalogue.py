"""All causes: a new one is a new file in `knowledge/causes` and nothing else, and a module beside it if code has to judge it.

A site adds its own. A judge is imported and asked only where something is there of what it needs (`judge.*` of the file).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from unhang import data
from unhang.errors import UnhangError
from unhang.knowledge import other_libraries, site
from unhang.knowledge.cause import cause, from_data
from unhang.knowledge.judge import Findings, Found, HostView, NotRead

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause, Signature
    from unhang.model import HostFinding


_JUDGES = {"judge.run": "in_run", "judge.logs": "in_logs", "judge.host": "on_host"}


@cache
def load() -> Mapping[str, Cause]:
    """Every cause by id, roots first, then by name."""
    found: dict[str, Cause] = {}
    for id, known in data.load()["causes"].items():
        judges: dict[str, Any] = {_JUDGES[key]: partial(ask, id, _JUDGES[key], needs) for key, needs in known["judges"].items()}
        found[id] = replace(cause(id, signatures=other_libraries.SIGNATURES_OF.get(id, ())), **judges)
    found |= {id: from_data(id, known) for id, known in site.load()[0].items()}
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: (item[1].role != "root", item[0]))))


def ask(id: str, judge: str, needs: Collection[str], view: Any) -> Any:
    """The answer of a judge; nothing where it is not asked."""
    if is_open(judge, needs, view):
        return answer(id, judge, view)
    return () if judge == "on_host" else None


def answer(id: str, judge: str, view: Any) -> Any:
    """What a judge finds, in the words of its cause."""
    module = importlib.import_module(f"unhang.knowledge.causes.{id.replace('-', '_')}")
    if judge == "on_host":
        return _told_of_host(load()[id], module.on_host, HostView(view))
    found = getattr(module, judge)(view)
    return load()[id].told(found) if isinstance(found, Found) else found


def _told_of_host(cause: Cause, judge: Callable[[HostView], Findings], host: HostView) -> Iterator[HostFinding]:
    with contextlib.suppress(NotRead):
        for found in judge(host):
            yield cause.told_of_host(found, host)


def is_open(judge: str, needs: Collection[str], view: Any) -> bool:
    """Whether anything is there of what a judge needs: a subject that was read on the machine, hits of a cause, or something in the view."""
    if judge == "on_host":
        return any(name in view.parts and view.parts[name].facts is not None for name in needs)
    return any(view.hits_of(name) or reduce(_part, name.split("."), view) for name in needs)


def _part(whole: object, name: str) -> Any:
    return getattr(whole, name, ())


def areas(id: str) -> set[str]:
    """Where a cause finds anything on a machine."""
    return {found["area"] for found in data.load()["causes"][id]["finding"].values() if "area" in found}


@cache
def signatures() -> Mapping[Signature, str]:
    """Every signature, and the cause that it belongs to."""
    # Of two that are alike the one that we know.
    known = sorted(load().values(), key=lambda cause: not cause.id.startswith(site.PREFIX))
    return MappingProxyType({s: cause.id for cause in known for s in cause.signatures})


def get(id: str) -> Cause:
    """One cause. Raises UnhangError that names the nearest ones."""
    known = load()
    name = id.strip().lower().replace("_", "-")
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [
        k for k in known if any(part in k for part in name.split("-") if len(part) > 2)
    ]
    raise UnhangError(
        f"there is no cause named {id!r}" + (f"; did you mean {', '.join(near)}?" if near else ""),
        hint="unhang explain --list",
    )
