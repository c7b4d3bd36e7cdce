"""All causes: a new one is a new file in `knowledge/causes` and nothing else, and a module beside it if code has to judge it. Sites add their own."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from unhang import data
from unhang.errors import UnhangError
from unhang.knowledge import causes, site
from unhang.knowledge.cause import cause, from_data

if TYPE_CHECKING:
    from unhang.knowledge.cause import Cause, Signature


@cache
def load() -> Mapping[str, Cause]:
    """Every cause by id, roots first, then by name."""
    judged = {m.name for m in pkgutil.iter_modules(causes.__path__)}
    found: dict[str, Cause] = {}
    for id in data.load()["causes"]:
        module = id.replace("-", "_")
        found[id] = importlib.import_module(f"{causes.__name__}.{module}").CAUSE if module in judged else cause(id)
    found |= {id: from_data(id, known) for id, known in site.load()[0].items()}
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: (item[1].role != "root", item[0]))))


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
