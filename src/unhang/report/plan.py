"""A plan on a terminal and as JSON: the table of strategies, what to take, and bars of where the memory goes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.i18n import COMMA, Text, joined, msg, texts
from unhang.model import frozen
from unhang.plan.memory_model import Estimate, Term, total
from unhang.plan.recommend import FITS, MOST_BATCH, Plan, Row
from unhang.plan.training import Training
from unhang.text import counted, size

if TYPE_CHECKING:
    from unhang.report.console import Console

_NOT_TENSORS = ("slack", "context", "communicator")
_MOMENT = texts("plan-moments")
_BASE = texts("plan-bases")

UNWRITTEN = msg("nothing is written: no strategy that fits has a place in {form}; --strategy NAME writes one all the same")


def written(row: Row, name: str, companions: Collection[str], *, instead_of: Row) -> Text:
    """Which files were written, and which strategy they hold if that is not the one to take."""
    names = ", ".join((name, *(name + behind for behind in companions)))
    return (msg("wrote {names}") if row is instead_of else msg("wrote {names}: {row}, since the form has no place for {best}")).fill(
        names=names, row=row.strategy.title, best=instead_of.strategy.title
    )


def spanned(low: float, high: float) -> str:
    """ "12 - 15 GiB", "3 GiB"."""
    first, last = size(low), size(high)
    return last if first == last else f"{first.removesuffix(' ' + last.split()[1])} - {last}"


def _cells(row: Row, lang: str) -> list[str]:
    """One line of the table, by _HEADS."""
    batch = "?" if row.largest_batch is None else str(row.largest_batch) if row.largest_batch else "-"
    if row.largest_batch == MOST_BATCH:
        batch = msg("{batch} or more", batch=batch).of(lang)
    sent = size(row.sent_bytes) if row.sent_bytes else "-"
    host = spanned(row.estimate.host_low, row.estimate.host_high)
    return [
        f"{row.strategy.title.of(lang)} ({row.strategy.name})",
        spanned(row.estimate.low, row.estimate.high),
        FITS[row.fits].of(lang),
        batch,
        f"{host} ({FITS['no'].of(lang)})" if row.host_fits == "no" else host,
        f"{sent}, {row.sent_s:.3g} s" if row.sent_s is not None and row.sent_bytes else sent,
    ]


def _at_peak(found: Estimate) -> list[Term]:
    """The parts that are held when most is needed, largest first."""
    return sorted((t for t in found.terms if t.place == "device" and found.peak in t.moments), key=lambda t: -t.high)


def _facts(plan: Plan) -> list[Text]:
    """What was planned for, in lines."""
    t, machine = plan.training, plan.machine
    unknown = [
        text
        for is_known, text in ((machine.host_bytes, msg("memory of a host (--host-memory)")), (machine.cpus, msg("processors of a host (--cpus)")))
        if is_known is None
    ]
    room = "?" if machine.device_bytes is None else size(machine.device_bytes)
    trained = f"{plan.counts.trained / 1e6:,.1f} M"
    return [
        msg(
            "{name}: {parameters:,.1f} M parameters, {trained} trained; {precision}, {optimizer}, {attention} attention{checkpointing}",
            name=plan.name,
            parameters=plan.counts.parameters / 1e6,
            trained=trained,
            precision=t.precision,
            optimizer=t.optimizer,
            attention=t.attention,
            checkpointing=msg(", checkpointing") if t.checkpointing else "",
        ),
        msg(
            "{ranks}, {here} on each host; {samples} on each rank, each {sample}; {room} for each rank ({origin})",
            ranks=counted(t.world_size, "rank"),
            world_size=t.world_size,
            here=t.ranks_here,
            samples=counted(t.batch, "sample"),
            batch=t.batch,
            sample=plan.sample,
            room=room,
            origin=machine.origin,
        ),
        _BASE[plan.base],
        *((msg("not known: {what}", what=joined(unknown, COMMA)),) if unknown else ()),
        msg("how fast the links are is not known")
        if machine.link_gbps is None
        else msg("links: {what}, {gbps} GB/s one way", what=machine.links or "", gbps=f"{machine.link_gbps:.3g}"),
    ]


def _recommendation(plan: Plan) -> Text:
    return plan.why if plan.recommended is None else msg("take {name}: {why}", name=plan.row(None).strategy.title, why=plan.why)


def _preparation(plan: Plan) -> Text:
    p = plan.preparation
    return msg(
        "preprocessing_num_workers {processes}, dataloader_num_workers {workers}, ddp_timeout {timeout} ({why})",
        processes="?" if p.processes is None else p.processes,
        workers=p.loader_workers,
        timeout=p.timeout_s,
        why=p.why,
    )


def _where(plan: Plan) -> Text:
    row = plan.row(None)
    return msg("where the memory of one rank goes with {name}, {moment}", name=row.strategy.title, moment=_MOMENT[row.estimate.peak])


def show(plan: Plan, console: Console, *, lang: str, explain: bool) -> None:
    """Print the plan; with `explain`, each term of the chosen strategy."""
    from rich.table import Table

    def say(text: str) -> None:
        console.print(text, soft_wrap=False)

    for line in (*_facts(plan), *plan.notes):
        say(line.of(lang))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in msg("strategy|each rank|fits|largest batch|host memory|sent per step").of(lang).split("|"):
        table.add_column(head, overflow="fold")
    for row in plan.rows:
        table.add_row(*_cells(row, lang), style="bold" if row.strategy.name == plan.recommended else None)
    say("")
    console.print(table)
    say("")
    say(_recommendation(plan).of(lang))
    say(_preparation(plan).of(lang))
    say("")
    say(_where(plan).of(lang))
    shown = plan.row(None).estimate
    parts = _at_peak(shown)
    widest = max((p.high for p in parts), default=1.0)
    for part in parts:
        # Plain ASCII: = is the low end, - what the range adds.
        low, high = (round(end / widest * 30) for end in (part.low, part.high))
        say(f"  {'=' * low + '-' * (high - low):<30}  {spanned(part.low, part.high):>16}  {part.name.of(lang)}")
    if explain:
        say("")
        for part in shown.terms:
            moments = "" if len(part.moments) == len(_MOMENT) else f" [{', '.join(_MOMENT[m].of(lang) for m in part.moments)}]"
            say(f"{part.name.of(lang)}: {spanned(part.low, part.high)}{moments}")
            say(f"  {part.formula.of(lang)}")
            say(f"  {part.source}")


@frozen
class Calibration:
    """A measured peak of the rank that needed most, beside what was planned for the same: of tensors with CUDA, else of the process.

    `of` is "cuda" or "cpu", `error` that of the middle of the range, as a share.
    """

    strategy: Text
    of: str
    measured_bytes: int
    low_bytes: float
    high_bytes: float
    error: float

    def says(self) -> Text:
        what = msg("tensors of the GPU") if self.of == "cuda" else msg("the process with Python and torch")
        planned, measured = spanned(self.low_bytes, self.high_bytes), size(self.measured_bytes)
        return what + msg(
            ": planned {planned} with {strategy}, measured {measured} in three steps; error of the middle {error:+.1%}",
            planned=planned,
            strategy=self.strategy,
            measured=measured,
            error=self.error,
        )


def calibrate(found: Estimate, training: Training, ranks: Sequence[tuple[int | None, int | None]]) -> Calibration:
    """`ranks` has the peaks of each rank in bytes: of its process, and of CUDA's tensors (None without CUDA).

    Raises UnhangError if another number of ranks, or another device, was measured than planned for.
    """
    ran = "cuda" if any(cuda for _, cuda in ranks) else "cpu"
    if (len(ranks), ran) != (training.world_size, training.device):
        raise UnhangError(
            msg(
                "measured were {ranks} ranks with {ran}, planned {world_size} with {device}: nothing to compare",
                ranks=len(ranks),
                ran=ran,
                world_size=training.world_size,
                device=training.device,
            ),
            hint="--world-size is the number of ranks that COMMAND starts on this host; --gpu-memory plans for GPUs",
        )
    if measured := max(cuda or 0 for _, cuda in ranks):
        of, found = "cuda", total(found.strategy, [t for t in found.terms if t.id not in _NOT_TENSORS])
        low, high = found.low, found.high
    else:
        of, measured = "cpu", max(host or 0 for host, _ in ranks)
        (process,) = (t for t in found.terms if t.id == "processes")
        low, high = (end + of_all / training.ranks_here for end, of_all in ((found.low, process.low), (found.high, process.high)))
    return Calibration(
        strategy=found.strategy.title, of=of, measured_bytes=measured, low_bytes=low, high_bytes=high, error=(low + high) / 2 / measured - 1
    )
