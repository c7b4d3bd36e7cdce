"""Snapshots as JSON: written, and read from whatever a file holds."""

from __future__ import annotations

import msgspec

from unhang import encoding
from unhang.errors import UnhangError
from unhang.facts import snapshot as snapshots
from unhang.facts.snapshot import SNAPSHOT_SCHEMA, Part, Snapshot, State


def encode(snapshot: Snapshot) -> bytes:
    return msgspec.json.format(encoding.encode(snapshot), indent=1)


def decode(text: bytes, *, name: str) -> Snapshot:
    """Raises UnhangError where that is no snapshot. A part of another version's shape becomes "unknown"; subjects that we do not have are dropped."""
    try:
        whole = msgspec.json.decode(text, type=_Whole)
    except encoding.NOT_JSON as e:
        raise UnhangError(f"{name} is no snapshot of a host: {e}", hint="unhang doctor --save host.json") from e
    if whole.schema.rpartition("/")[0] != SNAPSHOT_SCHEMA.rpartition("/")[0]:
        raise UnhangError(f"{name} is no snapshot of a host: its schema is {whole.schema!r}", hint="unhang doctor --save host.json")
    parts = {}
    for id, subject in snapshots.subjects().items():
        kept = whole.parts.get(id)
        if kept is None:
            continue
        try:
            facts = msgspec.json.decode(kept.facts, type=subject.facts) if kept.state == "read" else None
            parts[id] = Part(state=kept.state, why=kept.why, facts=facts)
        except encoding.NOT_JSON as e:
            parts[id] = Part(state="unknown", why=f"written by another version of unhang: {e}")
    return Snapshot(schema=whole.schema, host=whole.host, taken=whole.taken, parts=parts)


class _Kept(msgspec.Struct, kw_only=True):
    state: State
    why: str = ""
    facts: msgspec.Raw = msgspec.Raw(b"null")


class _Whole(msgspec.Struct, kw_only=True):
    schema: str
    host: str
    taken: str
    parts: dict[str, _Kept]
