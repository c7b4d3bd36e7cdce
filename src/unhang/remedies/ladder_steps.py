"""The rungs of the ladder: what is tried, in which order, and what each costs.

What the verdict prescribes comes first, then the least costly. A rung adds to those below it: two transports may both be broken, and what was not
needed is dropped afterwards. Two rungs are otherwise: what the preset adds is left out again where it fails, because it brings much at once, and Gloo
leaves out what only NCCL reads.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

import psutil

from unhang import data
from unhang.knowledge.words import Text, msg
from unhang.model import Finding, Verdict, frozen
from unhang.settings.catalogue import OF_THE_SCRIPT
from unhang.settings.setting import Choice, Installed, applied
from unhang.settings.spellings import AUTO

# In the order in which they are turned off.
TRANSPORTS = ("cumem-host", "shm", "p2p", "ib", "nvls")
# Causes that a change of how the processes talk to each other, or of what the machine has to give them, can answer. Never one of the training's code.
ANSWERABLE = frozenset(
    {
        *("cumem-host-numa", "shm-exhausted", "shm-permission", "shm-register-failed", "shm-stale-or-missing", "container-capability"),
        *("p2p-broken", "gdr-peer-memory", "nvlink-nvswitch-fabric", "topology-file", "wsl-limits", "nccl-bug", "gpu-newer-than-nccl"),
        *("ib-config", "ib-port-down", "ib-transport-retry", "nic-hardware", "network-mtu"),
        *("interface-selection", "network-blocked", "dns-resolution", "gloo-connect", "unhandled-generic"),
    }
)
# What is wrong with a command itself, or with where it looks for what it needs.
_OF_THE_COMMAND = frozenset(("launcher-wrong-env", "env-relocation", "library-link"))
_OF_CHOICES = frozenset(("backend", "processes"))
# argparse, click and what is built on them.
_USAGE = re.compile(
    r"^usage: |No such option|Missing (?:option|argument|parameter)"
    r"|: error: (?:unrecognized argument|the following arguments are|argument |ambiguous option|one of the arguments|no such option)",
    re.IGNORECASE,
)
# A config-error may be one of how many processes there are, and of what: rungs further up change that.
_OF_NUMBERS = re.compile(r"\b(?:process(?:es)?|slots?|ranks?|GPUs?|devices?|backends?|world.?size|nproc\w*)\b", re.IGNORECASE)
# Shared memory has names of files, too.
_OF_CODE = re.compile(
    r"(?:^|raised |: )(?:(?:Syntax|Indentation|Tab|Import|ModuleNotFound|Name)Error: |FileNotFoundError: (?!.*(?:/dev/shm|torch_|nccl-|psm_)))"
)
LOADERS = "loader-workers"
PRESCRIBED = "prescribed-"
# What names loader workers in evidence: the shared memory that ran out was theirs, and no transport's.
_OF_LOADERS = ("DataLoader", "data_loader", "torch_", "dataloader")


@frozen
class Rung:
    """`adds` is what it sets beyond those below, and for those above unless it is not `kept`; `leaves_out` are keys that mean nothing with it."""

    id: str
    title: Text
    cost: Text
    adds: Choice = field(default_factory=dict)
    kept: bool = True
    leaves_out: tuple[str, ...] = ()

    def above(self, below: Choice) -> Choice:
        """The whole choice that is tried."""
        return {k: v for k, v in below.items() if k not in self.leaves_out} | dict(self.adds)


_PRESCRIBES = msg(" (the verdict prescribes it)")


def _rung(row: str, id: str = "", **more: Any) -> Rung:
    known = data.table("remedies/rungs")[row]
    return Rung(id=id or row, title=msg(known["title"]), cost=msg(known["cost"]), **more)


AS_IS = _rung("as-is")
_GLOO = _rung("gloo", adds={"backend": "gloo"}, leaves_out=TRANSPORTS)


def answerable(verdict: Verdict | None) -> bool:
    """Whether a change of settings could be the answer to what failed."""
    if verdict is None or verdict.primary is None:
        return False
    return verdict.primary.cause in ANSWERABLE or of_loaders(verdict) or lacks_nccl(verdict)


def of_loaders(verdict: Verdict | None) -> bool:
    """Whether it is about data that loader workers hand over in shared memory."""
    # A loader that is stuck stands in the training's own code, which no trial runs.
    if verdict is None or verdict.primary is None or verdict.primary.cause != "shm-exhausted":
        return False
    return any(word in text for text in _texts(verdict.primary) for word in _OF_LOADERS)


def lacks_nccl(verdict: Verdict | None) -> bool:
    """Whether NCCL was asked for where it cannot be: there is nothing to try as it is."""
    if verdict is None or verdict.primary is None or verdict.primary.cause != "backend-unavailable":
        return False
    return any("NCCL" in text for text in _texts(verdict.primary))


def beyond_settings(finding: Finding, choice: Choice) -> bool:
    """Whether what ended a command under `choice`, before its first step, would end it under any: its command line, its code, its environment."""
    if finding.cause == "config-error":
        if any(_USAGE.search(text) for text in _texts(finding)):
            return True
        return not _OF_CHOICES & choice.keys() and not any(_OF_NUMBERS.search(text) for text in _texts(finding))
    if finding.cause == "rank-exception":
        return any(_OF_CODE.search(text) for text in _texts(finding))
    # A message of its own is no signature, but who prints how it is to be used has refused what it was given.
    return finding.cause in _OF_THE_COMMAND or (finding.cause == "unknown" and any(_USAGE.search(e.text) for e in finding.evidence))


def _texts(finding: Finding) -> Iterator[str]:
    yield finding.says
    yield from (e.text for e in finding.evidence)


def rungs(
    *,
    verdict: Verdict | None,
    installed: Installed,
    backend: str,
    world_size: int,
    address: str = "127.0.0.1",
    conservative: Choice | None = None,
) -> tuple[Rung, ...]:
    """All of them for `world_size` ranks over `backend`, those that cannot be set here among them: the ladder tells why it skips them.

    `address` is where the ranks meet; `conservative` what the preset of that name sets.
    """
    found = [] if lacks_nccl(verdict) else [AS_IS]
    found += prescribed(verdict, installed)
    found += [transport(key) for key in TRANSPORTS[:-1]]
    found.append(no_interface(installed))
    if (name := interface_to(address)) is not None:
        found.append(interface(name, address))
    found.append(transport("nvls"))
    if conservative:
        # Another batch would be another training.
        found.append(_rung("conservative", adds={k: v for k, v in conservative.items() if k not in OF_THE_SCRIPT}, kept=False))
    found.append(_GLOO)
    found += [fewer(n) for n in _fewer_than(world_size)]
    return tuple(found)


def prescribed(verdict: Verdict | None, installed: Installed) -> Iterator[Rung]:
    """What the verdict's remedies set, as far as it is one of our settings."""
    if verdict is None or verdict.primary is None:
        return
    if of_loaders(verdict):
        rung = _rung("loader-workers", f"{PRESCRIBED}loader-workers", adds={LOADERS: 0})
        yield replace(rung, title=rung.title + _PRESCRIBES)
    if verdict.primary.cause == "interface-selection":
        # A name that is wrong here needs no other one.
        rung = no_interface(installed)
        yield replace(rung, id=f"{PRESCRIBED}{rung.id}", title=rung.title + _PRESCRIBES)
    if lacks_nccl(verdict):
        cost = msg("none: without NCCL, or a GPU for it, there is no faster way")
        yield replace(_GLOO, id=f"{PRESCRIBED}gloo", title=_GLOO.title + _PRESCRIBES, cost=cost)
    wanted = [pair for remedy in verdict.primary.remedies for pair in remedy.env.items()]
    for key in TRANSPORTS:
        if any(pair in wanted for pair in applied({key: False}, installed).env.items()):
            rung = transport(key)
            yield replace(rung, id=f"{PRESCRIBED}{rung.id}", title=rung.title + _PRESCRIBES)


def transport(key: str) -> Rung:
    return _rung(key, f"{key}-off", adds={key: False})


def no_interface(installed: Installed) -> Rung:
    """What the user's own variables name is left out, and nothing named in its place."""
    names = " ".join(applied({"interface": AUTO}, installed).env)
    return Rung(
        id="interface-auto",
        title=msg("unset {names}", names=names or "*_SOCKET_IFNAME"),
        cost=msg("none: NCCL and Gloo choose themselves; with several hosts this host's own name has to lead to the others"),
        adds={"interface": AUTO},
    )


def interface(name: str, address: str) -> Rung:
    return Rung(
        id="interface",
        title=msg("interface {name}, on the way to {address}", name=name, address=address),
        cost=msg("it reaches this host alone: a job on several hosts does not start with it")
        if name == "lo"
        else msg("none where the route is the right one"),
        adds={"interface": name},
    )


def fewer(processes: int) -> Rung:
    rung = _rung("one-process" if processes == 1 else "processes", f"processes-{processes}", adds={"processes": processes})
    return replace(rung, title=rung.title.fill(n=processes))


def _fewer_than(world_size: int) -> Iterator[int]:
    """Half, a quarter, ... and at last one."""
    n = world_size // 2
    while n >= 1:
        yield n
        n //= 2


def interface_to(address: str) -> str | None:
    """The interface through which the kernel would send to `address`, by its routing tables; nothing is sent. None where there is no way."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as asked:
            asked.connect(target)
            own = ipaddress.ip_address(asked.getsockname()[0].partition("%")[0])
    except (OSError, ValueError, IndexError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        for a in addresses:
            if a.family in (socket.AF_INET, socket.AF_INET6) and _is(a.address, own):
                return name
    # The whole of 127.0.0.0/8 is this machine's, and lo lists 127.0.0.1 alone.
    return "lo" if own.is_loopback else None


def _is(text: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]) == address
    except ValueError:
        return False
