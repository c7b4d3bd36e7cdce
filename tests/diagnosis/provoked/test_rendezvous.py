"""Ranks and nodes that do not find together: ports, counts, names of masters, ssh."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as s:
        s.bind(("0.0.0.0", 0))
        s.listen()
        yield s.getsockname()[1]


def test_the_master_port_is_taken(provoke, taken):
    ran = provoke.ranks("connect.py", world=1, env={"MASTER_PORT": str(taken)})[0]
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("port-in-use", "established")
    assert str(taken) in primary["says"]


def test_the_port_of_torchrun_is_taken(provoke, taken):
    ran = provoke.torchrun("connect.py", options=("--nproc-per-node=2", f"--master-port={taken}"))
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("port-in-use", "established")
    assert str(taken) in primary["says"]


def test_a_node_that_never_comes(provoke, port):
    options = (
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=a",
        "--rdzv-conf=join_timeout=2",
    )
    ran = provoke.torchrun("connect.py", options=options)
    assert ran.exitcode == 1
    assert provoke.primary(ran.log)["cause"] == "rendezvous-misconfig"


def test_ranks_that_disagree_on_the_world_size(provoke):
    ran = provoke.ranks("connect.py", "--timeout-s", "3", of_rank={0: {"WORLD_SIZE": "3"}})[0]
    assert provoke.primary(ran.log)["cause"] == "rendezvous-misconfig"


@pytest.mark.integration
def test_nobody_said_where_the_master_is(provoke):
    ran = provoke(provoke.python, provoke.scripts / "connect.py", env={"RANK": "0", "WORLD_SIZE": "2"})
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "rendezvous-misconfig" and "MASTER_ADDR" in primary["says"]


@pytest.mark.integration
def test_a_rank_beyond_the_world(provoke):
    ran = provoke.ranks("connect.py", "--timeout-s", "3", of_rank={1: {"RANK": "2"}})[0]
    assert provoke.primary(ran.log)["cause"] == "rendezvous-misconfig"


def test_a_host_on_which_no_sshd_listens(provoke, port):
    script = provoke.tmp_path / "launch.sh"
    script.write_text(f"for host in 127.0.0.1; do ssh -o BatchMode=yes -p {port} $host python train.py || exit 255; done\n")
    ran = provoke("bash", script)
    primary = provoke.primary(ran.log)
    assert (ran.exitcode, primary["cause"]) == (255, "ssh-launcher")
    assert "127.0.0.1" in primary["says"]


@pytest.fixture
def sshd(provoke, port) -> Iterator[int]:
    """An ssh server that knows nobody's key."""
    asyncssh = pytest.importorskip("asyncssh", reason="an ssh server is made with asyncssh, which is not installed")
    del asyncssh
    code = (
        "import asyncio, asyncssh, sys\n"
        "class Server(asyncssh.SSHServer):\n"
        "    def public_key_auth_supported(self): return True\n"
        "async def serve():\n"
        "    await asyncssh.create_server(Server, '127.0.0.1', int(sys.argv[1]), server_host_keys=[asyncssh.generate_private_key('ssh-ed25519')])\n"
        "    print('listening', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(serve())\n"
    )
    server = subprocess.Popen([provoke.python, "-c", code, str(port)], stdout=subprocess.PIPE, env=provoke.environ({}))
    try:
        assert server.stdout is not None and server.stdout.readline() == b"listening\n"
        yield port
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


@pytest.mark.integration
@pytest.mark.parametrize("checking", ["no", "yes"], ids=["key-refused", "host-unknown"])
def test_a_host_that_refuses_ssh(provoke, sshd, checking):
    options = ("-o", "BatchMode=yes", "-o", f"StrictHostKeyChecking={checking}", "-o", "UserKnownHostsFile=/dev/null", "-p", str(sshd))
    ran = provoke("ssh", *options, "127.0.0.1", "torchrun", "train.py")
    assert (ran.exitcode, provoke.primary(ran.log)["cause"]) == (255, "ssh-launcher")


def test_a_scan_of_the_store_harms_nobody(provoke, port):
    """torch's store drops who does not speak its protocol: nothing of it is in the log, and nothing may be made of it."""
    rank = (provoke.python, provoke.scripts / "connect.py")
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    commands = [(rank, {**common, "RANK": "0"}), (rank, {**common, "RANK": "1"}), ((provoke.python, provoke.scripts / "disturb.py", str(port)), {})]
    ran = provoke.together(commands)
    assert [r.exitcode for r in ran] == [0, 0, 0], ran[0].text
    assert provoke.verdict(ran[0].log)["primary"] is None


def test_healthy_by_hand(provoke):
    ran = provoke.ranks("connect.py", world=3)
    assert [r.exitcode for r in ran] == [0, 0, 0], ran[0].text
    assert provoke.verdict(ran[0].log)["primary"] is None


@pytest.mark.integration
def test_healthy_with_a_rendezvous(provoke, port):
    options = ("--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=a")
    ran = provoke.torchrun("connect.py", options=options)
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None
