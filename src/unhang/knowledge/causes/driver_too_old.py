"""driver-too-old: the NVIDIA driver of the host is older than the CUDA that the program was built with."""

from __future__ import annotations

import re

from unhang.knowledge.cause import cause
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView
from unhang.patterns import lazily

CAUSE = cause("driver-too-old")

# The oldest drivers for any minor release of a CUDA major version, from the release notes of the toolkit.
_MINIMUM = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Forward compatibility is refused on these.
_CONSUMER = lazily(r"GeForce|TITAN", re.IGNORECASE)


def in_logs(view: LogView) -> Answer:
    hits = view.hits_of(CAUSE.id)
    found = next((h for h in hits if "found" in h.groups), None)
    if found is None:
        return CAUSE.of_hits(hits, view)
    # "11040" is CUDA 11.4.
    number = int(found.groups["found"])
    serves = f"{number // 1000}.{number % 1000 // 10}"
    return CAUSE.of_hits(hits, view, Found("serves", serves=serves))


def oldest_driver(cuda: str) -> str | None:
    """The oldest driver that serves a release of CUDA ("12.8"); None where that is not known."""
    from unhang.facts.libraries import number

    return _MINIMUM.get((number(cuda) or (0,))[0])


def on_host(host: HostView) -> Findings:
    from unhang.facts import libraries

    seen, gpus, usable = host.libraries, host.gpu, libraries.usable_gpus(host.snapshot)
    if not usable or seen.torch.cuda is None:
        return
    driver = gpus.driver or gpus.nvml_driver
    wants = libraries.number(seen.torch.cuda)
    minimum = _MINIMUM.get(wants[0] if wants else 0)
    # Jetson's drivers (35, 540 on Tegra) are counted otherwise.
    if driver is None or minimum is None or libraries.number(driver)[:1] < (100,):
        return
    compat = seen.copy("cuda")
    if compat is not None and not ("/compat" in compat.path and libraries.number(compat.version or "") > libraries.number(driver)):
        compat = None
    if compat is not None and (card := next((g.name for g in usable if g.name and _CONSUMER.search(g.name)), None)):
        yield Found("compat-first", driver=driver, compat=compat, card=card)
    serves = libraries.number(gpus.cuda) if gpus.cuda else ()
    old = serves[0] < wants[0] if serves else libraries.number(driver) < libraries.number(minimum)
    if old and compat is None:
        yield Found("too-old", driver=driver, gpus=gpus, seen=seen, minimum=minimum)
