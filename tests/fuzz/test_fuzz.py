"""The coverage-guided fuzzers, each for a bounded time, from the same seeds. A failure prints the input that caused it."""

from __future__ import annotations

import importlib.util
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 30


@pytest.mark.integration
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: it has wheels for Linux x86_64 and Python up to 3.13"
)
@pytest.mark.parametrize("fuzzer", ["fuzz_opening.py", "fuzz_judging.py"])
def test_nothing_that_is_read_breaks_the_reader(tmp_path, fuzzer):
    command = [sys.executable, str(Path(__file__).with_name(fuzzer)), str(tmp_path), f"-max_total_time={SECONDS}", "-max_len=8192"]
    # What libFuzzer takes for its own memory is the peak, and a process begins with that of the one that started it.
    limit_mb = 512 + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    command += [f"-rss_limit_mb={limit_mb}", "-timeout=10", "-seed=1", f"-artifact_prefix={tmp_path}/found-"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS + 60)
    found = [f"{p.name}: {p.read_bytes()!r}" for p in tmp_path.glob("found-*")]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + "\n".join(found)
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs and int(runs[1]) > 1000, done.stderr[-3000:]
