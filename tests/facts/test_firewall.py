import itertools
import os
import shutil
import subprocess
import sys

import pytest

from unhang.facts import firewall, snapshot
from unhang.facts.host import Ran
from unhang.facts.subject import NotHere

FROM_PEER = firewall.Packet(hook="input", interface="eth0", peer="10.0.0.9", own="10.0.0.7", port=46883)
TO_PEER = firewall.Packet(hook="output", interface="eth0", peer="10.0.0.9", own="10.0.0.7", port=46883)


def seen(machine, *, nft=None, iptables=None, ip6tables=None):
    host = machine({"/proc/net/netfilter": None})
    for argv, text in ((("nft", "list", "ruleset"), nft), (("iptables-save",), iptables), (("ip6tables-save",), ip6tables)):
        if text is not None:
            host.commands[argv] = text if isinstance(text, Ran) else Ran(exitcode=0, out=text, err="")
    return firewall.collect(host)


def iptables(*rules, input="DROP", output="ACCEPT", chains=()):
    head = ["*nat", ":PREROUTING ACCEPT [0:0]", "-A PREROUTING -j DROP", "COMMIT", "*filter", f":INPUT {input} [0:0]", ":FORWARD DROP [0:0]"]
    return "\n".join([*head, f":OUTPUT {output} [0:0]", *(f":{c} - [0:0]" for c in chains), *rules, "COMMIT", ""])


ESTABLISHED = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"


@pytest.mark.parametrize(
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
        (iptables("-A INPUT -j PEERS", "-A PEERS -s 10.0.0.0/24 -j ACCEPT", chains=("PEERS",)), None),
        (iptables("-A INPUT -j PEERS", "-A PEERS -s 10.9.0.0/24 -j ACCEPT", "-A PEERS -j RETURN", chains=("PEERS",)), "policy drop"),
        (iptables("-A INPUT -j PEERS", "-A PEERS -j DROP", input="ACCEPT", chains=("PEERS",)), "-A PEERS -j DROP"),
        (iptables("-A INPUT -g PEERS", "-A INPUT -j ACCEPT", "-A PEERS -s 10.9.0.0/24 -j ACCEPT", chains=("PEERS",)), "policy drop"),
        (iptables("-A INPUT -j INPUT"), None),  # the kernel refuses loops: not understood
        (iptables("-A INPUT -j \"unclosed"), None),
    ],
)  # fmt: skip
def test_what_iptables_does_with_a_new_connection(machine, text, by):
    verdict = firewall.dropped(seen(machine, iptables=text), FROM_PEER)
    assert (verdict and verdict.rule) == by
    assert firewall.dropped(seen(machine, iptables=text), TO_PEER) is None


UFW = iptables(
    "-A INPUT -j ufw-before-logging-input", "-A INPUT -j ufw-before-input", "-A INPUT -j ufw-after-input",
    "-A ufw-before-input -i lo -j ACCEPT", "-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny", "-A ufw-before-input -m conntrack --ctstate INVALID -j DROP",
    "-A ufw-before-input -p icmp -m icmp --icmp-type 3 -j ACCEPT", "-A ufw-before-input -j ufw-not-local",
    "-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT", "-A ufw-before-input -j ufw-user-input",
    "-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"",
    "-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN", "-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN",
    "-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny", "-A ufw-not-local -j DROP",
    "-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT", "{extra}",
    "-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input", "-A ufw-skip-to-policy-input -j DROP",
    chains=(
        "ufw-before-logging-input", "ufw-before-input", "ufw-after-input", "ufw-not-local", "ufw-user-input", "ufw-logging-deny",
        "ufw-skip-to-policy-input", "DOCKER-USER",
    ),
)  # fmt: skip


def test_ufw_as_ubuntu_sets_it_up(machine):
    closed, opened = (UFW.replace("{extra}", rule) for rule in ("", "-A ufw-user-input -s 10.0.0.0/24 -j ACCEPT"))
    found = seen(machine, iptables=closed)
    assert firewall.dropped(found, FROM_PEER).rule == "policy drop"
    assert "DOCKER-USER" not in {c.name for c in found.chains}
    assert firewall.SUBJECT.summary(found).en.startswith("input drop, output accept; ")
    assert firewall.dropped(seen(machine, iptables=opened), FROM_PEER) is None
    alone = firewall.Packet(hook="input", interface="lo", peer="127.0.0.1", own="127.0.0.1", port=46883)
    assert firewall.dropped(found, alone) is None


def nft(*rules, policy="drop", hook="input", family="inet", more=""):
    body = "".join(f"\t\t{r}\n" for r in rules)
    return (
        f"table {family} filter {{\n\tset peers {{\n\t\ttype ipv4_addr\n\t\telements = {{ 10.0.0.1,\n\t\t\t     10.0.0.2 }}\n\t}}\n\n"
        f"\tchain input {{\n\t\ttype filter hook {hook} priority filter; policy {policy};\n{body}\t}}\n{more}}}\n"
        "table bridge other {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n"
    )


MORE = "\tchain more {\n\t\tip saddr 10.0.0.0/24 accept\n\t}\n"


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("", None),
        (nft(policy="accept"), None),
        (nft(), "policy drop"),
        (nft("ct state vmap { invalid : drop, established : accept }", 'iifname "lo" accept', "tcp dport 22 accept"), "policy drop"),
        (nft("ct state established,related accept", "tcp dport { 22, 80-90 } counter packets 3 bytes 9 accept comment \"ssh\""), "policy drop"),
        (nft("ct state { established, new } accept"), None),
        (nft("ip saddr 10.0.0.0/8 accept"), None),
        (nft("ip saddr { 10.0.1.0/24, 10.0.0.5-10.0.0.20 } tcp dport 1024-65535 accept"), None),
        (nft("ip saddr != 10.0.0.0/8 accept", "ip6 saddr fe80::/10 accept", "meta l4proto { icmp, ipv6-icmp } accept"), "policy drop"),
        (nft("ip saddr @peers accept"), None),
        (nft("iifname vmap { \"lo\" : accept, \"eth0\" : jump world }"), None),
        (nft("meta mark 0x00000001 accept"), None),
        (nft("jump more", more=MORE), None),
        (nft("udp dport 1-65535 accept", "goto more", "accept", more=MORE.replace("10.0.0.0", "10.7.0.0")), "policy drop"),
        (nft("limit rate 3/minute log prefix \"bad { \" level info", "reject with icmpx admin-prohibited"), "reject with icmpx admin-prohibited"),
        (nft("drop", policy="accept", hook="forward"), None),
        (nft(family="ip6"), None),  # the peer speaks IPv4
        (nft('iifname "eth*" counter packets 0 bytes 0 accept'), None),
        (nft("fib daddr type != local return", "log prefix \"x\" drop", policy="accept"), "log prefix \"x\" drop"),
        ("table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;", None),  # cut off
        ("}}}}\n{{{{\nchain\ntable\n", None),
    ],
)  # fmt: skip
def test_what_nft_does_with_a_new_connection(machine, text, by):
    verdict = firewall.dropped(seen(machine, nft=text), FROM_PEER)
    assert (verdict and verdict.rule) == by


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


def test_only_chains_that_matter_are_kept(machine):
    many = [f"-A KUBE-SVC-{i} -j ACCEPT" for i in range(20_000)]
    text = iptables("-A INPUT -j KUBE-FIREWALL", "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", *many, chains=("KUBE-FIREWALL",))
    found = seen(machine, iptables=text)
    assert [c.name for c in found.chains] == ["INPUT", "OUTPUT", "KUBE-FIREWALL"]


IN_A_NAMESPACE = """
nft -f - <<'RULES' || exit 77
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state vmap { invalid : drop, established : accept, related : accept }
        iifname "lo" accept
        tcp dport { 22, 80-90 } counter accept comment "ssh"
        jump more
    }
    chain more {
        ip saddr 10.1.0.0/16 tcp dport 1024-65535 accept
        limit rate 3/minute log prefix "bad { "
    }
}
RULES
"$0" -c "$1" || exit 3
"""
LOOK = """
from unhang.facts import snapshot
from unhang.facts.host import Host
import sys
sys.stdout.buffer.write(snapshot.encode(snapshot.take(Host(), only=["firewall"])))
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
    found = snapshot.decode(done.stdout, name="stdout").get(firewall.SUBJECT)
    assert firewall.dropped(found, FROM_PEER).rule == "policy drop"
    friend = firewall.Packet(hook="input", interface="eth0", peer="10.1.0.9", own="10.0.0.7", port=46883)
    assert firewall.dropped(found, friend) is None


def test_chains_that_call_each_other_many_times_are_gone_through_once(cpu_seconds):
    """Three jumps of each to the next, none of them understood: 3 ** 40 ways through."""
    cpu_seconds(20)
    rules = [f"-A {a} -m mark --mark {n} -j {b}" for a, b in itertools.pairwise(NAMES) for n in range(3)]
    last = NAMES[-1]
    may = firewall.Firewall(
        chains=tuple(firewall._iptables(iptables(*rules, f"-A {last} -m mark --mark 1 -j DROP", input="ACCEPT", chains=NAMES[1:]), "iptables"))
    )
    assert firewall.dropped(may, FROM_PEER) is None
    for_certain = firewall.Firewall(chains=tuple(firewall._iptables(iptables(*rules, "-A INPUT -j DROP", chains=NAMES[1:]), "iptables")))
    assert firewall.dropped(for_certain, FROM_PEER).rule == "-A INPUT -j DROP"


NAMES = ("INPUT", *(f"C{n}" for n in range(40)))


@pytest.mark.parametrize("count", [2, 3000])
def test_chains_without_an_end_are_not_followed_for_ever(count):
    """No kernel takes them; a damaged snapshot may hold them."""
    names = tuple(f"C{n}" for n in range(count))
    rules = [f"-A {a} -j {b}" for a, b in zip(("INPUT", *names), (*names, names[0]), strict=True)]
    assert firewall.dropped(firewall.Firewall(chains=tuple(firewall._iptables(iptables(*rules, chains=names), "iptables"))), FROM_PEER) is None
