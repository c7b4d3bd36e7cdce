"""Lines that a collector wrapped into JSON are read as they were printed; what a training prints as JSON stays."""

from __future__ import annotations

import json

import pytest

from unhang.diagnosis.logs import judge_logs
from unhang.logs import parse

BROKEN = (
    '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/srv/job/load.py", line 12, in load\n'
    "[rank5]:     x = row['text']\n[rank5]: KeyError: 'text'\n"
)


def docker(line):
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-03T10:00:01.5Z"})


def fluent(line):
    return json.dumps({"timestamp": "2026-11-03T10:00:01.5Z", "message": line, "kubernetes": {"pod_name": "job-worker-1"}})


def numbered(line):
    return f"    12\t{line}"


@pytest.mark.parametrize("wrap", [docker, fluent, numbered, lambda line: fluent(docker(line))])
def test_a_wrapped_log_is_judged_as_it_was_printed(tmp_path, wrap):
    path = tmp_path / "train.log"
    path.write_text("".join(f"{wrap(line)}\n" for line in BROKEN.splitlines()))
    primary = judge_logs([str(path)]).verdict.primary
    assert (primary.cause, primary.ranks, primary.where) == ("rank-exception", (5,), "/srv/job/load.py:12 in load")


def test_time_and_host_are_told():
    line = parse(fluent("[rank3]:   boom"))
    assert (line.text, line.rank, line.host) == ("  boom", 3, "job-worker-1") and line.time is not None
    assert parse(line.text).text == line.text


@pytest.mark.parametrize(
    "text",
    ['{"loss": 2.1, "step": 4}', '{"message": "RendezvousTimeoutError: "}', '{"log": 3, "time": "x"}', '{"log": "cut off', '{"' * 40_000],
)
def test_what_is_no_wrapper_stays(text):
    assert parse(text).text == text[:65536]


def test_of_a_progress_bar_the_last_state():
    assert parse(docker("1%|\r50%| boom")).text == "50%| boom"
