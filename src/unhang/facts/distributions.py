"""What is installed in a directory of packages, told from names and small records: no package is imported, few files are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from unhang.facts import paths
from unhang.facts.host import Host
from unhang.model import frozen

_RECORD = re.compile(r"(?P<name>[A-Za-z0-9](?:[\w.-]*?[A-Za-z0-9])?)-(?P<version>\d[^-]*|[^-]+)(?:-py\d[\d.]*)?\.(?:dist|egg)-info")
_PINNED = re.compile(r"Requires-Dist: *(?P<name>[\w.-]+)(?:\[[^\]]*\])? *\(? *={2,3} *(?P<version>[^\s;,)*]+) *\)? *(?:;(?P<marker>.*))?$")
_FINDER = re.compile(r"import (__editable__\w+)")


@frozen
class Lead:
    """Something in a directory of packages that leads to a place that is not there: `file` says so, of package `name` where it tells."""

    file: str
    target: str
    name: str | None = None


def key(name: str) -> str:
    """One spelling for a package: "Flash_Attn" and "flash-attn" are the same."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Versions by package, of the names in a directory; more than one where records are left of an earlier install."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        if record := _RECORD.fullmatch(name):
            package = key(record["name"])
            found[package] = tuple(dict.fromkeys((*found.get(package, ()), record["version"])))
    return found


def record(names: Iterable[str], package: str) -> str | None:
    """The name of a package's record."""
    return next((n for n in names if (m := _RECORD.fullmatch(n)) and key(m["name"]) == package), None)


def of_torch(version_py: str) -> Mapping[str, str]:
    """What the texts of torch/version.py are: "__version__", "cuda", "hip"; "" for None."""
    return dict(re.findall(r"^(\w+)(?: *: *[^=\n]+)? *= *(?:['\"]([^'\"\n]+)['\"]|\S+)", version_py, re.MULTILINE))


def pins(metadata: str) -> Mapping[str, str]:
    """Packages that must be installed in exactly one version, on Linux and without extras."""
    found: dict[str, str] = {}
    for line in metadata.partition("\n\n")[0].splitlines():
        if (m := _PINNED.match(line)) and not _elsewhere(m["marker"] or ""):
            found[key(m["name"])] = m["version"]
    return found


def _elsewhere(marker: str) -> bool:
    return bool(re.search(r"\bextra\b|python_version|python_full_version|!=", marker)) or bool(
        re.search(r"(?:platform_system|sys_platform)\s*==\s*['\"](?!linux)", marker, re.IGNORECASE)
    )


def leads_nowhere(host: Host, place: str, names: Iterable[str]) -> tuple[tuple[Lead, ...], tuple[Lead, ...]]:
    """Editable installs whose sources are gone, and other lines of .pth files that lead nowhere."""
    editable: dict[str, Lead] = {}
    lines: list[Lead] = []
    for name in names:
        file = f"{place}/{name}"
        if found := _RECORD.fullmatch(name):
            source = editable_source(paths.text(host, f"{file}/direct_url.json", size_bytes=65536)) if name.endswith(".dist-info") else None
            if source is not None and paths.missing(host, source):
                editable[key(found["name"])] = Lead(file=f"{file}/direct_url.json", target=source, name=key(found["name"]))
        elif name.endswith(".egg-link"):
            source = paths.text(host, file, size_bytes=65536).partition("\n")[0].strip()
            if source.startswith("/") and paths.missing(host, source):
                editable.setdefault(key(name[: -len(".egg-link")]), Lead(file=file, target=source, name=key(name[: -len(".egg-link")])))
        elif name.endswith(".pth"):
            lines += _lines(host, place, name)
    sources = tuple(e.target.rstrip("/") for e in editable.values())
    own = [line for line in lines if not any(line.target == s or line.target.startswith(f"{s}/") for s in sources)]
    made = [line for line in own if "editable" in line.file.rpartition("/")[2]]
    return (*editable.values(), *made), tuple(line for line in own if line not in made)


def editable_source(direct_url: str) -> str | None:
    """Where an editable install has its sources."""
    try:
        known = json.loads(direct_url)
        url = urlsplit(known["url"])
        editable = known["dir_info"]["editable"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return unquote(url.path) if editable is True and url.scheme == "file" and isinstance(url.path, str) and url.path.startswith("/") else None


def _lines(host: Host, place: str, name: str) -> Iterable[Lead]:
    for line in paths.text(host, f"{place}/{name}", size_bytes=65536).splitlines():
        line = line.strip()
        if line.startswith("import"):
            finder = _FINDER.match(line)
            if finder is not None and paths.missing(host, f"{place}/{finder[1]}.py"):
                yield Lead(file=f"{place}/{name}", target=f"{place}/{finder[1]}.py")
        elif line and not line.startswith("#"):
            target = line if line.startswith("/") else f"{place}/{line}"
            if paths.missing(host, target):
                yield Lead(file=f"{place}/{name}", target=target)
