"""Shared memory and host memory that run out, are forbidden, or vanish."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SMALL_SHM = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")


def test_workers_need_more_than_dev_shm_holds(provoke, mounts):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--size-bytes", "4194304", wrap=mounts(SMALL_SHM))
    assert ran.exitcode == 1
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "shm-exhausted" and primary["standing"] in ("established", "likely")
    assert "shm" in primary["says"]


@pytest.mark.integration
def test_a_tensor_larger_than_dev_shm(provoke, mounts):
    ran = provoke(provoke.python, provoke.scripts / "pass_tensor.py", "--elements", "1000000", wrap=mounts(SMALL_SHM))
    assert ran.exitcode != 0
    assert provoke.primary(ran.log)["cause"] == "shm-exhausted"


@pytest.mark.parametrize(
    ("closed", "ends_as"),
    [
        ("mount -t tmpfs -o ro tmpfs /dev/shm", 'exec "$@"'),
        # Root without the right to override permissions is a user like others.
        ("mount -t tmpfs -o mode=0755,uid=65534 tmpfs /dev/shm", 'exec setpriv --bounding-set -dac_override,-dac_read_search "$@"'),
    ],
    ids=["read-only", "of-another-user"],
)
def test_dev_shm_cannot_be_written(provoke, mounts, closed, ends_as):
    ran = provoke(provoke.python, provoke.scripts / "pass_tensor.py", wrap=mounts(closed, ends_as=ends_as))
    assert ran.exitcode == 1
    assert provoke.primary(ran.log)["cause"] == "shm-permission"


def test_a_segment_removed_before_its_reader_came(provoke, mounts):
    ran = provoke(provoke.python, provoke.scripts / "pass_tensor.py", "--clean", wrap=mounts("mount -t tmpfs tmpfs /dev/shm"))
    assert ran.exitcode == 1
    assert provoke.primary(ran.log)["cause"] == "shm-stale-or-missing"


@pytest.mark.parametrize("script", ["load_data.py", "pass_tensor.py"])
def test_healthy(provoke, mounts, script):
    ran = provoke(provoke.python, provoke.scripts / script, wrap=mounts("mount -t tmpfs tmpfs /dev/shm"))
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


def test_a_rank_that_is_killed_under_torchrun(provoke):
    ran = provoke.torchrun("train.py", "--fault", "killed")
    assert ran.exitcode == 1
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("host-oom-or-killed", [1])


@pytest.mark.integration
def test_a_rank_that_is_killed_under_mp_spawn(provoke, port):
    ran = provoke(provoke.python, provoke.scripts / "spawn_ranks.py", "--port", str(port), "--fault", "killed")
    assert ran.exitcode == 1
    assert provoke.primary(ran.log)["cause"] == "host-oom-or-killed"


def test_a_rank_killed_in_a_shell_script(provoke):
    script = provoke.tmp_path / "train.sh"
    script.write_text(f"{provoke.python} {provoke.scripts}/load_data.py --fault killed --timeout-s 0 || true\nsh -c 'kill -9 $$'\necho done: $?\n")
    ran = provoke("bash", script)
    assert "Killed" in ran.text
    assert provoke.primary(ran.log)["cause"] == "host-oom-or-killed"


@pytest.fixture
def memory_cgroup():
    """A memory cgroup of 700 MB; the wrap that runs a command in it."""
    group = MEMORY_CGROUPS / f"unhang-test-{uuid.uuid4().hex[:8]}"
    if os.geteuid() != 0 or not MEMORY_CGROUPS.is_dir():
        pytest.skip("limiting memory needs root and a memory cgroup")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(700 << 20))
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    finally:
        group.rmdir()


@pytest.mark.integration
def test_a_rank_that_outgrows_its_cgroup(provoke, memory_cgroup):
    ran = provoke.torchrun("train.py", "--fault", "grows", wrap=memory_cgroup)
    assert ran.exitcode == 1 and "exitcode  : -9" in ran.text
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "host-oom-or-killed"
