"""version-mismatch: parts of one job that have to agree were built for, or are, different versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.knowledge.words import COMMA, NOTHING, Text, joined, msg, same
from unhang.logs.log_facts import At
from unhang.model import Evidence
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.libraries import Libraries

CAUSE = cause("version-mismatch")

_RELEASE = lazily(r"(\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")


def in_logs(view: LogView) -> Answer:
    """NCCL itself compares versions only late; what each rank prints shows the difference before that."""
    own = view.hits_of(CAUSE.id)
    # Places by NCCL release, the toolkit that it was built with left aside: builds of one release understand each other.
    printed: dict[str, list[At]] = {}
    for text, places in sorted(view.nccl.versions.items()):
        if release := _RELEASE.search(text):
            printed.setdefault(release[1], []).extend(places)
    apart = _apart(printed)
    named = next((h for h in own if "first_version" in h.groups), None)
    if named is not None:
        g = named.groups
        return CAUSE.of_hits(own, view, Found("pair", g=g, one=_release(g["first_version"]), other=_release(g["second_version"])))
    if apart is None or not _failed(view):
        # An address that cannot be read is interface-selection's, unless releases differ.
        return CAUSE.of_hits([h for h in own if "family" not in h.groups], view)
    told = joined((msg("{release} on {places}", release=v, places=_places(p)) for v, p in printed.items()), COMMA)
    garbled = any(h.groups.keys() & {"family", "received_bytes"} for h in own)
    lines = [a for places in printed.values() for a in places]
    return Found(
        "several",
        ranks=lines,
        standing="established" if garbled and apart == "hosts" else "likely" if apart == "hosts" else "possible",
        evidence=(
            *(places[0] for places in printed.values()),
            *own[:1],
        ),
        hosts=lines,
        of_hosts=apart == "hosts",
        told=told,
    )


def _apart(printed: Mapping[str, list[At]]) -> str | None:
    """Who disagrees: "hosts", "ranks", or nobody. One process may hold two NCCLs (torch's and a plugin's) and be healthy."""
    if len(printed) < 2:
        return None
    hosts = [{a.host for a in places if a.host} for places in printed.values()]
    if all(hosts) and not set.intersection(*hosts):
        return "hosts"
    ranks = [{a.rank for a in places if a.rank is not None} for places in printed.values()]
    return "ranks" if all(ranks) and not set.intersection(*ranks) else None


def _failed(view: LogView) -> bool:
    return bool(view.hits or view.tracebacks or view.timeouts or any(not i.completed for i in view.nccl.inits) or any(e.code for e in view.exits))


def _places(places: Iterable[At]) -> Text:
    names = list(dict.fromkeys(a.host or (f"rank {a.rank}" if a.rank is not None else a.source) for a in places))
    more = msg(" and {n} more", "version_mismatch", n=len(names) - 3) if len(names) > 3 else NOTHING
    return joined(names[:3], COMMA) + more


def _release(code: str) -> str:
    """ "22105" is 2.21.5; up to 2.8 the code was shorter ("2708" is 2.7.8)."""
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number >= 10000 else f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def on_host(host: HostView) -> Findings:
    from unhang.facts import libraries, python_env

    seen = host.get(libraries.SUBJECT)
    if seen is not None:
        yield from _pins(seen)
        yield from _replaced(seen)
    envs = host.get(python_env.SUBJECT)
    for env in envs.environments if envs is not None else ():
        doubled = {n: v for n, v in env.duplicates.items() if n in python_env.TRAINING or n.startswith("nvidia-")}
        if doubled:
            told = joined(same(f"{n} ") + joined(v, msg(" and ", "version_mismatch")) for n, v in list(doubled.items())[:4])
            yield Found(
                "two-releases",
                evidence=tuple(Evidence(source=env.prefix, text=f"{n}-{one}.dist-info") for n, v in list(doubled.items())[:2] for one in v),
                env=env,
                told=told,
                doubled=doubled,
            )


def _pins(seen: Libraries) -> Findings:
    # What is not there at all is library-link's, where torch really lacks it.
    apart = [p for p in seen.broken_pins if p.installed is not None]
    for package in dict.fromkeys(p.package for p in apart):
        own = [p for p in apart if p.package == package]
        yield Found(
            "other-pins-than-torch" if own[0].name == "torch" else "other-pins",
            pins=[f"{p.name}=={p.wanted}" for p in own],
            package=package,
            version=seen.packages.get(package, seen.torch.version),
            others=joined(
                (msg("{name} {wanted}, not {installed}", name=p.name, wanted=p.wanted, installed=p.installed) for p in own[:4]),
                msg(", ", "version_mismatch"),
            ),
            each=own[:4],
        )


def _replaced(seen: Libraries) -> Findings:
    """The file of a wheel, and what the wheel's record says that it is."""
    wheel = next(((n, v) for n, v in seen.packages.items() if n.startswith("nvidia-nccl-cu")), None)
    file = next((c for c in (*seen.loaded, *seen.others) if c.name == "nccl" and "/nvidia/nccl/lib/" in c.path and c.version is not None), None)
    if wheel is not None and file is not None and ".".join(wheel[1].split(".")[:3]) != file.version:
        yield Found("other-nccl", wheel=wheel, file=file, requirement="==".join(wheel))
