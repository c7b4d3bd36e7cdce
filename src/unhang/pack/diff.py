"""What differs between two environments: archives, loaded ones, or as they stand."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from unhang.model import frozen
from unhang.pack import archive, packer, relocate
from unhang.pack import manifest as manifests
from unhang.pack.files import walk
from unhang.pack.manifest import Entry, Manifest

SCHEMA = "unhang/pack-diff/1"
_FIELDS = ("kind", "machine", "glibc", "python", "torch")


@frozen
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
    if (path / relocate.MANIFEST).is_file():
        return _as_it_is(path.resolve())
    with packer.stock(path, packer.Extras()) as taken:
        return taken.manifest


def _as_it_is(root: Path) -> Manifest:
    """The manifest of an environment that was loaded, with what was added, changed and removed since it was put in its place."""
    known, _, placed = manifests.read_placed(root)
    wrong = {path for path, _ in relocate.differences(root, msgspec.to_builtins(known.entries), placed["changed"])}
    same = {e.path: e for e in known.entries if e.path not in wrong}
    new = [i for i in walk(root, "", inside=root, without=packer.WITHOUT) if i.path not in same]
    sums = {i.path: relocate.sum_of(Path(i.source)) for i in new if i.source is not None}
    packages = sorted(root.glob("lib/python3*/site-packages"))
    installed = sorted((d.metadata["Name"] or "", d.version or "") for d in importlib.metadata.distributions(path=list(map(str, packages))))
    return replace(
        known,
        torch=packer.torch(packages),
        distributions={name: version for name, version in installed if name},
        entries=(*same.values(), *(Entry(i.path, i.kind, i.mode, i.size, sums.get(i.path, ""), i.target) for i in new)),
    )


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
