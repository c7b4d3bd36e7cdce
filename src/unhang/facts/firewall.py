"""The packet filter: the chains that the kernel enters by itself, and the rule of them that drops a new connection between this host and a peer.

NCCL and Gloo listen on ports that the system chooses, so accepting MASTER_PORT and established connections is not enough. The first rule of a chain
that matches decides. Chains that rules jump to are not followed: what such a rule does stays unknown.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from unhang.facts.host import Host, NotHere, Ran, Subject
from unhang.i18n import Text, msg
from unhang.model import frozen

Hook = Literal["input", "output"]
Fate = Literal["accept", "drop"]
_COMMAND_S = 2.0
_HOOKS: dict[str, Hook] = {"INPUT": "input", "OUTPUT": "output", "input": "input", "output": "output"}
_FATES = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "accept": "accept", "drop": "drop", "reject": "drop"}
# After these the packet goes on in the same chain.
_GOES_ON = ("LOG", "NFLOG", "MARK", "CONNMARK", "counter", "log", "mangle")
# The fields of a packet, as iptables and nft call them.
_NAMES = {
    "iif": ("-i", "meta iifname", "meta iif"),
    "oif": ("-o", "meta oifname", "meta oif"),
    "saddr": ("-s", "ip saddr", "ip6 saddr"),
    "daddr": ("-d", "ip daddr", "ip6 daddr"),
    "protocol": ("-p", "meta l4proto", "ip protocol", "ip6 nexthdr"),
    "dport": ("--dport", "--dports", "tcp dport", "th dport"),
    "state": ("--state", "--ctstate", "ct state"),
    "not tcp": ("--icmp-type", "--icmpv6-type", "icmp type", "icmpv6 type", "udp dport", "udp sport"),
}
_FIELDS = {name: field for field, names in _NAMES.items() for name in names}
# Modules of iptables that ask nothing by themselves.
_MODULES = ("tcp", "udp", "icmp", "icmp6", "multiport", "state", "conntrack", "comment")
# Quoted texts may hold what looks like an option.
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_TARGET = re.compile(r" -[jg] (\S+)")
_OPTION = re.compile(r"(?:(!) )?(-\S+)((?: [^\s!-]\S*)*)")
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError)


@frozen
class Chain:
    """One chain with its rules: lines of iptables-save, or the expressions of nft as JSON."""

    tool: Literal["iptables", "ip6tables", "nft"]
    table: str
    name: str
    hook: Hook | None
    policy: Fate | None
    rules: tuple[str, ...] = ()


@frozen
class Firewall:
    """The chains that the kernel filters packets to and from this host with."""

    chains: tuple[Chain, ...]
    unread: tuple[str, ...] = ()


@frozen
class Packet:
    """The first packet of a TCP connection: between `peer` and `own`, to `port`, over `interface`. The peer's own port is any."""

    hook: Hook
    interface: str
    peer: str
    own: str
    port: int


@frozen
class Verdict:
    """A chain that drops a packet for certain, and the rule or policy that does."""

    chain: Chain
    rule: str


@dataclass(frozen=True)
class _Condition:
    """One of the values is what the packet has in a field; `field` is "" if the condition is not understood."""

    field: str
    values: tuple[str, ...] = ()
    negated: bool = False


def collect(host: Host) -> Firewall:
    """Raises NotHere on a kernel without packet filters."""
    if not host.path("/proc/net/netfilter").exists() and not host.path("/proc/net/ip_tables_names").exists():
        if not host.path("/proc/net").exists():
            raise FileNotFoundError("/proc/net is missing")
        raise NotHere("this kernel has no packet filter (/proc/net/netfilter is missing)")
    chains: list[Chain] = []
    failures: list[str] = []
    seen = False
    readers: tuple[tuple[tuple[str, ...], Callable[[str, Any], Iterable[Chain]]], ...] = (
        (("iptables-save",), _iptables_chains),
        (("ip6tables-save",), _iptables_chains),
        (("nft", "-j", "list", "ruleset"), _nft_chains),
    )
    for argv, read in readers:
        tool = argv[0].removesuffix("-save")
        try:
            ran = _run(host, argv)
            if ran.exitcode:
                refused = re.search(r"permitted|ermission|must be root", ran.err + ran.out)
                failures.append("needs root" if refused else f"{argv[0]}: {(ran.err.strip().splitlines() or ['it failed'])[0][:100]}")
            else:
                chains += read(ran.out, tool)
                seen = True
        except FileNotFoundError:
            continue
        except OSError as e:
            failures.append(str(e))
        except _MALFORMED:
            failures.append(f"{argv[0]}: it failed")
    if not seen and not failures:
        failures.append("neither nft nor iptables-save is installed")
    if any(fate == "unknown" for chain in chains for _, fate in _rules(chain)):
        failures.append("some are not understood")
    return Firewall(chains=tuple(chains), unread=(f"firewall rules ({'; '.join(dict.fromkeys(failures))})",) if failures else ())


def dropped(firewall: Firewall, packet: Packet) -> Verdict | None:
    """The chain that drops a packet for certain; None if every chain accepts it, or if a rule that might is not understood."""
    for chain in firewall.chains:
        if chain.hook == packet.hook and _speaks(chain, packet.peer) and (rule := _dropping(chain, packet)):
            return Verdict(chain=chain, rule=rule)
    return None


def _dropping(chain: Chain, packet: Packet) -> str:
    """The first rule that decides, if it drops the packet; "" if it accepts it, or is not understood."""
    for rule, (conditions, fate) in zip(chain.rules, _rules(chain), strict=True):
        answers = {_matches(condition, packet) for condition in conditions}
        # A rule that can only drop need not be understood: a later one decides for the packets that it lets go on.
        if False in answers or not fate or (None in answers and fate == "drop"):
            continue
        return rule if fate == "drop" else ""
    return "policy drop" if chain.policy == "drop" else ""


def _rules(chain: Chain) -> Iterator[tuple[list[_Condition], str]]:
    """The conditions of each rule, and what it does if all hold: "accept", "drop", "" where the packet goes on, or "unknown"."""
    for rule in chain.rules:
        try:
            yield _parse_nft(rule) if chain.tool == "nft" else _parse_iptables(rule)
        except _MALFORMED:
            yield [], "unknown"


def _matches(condition: _Condition, packet: Packet) -> bool | None:
    is_address = condition.field in ("saddr", "daddr")
    if condition.field == "not tcp" or (is_address and (":" in "".join(condition.values)) != (":" in packet.peer)):
        return False  # of other packets alone, even if negated
    answers = {_is(condition.field, value, packet) for value in condition.values or ("",)}
    found = True if True in answers else None if None in answers else False
    return found if found is None else found != condition.negated


def _is(field: str, value: str, packet: Packet) -> bool | None:
    """Whether the packet has this value in a field; None if that is not known."""
    incoming = packet.hook == "input"
    if field in ("iif", "oif") and (field == "iif") == incoming:
        # iptables writes a prefix as "eth+", nft as "eth*".
        return fnmatchcase(packet.interface, value.replace("+", "*"))
    if field in ("saddr", "daddr"):
        return _in(value, packet.peer if (field == "saddr") == incoming else packet.own)
    if field == "dport":
        first, _, last = value.replace(":", "-").partition("-")
        return int(first) <= packet.port <= int(last or first) if first.isdigit() and (last or first).isdigit() else None
    if field == "protocol":
        return value in ("tcp", "6", "all", "0")
    if field == "state":
        return value.upper() == "NEW"
    return None


def _in(net: str, address: str) -> bool | None:
    """None where a name, a range or something else is meant."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(net, strict=False)
    except ValueError:
        return None


def _parse_iptables(rule: str) -> tuple[list[_Condition], str]:
    bare = _QUOTED.sub("_", rule)
    target = _TARGET.search(bare)
    conditions = [
        _Condition(_FIELDS.get(option, ""), tuple(values.strip().split(",")), bool(negated))
        for negated, option, values in _OPTION.findall(bare[: target.start() if target else None])
        if option not in ("-A", "--comment") and not (option == "-m" and values.strip() in _MODULES)
    ]
    return conditions, "" if target is None or target[1] in _GOES_ON else _FATES.get(target[1], "unknown")


def _iptables_chains(text: str, tool: Literal["iptables", "ip6tables"]) -> Iterator[Chain]:
    """INPUT and OUTPUT of the filter table in the words of iptables-save."""
    lines = text.partition("*filter\n")[2].partition("\n*")[0].splitlines()
    for line in lines:
        name, policy = [*line.split(), "", ""][:2]
        if name in (":INPUT", ":OUTPUT"):
            rules = tuple(rule for rule in lines if rule.startswith(f"-A {name[1:]} "))
            fate: Fate = "drop" if policy == "DROP" else "accept"
            yield Chain(tool=tool, table="filter", name=name[1:], hook=_HOOKS[name[1:]], policy=fate, rules=rules)


def _parse_nft(rule: str) -> tuple[list[_Condition], str]:
    conditions, fate = list[_Condition](), ""
    for statement in json.loads(rule):
        ((kind, what),) = statement.items()
        if kind == "match" and what["op"] in ("==", "in", "!="):
            conditions.append(_nft_condition(what["left"], what["right"], negated=what["op"] == "!="))
        elif kind == "vmap" and what["key"] == {"ct": {"key": "state"}} and "new" not in dict(what["data"]["set"]):
            continue
        elif kind in _FATES:
            fate = _FATES[kind]
        elif kind not in _GOES_ON:
            conditions.append(_Condition(""))
            fate = fate if kind in ("match", "limit") else "unknown"
    return conditions, fate


def _nft_condition(left: Any, right: Any, *, negated: bool) -> _Condition:
    try:
        ((kind, what),) = left.items()
        field = f"{what['protocol']} {what['field']}" if kind == "payload" else f"{kind} {what['key']}"
        return _Condition(_FIELDS.get(field, ""), tuple(_nft_values(right)), negated)
    except _MALFORMED:
        return _Condition("")


def _nft_values(right: Any) -> Iterator[str]:
    """Words, numbers, nets and ranges ("a-b"). Raises ValueError for elements that are not in the rule itself."""
    kind, what = next(iter(right.items())) if isinstance(right, dict) else ("", right)
    if kind == "prefix":
        yield f"{what['addr']}/{what['len']}"
    elif kind == "range":
        yield "-".join(map(str, what))
    elif kind in ("", "set", "|") and isinstance(what, list):
        for each in what:
            yield from _nft_values(each)
    elif kind or str(what).startswith("@"):
        raise ValueError(right)
    else:
        yield str(what)


def _nft_chains(text: str, tool: Literal["nft"]) -> Iterator[Chain]:
    """The chains of `nft -j list ruleset`. Tables of the families bridge, arp and netdev are left out."""
    entries = json.loads(text)["nftables"]
    for chain in (entry["chain"] for entry in entries if "chain" in entry):
        where = [chain[key] for key in ("family", "table", "name")]
        if chain.get("type") == "filter" and chain["hook"] in _HOOKS and chain["family"] in ("ip", "ip6", "inet"):
            own = (entry["rule"] for entry in entries if "rule" in entry)
            rules = tuple(json.dumps(r["expr"], separators=(",", ":")) for r in own if [r[key] for key in ("family", "table", "chain")] == where)
            fate: Fate = "drop" if chain.get("policy") == "drop" else "accept"
            yield Chain(tool=tool, table=" ".join(where[:2]), name=where[2], hook=_HOOKS[chain["hook"]], policy=fate, rules=rules)


def _speaks(chain: Chain, peer: str) -> bool:
    family = "ip6" if ":" in peer else "ip"
    return chain.table.startswith((f"{family} ", "inet ")) if chain.tool == "nft" else chain.tool == ("ip6tables" if family == "ip6" else "iptables")


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
            return msg("no rules seen")
        return msg("no chain filters what comes in or goes out")
    said = ", ".join(f"{c.hook} {c.policy}" for c in bases[:4])
    return msg("{said}; {n} rules", said=said, n=sum(len(c.rules) for c in firewall.chains))


SUBJECT = Subject(id="firewall", title=msg("firewall", "title"), facts=Firewall, collect=collect, summary=_summary)
