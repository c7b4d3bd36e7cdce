"""Loaders that stand still, disks that are full, paths that only one rank sees, clocks that disagree."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def test_a_worker_that_never_delivers(provoke):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--fault", "stuck", "--timeout-s", "2")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("dataloader-deadlock", "established")
    assert "load_data.py:" in primary["where"] and primary["where"].endswith("in main")


@pytest.mark.integration
def test_a_worker_that_raises(provoke):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--fault", "exception")
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "rank-exception"
    assert any("image file is truncated" in e["text"] for e in primary["evidence"])


def test_a_worker_that_is_killed(provoke):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--fault", "killed", "--timeout-s", "20")
    assert ran.exitcode != 0
    assert "killed by signal: Killed" in ran.text
    assert provoke.primary(ran.log)["cause"] == "host-oom-or-killed"


@pytest.fixture
def small_disk(provoke, mounts):
    folder = provoke.tmp_path / "disk"
    folder.mkdir()
    return folder, mounts(f"mount -t tmpfs -o size=1m tmpfs {folder}")


def test_a_checkpoint_larger_than_the_disk(provoke, small_disk):
    folder, wrap = small_disk
    ran = provoke.torchrun("save_checkpoint.py", "--folder", folder, "--width", "1000", wrap=wrap)
    assert ran.exitcode == 1
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("disk-full", [0])


def test_logs_larger_than_the_disk(provoke, small_disk):
    folder, wrap = small_disk
    log = folder / "train.log"
    code = f"with open({str(log)!r}, 'w') as log:\n    for step in range(100000):\n        print('step', step, 'loss 0.1', file=log)\n"
    ran = provoke(provoke.python, "-c", code, wrap=wrap)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "disk-full"


@pytest.mark.integration
def test_a_checkpoint_that_fits(provoke, small_disk):
    folder, wrap = small_disk
    ran = provoke.torchrun("save_checkpoint.py", "--folder", folder, wrap=wrap)
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


def test_a_checkpoint_that_only_its_writer_sees(provoke, mounts, unnumbered_path):
    """Rank 1 has a folder of its own at the same path, as on two nodes without a shared file system."""
    folder = unnumbered_path / "checkpoints"
    folder.mkdir()
    private = mounts(f"mount -t tmpfs tmpfs {folder}")
    ran = provoke.ranks("save_checkpoint.py", "--folder", folder, wrap_of={1: private})
    assert [r.exitcode for r in ran] != [0, 0]
    primary = provoke.primary(ran[0].log)
    assert primary["cause"] == "filesystem-shared" and "checkpoint.pt" in primary["says"]


@pytest.mark.integration
def test_a_configuration_that_is_on_one_host_only(provoke, hosts, unnumbered_path):
    config = unnumbered_path / "configs"
    config.mkdir()
    (config / "model.yaml").write_text("width: 64\n")
    ran = hosts("save_checkpoint.py", "--folder", provoke.tmp_path, "--config", config / "model.yaml", env={"ONLY_ON_NODE0": str(config)})
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "filesystem-shared" and "model.yaml" in primary["says"]


CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { const char *s = getenv("CLOCK_OFF_S"); return s ? atol(s) : 0; }
time_t time(time_t *t) { struct timespec n; clock_gettime(CLOCK_REALTIME, &n); if (t) *t = n.tv_sec; return n.tv_sec; }
int gettimeofday(struct timeval *tv, void *tz) {
  struct timespec n; clock_gettime(CLOCK_REALTIME, &n); tv->tv_sec = n.tv_sec; tv->tv_usec = n.tv_nsec / 1000; return 0;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int r = real(id, ts);
  if (r == 0 && id == CLOCK_REALTIME) ts->tv_sec += off();
  return r;
}
"""


@pytest.fixture
def wrong_clock(provoke):
    """The environment of a process whose clock is off by so many seconds."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library = provoke.tmp_path / "clock.c", provoke.tmp_path / "libclock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return lambda off_s: {"LD_PRELOAD": str(library), "CLOCK_OFF_S": str(off_s)}


@pytest.fixture
def certificate(provoke) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    file = provoke.tmp_path / "host.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    made = provoke(
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout", file, "-out", provoke.tmp_path / "c.pem"
    )
    assert made.exitcode == 0, made.text
    file.write_text(file.read_text() + (provoke.tmp_path / "c.pem").read_text())
    return file


@pytest.mark.parametrize("off_s", [-86400 * 30, 0], ids=["a-month-behind", "right"])
def test_a_download_with_a_clock_that_is(provoke, wrong_clock, certificate, port, off_s):
    """The certificate of the server is good; it is the host's clock by which it is not valid yet."""
    server = (provoke.python, provoke.scripts / "serve_files.py", str(port), certificate)
    client = (provoke.python, provoke.scripts / "download.py", f"https://localhost:{port}/model.safetensors", certificate)
    ran = provoke.together([(client, wrong_clock(off_s)), (server, {})])[0]
    if off_s == 0:
        assert ran.exitcode == 0, ran.text
        assert provoke.verdict(ran.log)["primary"] is None
    else:
        assert ran.exitcode == 1
        assert provoke.primary(ran.log)["cause"] == "clock-skew"


@pytest.fixture
def frozen(provoke) -> Iterator[Path]:
    """A folder on a file system that is frozen: whoever writes there stands still inside the kernel, which says so in its log after a second."""
    settings = [Path("/proc/sys/kernel") / n for n in ("hung_task_timeout_secs", "hung_task_warnings")]
    if os.geteuid() != 0 or not all(s.exists() for s in settings) or shutil.which("fsfreeze") is None:
        pytest.skip("freezing a file system needs root, and a kernel that watches for hung tasks")
    image, folder = provoke.tmp_path / "image", provoke.tmp_path / "frozen"
    folder.mkdir()
    with image.open("wb") as f:
        f.truncate(16 << 20)
    with contextlib.ExitStack() as undo:
        made = provoke("mkfs.ext4", "-q", image)
        mounted = provoke("mount", "-o", "loop", image, folder)
        if made.exitcode != 0 or mounted.exitcode != 0:
            pytest.skip(f"no file system can be mounted here: {made.text}{mounted.text}")
        undo.callback(subprocess.run, ["umount", str(folder)], check=True)
        for setting, value in zip(settings, ("1", "10"), strict=True):
            undo.callback(setting.write_text, setting.read_text())
            setting.write_text(value)
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        undo.callback(provoke.end_all)
        undo.callback(subprocess.run, ["fsfreeze", "--unfreeze", str(folder)], check=True)
        yield folder


@pytest.mark.integration
def test_a_rank_that_stands_still_inside_the_kernel(provoke, frozen):
    # By its lines, not by how many: the kernel's ring forgets the oldest.
    before = set(_kernel_log())
    process = subprocess.Popen(["sh", "-c", f"exec {provoke.python} -c \"open('{frozen}/x', 'w').write('x')\""], env=provoke.environ({}))
    kernel = provoke.tmp_path / "dmesg.log"
    try:
        for _ in range(200):
            kernel.write_text("".join(line for line in _kernel_log() if line not in before))
            if f":{process.pid} blocked for more than" in kernel.read_text():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        primary = provoke.primary(kernel)
        assert primary["cause"] == "process-stuck" and str(process.pid) in primary["says"]
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(frozen)], check=True)
        process.wait(timeout=20)
        subprocess.run(["fsfreeze", "--freeze", str(frozen)], check=True)


def _kernel_log() -> list[str]:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines(keepends=True)


@pytest.mark.integration
def test_healthy_loading(provoke):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--timeout-s", "20")
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None
