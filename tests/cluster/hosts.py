"""Hosts as namespaces of this machine, each with a name, two interfaces and an sshd of its own: `with Cluster(8) as cluster`, or by hand
`python -m tests.cluster 4`.

Nothing of the machine itself is touched: networks, mounts, host names and processes belong to namespaces that end with this process, however it ends.
A host ends with everything in it when one process is killed. `login` is where a user sits: it knows all names, and nobody listens there.
What cannot be made: delay of single packets, VLANs, InfiniBand, another kernel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "tc", "iptables", "ethtool", "sshd", "ssh", "ssh-keygen")
LOGIN = "login"
# eth0, over which the hosts know each other, and eth1 beside it.
NETWORKS = ("10.77.0", "10.78.0")
_LOGIN_ADDRESS = 100
_READY_S = 60

# What a host is before its sshd starts. `ip netns` is not used: its names would be the machine's, and it hides /sys/fs/cgroup.
_INIT = """
set -e
directory=$1 name=$2
hostname "$name"
mount -t proc proc /proc
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o size=64m tmpfs /run
mkdir -p /run/sshd /scratch
mount --bind "$directory/$name/scratch" /scratch
for file in hosts hostname resolv.conf ssh/ssh_config; do
  [ -e "/etc/$file" ] || : > "/etc/$file"
  mount --bind "$directory/$name/${file##*/}" "/etc/$file"
done
if [ "$name" = login ]; then exec sleep infinity; fi
exec "$3" -D -e -f "$directory/$name/sshd_config" 2> "$directory/$name/sshd.log"
"""


def not_installed(programs: Sequence[str]) -> str | None:
    """Which of them are missing, as a sentence; None if all are here."""
    missing = [name for name in programs if shutil.which(name, path=SBIN) is None]
    return f"there is no {', '.join(missing)} here" if missing else None


def lacking() -> str | None:
    """Why no cluster can be made here; None where one can."""
    if os.geteuid() != 0:
        return "namespaces with networks need root"
    if (missing := not_installed(PROGRAMS)) is not None:
        return missing
    made = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
    )
    return None if made.returncode == 0 else f"namespaces may not be made here: {made.stderr.strip()}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A host: `number` from 1, 0 for `login`; `holder` keeps its namespaces; `pid` is its process 1 as this machine sees it."""

    number: int
    name: str
    directory: Path
    holder: subprocess.Popen[bytes]
    pid: int

    @property
    def address(self) -> str:
        return f"{NETWORKS[0]}.{self.number or _LOGIN_ADDRESS}"

    def inside(self, *command: str) -> list[str]:
        """The command line, to be started anywhere on this machine, that runs a command on this host."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--ipc", "--pid", *command]

    def run(self, command: str | Sequence[str], *, timeout_s: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell's text, or words, to its end. Raises CalledProcessError where it fails, TimeoutExpired where it does not end."""
        words = ["bash", "-c", command] if isinstance(command, str) else command
        return subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=timeout_s, check=check, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """The host is gone with everything in it, its interfaces as well: the connections of others are not closed."""
        self.holder.kill()
        self.holder.wait()
        until = time.monotonic() + _READY_S
        # Its process 1 has ended only when all others have.
        while _lives(self.pid) and time.monotonic() < until:
            time.sleep(0.01)


class Cluster:
    """`size` hosts node1, node2 …, `login`, and a switch that they hang on. Raises RuntimeError where one does not come up."""

    def __init__(self, size: int, directory: Path) -> None:
        self.size, self.directory = size, directory
        self.nodes: list[Node] = []
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __getitem__(self, number: int) -> Node:
        """The host of a number, from 1."""
        return self.nodes[number - 1]

    def end(self) -> None:
        """Ends all hosts, with everything that runs on them."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
        for node in self.nodes:
            node.kill()

    def switch(self, command: str) -> None:
        """A shell's text in the switch's network: port N of bridge B (0 or 1) is `portNpB`."""
        subprocess.run(self.in_switch("bash", "-ec", command), check=True)

    def in_switch(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self._switch.pid), "--net", *command]

    def link(self, number: int, state: str, *, network: int = 0) -> None:
        """Pull a host's cable ("down") or plug it in again ("up"): nobody is told, no connection is closed."""
        self.switch(f"ip link set port{number}p{network} {state}")

    def processes(self) -> list[tuple[int, str]]:
        """Who lives on the hosts, but for their own process 1 and sshd: pids of this machine, and commands."""
        spaces = {os.readlink(f"/proc/{node.pid}/ns/pid"): node for node in (*self.nodes, self.login) if node.holder.poll() is None}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                node = spaces.get(os.readlink(entry / "ns/pid"))
            except OSError:
                continue
            words = command_of(int(entry.name))
            if node is not None and int(entry.name) != node.pid and words and not words.startswith("sshd: "):
                found.append((int(entry.name), words))
        return found

    def _start(self) -> None:
        self._write()
        self._switch = self._hold("--net", "sleep", "infinity")
        names = [LOGIN, *(f"node{n}" for n in range(1, self.size + 1))]
        init = self.directory / "init.sh"
        init.write_text(_INIT)
        sshd = shutil.which("sshd", path=SBIN) or "sshd"
        spaces = ("--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private")
        holders = [self._hold(*spaces, "bash", str(init), str(self.directory), name, sshd) for name in names]
        cables = [f"link add br{b} type bridge\nlink set br{b} up" for b in range(len(NETWORKS))]
        for number, holder in enumerate(holders):
            for b in range(len(NETWORKS)):
                port = f"port{number}p{b}"
                cables += [f"link add {port} type veth peer name eth{b} netns {holder.pid}", f"link set {port} master br{b}", f"link set {port} up"]
        self._ip(self._switch.pid, cables)
        for number, holder in enumerate(holders):
            lines = ["link set lo up", "link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"]
            for b, network in enumerate(NETWORKS):
                lines += [f"addr add {network}.{number or _LOGIN_ADDRESS}/24 dev eth{b}", f"link set eth{b} up"]
            self._ip(holder.pid, lines)
        for number, (name, holder) in enumerate(zip(names, holders, strict=True)):
            self._wait(lambda: bool(_children(holder.pid)), holder, "its process 1")  # noqa: B023
            node = Node(number=number, name=name, directory=self.directory / name, holder=holder, pid=_children(holder.pid)[0])
            if number:
                self.nodes.append(node)
            else:
                self.login = node
        for node in self.nodes:
            self._wait(lambda: b"listening" in (node.directory / "sshd.log").read_bytes(), node.holder, "its sshd")  # noqa: B023

    def _write(self) -> None:
        """All that differs between hosts are files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / name], check=True)
        addresses = {f"node{n}": f"{NETWORKS[0]}.{n}" for n in range(1, self.size + 1)}
        names = "127.0.0.1 localhost\n" + "".join(f"{at} {name}.cluster {name}\n" for name, at in addresses.items())
        key = " ".join((self.directory / "host.pub").read_text().split()[:2])
        (self.directory / "known_hosts").write_text("".join(f"{name},{name}.cluster,{at} {key}\n" for name, at in addresses.items()))
        ssh = {"User": "root", "IdentityFile": self.directory / "user", "UserKnownHostsFile": self.directory / "known_hosts", "BatchMode": "yes"}
        ssh |= {"ConnectTimeout": 5, "LogLevel": "ERROR"}
        sshd = {"HostKey": self.directory / "host", "AuthorizedKeysFile": self.directory / "user.pub", "PidFile": "none", "StrictModes": "no"}
        sshd |= {"PermitRootLogin": "yes", "PasswordAuthentication": "no", "UseDNS": "no", "UsePAM": "no", "AcceptEnv": "*"}
        sshd |= {"MaxStartups": "100:30:200", "MaxSessions": 100, "Subsystem": "sftp internal-sftp"}
        for name in (LOGIN, *addresses):
            folder = self.directory / name
            (folder / "scratch").mkdir(parents=True)
            (folder / "hosts").write_text(names + f"{NETWORKS[0]}.{_LOGIN_ADDRESS} {LOGIN}\n")
            (folder / "hostname").write_text(f"{name}\n")
            (folder / "resolv.conf").write_text("")
            (folder / "sshd.log").write_text("")
            (folder / "ssh_config").write_text("Host *\n" + "".join(f"  {k} {v}\n" for k, v in ssh.items()))
            (folder / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in sshd.items()))

    def _hold(self, *words: str) -> subprocess.Popen[bytes]:
        """A process in namespaces of its own, which ends with this one."""
        log = self.directory / "holders.log"
        with log.open("ab") as errors:
            words = ("setpriv", "--pdeathsig", "KILL", "unshare", *words)
            holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self._holders.append(holder)
        self._wait(lambda: _is_apart(holder.pid), holder, "its namespaces")
        return holder

    def _wait(self, ready: Callable[[], bool], holder: subprocess.Popen[bytes], what: str) -> None:
        until = time.monotonic() + _READY_S
        while not ready():
            if holder.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"a host of the cluster has not got {what}: {(self.directory / 'holders.log').read_text()}")
            time.sleep(0.01)

    @staticmethod
    def _ip(pid: int, lines: Sequence[str]) -> None:
        words = ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"]
        done = subprocess.run(words, input="\n".join(lines) + "\n", capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"ip: {done.stderr}")


def _is_apart(pid: int) -> bool:
    """Whether a process has left this machine's network. Before that an interface given to it would be the machine's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command_of(pid: int) -> str:
    """What a process was started with; "" of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    """Also one that is ending; not one that has ended, and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
