import socket
import threading

import pytest

from unhang.facts import names
from unhang.facts.host import Host

FILES = {
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1\tnode7.lan node7 # Debian\n\n10.0.0.1 node1\n::1 localhost\nbroken\n",
    "/etc/resolv.conf": "# by hand\nsearch lan\nnameserver 10.0.0.53\nnameserver\nnameserver fd00::53\n",
}


def test_own_name_and_the_master(machine):
    host = machine(FILES, environ={"MASTER_ADDR": "node1", "NODE_RANK": "1"})
    host.names_known = {"node7": ("127.0.1.1",), "node1": ("10.0.0.1",)}
    host.interfaces = {"lo": ("127.0.0.1/8",), "eth0": ("10.0.0.7/24", "fe80::7/64")}
    seen = names.collect(host)
    assert (seen.own.addresses, seen.master.addresses, seen.job.first) == (("127.0.1.1",), ("10.0.0.1",), False)
    assert seen.own_addresses == ("127.0.0.1", "10.0.0.7", "fe80::7")
    assert seen.dns_servers == ("10.0.0.53", "fd00::53")
    assert [(h.line, h.address) for h in seen.hosts_lines] == [(2, "127.0.1.1"), (4, "10.0.0.1")]
    assert seen.unread == ()
    assert names.SUBJECT.summary(seen) == "node7 is 127.0.1.1; MASTER_ADDR node1 is 10.0.0.1"


def test_where_nobody_can_be_asked_nothing_is_said_to_fail(machine):
    seen = names.collect(machine())
    assert seen.own == names.Answer(name="node7", addresses=None)
    assert seen.unread == ("what the host's name resolves to", "the addresses of this host")


def test_a_name_that_does_not_resolve(machine):
    host = machine()

    def refuse(name):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    host.resolve = refuse
    assert names.ask(host, "gone").error == "Name or service not known"
    assert names.ask(Host(), "a" * 70 + ".invalid").error


def test_a_name_server_that_is_silent_is_not_waited_for(machine, monkeypatch):
    host, silent = machine(), threading.Event()
    host.resolve = lambda name: silent.wait(30) and ()
    monkeypatch.setattr(names, "_PATIENCE_S", 0.05)
    answer = names.ask(host, "node1")
    silent.set()
    # Facts are compared, and told elsewhere.
    assert (answer.addresses, answer.error, type(answer.error)) == (None, "no answer within 0.05 s", str)


@pytest.mark.parametrize("junk", ["", "\0\0", "nameserver\n" * 3, "�" * 100])
def test_damaged_files(machine, junk):
    assert names.collect(machine({"/etc/hosts": junk, "/etc/resolv.conf": junk})).dns_servers == ()


def test_this_machine():
    seen = names.collect(Host())
    assert seen.host_name == socket.gethostname()
    assert "127.0.0.1" in seen.own_addresses
