import os
import socket

import pytest
from tests.tables import for_each

from unhang.facts import ports
from unhang.facts.host import Host

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(local, state, inode, *, uid=1000, remote="00000000:0000"):
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0000000000000000 100 0 0 10 0\n"


TCP = (
    HEAD
    + line("0100007F:0016", "0A", 11, uid=0)
    + line("00000000:733C", "0A", 12)  # 29500
    + line("0700000A:733C", "06", 0, remote="0900000A:D431")  # TIME_WAIT holds up nobody
    + line("0700000A:9C40", "01", 14, remote="0900000A:0016")  # 40000
    + "cut off\n"
)
TCP6 = HEAD + line("00000000000000000000000000000000:1F90", "0A", 15) + line("0000000000000000FFFF00000700000A:9C41", "01", 16)
FILES = {
    "/proc/net/tcp": TCP,
    "/proc/net/tcp6": TCP6,
    "/proc/4711/fd/3": "-> socket:[12]",
    "/proc/4711/fd/4": "-> /dev/null",
    "/proc/4711/cmdline": "python\0-m\0torch.distributed.run\0--token=abc\0",
    "/proc/4712/fd/3": "-> socket:[12]",
    "/proc/4712/cmdline": "python\0train.py\0",
    "/proc/813/fd/9": "-> socket:[15]",
    "/proc/813/cmdline": "",
    "/proc/813/comm": "kworker\n",
    "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "/proc/sys/net/ipv4/ip_local_reserved_ports": "8080,29500-29510\n",
}


def test_who_listens(machine):
    seen = ports.collect(machine(FILES))
    assert [(h.port, h.address, h.pid, h.command) for h in seen.listeners] == [
        (29500, "0.0.0.0", 4711, "python -m torch.distributed.run"),
        (22, "127.0.0.1", None, None),
        (8080, "::", 813, "kworker"),
    ]
    assert (seen.connections, seen.store_port, seen.range_first, seen.range_last, seen.in_range) == ((), 29500, 32768, 60999, 2)
    assert ports.is_reserved(seen, 29505) and ports.is_reserved(seen, 8080) and not ports.is_reserved(seen, 29511)
    assert seen.unread == ()
    assert ports.SUBJECT.summary(seen) == "the usual port 29500 is taken; listened on: 3 ports; the system hands out 32768 to 60999"


@for_each(
    ("words", "told"),
    [
        ("./ttyd -c admin:hunter2 bash", "./ttyd"),
        ("./redis-server --requirepass hunter2", "./redis-server"),
        ("ssh -L=admin:hunter2@h", "ssh"),
        ("python train.py hunter2", "python train.py"),
        ("/usr/bin/python3.11 -u -X dev -W ignore /opt/a.py --token hunter2", "/usr/bin/python3.11 /opt/a.py"),
        ("python -um torch.distributed.run hunter2", "python -m torch.distributed.run"),
        ("python -mhttp.server hunter2", "python -m http.server"),
        ("python -c hunter2", "python"),
        ("python -uc hunter2", "python"),
        ("python -X dev -chunter2", "python"),
        ("python - hunter2", "python"),
        ("python -m", "python -m"),
        ("python", "python"),
        ("bash -ex run.sh hunter2", "bash run.sh"),
        ("bash -lc hunter2", "bash"),
        ("sh -s hunter2", "sh"),
        ("node --max-old-space-size=4096 server.js hunter2", "node"),
    ],
)
def test_of_a_command_line_only_the_program_and_its_script_are_kept(machine, words, told):
    seen = ports.collect(machine(FILES | {"/proc/813/cmdline": words.replace(" ", "\0") + "\0"}))
    assert [h.command for h in seen.listeners if h.pid == 813] == [told]


def test_of_a_title_only_the_program_is_kept(machine):
    seen = ports.collect(machine(FILES | {"/proc/813/cmdline": "/opt/google/chrome --proxy=admin:hunter2@h\0\0\0"}))
    assert [h.command for h in seen.listeners if h.pid == 813] == ["/opt/google/chrome"]


def test_a_connection_can_hold_the_port(machine):
    seen = ports.collect(machine(FILES, environ={"MASTER_PORT": "40001"}))
    (one,) = seen.connections
    assert (one.port, one.address, one.state) == (40001, "10.0.0.7", "connected")


@pytest.mark.parametrize(
    "junk", ["", "\0", "a b c d e f g h i j\n" * 3, "0: 00:zz 0:0 0A 0 0 0 x 0 y\n" * 2, "0: 0101:0016 0:0 0A 0 0 0 0 0 1\n" * 2]
)
def test_damaged_files(machine, junk):
    seen = ports.collect(machine({n: junk for n in FILES if n.startswith(("/proc/net", "/proc/sys"))}))
    assert seen.listeners == ()
    assert seen.unread == ("the range of ports that the system hands out",)
    ports.SUBJECT.summary(seen)


def test_without_proc(machine):
    with pytest.raises(OSError):
        ports.collect(machine())


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_listener_is_found(family, address):
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        port = listener.getsockname()[1]
        host = Host(environ={"MASTER_PORT": str(port)})
        one = next(h for h in ports.collect(host).listeners if h.port == port)
        assert (one.address, one.pid, one.uid) == (address, os.getpid(), os.geteuid())
        assert ports.SUBJECT.summary(ports.collect(host)).startswith(f"MASTER_PORT {port} is taken")
    assert all(h.port != port for h in ports.collect(host).listeners)
