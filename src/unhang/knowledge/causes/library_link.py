"""library-link: the dynamic linker does not find a library, or finds another one than was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge.caught_exceptions import stepped_over, that_ended_something
from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.logs import Hit
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.libraries import Copy, Libraries

CAUSE = cause("library-link")


# What loaders and linkers end with, and an exception whose traceback is not in the log.
_FATAL = lazily(
    r"symbol lookup error|error while loading shared libraries|undefined reference to|cannot find -l|_LIBRARY using the| fatal error: |"
    r"^(?:\([^()]{1,60}\) )?[\w.]{0,60}(?:Error|Exception): "
)
# Lines that the text of an exception may have.
_TEXT_LINES = 8


def in_logs(view: LogView) -> Answer:
    """Packages try to import what they can do without, and print it: that ends nothing."""
    hits = [h for h in view.hits_of(CAUSE.id) if (back := view.traceback_of(h)) is None or that_ended_something([back], view)]
    fatal = [h for h in hits if _is_fatal(h, view)]
    return CAUSE.of_hits(fatal, view) or CAUSE.of_hits([h for h in hits if not stepped_over(view, h)], view, standing="possible")


def _is_fatal(hit: Hit, view: LogView) -> bool:
    if _FATAL.search(hit.text):
        return True
    own = [t for t in view.tracebacks if t.source == hit.source and t.line <= (hit.line or 0) <= t.end + _TEXT_LINES]
    return bool(that_ended_something(own, view))


def on_host(host: HostView) -> Findings:
    from unhang.facts import gpu, libraries

    seen = host.libraries
    torch = seen.torch
    if torch.lacking:
        yield Found("missing", torch=torch, names=torch.lacking[:3], more=len(torch.lacking) - 3 if len(torch.lacking) > 3 else None)
    nccl = seen.copy("nccl")
    if nccl is not None and nccl.through in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        yield from _nccl(seen, nccl)
    gpus = host.get(gpu.SUBJECT)
    if gpus is not None and libraries.usable_gpus(host.snapshot):
        yield from _driver_library(seen.copy("cuda"), gpus.driver)
    if seen.net_plugin_lacking:
        yield Found("net-plugin", seen=seen)


def _nccl(seen: Libraries, nccl: Copy) -> Findings:
    """NCCL only adds functions: a newer one in front is somebody's wish, an older one may lack what torch calls."""
    from unhang.facts.libraries import number

    own = next((c for c in seen.others if c.name == "nccl" and c.through in ("RPATH", "RUNPATH", "package")), None)
    if nccl.version is None or own is None or own.version is None or number(nccl.version) >= number(own.version):
        return
    yield Found("other-nccl", nccl=nccl, own=own, seen=seen)


def _driver_library(cuda: Copy | None, driver: str | None) -> Findings:
    """Copies of libcuda that LD_LIBRARY_PATH puts before the driver's own: the toolkit's stub, or a compat package that is older."""
    from unhang.facts.libraries import number

    if cuda is None or cuda.through not in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        return
    if "/stubs/" in cuda.path:
        yield Found("stub", cuda=cuda, version=cuda.version or "libcuda.so.1")
    elif "/compat" in cuda.path and cuda.version is not None and driver is not None and number(cuda.version) < number(driver):
        yield Found("older-compat", cuda=cuda, version=cuda.version, driver=driver)
