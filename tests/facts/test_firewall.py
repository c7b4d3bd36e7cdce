import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.tables import for_each

from unhang.facts import firewall, snapshot_file
from unhang.facts.host import NotHere, Ran

FROM_PEER = firewall.Packet(hook="input", interface="eth0", peer="10.0.0.9", own="10.0.0.7", port=46883)
TO_PEER = firewall.Packet(hook="output", interface="eth0", peer="10.0.0.9", own="10.0.0.7", port=46883)


def seen(machine, *, nft=None, iptables=None, ip6tables=None):
    host = machine({"/proc/net/netfilter": None})
    for argv, text in ((("nft", "-j", "list", "ruleset"), nft), (("iptables-save",), iptables), (("ip6tables-save",), ip6tables)):
        if text is not None:
            host.commands[argv] = text if isinstance(text, Ran) else Ran(exitcode=0, out=text, err="")
    return firewall.collect(host)


def iptables(*rules, input="DROP", output="ACCEPT"):
    head = ["*nat", ":PREROUTING ACCEPT [0:0]", "-A PREROUTING -j DROP", "COMMIT", "*filter", f":INPUT {input} [0:0]", ":FORWARD DROP [0:0]"]
    return "\n".join([*head, f":OUTPUT {output} [0:0]", ":PEERS - [0:0]", *rules, "COMMIT", "*raw", ":OUTPUT DROP [0:0]", "COMMIT", ""])


ESTABLISHED = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"


@for_each(
    ("text", "by"),
    [
        (iptables(input="ACCEPT"), None),
        (iptables(), "policy drop"),
        # What stands already is accepted: that helps no new connection.
        (iptables(ESTABLISHED, "-A INPUT -i lo -j ACCEPT", "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT"), "policy drop"),
        (iptables(ESTABLISHED, "-A INPUT -p tcp -m multiport --dports 22,29500:29510 -j ACCEPT"), "policy drop"),
        (iptables(ESTABLISHED, "-A INPUT -s 10.0.0.0/16 -j ACCEPT"), None),
        (iptables("-A INPUT -s 10.1.0.0/16 -j ACCEPT"), "policy drop"),
        (iptables("-A INPUT ! -s 10.1.0.0/16 -j ACCEPT"), None),
        (iptables("-A INPUT -i eth+ -j ACCEPT"), None),
        (iptables("-A INPUT -i eth1 -j ACCEPT"), "policy drop"),
        (iptables("-A INPUT -p tcp -m tcp --dport 1024:65535 -j ACCEPT"), None),
        (iptables("-A INPUT -p udp -m udp --dport 1:65535 -j ACCEPT"), "policy drop"),
        (iptables("-A INPUT -m state --state NEW,RELATED -j ACCEPT"), None),
        (iptables("-A INPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT"), "policy drop"),
        # RHEL and Oracle Linux: the policy accepts, the last rule does not.
        (
            iptables(ESTABLISHED, "-A INPUT -j REJECT --reject-with icmp-host-prohibited", input="ACCEPT"),
            "-A INPUT -j REJECT --reject-with icmp-host-prohibited",
        ),
        (iptables("-A INPUT -m set --match-set peers src -j ACCEPT"), None),  # may be one of them
        (iptables("-A INPUT -m limit --limit 9/min -j ACCEPT"), None),
        (iptables("-A INPUT -m comment --comment \"-j ACCEPT all\" -j LOG --log-prefix \"in \"", "-A INPUT -j NFLOG"), "policy drop"),
        (iptables('-A INPUT -m comment --comment "-x" -j DROP', input="ACCEPT"), '-A INPUT -m comment --comment "-x" -j DROP'),
        # What another chain does with it stays unknown, unless the rule is about other packets.
        (iptables("-A INPUT -j PEERS", "-A PEERS -s 10.9.0.0/24 -j ACCEPT"), None),
        (iptables("-A INPUT -g PEERS", "-A INPUT -j DROP"), None),
        (iptables("-A INPUT -p tcp -m multiport --dports 22 -j PEERS"), "policy drop"),
        (iptables("-A INPUT -j RETURN"), None),
        # A rule that can only drop need not be understood.
        (iptables("-A INPUT -m set --match-set bad src -j DROP"), "policy drop"),
        (iptables("-A INPUT -m set --match-set bad src -j DROP", input="ACCEPT"), None),
        (iptables("-A INPUT -j \"unclosed"), None),
    ],
)  # fmt: skip
def test_what_iptables_does_with_a_new_connection(machine, text, by):
    verdict = firewall.dropped(seen(machine, iptables=text), FROM_PEER)
    assert (verdict and verdict.rule) == by
    assert firewall.dropped(seen(machine, iptables=text), TO_PEER) is None


def is_(left, right, op="=="):
    kind, _, what = left.partition(" ")
    key = {kind: {"key": what}} if kind in ("meta", "ct") else {"payload": {"protocol": kind, "field": what}}
    return {"match": {"op": op, "left": key, "right": right}}


ACCEPT, DROP = {"accept": None}, {"drop": None}
COUNTER = {"counter": {"packets": 3, "bytes": 9}}
TEN = {"prefix": {"addr": "10.0.0.0", "len": 8}}


def nft(*rules, policy="drop", hook="input", family="inet"):
    base = {"name": "input", "handle": 1, "type": "filter", "hook": hook, "prio": 0, "policy": policy}
    where = {"family": family, "table": "filter"}
    other = {"family": "bridge", "table": "other"}
    return json.dumps(
        {
            "nftables": [
                {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
                {"table": {"family": family, "name": "filter", "handle": 2}},
                {"set": where | {"name": "peers", "handle": 3, "type": "ipv4_addr", "elem": ["10.0.0.1", "10.0.0.2"]}},
                {"chain": where | base},
                {"chain": where | {"name": "more", "handle": 4}},
                *({"rule": where | {"chain": "input", "handle": 5 + n, "expr": expr}} for n, expr in enumerate(rules)),
                {"rule": where | {"chain": "more", "handle": 99, "expr": [DROP]}},
                {"chain": other | base | {"policy": "drop"}},
            ]
        }
    )


def states(**entries):
    return {"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [[state, {fate: None}] for state, fate in entries.items()]}}}


REJECT = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
SSH = [is_("tcp dport", {"set": [22, {"range": [80, 90]}]}), COUNTER, ACCEPT]


@for_each(
    ("text", "by"),
    [
        ('{"nftables": [{"metainfo": {}}]}', None),
        (nft(policy="accept"), None),
        (nft(), "policy drop"),
        (nft([states(invalid="drop", established="accept")], [is_("meta iifname", "lo"), ACCEPT], SSH), "policy drop"),
        (nft([states(established="accept", new="accept")]), None),
        (nft([is_("ct state", ["established", "related"], "in"), ACCEPT]), "policy drop"),
        (nft([is_("ct state", {"set": ["established", "new"]}, "in"), ACCEPT]), None),
        (nft([is_("ip saddr", TEN), ACCEPT]), None),
        (nft([is_("ip saddr", {"set": ["10.0.1.7", "10.0.0.9"]}), is_("tcp dport", {"range": [1024, 65535]}), ACCEPT]), None),
        (nft([is_("ip saddr", TEN, "!="), ACCEPT], [is_("meta l4proto", {"set": ["icmp", "ipv6-icmp"]}), ACCEPT]), "policy drop"),
        # Its elements are kept elsewhere.
        (nft([is_("ip saddr", "@peers"), ACCEPT]), None),
        (nft([is_("ip saddr", "@peers"), is_("tcp dport", 22), ACCEPT]), "policy drop"),
        (nft([is_("meta mark", 1), ACCEPT]), None),
        (nft([is_("tcp dport", 1024, ">"), ACCEPT]), None),
        (nft([{"xt": {"type": "match", "name": "recent"}}, ACCEPT]), None),
        (nft([{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": "@zones"}}]), None),
        (nft([{"jump": {"target": "more"}}]), None),
        (nft([is_("tcp dport", 22), {"jump": {"target": "more"}}]), "policy drop"),
        (nft([is_("udp dport", {"range": [1, 65535]}), ACCEPT], [{"limit": {"rate": 3, "per": "minute"}}, {"log": None}]), "policy drop"),
        (nft([REJECT], policy="accept"), '[{"reject":{"type":"icmpx","expr":"admin-prohibited"}}]'),
        (nft([DROP], policy="accept", hook="forward"), None),
        (nft(family="ip6"), None),  # the peer speaks IPv4
        # What is asked of IPv6 or UDP is not asked of others, however it is put.
        (nft([is_("ip6 saddr", "fe80::1", "!="), DROP], [is_("udp dport", 53, "!="), DROP], policy="accept"), None),
        (nft([is_("meta iifname", "eth*"), COUNTER, ACCEPT]), None),
        (nft([{"log": {"prefix": "x"}}, DROP], policy="accept"), '[{"log":{"prefix":"x"}},{"drop":null}]'),
    ],
)  # fmt: skip
def test_what_nft_does_with_a_new_connection(machine, text, by):
    verdict = firewall.dropped(seen(machine, nft=text), FROM_PEER)
    assert (verdict and verdict.rule) == by


@pytest.mark.parametrize("text", ["", "nothing", "{", '{"nftables": [{"chain": {"type": "filter"}}]}', nft([DROP], policy="accept")[:-2], "[]", "7"])
def test_what_cannot_be_read_is_unknown(machine, text):
    assert seen(machine, nft=text) == firewall.Firewall(chains=(), unread=("firewall rules (nft: it failed)",))


@pytest.mark.parametrize(
    "rules",
    [
        {"iptables": iptables("-A INPUT -j PEERS")},
        {"iptables": iptables("-A OUTPUT -j PEERS")},
        {"nft": nft([{"jump": {"target": "more"}}])},
        {"nft": nft([{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": "@zones"}}])},
    ],
)
def test_rules_that_are_not_followed_are_not_called_well(machine, rules):
    assert seen(machine, **rules).unread == ("firewall rules (some are not understood)",)


def test_nft_of_another_release_in_a_snapshot(machine):
    """What was recorded as text is not understood, and drops nothing."""
    chain = firewall.Chain(tool="nft", table="inet filter", name="input", hook="input", policy="drop", rules=("tcp dport 22 accept", "drop"))
    assert firewall.dropped(firewall.Firewall(chains=(chain,)), FROM_PEER) is None


def test_what_goes_out_and_ipv6(machine):
    found = seen(machine, iptables=iptables("-A OUTPUT -d 10.0.0.0/24 -p tcp -m tcp --dport 22 -j ACCEPT", input="ACCEPT", output="DROP"))
    assert firewall.dropped(found, TO_PEER).chain.name == "OUTPUT"
    assert firewall.dropped(found, FROM_PEER) is None
    six = firewall.Packet(hook="input", interface="eth0", peer="fd00::9", own="fd00::7", port=46883)
    assert firewall.dropped(found, six) is None
    assert firewall.dropped(seen(machine, ip6tables=iptables()), six).chain.tool == "ip6tables"


def test_without_root_nothing_is_said_to_be_well(machine):
    refused = Ran(exitcode=1, out="", err="Operation not permitted (you must be root)\nnetlink: Error: cache initialization failed")
    found = seen(machine, nft=refused, iptables=Ran(exitcode=4, out="", err="iptables-save v1.8.9: Permission denied (you must be root)"))
    assert (found.chains, found.unread) == ((), ("firewall rules (needs root)",))
    assert seen(machine).unread == ("firewall rules (neither nft nor iptables-save is installed)",)
    assert seen(machine, iptables=iptables()).unread == ()


def test_a_path_that_cannot_be_searched(machine):
    host = machine({"/proc/net/netfilter": None})

    def run(argv, *, timeout_s):
        if "/" not in argv[0]:
            raise PermissionError(13, "Permission denied", argv[0])
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    host.run = run
    assert firewall.collect(host).unread == ("firewall rules (neither nft nor iptables-save is installed)",)


def test_a_kernel_without_filters(machine):
    with pytest.raises(NotHere):
        firewall.collect(machine({"/proc/net/tcp": ""}))
    with pytest.raises(OSError):
        firewall.collect(machine())


def test_only_chains_that_the_kernel_enters_are_kept(machine):
    many = [f"-A KUBE-SVC-{i} -j ACCEPT" for i in range(20_000)]
    found = seen(machine, iptables=iptables("-A INPUT -j LOG", *many))
    assert [(c.name, c.rules) for c in found.chains] == [("INPUT", ("-A INPUT -j LOG",)), ("OUTPUT", ())]
    assert firewall.SUBJECT.summary(found) == "input drop, output accept; 1 rules"


IN_A_NAMESPACE = """
nft -f - <<'RULES' || exit 77
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state vmap { invalid : drop, established : accept, related : accept }
        iifname "lo" accept
        tcp dport { 22, 80-90 } counter accept comment "ssh"
        ip saddr 10.1.0.0/16 tcp dport 1024-65535 accept
        limit rate 3/minute log prefix "bad { "
    }
}
RULES
"$0" -c "$1" || exit 3
"""
LOOK = """
from unhang.facts import snapshot, snapshot_file
from unhang.facts.host import Host
import sys
sys.stdout.buffer.write(snapshot_file.encode(snapshot.take(Host(), only=["firewall"])))
"""


def test_real_rules_in_a_namespace_of_their_own():
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    if shutil.which("nft", path=path) is None or shutil.which("unshare", path=path) is None:
        pytest.skip("nft is not installed")
    argv = ["unshare", "--map-root-user", "--net", "bash", "-c", IN_A_NAMESPACE, sys.executable, LOOK]
    done = subprocess.run(argv, capture_output=True, timeout=30, env=os.environ | {"PATH": path}, check=False)
    if done.returncode in (1, 77):
        pytest.skip(f"no packet filter of our own here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    found = snapshot_file.decode(done.stdout, name="stdout").get(firewall.SUBJECT)
    assert firewall.dropped(found, FROM_PEER).rule == "policy drop"
    friend = firewall.Packet(hook="input", interface="eth0", peer="10.1.0.9", own="10.0.0.7", port=46883)
    assert firewall.dropped(found, friend) is None
