"""What differs between two environments: archives, loaded ones, or as they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unhang.pack import archive, packer, placement
from unhang.pack import manifest as manifests
from unhang.pack.manifest import Entry, Manifest

SCHEMA = "unhang/pack-diff/1"
_FIELDS = ("kind", "machine", "glibc", "python", "torch")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`facts` and `distributions` hold what each side has, None for nothing. `files` are paths of which content, mode or kind differ."""

    schema: str = SCHEMA
    a: str
    b: str
    facts: dict[str, tuple[str | None, str | None]]
    distributions: dict[str, tuple[str | None, str | None]]
    files: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not (self.facts or self.distributions or self.files)


def compare(a: Path, b: Path) -> Comparison:
    """Raises UnhangError for what is neither an archive nor an environment."""
    one, other = _manifest(a), _manifest(b)
    return Comparison(
        a=str(a),
        b=str(b),
        facts=_differing(_facts(one), _facts(other)),
        distributions=_differing(one.distributions, other.distributions),
        files=tuple(_differing(_by_path(one.entries), _by_path(other.entries))),
    )


def _manifest(path: Path) -> Manifest:
    if not path.is_dir():
        with archive.opened(path) as opened:
            return opened.manifest
    if (path / placement.MANIFEST).is_file():
        return manifests.read_placed(path)[0]
    with packer.stock(path) as taken:
        return taken.manifest


def _facts(manifest: Manifest) -> dict[str, str]:
    facts = {name: getattr(manifest, name) for name in _FIELDS} | {f"source {s.name}": s for s in manifest.sources}
    return {name: _said(value) for name, value in facts.items() if value is not None}


def _said(value: Any) -> str:
    parts = {} if isinstance(value, str) else msgspec.to_builtins(value)
    return ", ".join(f"{k} {v}" for k, v in parts.items() if v is not None and k != "name") or value


def _by_path(entries: Iterable[Entry]) -> dict[str, str]:
    return {e.path: msgspec.json.encode(e).decode() for e in entries}


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)}
