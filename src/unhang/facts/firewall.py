"""The firewall: the chains that packets to and from this host go through, and what becomes of a new connection from a peer.

NCCL and Gloo listen on ports that the system chooses: accepting MASTER_PORT and connections that stand already is not enough.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from unhang.facts.host import Host, Ran
from unhang.facts.subject import NotHere, Subject
from unhang.text import Text

Hook = Literal["input", "output"]
Fate = Literal["accept", "drop"]
_HOOKS: dict[str, Hook] = {"INPUT": "input", "OUTPUT": "output"}
_MAX_RULES = 5000
_COMMAND_S = 2.0
# The kernel follows 16 jumps of nft; those of iptables are not counted.
_MAX_DEPTH = 100


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One chain with its rules in the words of the tool that printed them. `hook` and `policy`: of those that the kernel itself enters."""

    tool: Literal["iptables", "ip6tables", "nft"]
    table: str
    name: str
    hook: Hook | None
    policy: Fate | None
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """The chains of the filter tables that packets to and from this host can reach."""

    chains: tuple[Chain, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Packet:
    """The first packet of a TCP connection: between `peer` and `own`, to `port`, over `interface`. The peer's own port is any."""

    hook: Hook
    interface: str
    peer: str
    own: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A chain that drops a packet for certain, and the rule or policy by which."""

    chain: Chain
    rule: str


def collect(host: Host) -> Firewall:
    """Raises NotHere on a kernel without packet filters."""
    if not host.path("/proc/net/netfilter").exists() and not host.path("/proc/net/ip_tables_names").exists():
        if not host.path("/proc/net").exists():
            raise FileNotFoundError("/proc/net is missing")
        raise NotHere("this kernel has no packet filter (/proc/net/netfilter is missing)")
    chains: list[Chain] = []
    failures: list[str] = []
    seen = False
    readers: tuple[tuple[tuple[str, ...], Callable[[str], list[Chain]]], ...] = (
        (("nft", "list", "ruleset"), _nft),
        (("iptables-save",), lambda text: _iptables(text, "iptables")),
        (("ip6tables-save",), lambda text: _iptables(text, "ip6tables")),
    )
    for argv, read in readers:
        try:
            ran = _run(host, argv)
        except FileNotFoundError:
            continue
        except OSError as e:
            failures.append(str(e))
            continue
        if ran.exitcode:
            refused = re.search(r"permitted|ermission|must be root", ran.err + ran.out)
            failures.append("needs root" if refused else f"{argv[0]}: {(ran.err.strip().splitlines() or ['it failed'])[0][:100]}")
            continue
        seen = True
        chains += read(ran.out)
    if not seen and not failures:
        failures.append("neither nft nor iptables-save is installed")
    return Firewall(chains=_reachable(chains), unread=(f"firewall rules ({'; '.join(dict.fromkeys(failures))})",) if failures else ())


def dropped(firewall: Firewall, packet: Packet) -> Verdict | None:
    """Which chain drops a packet for certain; None where all let it pass, or where a rule is not understood that might."""
    walk = _Walk(firewall, packet)
    for chain in firewall.chains:
        if chain.hook == packet.hook and _speaks(chain, packet.peer):
            verdict = walk.through(chain)
            if verdict.fates == {"drop"}:
                return Verdict(chain=chain, rule=verdict.by)
    return None


@dataclass(frozen=True)
class _Way:
    """What can become of a packet in a chain ("through" where it leaves it at the end), and the rule that drops it."""

    fates: frozenset[str]
    by: str = ""


_ANYTHING = _Way(frozenset({"accept", "drop", "through"}))


class _Walk:
    """The way of one packet. Each chain is gone through once, however many rules jump to it."""

    def __init__(self, firewall: Firewall, packet: Packet) -> None:
        self._packet = packet
        self._chains = {(c.tool, c.table, c.name): c for c in reversed(firewall.chains)}
        self._known: dict[tuple[str, str, str], _Way] = {}

    def through(self, chain: Chain, depth: int = 0) -> _Way:
        key = (chain.tool, chain.table, chain.name)
        if key not in self._known:
            # Whoever comes back to where it stands already goes round for ever, which no kernel lets a packet do.
            self._known[key] = _ANYTHING
            self._known[key] = self._gone(chain, depth)
        return self._known[key]

    def _gone(self, chain: Chain, depth: int) -> _Way:
        fates: set[str] = set()
        by = ""
        for rule in chain.rules:
            matched, target, to = _rule(chain, rule, self._packet)
            if matched is False or not target:
                continue
            if target in ("jump", "goto"):
                called = self._chains.get((chain.tool, chain.table, to))
                if called is None or depth >= _MAX_DEPTH:
                    return _ANYTHING
                inner = self.through(called, depth + 1)
                leaves = frozenset({"through"} if "through" in inner.fates else ())
                by = by or inner.by
                fates |= inner.fates - leaves
                if matched and (not leaves or target == "goto"):
                    return _end(chain, fates | (leaves if target == "goto" else frozenset()), by)
                if leaves and target == "goto":
                    fates |= leaves
                continue
            if target == "drop":
                by = by or rule
            fates.add("through" if target == "return" else target)
            if matched:
                return _end(chain, fates, by)
        return _end(chain, fates | {"through"}, by)


def _end(chain: Chain, fates: set[str] | frozenset[str], by: str) -> _Way:
    if chain.policy is not None and "through" in fates:
        return _Way(frozenset(fates - {"through"} | {chain.policy}), by or f"policy {chain.policy}")
    return _Way(frozenset(fates), by)


def _rule(chain: Chain, rule: str, packet: Packet) -> tuple[bool | None, str, str]:
    """Whether a rule is about the packet (None: not known), what it then does ("" where it goes on), and where to."""
    return _nft_rule(rule, packet) if chain.tool == "nft" else _iptables_rule(rule, packet)


def _all(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def _iptables_rule(rule: str, packet: Packet) -> tuple[bool | None, str, str]:
    try:
        words = shlex.split(rule)
    except ValueError:
        return None, "accept", ""
    answers: list[bool | None] = []
    target, to, i = "", "", 2
    while i < len(words):
        negated = words[i] == "!"
        i += negated
        option = words[i] if i < len(words) else ""
        # A comment may look like an option; other values do not, and some options have two of them.
        end = (
            i + 2 if option == "--comment" else next((n for n in range(i + 1, len(words)) if words[n] == "!" or words[n].startswith("-")), len(words))
        )
        value, i = " ".join(words[i + 1 : end]), max(end, i + 1)
        if option in ("-j", "-g"):
            known = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "RETURN": "return", "QUEUE": "accept", "NFQUEUE": "accept"}
            target = known.get(value, "" if value in _GO_ON else "goto" if option == "-g" else "jump")
            to = value
            break
        if option in ("-m", "--match", "--comment"):
            if option == "-m" and value not in _MODULES:
                answers.append(None)
            continue
        answer = _iptables_match(option, value, packet)
        answers.append(None if answer is None else answer != negated)
    return _all(answers), target, to


# Targets after which the packet goes on in the same chain.
_GO_ON = (
    "LOG",
    "NFLOG",
    "ULOG",
    "MARK",
    "CONNMARK",
    "CT",
    "TRACE",
    "TCPMSS",
    "DSCP",
    "CLASSIFY",
    "CHECKSUM",
    "SET",
    "AUDIT",
    "SECMARK",
    "CONNSECMARK",
)
_MODULES = ("tcp", "udp", "icmp", "icmp6", "multiport", "state", "conntrack", "comment", "addrtype", "pkttype")


def _iptables_match(option: str, value: str, packet: Packet) -> bool | None:
    incoming = packet.hook == "input"
    if option in ("-p", "--protocol"):
        return value in ("tcp", "6", "all", "0")
    if option in ("-i", "-o"):
        return _named(value, packet.interface) if (option == "-i") == incoming else None
    if option in ("-s", "-d"):
        return _in(value, packet.peer if (option == "-s") == incoming else packet.own)
    if option in ("--dport", "--dports", "--destination-port"):
        return any(_port(entry.replace(":", "-"), packet.port) for entry in value.split(","))
    if option in ("--state", "--ctstate"):
        return "NEW" in value.split(",")
    if option == "--dst-type":
        return value == "LOCAL" if incoming else None
    if option == "--pkt-type":
        return value == "unicast"
    if option == "--icmp-type" or option == "--icmpv6-type":
        return False
    return None


def _iptables(text: str, tool: Literal["iptables", "ip6tables"]) -> list[Chain]:
    """The chains of the filter table in the words of iptables-save."""
    table = ""
    rules: dict[str, list[str]] = {}
    policies: dict[str, Fate | None] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif table == "filter" and line.startswith(":"):
            name, policy = [*line[1:].split(), "", "-"][:2]
            policies[name] = "drop" if policy == "DROP" else "accept" if policy == "ACCEPT" else None
        elif table == "filter" and line.startswith("-A "):
            rules.setdefault(line.split()[1] if len(line.split()) > 1 else "", []).append(line)
    return [
        Chain(tool=tool, table="filter", name=name, hook=_HOOKS.get(name), policy=policy, rules=tuple(rules.get(name, ())))
        for name, policy in policies.items()
    ]


_NFT_CHAIN = re.compile(r"type filter hook (?P<hook>\w+)(?: device \S+)? priority (?P<priority>[^;]+);(?:\s*policy (?P<policy>\w+);)?")


def _nft(text: str) -> list[Chain]:
    """The chains in the words of `nft list ruleset`. Tables of the families bridge, arp and netdev are left out."""
    chains: list[Chain] = []
    table, name, kept = "", "", True
    rules: list[str] = []
    base: re.Match[str] | None = None
    depth = 0
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("#") or not line:
            continue
        words = line.split()
        if depth == 0 and words[0] == "table" and line.endswith("{"):
            table, kept, depth = " ".join(words[1:3]), words[1] in ("ip", "ip6", "inet"), 1
        elif depth == 1 and words[0] == "chain" and line.endswith("{"):
            name, rules, base, depth = words[1], [], None, 2
        elif depth == 2 and name and line == "}":
            if kept:
                chains.append(_nft_chain(table, name, base, rules))
            name, depth = "", 1
        elif name and depth == 2:
            found = _NFT_CHAIN.match(line)
            base = found or base
            if found is None and not line.startswith(("type ", "policy ", "comment ")):
                rules.append(line)
        else:  # sets, maps, counters: skipped
            depth += line.count("{") - line.count("}")
    return chains


def _nft_chain(table: str, name: str, base: re.Match[str] | None, rules: list[str]) -> Chain:
    hook = base["hook"] if base else None
    return Chain(
        tool="nft",
        table=table,
        name=name,
        hook="input" if hook == "input" else "output" if hook == "output" else None,
        policy=None if base is None else "drop" if base["policy"] == "drop" else "accept",
        rules=tuple(rules),
    )


# What a rule does beside its verdict.
_NFT_SIDE = re.compile(
    r"\b(?:counter(?: packets \d+ bytes \d+| name \S+)?|log(?: (?:prefix \"[^\"]*\"|level \w+|group \d+|flags \w+|snaplen \d+))*"
    r"|comment \"[^\"]*\"|nftrace set \d|"
    r"(?:meta|ct) mark set \S+)"
)
_NFT_VERDICT = re.compile(
    r"\b(?:(?P<plain>accept|drop|return|continue)|(?P<reject>reject(?: with .*)?)|(?P<how>jump|goto) (?P<to>\S+)|(?P<queue>queue.*))$"
)
_NFT_MATCH = re.compile(
    r"(?P<key>iifname|oifname|iif|oif|meta (?:l4proto|nfproto|iifname|oifname|pkttype)|ip (?:saddr|daddr|protocol)|ip6 (?:saddr|daddr|nexthdr)"
    r"|tcp dport|udp [sd]port|th dport|ct state|icmp(?:v6)? type|fib daddr type|pkttype) (?P<not>!= )?(?P<value>\{[^}]*\}|\"[^\"]*\"|[\w./:,*@-]+)\s*"
)


def _nft_rule(rule: str, packet: Packet) -> tuple[bool | None, str, str]:
    rest = _NFT_SIDE.sub("", rule).strip()
    if " vmap " in f" {rest} ":
        return _nft_map(rest)
    verdict = _NFT_VERDICT.search(rest)
    if verdict is None:
        return None if rest.startswith("xt ") else False, "", ""
    answers: list[bool | None] = []
    rest = rest[: verdict.start()].strip()
    while rest:
        found = _NFT_MATCH.match(rest)
        if found is None:
            answers.append(None)
            break
        answer = _nft_match(found["key"].removeprefix("meta "), found["value"], packet)
        answers.append(None if answer is None else answer != bool(found["not"]))
        rest = rest[found.end() :]
    target = verdict["how"] or ("drop" if verdict["reject"] else "accept" if verdict["queue"] else verdict["plain"])
    return _all(answers), "" if target == "continue" else target, verdict["to"] or ""


def _nft_map(rest: str) -> tuple[bool | None, str, str]:
    """A map of states without "new" in it lets a new connection go on; any other may do anything."""
    states = re.fullmatch(r"ct state vmap \{(?P<entries>[^}]*)\}", rest)
    if states and not re.search(r"\bnew\b", states["entries"]):
        return False, "", ""
    return None, "accept", ""


def _nft_match(key: str, value: str, packet: Packet) -> bool | None:
    entries = [e.strip().strip('"') for e in value.strip("{}").split(",") if e.strip()]
    if any(e.startswith("@") for e in entries):
        return None
    incoming = packet.hook == "input"
    if key in ("iifname", "oifname", "iif", "oif"):
        return any(_named(e, packet.interface) for e in entries) if key.startswith("i") == incoming else None
    if key in ("l4proto", "ip protocol", "ip6 nexthdr"):
        return any(e in ("tcp", "6") for e in entries)
    if key == "nfproto":
        return any(e == ("ipv6" if ":" in packet.peer else "ipv4") for e in entries)
    if key.endswith("addr"):
        if key.startswith("ip6") != (":" in packet.peer):
            return False
        return any(_in(e, packet.peer if key.endswith("saddr") == incoming else packet.own) for e in entries)
    if key in ("tcp dport", "th dport"):
        return any(_port(e, packet.port) for e in entries)
    if key == "ct state":
        return "new" in entries
    if key == "fib daddr type":
        return "local" in entries if incoming else None
    if key == "pkttype":
        return any(e in ("host", "unicast") for e in entries)
    return False  # udp, icmp


def _named(pattern: str, interface: str) -> bool:
    """iptables writes a prefix as "eth+", nft as "eth*"."""
    return interface.startswith(pattern[:-1]) if pattern.endswith(("+", "*")) else interface == pattern


def _in(text: str, address: str) -> bool | None:
    """Whether an address is in a net or a range of addresses; None where a name or something else is meant."""
    try:
        if "-" in text:
            first, last = (ipaddress.ip_address(t) for t in text.split("-", 1))
            return int(first) <= int(ipaddress.ip_address(address)) <= int(last) if first.version == (6 if ":" in address else 4) else False
        net = ipaddress.ip_network(text, strict=False)
        return ipaddress.ip_address(address) in net
    except ValueError:
        return None


def _port(entry: str, port: int) -> bool | None:
    first, _, last = entry.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        return False  # the name of a service: none of them is in the range that the system hands out
    return int(first) <= port <= int(last or first)


def _speaks(chain: Chain, peer: str) -> bool:
    family = "ip6" if ":" in peer else "ip"
    return chain.table.startswith((f"{family} ", "inet ")) if chain.tool == "nft" else chain.tool == ("ip6tables" if family == "ip6" else "iptables")


def _reachable(chains: list[Chain]) -> tuple[Chain, ...]:
    """Those that a packet to or from this host can reach: a Kubernetes node has thousands for others."""
    by_name = {(c.tool, c.table, c.name): c for c in chains}
    wanted = [c for c in chains if c.hook is not None]
    found: dict[tuple[str, str, str], Chain] = {}
    rules = 0
    while wanted and rules < _MAX_RULES:
        chain = wanted.pop(0)
        if (chain.tool, chain.table, chain.name) in found:
            continue
        found[(chain.tool, chain.table, chain.name)] = chain
        rules += len(chain.rules)
        wanted += [by_name[key] for to in _targets(chain) if (key := (chain.tool, chain.table, to)) in by_name]
    return tuple(found.values())


def _targets(chain: Chain) -> Iterator[str]:
    for rule in chain.rules:
        for found in re.finditer(r"(?:\bjump|\bgoto| -j| -g) (\S+)", rule):
            yield found[1]


def _run(host: Host, argv: tuple[str, ...]) -> Ran:
    try:
        return host.run(argv, timeout_s=_COMMAND_S)
    except (FileNotFoundError, PermissionError):
        # Left out of a user's PATH on Debian; a directory of PATH that nobody may read is a PermissionError.
        return host.run((f"/usr/sbin/{argv[0]}", *argv[1:]), timeout_s=_COMMAND_S)


def _summary(firewall: Firewall) -> Text:
    bases = [c for c in firewall.chains if c.hook is not None]
    if not bases:
        if firewall.unread:
            return Text("no rules seen", "没有看到规则")
        return Text("no chain filters what comes in or goes out", "没有链过滤进出的流量")
    said = ", ".join(f"{c.hook} {c.policy}" for c in bases[:4])
    return Text("{said}; {n} rules", "{said}；规则 {n} 条").fill(said=said, n=sum(len(c.rules) for c in firewall.chains))


SUBJECT = Subject(id="firewall", title="firewall", title_zh="防火墙", facts=Firewall, collect=collect, summary=_summary)
