"""Machines that are really broken, and the training that ends well on them all the same: at the first run by trying, at the second one at once."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from functools import cache

import pytest

from unhang.diagnosis.why import judge
from unhang.records.rundir import RunDir

pytestmark = [pytest.mark.torch, pytest.mark.integration, pytest.mark.timeout(900)]

CONNECT = """
dist.init_process_group("gloo")
train(6)
total = torch.ones(1)
dist.all_reduce(total)
print("world", int(total))
dist.destroy_process_group()
"""
LOADERS = """
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
data = [torch.full((64, 1024), float(i)) for i in range(64)]
loader = DataLoader(data, batch_size=16, num_workers=int(os.environ.get("UNHANG_LOADER_WORKERS", "2")))
print("sum", int(sum(batch.sum() for batch in loader)))
train(6)
dist.destroy_process_group()
"""
# An adapter whose address the host's name stands for: the one that Gloo takes when nobody names another.
ADAPTER = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.9.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
mount -t tmpfs tmpfs /run
printf '127.0.0.1 localhost\\n10.9.0.1 node0\\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
hostname node0
"""
# A rule about an address of our own has to stand before the one that delivers to it.
BLOCKED = f"{ADAPTER}ip rule add lookup local pref 200\nip rule del pref 0\nip rule add to 10.9.0.1 {{kind}} pref 1\n"
# Nothing but an address of IPv6, which goes away with it.
NO_IPV6 = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
ip -6 addr add fd00::1/64 dev eth0 nodad
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
"""
SMALL_SHM = "ip link set lo up\nmount -t tmpfs -o size=1m tmpfs /dev/shm\n"


@cache
def namespaces() -> bool:
    ask = ["unshare", "--net", "--mount", "--uts", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm && ip link set lo up"]
    return bool(shutil.which("unshare")) and subprocess.run(ask, capture_output=True, check=False).returncode == 0


def machine(prelude: str) -> list[str]:
    """A host of its own, as `prelude` leaves it."""
    if not namespaces():
        pytest.skip("no network namespaces can be made here")
    return ["unshare", "--net", "--mount", "--uts", "sh", "-e", "-c", f'{prelude}\nexec "$@"', "sh"]


# torchrun's own agent would meet its workers at the address that the host's name stands for.
ON_LOOPBACK = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]

BROKEN = {
    "an interface that is not there": (CONNECT, "ip link set lo up", {"GLOO_SOCKET_IFNAME": "nosuch0"}, {"interface": "auto"}),
    "an interface that is refused": (CONNECT, BLOCKED.format(kind="prohibit"), {}, {"interface": "lo"}),
    "no IPv6": (CONNECT, NO_IPV6, {"GLOO_SOCKET_IFNAME": "eth0"}, {"interface": "auto"}),
    "tiny /dev/shm": (LOADERS, SMALL_SHM, {}, {"loader-workers": 0}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_machine(launcher, name):
    script, prelude, env, smallest = BROKEN[name]
    command = [*ON_LOOPBACK, str(launcher.script(script))]
    first = launcher.run(*command, within=machine(prelude), env=env, timeout_s=800)
    assert first.exitcode == 0, first.err[-4000:]
    found = first.outcome["fallback"]
    assert (found["chosen"], found["confirmed"], found["remembered"]) == (smallest, True, False)
    assert first.outcome["attempts"] == 2
    assert found["seconds"] < 120
    tried = {e["rung"]: e["outcome"] for e in first.happened("RungTried")}
    assert tried["as-is"] == "failed"
    assert first.happened("FellBack")[0]["choice"] == smallest
    assert (first.path / "solution.md").read_text().count("✗") >= 2
    kept = judge(RunDir.open(first.path)).primary.remedies[0]
    assert kept.id == "proven-here" and "the training then ended well with it" in kept.says
    second = launcher.run(*command, within=machine(prelude), env=env)
    assert second.exitcode == 0, second.err[-4000:]
    assert second.outcome["attempts"] == 1 and second.outcome["fallback"]["remembered"]
    assert second.happened("FellBack")[0]["remembered"] and not second.happened("RungTried")
    assert "unhang run --forget forgets it" in second.err


def test_an_interface_that_swallows_everything(launcher):
    """Nobody is refused: each stage of each trial waits for its bound."""
    command = ["--startup", "20", *ON_LOOPBACK, str(launcher.script(CONNECT))]
    first = launcher.run(*command, within=machine(BLOCKED.format(kind="blackhole")), timeout_s=800)
    assert first.exitcode == 0, first.err[-4000:]
    assert first.outcome["fallback"]["chosen"] == {"interface": "lo"}


def test_the_code_is_never_answered_by_settings(launcher):
    run = launcher.train("dist.init_process_group('gloo')\nraise ValueError('mine')", "--max-restarts", "1")
    assert run.exitcode == 1 and run.outcome["fallback"] is None
    assert not run.happened("Climbing")


@pytest.mark.parametrize("option", [("--fallback", "off"), ("--on-failure", "abort"), ("--max-restarts", "0")])
def test_nothing_is_tried_where_nobody_wants_it(launcher, option):
    run = launcher.train(CONNECT, *option, "--max-restarts", "0", env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    assert run.exitcode == 1 and not run.happened("Climbing")


def test_what_was_remembered_can_be_forgotten(launcher):
    env = {"GLOO_SOCKET_IFNAME": "nosuch0"}
    first = launcher.train(CONNECT, "--startup", "200", env=env)
    assert first.exitcode == 0
    assert "unhang run --set interface=auto -n 2 --startup 200 " in (first.path / "solution.md").read_text()
    # What befalls both ranks is told once.
    assert "ranks 0, 1: RuntimeError" in first.happened("RungTried")[0]["says"]
    missed = json.loads((first.path / "incidents/1/incident.json").read_bytes())["missed"]
    assert missed and len(missed) == len({m["what"] for m in missed})
    again = launcher.train(CONNECT, "--forget", "--max-restarts", "0", env=env)
    assert again.exitcode == 1 and "is forgotten" in again.err
    assert not launcher.train(CONNECT, "--max-restarts", "0", env=env).happened("FellBack")


def test_on_several_hosts_nothing_is_tried_on_one(launcher):
    run = launcher.train(CONNECT, "--max-restarts", "1", env={"GLOO_SOCKET_IFNAME": "nosuch0", "NNODES": "2"})
    assert run.exitcode == 1 and not run.happened("Climbing")
    assert any("2 hosts" in e["text"] for e in run.happened("Note"))


def test_ctrl_c_in_the_middle_of_a_trial(launcher):
    process, path = launcher.start("-n", "2", str(launcher.script(CONNECT)), env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    launcher.until(lambda: (path / "events.jsonl").exists() and "Climbing" in (path / "events.jsonl").read_text())
    process.send_signal(signal.SIGINT)
    run = launcher.finish(process, path)
    assert run.exitcode == 130 and not run.happened("FellBack") and len(run.happened("Started")) == 1
    assert "interrupted" in (path / "solution.md").read_text() and "interrupted" in run.outcome["fallback"]["says"]


def test_without_a_terminal_nobody_can_be_asked(launcher):
    run = launcher.train(CONNECT, "--fallback", "ask", "--max-restarts", "1", env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    assert run.exitcode == 1 and not run.happened("Climbing")
    assert ["no terminal to ask on" in e["text"] for e in run.happened("Note")].count(True) == 1
    assert [e["event"] for e in run.events].index("Note") < [e["event"] for e in run.events].index("Started")


@pytest.mark.parametrize(("answer", "chosen"), [(b"x\n\n", {"interface": "auto"}), (b"7\n2\n", {"interface": "lo"}), (b"0\n", None)])
def test_at_a_terminal_one_of_the_ways_is_chosen(launcher, answer, chosen):
    ours, theirs = pty.openpty()
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "nosuch0", "XDG_CACHE_HOME": str(launcher.tmp_path), "LC_ALL": "C.UTF-8"}
    key, _, value = launcher.mark.partition("=")
    path = launcher.tmp_path / "asked"
    script = launcher.script(CONNECT)
    options = ["--fallback", "ask", "--max-restarts", "1", "--run-dir", str(path), "-n", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "unhang", "run", *options, str(script)],
        env={**env, key: value},
        cwd=launcher.tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    launcher.processes.append(process)
    os.close(theirs)
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        answered = False
        try:
            while more := terminal.read(65536):
                said += more
                if not answered and b"which one?" in said:
                    os.write(ours, answer)
                    answered = True
        except OSError:
            # The other end of a terminal that is gone.
            pass
    process.wait(60)
    text = said.decode(errors="replace")
    assert answered, text[-4000:]
    assert "1) " in text and "interface=lo" in text and "0) none of them" in text
    found = json.loads((path / "solution.json").read_bytes())
    assert found["chosen"] == chosen, text[-4000:]
    assert process.returncode == (1 if chosen is None else 0)


NCCL = """
dist.init_process_group("nccl")
train(6)
print("over", dist.get_backend())
dist.destroy_process_group()
"""


@pytest.fixture
def without_nccl():
    from torch import distributed

    if distributed.is_nccl_available():
        pytest.skip("this torch has NCCL")


def test_a_script_that_asks_for_nccl_where_there_is_none(launcher, without_nccl):
    run = launcher.train(NCCL)
    assert run.exitcode == 0, run.err[-4000:]
    assert run.outcome["fallback"]["chosen"] == {"backend": "gloo"} and run.outcome["attempts"] == 2
    assert "over gloo" in run.err


def test_without_trying_the_verdict_names_the_setting(launcher, without_nccl):
    run = launcher.train(NCCL, "--fallback", "off", "--max-restarts", "0")
    command = run.primary["remedies"][0]["command"]
    assert run.exitcode == 1 and command in run.err
    assert command.startswith("unhang run --set backend=gloo -n 2 --max-restarts 0 --fallback off ") and command.endswith("train.py")
