"""Environments that were packed, placed, checked, compared and sent, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from unhang.i18n import Text, msg, texts
from unhang.model import Area, Examination, HostFinding, NotExamined
from unhang.pack import verify
from unhang.pack.diff import Comparison
from unhang.pack.manifest import LeftOut, Manifest
from unhang.pack.transfer import Sent
from unhang.pack.verify import Verification
from unhang.report import doctor
from unhang.report.console import Console
from unhang.report.language import Language
from unhang.text import size

_MOST = 20
_MORE = msg("  … {more} more: --json has all")
_STATES = texts("pack-states")
_AREAS = texts("pack-areas")
_HEADS = (msg("host"), msg("state"), msg("sent"), msg("time"), msg("checks"))


def packed(manifest: Manifest) -> Iterator[Text]:
    """What stands in an archive, and what does not."""
    torch = f", torch {manifest.torch.version}" if manifest.torch is not None else ""
    n, total = len(manifest.entries), size(manifest.size_bytes)
    yield msg(
        "{n} entries, {total}; Python {version}, {distributions} distributions{torch}; needs glibc {glibc}",
        n=n,
        total=total,
        version=manifest.python.version,
        distributions=len(manifest.distributions),
        torch=torch,
        glibc=manifest.glibc,
    )
    for s in manifest.sources:
        changed = msg(" with changes") if s.changed else ""
        at = msg(", commit {commit}{changed}", commit=s.commit[:12], changed=changed) if s.commit is not None else ""
        yield msg("taken along: {origin} as {path}{at}", origin=s.origin, path=s.path, at=at)
    yield from _left(manifest.left_out)


def ignored(left: Sequence[LeftOut]) -> Iterator[Text]:
    """What git ignores, and how to take it along."""
    yield from _left(left)
    if left:
        yield msg("left out; --include PATTERN takes some of these along, --all-files all")


def _left(left: Sequence[LeftOut]) -> Iterator[Text]:
    yield from (msg("note: {path}: {why}", path=one.path, why=one.why) for one in left[:_MOST])
    if len(left) > _MOST:
        yield _MORE.fill(more=len(left) - _MOST)


def verified(found: Verification, console: Console, lang: Language) -> None:
    _areas(found.areas, found.findings, found.not_examined, console, lang)


def findings(found: Sequence[HostFinding], console: Console, lang: Language) -> None:
    state = "found" if any(f.severity != "note" for f in found) else "noted"
    if found:
        _areas((Area(id="place", state=state),), found, (), console, lang)  # type: ignore[arg-type]


def _areas(areas: Sequence[Area], found: Iterable[HostFinding], missed: tuple[NotExamined, ...], console: Console, lang: Language) -> None:
    shown = Examination(host="", taken="", areas=tuple(areas), findings=tuple(found), not_examined=missed)
    doctor.render(shown, console, lang=lang, titles=verify.TITLES)


def compared(found: Comparison, lang: Language) -> Iterator[str]:
    if found.is_same:
        yield msg("{a} and {b} hold the same", a=found.a, b=found.b).of(lang)
    for name, (a, b) in (*found.facts.items(), *found.distributions.items()):
        yield f"{name}: {a or '-'} -> {b or '-'}"
    if found.files:
        yield msg("{files} paths differ:", files=len(found.files)).of(lang)
        yield from (f"  {path}" for path in found.files[:_MOST])
        if len(found.files) > _MOST:
            yield _MORE.fill(more=len(found.files) - _MOST).of(lang)


def sent(results: Sequence[Sent], console: Console, lang: Language) -> None:
    table = Table(*(head.of(lang) for head in _HEADS), box=None, pad_edge=False)
    for r in results:
        states = [str(a.state) for a in r.areas]
        counts = [(says.of(lang), states.count(state)) for state, says in _AREAS.items()]
        checks = ", ".join(f"{n} {says}" for says, n in counts if n) or "-"
        table.add_row(r.host, _STATES[r.state].of(lang), size(r.sent_bytes), f"{r.took_s:.1f} s", checks)
    console.print(table)
    for r in results:
        if r.why is not None:
            console.print(f"{r.host}: {r.why}")
        if r.findings:
            console.print(r.host, style="bold")
            against = {f.area for f in r.findings}
            _areas([a for a in r.areas if a.id in against] or [Area(id="place", state="found")], r.findings, (), console, lang)
