"""Names: this host's own and the master's, what they resolve to and how fast, the DNS servers, and what /etc/hosts says of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from unhang.facts import job
from unhang.facts.host import Host, Subject
from unhang.facts.job import Job
from unhang.i18n import Text, msg, same

# The resolver itself waits 5 s for each server, twice.
_PATIENCE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a name resolves to: None where it does not (`error` tells why), or where nobody could be asked (no `error`)."""

    name: str
    addresses: tuple[str, ...] | None
    error: str = ""
    took_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostsLine:
    """A line of /etc/hosts: an address and the names that it has."""

    line: int
    address: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
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
    asked = {n: _Asking(host, n) for n in dict.fromkeys((name, master)) if n}
    for asking in asked.values():
        asking.start()
    own = asked[name].answer() if name else Answer(name="", addresses=None, error="the host has no name")
    if own.addresses is None and not own.error:
        unread.append("what the host's name resolves to")
    named = {name, *((master,) if master else ())}
    return Names(
        host_name=name,
        own=own,
        master=asked[master].answer() if master else None,
        job=here,
        own_addresses=_own_addresses(host, unread),
        dns_servers=_dns_servers(host, unread),
        hosts_lines=tuple(line for line in _hosts_file(host, unread) if named & set(line.names)),
        unread=tuple(unread),
    )


def ask(host: Host, name: str) -> Answer:
    """What a name resolves to, within bounded time."""
    asking = _Asking(host, name)
    asking.start()
    return asking.answer()


class _Asking(threading.Thread):
    def __init__(self, host: Host, name: str) -> None:
        super().__init__(name="facts-resolver", daemon=True)
        self._host = host
        self._asked = name
        self._answer: Answer | None = None

    def run(self) -> None:
        began = time.monotonic()
        try:
            found = self._host.resolve(self._asked)
            self._answer = Answer(name=self._asked, addresses=found, took_s=round(time.monotonic() - began, 3))
        except FileNotFoundError:
            self._answer = Answer(name=self._asked, addresses=None)
        except (OSError, UnicodeError) as e:  # a name that IDNA refuses is a UnicodeError
            said = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            self._answer = Answer(name=self._asked, addresses=None, error=said, took_s=round(time.monotonic() - began, 3))

    def start(self) -> None:
        self._until = time.monotonic() + _PATIENCE_S
        super().start()

    def answer(self) -> Answer:
        self.join(max(0.0, self._until - time.monotonic()))
        late = Answer(name=self._asked, addresses=None, error=str(_late(_PATIENCE_S)), took_s=_PATIENCE_S)
        return self._answer or late


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
