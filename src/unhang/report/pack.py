"""Environments that were packed, placed, checked, compared and sent, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from unhang.facts.units import size
from unhang.model import Area, Examination, HostFinding, NotExamined
from unhang.pack import verify
from unhang.pack.diff import Comparison
from unhang.pack.manifest import LeftOut, Manifest
from unhang.pack.transfer import Sent
from unhang.pack.verify import Verification
from unhang.report import doctor
from unhang.report.language import Language
from unhang.text import Text

_MOST = 20
_MORE = Text("  … {more} more: --json has all", "  … 还有 {more} 个：--json 列出全部")
_STATES = {
    "sent": Text("sent", "已发送"),
    "unchanged": Text("unchanged", "无变化"),
    "refused": Text("refused, nothing was sent", "已拒绝，未发送任何内容"),
    "failed": Text("failed", "失败"),
}
_AREAS = {
    "ok": Text("ok", "正常"),
    "noted": Text("noted", "有说明"),
    "found": Text("found", "有问题"),
    "absent": Text("not there", "没有"),
    "unknown": Text("unknown", "未知"),
}
_HEADS = (Text("host", "主机"), Text("state", "状态"), Text("sent", "已发送"), Text("time", "时间"), Text("checks", "检查"))


def packed(manifest: Manifest) -> Iterator[Text]:
    """What stands in an archive, and what does not."""
    torch = f", torch {manifest.torch.version}" if manifest.torch is not None else ""
    n, total = len(manifest.entries), size(manifest.size_bytes)
    yield Text(
        f"{n} entries, {total}; Python {manifest.python.version}, {len(manifest.distributions)} distributions{torch}; needs glibc {manifest.glibc}",
        f"{n} 个条目，{total}；Python {manifest.python.version}，{len(manifest.distributions)} 个软件包{torch}；需要 glibc {manifest.glibc}",
    )
    for s in manifest.sources:
        at = f", commit {s.commit[:12]}{' with changes' if s.changed else ''}" if s.commit is not None else ""
        at_zh = f"，提交 {s.commit[:12]}{'（有改动）' if s.changed else ''}" if s.commit is not None else ""
        yield Text(f"taken along: {s.origin} as {s.path}{at}", f"一并带上：{s.origin} -> {s.path}{at_zh}")
    yield from _left(manifest.left_out)


def ignored(left: Sequence[LeftOut]) -> Iterator[Text]:
    """What git ignores, and how to take it along."""
    yield from _left(left)
    if left:
        yield Text(
            "left out; --include PATTERN takes some of these along, --all-files all",
            "以上未打包；--include PATTERN 带上其中一些，--all-files 全部带上",
        )


def _left(left: Sequence[LeftOut]) -> Iterator[Text]:
    yield from (Text(f"note: {one.path}: {one.why}", f"注意：{one.path}：{one.why}") for one in left[:_MOST])
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
        yield Text(f"{found.a} and {found.b} hold the same", f"{found.a} 与 {found.b} 内容相同").of(lang)
    for name, (a, b) in (*found.facts.items(), *found.distributions.items()):
        yield f"{name}: {a or '-'} -> {b or '-'}"
    if found.files:
        yield Text(f"{len(found.files)} paths differ:", f"{len(found.files)} 个路径不同：").of(lang)
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
            console.print(f"{r.host}: {r.why}", markup=False, soft_wrap=True)
        if r.findings:
            console.print(r.host, style="bold", markup=False)
            against = {f.area for f in r.findings}
            _areas([a for a in r.areas if a.id in against] or [Area(id="place", state="found")], r.findings, (), console, lang)
