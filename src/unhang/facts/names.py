"""Names: this host's own and the master's, what they resolve to and how fast, the DNS servers, and what /etc/hosts says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from unhang.facts import job
from unhang.facts.host import Asking, Host, Subject
from unhang.facts.job import Job
from unhang.i18n import Text, msg, same
from unhang.model import frozen

# The resolver itself waits 5 s for each server, twice.
_PATIENCE_S = 2.0


@frozen
class Answer:
    """What a name resolves to: None where it does not (`error` tells why), or where nobody could be asked (no `error`)."""

    name: str
    addresses: tuple[str, ...] | None
    error: str = ""
    took_s: float | None = None


@frozen
class HostsLine:
    """A line of /etc/hosts: an address and the names that it has."""

    line: int
    address: str
    names: tuple[str, ...]


@frozen
class Names:
    """`hosts_lines` are those of /etc/hosts that name this host or the master, `own_addresses` those of this host's interfaces (None: unknown)."""

    host_name: str
    own: Answer
    master: Answer | None
    job: Job
    own_addresses: tuple[str, ...] | None
    dns_servers: tuple[str, ...]
    hosts_lines: tuple[HostsLine, ...]
    unread: tuple[str, ...] = ()


def collect(host: Host) -> Names:
    """Raises OSError where even this host's name cannot be had."""
    unread: list[str] = []
    name, here = host.hostname(), job.of(host.environ)
    master = here.master_addr
    asked = {n: _asking(host, n) for n in dict.fromkeys((name, master)) if n}
    own = _answer(name, asked[name]) if name else Answer(name="", addresses=None, error="the host has no name")
    if own.addresses is None and not own.error:
        unread.append("what the host's name resolves to")
    named = {name, *((master,) if master else ())}
    return Names(
        host_name=name,
        own=own,
        master=_answer(master, asked[master]) if master else None,
        job=here,
        own_addresses=_own_addresses(host, unread),
        dns_servers=_dns_servers(host, unread),
        hosts_lines=tuple(line for line in _hosts_file(host, unread) if named & set(line.names)),
        unread=tuple(unread),
    )


def ask(host: Host, name: str) -> Answer:
    """What a name resolves to, within bounded time."""
    return _answer(name, _asking(host, name))


def _asking(host: Host, name: str) -> Asking[Answer]:
    return Asking(partial(_resolve, host, name), timeout_s=_PATIENCE_S)


def _answer(name: str, asking: Asking[Answer]) -> Answer:
    try:
        return asking.answer()
    except TimeoutError:
        return Answer(name=name, addresses=None, error=str(_late(_PATIENCE_S)), took_s=_PATIENCE_S)


def _resolve(host: Host, name: str) -> Answer:
    began = time.monotonic()
    try:
        return Answer(name=name, addresses=host.resolve(name), took_s=round(time.monotonic() - began, 3))
    except FileNotFoundError:
        return Answer(name=name, addresses=None)
    except (OSError, UnicodeError) as e:  # a name that IDNA refuses is a UnicodeError
        said = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        return Answer(name=name, addresses=None, error=said, took_s=round(time.monotonic() - began, 3))


def _own_addresses(host: Host, unread: list[str]) -> tuple[str, ...] | None:
    try:
        return tuple(a.partition("/")[0] for addresses in host.addresses().values() for a in addresses)
    except OSError:
        unread.append("the addresses of this host")
        return None


def _dns_servers(host: Host, unread: list[str]) -> tuple[str, ...]:
    try:
        lines = host.read("/etc/resolv.conf").splitlines()
    except FileNotFoundError:
        return ()
    except OSError:
        unread.append("/etc/resolv.conf")
        return ()
    return tuple(words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver")


def _hosts_file(host: Host, unread: list[str]) -> Iterator[HostsLine]:
    try:
        lines = host.read("/etc/hosts").splitlines()
    except FileNotFoundError:
        return
    except OSError:
        unread.append("/etc/hosts")
        return
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if len(words) > 1:
            yield HostsLine(line=number, address=words[0], names=tuple(words[1:]))


def _summary(names: Names) -> Text:
    told = msg("{name} is {at}", name=names.host_name, at=_said(names.own))
    if names.master is not None and names.master.name != names.host_name:
        told += msg("; MASTER_ADDR {name} is {at}", name=names.master.name, at=_said(names.master))
    return told


def error(answer: Answer) -> Text:
    """Why a name has no addresses; what the resolver said is the same in all languages."""
    late = _late(answer.took_s or 0.0)
    return late if answer.error == late else same(answer.error)


def _late(after_s: float) -> Text:
    return msg("no answer within {s} s", s=f"{after_s:g}")


def _said(answer: Answer) -> Text:
    if answer.addresses is None:
        return msg("unknown ({error})", error=error(answer)) if answer.error else msg("not asked for")
    return same(", ".join(answer.addresses[:3]))


SUBJECT = Subject(id="names", title=msg("host names", "title"), facts=Names, collect=collect, summary=_summary, volatile=("took_s",))
